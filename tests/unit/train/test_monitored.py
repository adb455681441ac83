"""What is monitored improves the way its metric says: the best is kept, and never the worst."""

from __future__ import annotations

import inspect
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trained import LOSS, X, Y, bits, small, trainer_of

import stratal as st
from stratal import nn, optim
from stratal.base.errors import StratalError
from stratal.train import CheckpointManager, EarlyStopping, Schedule, Trainer

ACCURACY = st.metrics.Accuracy(task="multiclass", num_classes=2)
ERRORS = st.metrics.HammingDistance(task="multiclass", num_classes=2)
F = st.metrics.functional


class Moves:
    """Gives the net's last bias a value in each epoch, so that the share of right classes is known."""

    def __init__(self, net: nn.Module, values: list[float]) -> None:
        self.net, self.values, self.seen = net, iter(values), list[bytes]()

    def on_epoch_begin(self, trainer: Any) -> None:
        with st.no_grad():
            self.net[-1].weight.zero_()
            self.net[-1].bias.copy_(st.tensor([0.0, next(self.values)]))
        self.seen.append(bits(self.net))


def still(net: nn.Module, **options: Any) -> Trainer:
    return Trainer(net, loss=LOSS, optimizer=optim.SGD(net.parameters(), lr=0.0), **options)


ONES = np.ones(70, np.int64)


@pytest.mark.parametrize(
    "metric",
    [ACCURACY, ERRORS, partial(F.accuracy, task="binary"), partial(F.mean_squared_error)],
    ids=["accuracy", "errors", "partial", "squares"],
)
def test_the_best_by_a_metric_is_restored_and_kept_whichever_way_it_improves(
    metric: Any, tmp_path: Path
) -> None:
    net = small()
    given = metric if not isinstance(metric, partial) else _of_classes(metric)
    moves = Moves(net, [-1.0, 1.0, -1.0, -1.0])
    stopping = EarlyStopping("validation_found", patience=2, restore_best=True)
    trainer = still(net, metrics={"found": given}, callbacks=[moves, stopping])
    manager = CheckpointManager(tmp_path, keep_last=1, keep_best=1, monitor="found")
    history = trainer.fit((X, ONES), epochs=9, validation=(X, ONES), checkpoints=manager)
    assert len(history) == 4 and bits(net) == moves.seen[1]
    assert manager.best().name == CheckpointManager(tmp_path, monitor="found").best().name
    assert manager.load(manager.best())["trainer"]["epoch"] == 2


def _of_classes(function: Any) -> Any:
    def found(out: Any, y: Any) -> Any:
        return function(out.argmax(1).float(), y)

    found.higher_is_better = function.func.higher_is_better  # type: ignore[attr-defined]
    return found


def test_what_may_improve_either_way_asks_for_the_mode_before_the_first_epoch(tmp_path: Path) -> None:
    right = {"right": lambda out, y: (out.argmax(1) == y).float().mean()}
    best = CheckpointManager(tmp_path / "run", keep_best=1, monitor="right")
    stopping = EarlyStopping("right")
    for callbacks, checkpoints in (([stopping], None), ([], best), ([EarlyStopping("seconds")], None)):
        trainer = still(small(), metrics=right, callbacks=callbacks)
        with pytest.raises(StratalError, match="not known which way") as caught:
            trainer.fit((X, Y), checkpoints=checkpoints)
        assert 'mode="max"' in caught.value.hint and not trainer.steps and not (tmp_path / "run").exists()
    said = EarlyStopping("right", patience=1, mode="max")
    assert len(still(small(), metrics=right, callbacks=[said]).fit((X, Y), epochs=5)) == 2
    with pytest.raises(StratalError, match='mode is "min" or "max"') as caught:
        EarlyStopping("right", mode="auto")
    assert "without mode" in caught.value.hint


def test_a_plateau_that_waits_for_the_other_way_and_a_metric_of_many_numbers_are_refused() -> None:
    net = small()
    opt = optim.SGD(net.parameters(), lr=0.1)
    for mode, metric, asked in (("min", ACCURACY, "max"), ("max", ERRORS, "min")):
        plateau = Schedule(optim.lr_scheduler.ReduceLROnPlateau(opt, mode), monitor="found")
        trainer = Trainer(net, loss=LOSS, optimizer=opt, metrics={"found": metric}, callbacks=[plateau])
        with pytest.raises(StratalError, match="improves the other way") as caught:
            trainer.fit((X, Y))
        assert caught.value.hint == f'mode="{asked}"'
    each = st.metrics.Accuracy(task="multiclass", num_classes=2, average=None)
    trainer = trainer_of(small(), metrics={"each": each}, callbacks=[EarlyStopping("each")])
    with pytest.raises(StratalError, match="one number of each epoch"):
        trainer.fit((X, Y))


def test_every_metric_with_one_value_says_which_way_it_improves() -> None:
    silent = {"Metric", "MeanMetric", "ConfusionMatrix", "ROC", "PrecisionRecallCurve"}
    found = {name: m for name, m in vars(st.metrics).items() if inspect.isclass(m)}
    assert {name for name, m in found.items() if m.higher_is_better is None} == silent
    falls = {name for name, m in found.items() if m.higher_is_better is False}
    assert falls == {
        "HammingDistance", "MeanAbsoluteError", "MeanAbsolutePercentageError", "MeanSquaredError",
        "MeanSquaredLogError", "Perplexity", "CharErrorRate", "WordErrorRate",
    }  # fmt: skip
