"""Trainer: fit gives what the loop written by hand gives, whatever the data come in and the options say."""

from __future__ import annotations

import io
import signal
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from trained import LOSS, X, Y, batches, bits, small, trainer_of

import stratal as st
from stratal import nn, optim
from stratal.base.errors import StratalError
from stratal.train import StepOptions, Trainer, TrainingStep
from stratal.train.history import Running
from stratal.train.progress import Progress


@pytest.mark.quick
@pytest.mark.row("B7")
def test_fit_has_the_bits_of_the_loop_written_by_hand_and_lowers_the_loss() -> None:
    net = small(dropout=0.1)
    history = trainer_of(net).fit((X, Y), epochs=4, batch_size=32)
    by_hand = small(dropout=0.1)
    opt = optim.Adam(by_hand.parameters(), lr=0.01)

    @st.compile
    def step(x: Any, y: Any) -> Any:
        loss = LOSS(by_hand(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    loader = st.data.DataLoader(st.data.TensorDataset(X, Y), batch_size=32, shuffle=True)
    for _ in range(4):
        for x, y in loader:
            step(x, y)
    assert bits(net) == bits(by_hand)
    assert history["loss"][-1] < history["loss"][0]
    assert net.training


def test_validation_is_captured_once_for_each_size_of_batch_however_many_epochs() -> None:
    trainer = trainer_of(small())
    trainer.fit((X, Y), epochs=4, batch_size=32, validation=(X[:20], Y[:20]))
    trainer.evaluate((X[:20], Y[:20]), batch_size=20)
    assert trainer._evaluated.captures == 1


@pytest.mark.parametrize("compiled", [True, False])
def test_the_trainers_step_serves_a_loop_written_by_hand(compiled: bool) -> None:
    net = small()
    trainer_of(net).fit(batches(), epochs=2)
    other = small()
    opt = optim.Adam(other.parameters(), lr=0.01)
    step = TrainingStep(other, LOSS, opt, StepOptions(), compiled)
    for _ in range(2):
        for x, y in batches():
            loss, outputs = step(st.tensor(x), st.tensor(y))
    assert outputs.shape == (6, 2) and loss.shape == ()
    assert bits(net) == bits(other)
    if compiled:
        assert step.captures == 2 and "linear" in str(step.plan)
    else:
        with pytest.raises(StratalError, match="plan: of a compiled step"):
            _ = step.plan
    given = small()
    step = TrainingStep(given, LOSS, optim.Adam(given.parameters(), lr=0.01), StepOptions(), compiled)
    Trainer(given, step=step).fit(batches(), epochs=2)
    assert bits(net) == bits(given)


@pytest.mark.parametrize(
    "data",
    [
        lambda: batches(),
        lambda: st.data.DataLoader(st.data.TensorDataset(X, Y), batch_size=32),
        lambda: (st.tensor(X), st.tensor(Y)),
        lambda: (X.astype(np.float64), Y),
        lambda: st.data.TensorDataset(X, Y),
        lambda: iter(batches()),
    ],
    ids=["list", "loader", "tensors", "float64", "data set", "iterator"],
)
def test_data_are_arrays_data_sets_or_batches_and_the_last_may_be_ragged(data: Callable[[], Any]) -> None:
    net, reference = small(), small()
    given = data()
    sizes = {"batch_size": 32} if not hasattr(given, "__iter__") or isinstance(given, tuple) else {}
    trainer_of(net).fit(given, shuffle=False, **sizes)
    trainer_of(reference).fit(batches())
    assert bits(net) == bits(reference)


@pytest.mark.torch
def test_a_loader_of_pytorchs_is_an_iterable_of_batches_too() -> None:
    torch = pytest.importorskip("torch")
    net, reference = small(), small()
    rows = torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(Y))
    trainer_of(net).fit(torch.utils.data.DataLoader(rows, batch_size=32))
    trainer_of(reference).fit(batches())
    assert bits(net) == bits(reference)


@pytest.mark.row("B7")
def test_evaluate_is_the_mean_over_samples_and_leaves_the_net_as_it_was() -> None:
    net = small(dropout=0.5)
    accuracy = st.metrics.Accuracy(task="multiclass", num_classes=2)
    trainer = trainer_of(net, metrics={"right": accuracy, "mean": lambda out, y: out.mean()})
    found, before = trainer.evaluate((X, Y), batch_size=32), bits(net)
    scores = np.asarray(trainer.predict(X, batch_size=32))
    assert scores.shape == (70, 2)
    assert found["right"] == pytest.approx((scores.argmax(1) == Y).mean())
    assert found["mean"] == pytest.approx(scores.mean(), abs=1e-6)
    whole = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    assert found["loss"] == pytest.approx(-np.log(whole[np.arange(70), Y]).mean(), rel=1e-5)
    assert net.training and bits(net) == before
    with pytest.raises(StratalError, match="before any batch"):
        accuracy.compute()  # evaluate has metrics of its own
    assert np.array_equal(np.asarray(trainer.predict([b[0] for b in batches()])), scores)
    assert np.array_equal(np.asarray(trainer.predict(batches())), scores)


def test_history_prints_as_a_table_and_gives_columns() -> None:
    trainer = trainer_of(small(), metrics=[st.metrics.Accuracy(task="multiclass", num_classes=2)])
    history = trainer.fit(batches(), epochs=2, validation=(X, Y))
    lines = str(history).splitlines()
    assert lines[0].split()[:5] == ["epoch", "loss", "accuracy", "validation_loss", "validation_accuracy"]
    assert history._repr_html_() == f"<pre>{history}</pre>"
    history.rows[0]["matrix"] = [[1, 2], [3, 4]]  # of a confusion matrix: not for a table
    assert str(history).splitlines() == lines and history["matrix"] == [[[1, 2], [3, 4]]]
    del history.rows[0]["matrix"]
    assert len(lines) == 3 and [row["epoch"] for row in history] == [1, 2]
    assert history[-1]["data_s"] >= 0 and history[0]["compile_s"] > 0
    assert "2 epochs" in repr(history) and set(history.results()[0]) == set(lines[0].split()[:5])
    with pytest.raises(StratalError, match="a column it does not have"):
        history["acc"]


def test_a_step_of_ones_own_is_any_function_of_a_batch() -> None:
    net = small()
    opt = optim.Adam(net.parameters(), lr=0.01)

    def step(x: Any, y: Any) -> Any:
        loss = LOSS(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    trainer = Trainer(net, step=step, optimizer=opt)
    history = trainer.fit(batches(), epochs=3)
    reference = small()
    trainer_of(reference).fit(batches(), epochs=3)
    assert bits(net) == bits(reference)
    assert trainer.step.captures == 2  # whole batches, and the last
    assert history["loss"][-1] < history["loss"][0]
    with pytest.raises(StratalError, match="a step that returns the loss"):
        Trainer(net, step=step, metrics={"m": lambda out, y: out.mean()}).fit(batches())


@pytest.mark.sampled(7)
@pytest.mark.parametrize(
    "options",
    [{"accumulate": 2}, {"clip_norm": 0.1}, {"clip_value": 0.01}, {"precision": "bfloat16"},
     {"precision": "float16"}, {"check_finite": "gradients"}, {"accumulate": 2, "check_finite": "gradients"}],
    ids=str,
)  # fmt: skip
def test_options_of_the_step_have_the_bits_of_the_uncompiled_step(options: dict[str, Any]) -> None:
    found = []
    for compiled in (True, False):
        net = small()
        trainer_of(net, compiled=compiled, **options).fit(batches(35), epochs=2)
        found.append(bits(net))
    assert found[0] == found[1]


def test_accumulated_batches_train_as_one_of_their_size() -> None:
    net, whole = small(), small()
    trainer = Trainer(net, loss=LOSS, optimizer=optim.SGD(net.parameters(), lr=0.1), accumulate=2)
    trainer.fit((X[:60], Y[:60]), batch_size=20, shuffle=False)  # 2 batches, and one over
    assert trainer.steps == 2
    reference = Trainer(whole, loss=LOSS, optimizer=optim.SGD(whole.parameters(), lr=0.1))
    reference.fit([(X[:40], Y[:40]), (X[40:60], Y[40:60])])
    for a, b in zip(net.parameters(), whole.parameters(), strict=True):
        np.testing.assert_allclose(np.asarray(a.detach()), np.asarray(b.detach()), rtol=1e-5, atol=1e-6)


def test_clipping_bounds_the_update() -> None:
    net = small()
    before = [np.asarray(p.detach()).copy() for p in net.parameters()]
    Trainer(net, loss=LOSS, optimizer=optim.SGD(net.parameters(), lr=1.0), clip_norm=0.01).fit([(X, Y)])
    moved = [np.asarray(p.detach()) - b for p, b in zip(net.parameters(), before, strict=True)]
    assert np.sqrt(sum((m**2).sum() for m in moved)) == pytest.approx(0.01, rel=1e-3)


def test_ctrl_c_leaves_a_trainer_that_can_go_on() -> None:
    class Interrupts:
        def on_step_end(self, trainer: Trainer) -> None:
            if trainer.steps == 2:
                raise KeyboardInterrupt

    net = small()
    trainer = trainer_of(net, metrics=[st.metrics.Accuracy(task="multiclass", num_classes=2)])
    trainer.callbacks.append(Interrupts())
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(batches())
    assert net.training and trainer.steps == 2
    trainer.callbacks.clear()
    assert len(trainer.fit(batches(), epochs=2)) == 2
    assert trainer.evaluate((X, Y))["accuracy"] > 0.3


def test_a_signal_in_the_middle_of_a_window_of_accumulation_leaves_no_gradients_behind() -> None:
    def data(signals: bool) -> Iterator[Any]:
        for k, batch in enumerate(batches(10)):
            if signals and k == 3:
                signal.raise_signal(signal.SIGINT)
            yield batch

    net, reference = small(), small()
    trainer = trainer_of(net, accumulate=2)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(data(True))
    assert trainer.steps == 1 and trainer.step.pending == 1 and net.training
    again = trainer_of(reference, accumulate=2)
    again.fit(batches(10)[:2])
    trainer.fit(data(False))
    again.fit(data(False))
    assert bits(net) == bits(reference)


def test_several_inputs_are_a_tuple_or_have_names() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 2)

        def forward(self, a: Any, b: Any) -> Any:
            return self.layer(a) + b

    st.manual_seed(0)
    b = np.zeros((70, 2), np.float32)
    for inputs in ((X, b), {"b": b, "a": X}):
        net = Two()
        trainer = trainer_of(net)
        assert len(trainer.fit([(inputs, Y)], epochs=2)) == 2
        assert trainer.predict([(inputs, Y)]).shape == (70, 2)


def generator() -> Iterator[Any]:
    yield from batches()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: t.fit(generator(), epochs=2), "an iterator gives its batches once"),
        (lambda t: t.fit((X, Y[:5])), "one number of rows"),
        (lambda t: t.fit(X), "takes inputs with targets"),
        (lambda t: t.fit(3), "takes a pair of arrays"),
        (lambda t: t.fit([]), "gave no batch"),
        (lambda t: t.fit(batches(), batch_size=3), "batch_size is for arrays"),
        (lambda t: t.fit([(X, Y, Y)]), "a pair of inputs and targets"),
        (lambda t: t.fit((X, Y), epochs=0), "epochs counts from 1"),
        (lambda t: t.fit((X, Y), resume=True), "resume goes on from checkpoints"),
        (lambda t: Trainer(t.net).fit((X, Y)), "needs a loss and an optimizer"),
        (lambda t: Trainer(t.net).evaluate((X, Y)), "needs a loss or metrics"),
        (lambda t: Trainer(t.net, optimizer="adam"), "takes an optimizer"),
        (lambda t: Trainer(t.net, clip=3), "an option it does not have"),
        (lambda t: Trainer(t.net, clip_norm=0), "clip_norm must be positive"),
        (lambda t: Trainer(t.net, accumulate=0), "accumulate counts batches"),
        (lambda t: Trainer(t.net, check_finite="all"), "check_finite is"),
        (lambda t: Trainer(t.net, check_finite="gradients", precision="float16"), "float16 has overflows"),
        (lambda t: Trainer(t.net, step=lambda x, y: x, clip_norm=1.0), "a step of your own clips"),
        (lambda t: Trainer(t.net, metrics=["accuracy"]), "a metric is one of st.metrics"),
        (lambda t: Trainer(t.net, metrics={"loss": lambda o, y: o}), "names of their own"),
        (lambda t: Trainer(t.net, loss=lambda o, y: o, optimizer=t.optimizer).fit((X, Y)), "one number"),
    ],
)  # fmt: skip
def test_what_a_trainer_cannot_use_is_refused_with_its_name(
    call: Callable[[Trainer], Any], message: str
) -> None:
    with pytest.raises(StratalError, match=message):
        call(trainer_of(small()))


