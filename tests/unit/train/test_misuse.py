"""What people write who come from Keras, Lightning or scikit-learn is refused at once, with what is meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from trained import LOSS, X, Y, small, trainer_of

import stratal as st
from stratal import nn, optim
from stratal.base.errors import StratalError
from stratal.train import CheckpointManager, EarlyStopping, Schedule, Trainer


def other(**options: Any) -> Trainer:
    return trainer_of(small(), **options)


@pytest.mark.parametrize(
    ("call", "message", "hint"),
    [
        (lambda t: t.fit(X, Y), "fit: takes the data", "fit((x, y))"),
        (lambda t: t.fit((X, Y), 3), "fit: takes the data", "fit((x, y))"),
        (lambda t: t.evaluate(X, Y), "evaluate: takes the data", "evaluate((x, y))"),
        (lambda t: t.fit((X, Y), validation_data=(X, Y)), "an option it does not have", "validation="),
        (lambda t: t.fit((X, Y), verbose=0), "an option it does not have", "progress="),
        (lambda t: t.fit((X, Y), callbacks=[]), "an option it does not have", "Trainer(.., callbacks="),
        (lambda t: t.fit((X, Y), epoch=3), "an option it does not have", "did you mean epochs?"),
        (lambda t: t.fit((X, Y), epochs="3"), "epochs counts from 1", ""),
        (lambda t: t.fit((X, Y), checkpoints="run"), "checkpoints is a manager", "CheckpointManager("),
        (lambda t: other(callbacks=EarlyStopping()), "callbacks is a list", "[callback]"),
        (lambda t: other(callbacks=[EarlyStopping]), "a callback is an object", "EarlyStopping(..)"),
        (lambda t: other(callbacks=[lambda: None]), "a callback has some of the methods", "on_epoch_end"),
        (lambda t: other(metrics=st.metrics.MeanMetric()), "metrics is a list", "[metric]"),
        (lambda t: other(scheduler=3), "an option it does not have", "Schedule("),
        (lambda t: other(gradient_clip_val=3), "an option it does not have", "clip_norm"),
        (lambda t: other(epochs=3), "an option it does not have", "fit(.., epochs="),
        (lambda t: Trainer(t.net, loss="mse"), "loss is a function of", "nn.functional.mse_loss"),
        (lambda t: Trainer(t.net, loss=nn.MSELoss), "loss is a function of", "MSELoss()"),
        (lambda t: Trainer(t.net, loss=LOSS, optimizer=optim.Adam), "takes an optimizer", "net.parameters()"),
        (lambda t: Schedule(optim.lr_scheduler.StepLR), "takes a scheduler", "StepLR(optimizer, .."),
        (lambda t: t.fit((X, Y)).rows and t.history["val_loss"], "a column it does not have", "validation"),
    ],
)  # fmt: skip
def test_what_others_take_is_refused_with_what_is_taken_here(
    call: Callable[[Trainer], Any], message: str, hint: str
) -> None:
    with pytest.raises(StratalError, match=message) as caught:
        call(other())
    assert hint in caught.value.hint


class AddsAColumn:
    def on_epoch_end(self, trainer: Trainer, row: dict[str, Any]) -> None:
        row["mine"] = 1.0


def test_a_column_that_will_not_be_there_is_refused_before_the_first_epoch(tmp_path: Any) -> None:
    sgd = optim.SGD(small().parameters(), lr=0.1)
    plateau = Schedule(optim.lr_scheduler.ReduceLROnPlateau(sgd), monitor="loss_")
    best = CheckpointManager(tmp_path / "run", keep_best=1, monitor="val_loss")
    for callbacks, checkpoints, hint in (
        ([EarlyStopping("val_loss")], None, "did you mean validation_loss?"),
        ([EarlyStopping("validation_loss")], None, "fit(.., validation=..)"),
        ([plateau], None, "did you mean loss?"),
        ([], best, "did you mean validation_loss?"),
    ):
        trainer = other(callbacks=callbacks)
        data = {} if hint.startswith("fit") else {"validation": (X, Y)}
        with pytest.raises(StratalError, match="monitors a column that the history") as caught:
            trainer.fit((X, Y), checkpoints=checkpoints, **data)
        assert hint in caught.value.hint and trainer.steps == 0 and not (tmp_path / "run").exists()
    trainer = other(callbacks=[AddsAColumn(), EarlyStopping("mine", patience=1)])
    assert len(trainer.fit((X, Y), epochs=3)) == 2


def test_names_of_other_libraries_say_what_there_is() -> None:
    for owner, name, hint in (
        (st.train, "ModelCheckpoint", "CheckpointManager"), (st.train, "LearningRateScheduler", "Schedule"),
        (st.train, "ReduceLROnPlateau", "lr_scheduler"), (st, "torchvision", "st.models"),
        (st, "transforms", "st.data"), (st, "losses", "nn.functional"),
        (st, "multiprocessing", "stratal launch"),
        (st, "onnx", "st.save"), (st, "profiler", "st.profile"),
    ):  # fmt: skip
        with pytest.raises(AttributeError) as caught:
            getattr(owner, name)
        assert hint in str(caught.value)
