"""Callbacks hear of a fit in order, and those that are given do what they say."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trained import LOSS, X, Y, batches, bits, small, trainer_of

from stratal import optim
from stratal.base.errors import DTypeError, StratalError
from stratal.train import EMA, CSVLog, EarlyStopping, Schedule, Trainer


class Events:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_fit_begin(self, trainer: Trainer) -> None:
        self.seen.append("fit")

    def on_epoch_begin(self, trainer: Trainer) -> None:
        self.seen.append("epoch")

    def on_step_end(self, trainer: Trainer) -> None:
        self.seen.append(trainer.steps)

    def on_epoch_end(self, trainer: Trainer, row: dict[str, float]) -> None:
        self.seen.append(f"row {row['epoch']}")
        row["mine"] = 7.0

    def on_fit_end(self, trainer: Trainer) -> None:
        self.seen.append("end")


def test_callbacks_hear_of_what_happens_in_order_and_add_to_the_row() -> None:
    events = Events()
    history = trainer_of(small(), callbacks=[events]).fit(batches(), epochs=2)
    assert events.seen == ["fit", "epoch", 1, 2, 3, "row 1", "epoch", 4, 5, 6, "row 2", "end"]
    assert history["mine"] == [7.0, 7.0]


def test_a_callback_with_a_misspelled_event_is_refused() -> None:
    class Wrong:
        def on_epoch_ends(self) -> None: ...

    with pytest.raises(StratalError, match="Wrong: an event that fit does not have") as caught:
        trainer_of(small(), callbacks=[Wrong()])
    assert caught.value.hint == "did you mean on_epoch_end?"


def test_early_stopping_ends_training_and_gives_the_best_weights_back() -> None:
    net = small()
    values = iter([3.0, 1.0, 2.0, 2.0, 9.0, 9.0])
    seen: list[bytes] = []

    class Scripted:
        def on_epoch_end(self, trainer: Trainer, row: dict[str, float]) -> None:
            row["value"] = next(values)
            seen.append(bits(net))

    stopping = EarlyStopping("value", patience=2, mode="min", restore_best=True)
    trainer = trainer_of(net, callbacks=[Scripted(), stopping])
    history = trainer.fit(batches(), epochs=10)
    assert len(history) == 4 and "value has not improved for 2 epochs" in str(history)
    assert bits(net) == seen[1]
    assert len(trainer.fit(batches(), epochs=2)) == 2  # the best of another fit does not count
    assert bits(net) == seen[4]
    with pytest.raises(StratalError, match="monitors a column"):
        trainer_of(small(), callbacks=[EarlyStopping("validation_loss")]).fit(batches())


@pytest.mark.parametrize("first", [math.nan, math.inf, 1.0])
def test_early_stopping_needs_more_than_one_epoch_to_see_that_nothing_improves(first: float) -> None:
    class Column:
        values = iter([first, 2.0 if first == 1.0 else first, 0.5, 0.5])

        def on_epoch_end(self, trainer: Trainer, row: Any) -> None:
            row["column"] = next(self.values)

    trainer = trainer_of(small(), callbacks=[Column(), EarlyStopping("column", patience=1, mode="min")])
    assert len(trainer.fit((X, Y), epochs=4)) == 2


def test_schedules_move_per_epoch_per_step_or_by_a_column() -> None:
    rates = {}
    for per in ("epoch", "step", "plateau"):
        net = small()
        opt = optim.SGD(net.parameters(), lr=1.0)
        if per == "plateau":
            plateau = optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=0, threshold=10.0)
            schedule = Schedule(plateau, monitor="loss")
        else:
            schedule = Schedule(optim.lr_scheduler.StepLR(opt, 1, gamma=0.5), per=per)
        trainer = Trainer(net, loss=LOSS, optimizer=opt, callbacks=[schedule])
        rates[per] = trainer.fit(batches(), epochs=3)["lr"]
        assert trainer.step.captures == 2
    assert rates["epoch"] == [1.0, 0.5, 0.25]
    assert rates["step"] == [0.125, 0.125**2, 0.125**3]
    assert rates["plateau"][0] == 1.0 and rates["plateau"][-1] < 1.0


def test_an_exponential_average_follows_its_formula() -> None:
    net = small()
    ema, weights = EMA(net, decay=0.5), []

    class Seen:
        def on_step_end(self, trainer: Trainer) -> None:
            weights.append(np.asarray(net[0].weight.detach()).copy())

    trainer_of(net, callbacks=[Seen(), ema]).fit(batches(), epochs=1)
    expected = weights[0]
    for w in weights[1:]:
        expected = 0.5 * expected + 0.5 * w
    np.testing.assert_allclose(np.asarray(ema.net[0].weight.detach()), expected, rtol=1e-6)
    assert set(Trainer(ema.net, loss=LOSS).evaluate((X, Y))) == {"loss"}


def test_the_csv_log_has_a_line_for_each_epoch(tmp_path: Path) -> None:
    trainer = trainer_of(small(), callbacks=[CSVLog(tmp_path / "log.csv")])
    trainer.fit(batches(), epochs=2)
    trainer.fit(batches(), epochs=3)
    lines = (tmp_path / "log.csv").read_text().splitlines()
    assert lines[0].startswith("epoch,loss,")
    assert [line.split(",")[0] for line in lines[1:]] == ["1", "2", "3"]


@pytest.mark.parametrize("value", [None, [1.0], "low", {}])
def test_a_monitored_value_that_is_no_number_is_named(value: Any) -> None:
    class Sets:
        def on_epoch_end(self, trainer: Any, row: dict[str, Any]) -> None:
            row["value"] = value

    with pytest.raises(DTypeError, match="EarlyStopping: monitors one number of each epoch"):
        trainer_of(small(), callbacks=[Sets(), EarlyStopping("value", mode="min")]).fit(batches())