@pytest.mark.parametrize("width", [60, 200])
def test_progress_shows_loss_rate_time_left_and_what_it_waits_for(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rich.console import Console

    shown = io.StringIO()
    monkeypatch.setattr("stratal.train.progress.REFRESH_S", 0.0)
    progress = Progress(True, 3)
    progress._console = Console(file=shown, force_terminal=True, width=width, color_system=None)
    running = Running(loss=20.0, rows=10, batches=2, data_s=1.0, compile_s=2.0, compute_s=3.0)
    progress.begin(1, 8)
    progress.step(running)
    progress.end(running, {"epoch": 1, "loss": 0.5, "accuracy": 0.75, "seconds": 3.0})
    text = shown.getvalue()
    assert "epoch 1/3  2/8" in text and "loss 2" in text
    if width == 200:
        for part in ("samples/s", "s left", "data ", "compile ", "compute ", "accuracy 0.75"):
            assert part in text


def test_nothing_is_shown_without_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    trainer_of(small()).fit(batches())
    trainer_of(small()).fit(batches(), progress=False)
    assert capfd.readouterr() == ("", "")


def test_a_log_gets_a_whole_line_for_each_epoch_where_that_is_asked_for(
    capfd: pytest.CaptureFixture[str],
) -> None:
    metrics = {f"a metric with a long name {k}": lambda out, y: out.mean() for k in range(3)}
    trainer_of(small(), metrics=metrics).fit(batches(), epochs=2, progress=True)
    lines = capfd.readouterr().err.splitlines()
    assert [line[:9] for line in lines] == ["epoch 1/2", "epoch 2/2"]
    assert all("a metric with a long name 2" in line and "compute" in line for line in lines)


def modes(net: nn.Module) -> list[bool]:
    return [part.training for part in net.modules()]


def test_parts_that_are_frozen_by_eval_stay_so_in_fit_evaluate_and_predict() -> None:
    net = nn.Sequential(nn.BatchNorm1d(X.shape[1]), nn.Linear(X.shape[1], 3), nn.Dropout(0.1))
    trainer = trainer_of(net)
    net[0].eval()
    before, statistics = modes(net), np.array(net[0].running_mean)
    for call in (
        lambda: trainer.predict(X), lambda: trainer.evaluate((X, Y)),
        lambda: trainer.fit((X, Y), epochs=2, validation=(X, Y), progress=False),
    ):  # fmt: skip
        call()
        assert modes(net) == before
    assert np.array_equal(net[0].running_mean, statistics)
    net.eval()
    trainer.fit((X, Y), progress=False)  # all in evaluation: it is trained, and left as it was
    assert not any(modes(net)) and not np.array_equal(net[0].running_mean, statistics)
