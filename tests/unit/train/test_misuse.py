"""What people write who come from Keras, Lightning or scikit-learn is refused at once, with what is meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from trained import LOSS, X, Y, small, trainer_of

import stratal as st
from stratal import nn, optim
from stratal.base.errors import StratalError
from stratal.train import ChangedProgramWarning, CheckpointManager, EarlyStopping, Schedule, Trainer


def other(**options: Any) -> Trainer:
    return trainer_of(small(), **options)


def a_scheduler(trainer: Trainer) -> Any:
    return optim.lr_scheduler.StepLR(trainer.optimizer, 1)


class HalfHolder:
    def state_dict(self) -> dict[str, Any]:
        return {}


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
        (lambda t: other(callbacks=[a_scheduler(t)]), "a callback has some of", "Schedule(StepLR("),
        (lambda t: other(callbacks=[t.net]), "a callback has some of", "takes the net"),
        (lambda t: other(callbacks=[t.optimizer]), "a callback has some of the methods", "optimizer="),
        (lambda t: other(callbacks=[HalfHolder()]), "a callback has some of the methods", "on_epoch_end"),
        (lambda t: other(metrics=st.metrics.MeanMetric()), "metrics is a list", "[metric]"),
        (lambda t: other(scheduler=3), "an option it does not have", "Schedule("),
        (lambda t: other(progress=False), "an option it does not have", "fit(.., progress=False)"),
        (lambda t: other(compile=False), "an option it does not have", "did you mean compiled?"),
        (lambda t: other(metrics=["accuracy"]), "a metric is one of st.metrics", "st.metrics.Accuracy("),
        (lambda t: Trainer(t.net, optimizer=[t.optimizer]), "takes an optimizer", "state_dict"),
        (lambda t: t.fit((X,)), "takes inputs with targets", "fit((inputs, targets))"),
        (lambda t: t.fit((X, np.array(["a", "b"])[Y])), "fit: targets are numbers", "np.unique("),
        (lambda t: t.fit(({"a": X.astype(object)}, Y)), r"fit: inputs\['a'\] are numbers", "astype("),
        (lambda t: t.fit([(X, (Y, X.astype("M8[s]")))]), r"fit: targets\[1\] are numbers", ""),
        (lambda t: other(gradient_clip_val=3), "an option it does not have", "clip_norm"),
        (lambda t: other(epochs=3), "an option it does not have", "fit(.., epochs="),
        (lambda t: Trainer(t.net, loss="mse"), "loss is a function of", "nn.functional.mse_loss"),
        (lambda t: Trainer(t.net, loss=nn.MSELoss), "loss is a function of", "MSELoss()"),
        (lambda t: Trainer(t.net, loss=LOSS, optimizer=optim.Adam), "takes an optimizer", "net.parameters()"),
        (lambda t: Trainer(t.net, optimizer=optim.LBFGS(t.net.parameters())), "a closure", "step=step"),
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


def test_a_schedule_of_another_optimizer_is_refused_and_one_of_a_step_of_ones_own_is_not() -> None:
    schedule = Schedule(optim.lr_scheduler.StepLR(optim.SGD(small().parameters(), lr=0.1), 1))
    trainer = other(callbacks=[schedule])
    with pytest.raises(StratalError, match="the rates of another optimizer") as caught:
        trainer.fit((X, Y))
    assert caught.value.got == "Schedule(StepLR)" and trainer.steps == 0
    sgd = optim.SGD(trainer.net.parameters(), lr=0.1)

    def step(x: Any, y: Any) -> Any:
        loss = LOSS(trainer.net(x), y)
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        return loss

    assert len(Trainer(trainer.net, step=step, callbacks=[schedule]).fit((X, Y))) == 1


def test_a_checkpoint_where_a_part_of_it_belongs_says_which_part(tmp_path: Any) -> None:
    manager, trainer = CheckpointManager(tmp_path), other()
    trainer.fit((X, Y), checkpoints=manager)
    state = manager.load()
    with pytest.raises(StratalError, match="takes what its state_dict returned") as caught:
        trainer.load_state_dict(state)
    assert caught.value.hint == 'state["trainer"] of a checkpoint'
    with pytest.raises(StratalError, match="does not fit") as caught:
        trainer.net.load_state_dict(state)
    assert "checkpoint['trainer']['net']" in caught.value.hint
    with pytest.raises(StratalError, match="with the data of the run") as caught:
        other().fit((X, Y), validation=(X, Y), checkpoints=manager, resume=True)
    assert caught.value.got == "a validation"
    scaled = other(precision="float16")
    with pytest.warns(ChangedProgramWarning):
        scaled.fit((X, Y), epochs=2, checkpoints=manager, resume=True)  # a scaler begins
    assert scaled.epoch == 2


def test_a_last_batch_of_one_row_under_batch_norm_says_how_to_leave_it_out() -> None:
    net = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    with pytest.raises(StratalError, match="more than one value per channel") as caught:
        trainer_of(net).fit((X[:33], Y[:33]))
    assert "drop_last" in caught.value.hint


def test_the_page_and_the_decisions_of_the_trainers_step_are_those_of_its_program(tmp_path: Any) -> None:
    trainer = other()
    trainer.fit((X[:32], Y[:32]))
    trainer.step.view(tmp_path / "step.html")
    assert "<html" in (tmp_path / "step.html").read_text()[:200].lower()
    assert str(trainer.step.explain())
    with pytest.raises(StratalError, match="view: of a compiled step"):
        other(compiled=False).step.view()


class AddsAColumn:
    def on_epoch_end(self, trainer: Trainer, row: dict[str, Any]) -> None:
        row["mine"] = 1.0


def test_a_column_that_will_not_be_there_is_refused_before_the_first_epoch(tmp_path: Any) -> None:
    best = CheckpointManager(tmp_path / "run", keep_best=1, monitor="val_loss")
    for callbacks, checkpoints, hint in (
        ([EarlyStopping("val_loss")], None, "did you mean validation_loss?"),
        ([EarlyStopping("validation_loss")], None, "fit(.., validation=..)"),
        ([], None, "did you mean loss?"),
        ([], best, "did you mean validation_loss?"),
    ):
        trainer = other(callbacks=callbacks)
        if checkpoints is None and not callbacks:
            plateau = optim.lr_scheduler.ReduceLROnPlateau(trainer.optimizer)
            trainer.callbacks.append(Schedule(plateau, monitor="loss_"))
        data = {} if hint.startswith("fit") else {"validation": (X, Y)}
        with pytest.raises(StratalError, match="monitors a column that the history") as caught:
            trainer.fit((X, Y), checkpoints=checkpoints, **data)
        assert hint in caught.value.hint and trainer.steps == 0 and not (tmp_path / "run").exists()
    trainer = other(callbacks=[AddsAColumn(), EarlyStopping("mine", patience=1, mode="max")])
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


@pytest.mark.parametrize(
    ("returned", "got", "hint"),
    [
        (lambda loss: {"loss": loss}, "a dict of loss", 'return found["loss"]'),
        (lambda loss: None, "nothing", "return loss"),
        (lambda loss: loss * st.ones(3), "a loss of shape [3]", "loss.mean()"),
        (lambda loss: "0.5", "str", "return loss"),
        (lambda loss: [loss, loss, loss], "list", "return loss"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("compiled", [True, False])
def test_a_step_that_returns_no_loss_is_told_what_it_returns(
    returned: Callable[[Any], Any], got: str, hint: str, compiled: bool
) -> None:
    net = small()
    opt = optim.SGD(net.parameters(), lr=0.1)

    def step(x: Any, y: Any) -> Any:
        loss = LOSS(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return returned(loss.detach())

    with pytest.raises(StratalError, match="returns the loss, one number") as caught:
        Trainer(net, step=step, compiled=compiled).fit((X, Y))
    assert caught.value.got == got and caught.value.hint == hint


def test_a_step_of_ones_own_may_take_inputs_alone() -> None:
    net = small()
    opt = optim.SGD(net.parameters(), lr=0.1)

    def step(x: Any) -> Any:
        loss = (net(x) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    for data in ((X,), X):
        trainer = Trainer(net, step=step)
        assert len(trainer.fit(data, epochs=2, batch_size=32)["loss"]) == 2 and trainer.steps == 6


def test_a_metric_of_one_tensor_says_what_takes_targets_with_weights() -> None:
    class OfFirst(st.metrics.Accuracy):
        def batch(self, preds: Any, target: Any) -> dict[str, Any]:
            return super().batch(preds, target[0])

    data = (X, (Y, np.ones(70, np.float32)))
    for kind in (st.metrics.Accuracy, OfFirst):
        metric = kind("multiclass", num_classes=2)
        trainer = Trainer(small(), loss=lambda out, t: LOSS(out, t[0]), metrics={"found": metric})
        if kind is OfFirst:
            assert 0 <= trainer.evaluate(data)["found"] <= 1
            continue
        with pytest.raises(StratalError, match="found takes no targets that are a tuple") as caught:
            trainer.evaluate(data)
        assert "super().batch(preds, target[0])" in caught.value.hint


def test_outputs_of_several_lengths_are_not_joined_and_lengths_of_sequences_need_an_uncompiled_net() -> None:
    net = nn.Embedding(4, 3)
    with pytest.raises(StratalError, match="predict: joins outputs along their rows") as caught:
        Trainer(net).predict([np.zeros((2, n), np.int64) for n in (3, 4)])
    assert caught.value.got == "[2, 3, 3] and [2, 4, 3]" and "one length" in caught.value.hint

    class Packs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(3, 2, batch_first=True)

        def forward(self, x: Any, lengths: Any) -> Any:
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, True, enforce_sorted=False)
            return self.rnn(packed)[1][0]

    data = (np.zeros((4, 5, 3), np.float32), np.array([3, 5, 1, 2])), np.array([0, 1, 0, 1])
    with pytest.raises(StratalError, match="lengths decide shapes") as caught:
        trainer_of(Packs()).fit(data)
    assert "compiled=False" in caught.value.hint
    assert len(trainer_of(Packs(), compiled=False).fit(data)) == 1


def test_the_columns_of_a_table_that_hold_no_numbers_are_named() -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"age": [1.0, 2.0], "city": ["a", "b"], "since": pandas.to_datetime([1, 2])})
    with pytest.raises(StratalError, match="fit: inputs are numbers") as caught:
        other().fit((table, np.array([0, 1])))
    assert "column city" in caught.value.got and "column since: datetime64" in caught.value.got
    assert "age" not in caught.value.got and "OneHot" in caught.value.hint
    mixed = pandas.DataFrame({"age": [1.0, 2.0], "is_new": [True, False]})
    with pytest.raises(StratalError, match="fit: inputs are numbers") as caught:
        other().fit((mixed, np.array([0, 1])))
    assert caught.value.got == "columns of bool and float64" and "astype(" in caught.value.hint
    with pytest.raises(StratalError, match="this is one of pandas") as caught:
        nn.Linear(1, 2)(table[["age"]])
    assert "st.tensor(x)" in caught.value.hint
