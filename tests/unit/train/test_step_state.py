"""A step of one's own that trains nothing, or whose state a checkpoint would not have, is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from trained import LOSS, X, Y, batches, bits, small

import stratal as st
from stratal import nn, optim
from stratal.base.errors import StratalError
from stratal.train import CheckpointManager, StepOptions, Trainer, TrainingStep


class Holds:
    """Keeps the state of parts that the Trainer does not know, as the page on training shows it."""

    def __init__(self, **parts: Any) -> None:
        self.parts = parts

    def state_dict(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self.parts.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, part in self.parts.items():
            part.load_state_dict(state[name])


class Parts:
    """What steps are made of."""

    def __init__(self) -> None:
        self.net, self.head = small(), nn.Linear(2, 2)
        self.opt = optim.Adam([*self.net.parameters(), *self.head.parameters()], lr=0.01)
        self.other = optim.SGD(self.net.parameters(), lr=0.01, momentum=0.9)
        self.schedule = optim.lr_scheduler.StepLR(self.opt, 1, gamma=0.9)
        self.scaler = st.amp.GradScaler()
        self.seen = st.metrics.MeanMetric()
        self.mean, self.noise, self.count = st.zeros(1), st.Generator(), 0
        self.hidden: Any = st.zeros(2)
        self.calls: list[Any] = []

    def trained(self, loss: Any, opt: Any = None) -> Any:
        opt = opt or self.opt
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss


def a_tensor(p: Parts, x: Any, y: Any) -> Any:
    loss = p.trained(LOSS(p.net(x), y) + p.mean.sum())
    with st.no_grad():
        p.mean.mul_(0.9).add_(loss.detach())
    return loss


def a_tensor_replaced(p: Parts, x: Any, y: Any) -> Any:
    out = p.net(x) + p.hidden
    p.hidden = out.detach().mean(0)
    return p.trained(LOSS(out, y))


def two_optimizers(p: Parts, x: Any, y: Any) -> Any:
    p.trained(LOSS(p.net(x), y), p.other)
    return p.trained(LOSS(p.net(x), y))


def a_schedule(p: Parts, x: Any, y: Any) -> Any:
    loss = p.trained(LOSS(p.net(x), y))
    p.schedule.step()
    return loss


def a_scaler(p: Parts, x: Any, y: Any) -> Any:
    loss = LOSS(p.net(x), y)
    p.opt.zero_grad()
    p.scaler.scale(loss).backward()
    p.scaler.step(p.opt)
    p.scaler.update()
    return loss


def a_metric(p: Parts, x: Any, y: Any) -> Any:
    loss = p.trained(LOSS(p.net(x), y))
    p.seen.update(loss.detach())
    return loss


def a_generator(p: Parts, x: Any, y: Any) -> Any:
    return p.trained(LOSS(p.net(x) + st.randn(2, generator=p.noise), y))


def a_count(p: Parts, x: Any, y: Any) -> Any:
    p.count += 1
    return p.trained(LOSS(p.net(x), y) * (1.0 if p.count < 3 else 0.5))


def sums_of_gradients(p: Parts, x: Any, y: Any) -> Any:
    loss = LOSS(p.net(x), y)
    loss.backward()
    p.opt.step()
    return loss


def a_head(p: Parts, x: Any, y: Any) -> Any:
    return p.trained(LOSS(p.head(p.net(x)), y))


UNHELD: list[tuple[Callable[..., Any], str]] = [
    (a_tensor, "p.mean"), (a_tensor_replaced, "p.hidden"), (two_optimizers, "SGD.state"),
    (a_schedule, "StepLR"), (a_scaler, "_scale"), (a_metric, "MeanMetric"), (a_generator, "a generator"),
    (a_count, "count"), (sums_of_gradients, "the gradient of p.net.0.weight"), (a_head, "head.weight"),
]  # fmt: skip


def trainer_of(p: Parts, step: Callable[..., Any], *callbacks: Any, **options: Any) -> Trainer:
    return Trainer(p.net, step=lambda x, y: step(p, x, y), callbacks=callbacks, **options)


@pytest.mark.parametrize(("step", "named"), UNHELD, ids=[step.__name__ for step, _ in UNHELD])
def test_checkpoints_of_a_step_that_updates_what_they_lack_are_refused_by_name(
    step: Callable[..., Any], named: str, tmp_path: Path
) -> None:
    p = Parts()
    with pytest.raises(StratalError, match="updates what no checkpoint has") as caught:
        trainer_of(p, step, optimizer=p.opt).fit(batches(), checkpoints=CheckpointManager(tmp_path))
    assert named in caught.value.got and "state_dict" in caught.value.hint
    assert not [*tmp_path.iterdir()]
    p = Parts()
    assert len(trainer_of(p, step, optimizer=p.opt).fit(batches())) == 1  # which no one will resume
    p = Parts()
    with pytest.raises(StratalError, match="updates what no checkpoint has") as caught:
        trainer_of(p, a_head).fit(batches(), checkpoints=CheckpointManager(tmp_path))
    assert "Adam.state" in caught.value.got


HELD: list[tuple[Callable[..., Any], Callable[[Parts], list[Any]]]] = [
    (two_optimizers, lambda p: [Holds(other=p.other)]),
    (a_schedule, lambda p: [Holds(schedule=p.schedule)]),
    (a_scaler, lambda p: [Holds(scaler=p.scaler)]),
    (a_head, lambda p: [Holds(head=p.head)]),
    (a_tensor, lambda p: [HoldsTensors(p)]),
    (a_tensor_replaced, lambda p: [HoldsTensors(p)]),
    (a_generator, lambda p: [HoldsTensors(p)]),
]


class HoldsTensors:
    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    def state_dict(self) -> dict[str, Any]:
        p = self.parts
        return {"mean": p.mean, "hidden": p.hidden, "noise": p.noise.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        with st.no_grad():
            self.parts.mean.copy_(st.tensor(state["mean"]))
        self.parts.hidden = st.tensor(state["hidden"])
        self.parts.noise.set_state(state["noise"])


@pytest.mark.parametrize(("step", "holders"), HELD, ids=[step.__name__ for step, _ in HELD])
def test_what_callbacks_hold_is_resumed_to_the_bits_of_a_run_that_was_not_interrupted(
    step: Callable[..., Any], holders: Callable[[Parts], list[Any]], tmp_path: Path
) -> None:
    found = []
    for folder, runs in (("whole", [4]), ("cut", [2, 4])):
        for epochs in runs:
            p = Parts()
            trainer = trainer_of(p, step, *holders(p), optimizer=p.opt)
            manager = CheckpointManager(tmp_path / folder)
            trainer.fit(batches(), epochs=epochs, checkpoints=manager, resume=True)
        found.append((bits(p.net), bits(p.head), trainer.history["loss"]))
    assert found[0] == found[1]


def test_of_a_step_that_is_not_compiled_what_it_reaches_is_looked_at_before_it_runs(tmp_path: Path) -> None:
    net = small()
    given, second = (optim.SGD(net.parameters(), lr=0.1, momentum=0.9) for _ in range(2))
    schedule, scaler = optim.lr_scheduler.StepLR(given, 1), st.amp.GradScaler(enabled=False)

    def updated(loss: Any, optimizers: dict[str, Any]) -> Any:
        for opt in optimizers.values():
            opt.zero_grad()
            scaler.scale(loss).backward()
            opt.step()
            loss = loss.detach() * 0 + LOSS(net(st.tensor(X)), st.tensor(Y))
        schedule.step()
        return loss

    both = {"given": given, "second": second}

    def step(x: Any, y: Any) -> Any:
        return updated(LOSS(net(x), y), both)

    options: dict[str, Any] = {"step": step, "optimizer": given, "compiled": False}
    trainer = Trainer(net, **options)
    with pytest.raises(StratalError, match="what no checkpoint has") as caught:
        trainer.fit(batches(), checkpoints=CheckpointManager(tmp_path / "run"))
    assert set(caught.value.got.split(", ")) == {"both['second']", "scaler", "schedule"}
    assert not trainer.steps and not (tmp_path / "run").exists()
    holder = Holds(second=second, scaler=scaler, schedule=schedule)
    trainer = Trainer(net, **options, callbacks=[holder])
    assert len(trainer.fit(batches(), checkpoints=CheckpointManager(tmp_path / "run"))) == 1


def test_a_module_of_the_net_what_is_only_logged_and_modes_that_come_back_are_no_state_that_is_lacking(
    tmp_path: Path,
) -> None:
    p, last = Parts(), st.zeros(())
    net = nn.Sequential(p.net, nn.BatchNorm1d(2), nn.Dropout(0.5), p.head)
    kept: dict[str, Any] = {}

    def step(x: Any, y: Any) -> Any:
        net.train()
        loss = LOSS(net(x), y)
        p.opt.zero_grad()
        loss.backward()
        p.opt.step()
        net.eval()
        kept["outputs"] = net(x).detach()
        with st.no_grad():
            last.copy_(loss.detach())
        net.train()
        return loss

    trainer = Trainer(net, step=step, optimizer=p.opt)
    assert len(trainer.fit(batches(), epochs=2, checkpoints=CheckpointManager(tmp_path))) == 2


def test_a_built_in_step_without_its_optimizer_or_with_a_loss_that_learns_is_looked_at_too(
    tmp_path: Path,
) -> None:
    p = Parts()
    step = TrainingStep(p.net, LOSS, p.opt, StepOptions())
    with pytest.raises(StratalError, match="what no checkpoint has") as caught:
        Trainer(p.net, step=step).fit(batches(), checkpoints=CheckpointManager(tmp_path / "a"))
    assert "Adam.state" in caught.value.got
    centers = nn.Linear(2, 2)

    def loss(out: Any, y: Any) -> Any:
        return LOSS(centers(out), y)

    opt = optim.SGD([*p.net.parameters(), *centers.parameters()], lr=0.1)
    with pytest.raises(StratalError, match="what no checkpoint has") as caught:
        Trainer(p.net, loss=loss, optimizer=opt).fit(batches(), checkpoints=CheckpointManager(tmp_path / "b"))
    assert "param_groups[0]['params'][4]" in caught.value.got


def test_a_step_that_updates_nothing_of_the_net_is_refused_at_its_first_batch() -> None:
    p = Parts()
    for step, got, hint in (
        (lambda p, x, y: LOSS(p.net(x), y), "only computes", "loss.backward()"),
        (lambda p, x, y: LOSS(p.net(x), y).detach(), "only computes", "loss= and optimizer="),
        (a_head, "updates p.net.0.weight", "the net that is trained"),
    ):
        net = nn.Linear(1, 1) if step is a_head else p.net
        trainer = Trainer(net, step=lambda x, y, step=step: step(p, x, y), optimizer=p.opt)
        with pytest.raises(StratalError, match="updates nothing of the net") as caught:
            trainer.fit((X, Y))
        assert got in caught.value.got and hint in caught.value.hint


def test_a_step_that_makes_gradients_and_never_steps_is_refused_after_an_epoch() -> None:
    p = Parts()

    def backward_alone(x: Any, y: Any) -> Any:
        loss = LOSS(p.net(x), y)
        p.opt.zero_grad()
        loss.backward()
        return loss

    trainer = Trainer(p.net, step=backward_alone)
    with pytest.raises(StratalError, match="updates nothing of the net"):
        trainer.fit(batches(), epochs=3)
    assert not trainer.epoch


def test_a_step_that_updates_the_net_every_other_time_or_only_its_buffers_trains() -> None:
    p = Parts()

    def every_other(x: Any, y: Any) -> Any:
        loss = LOSS(p.net(x), y)
        loss.backward()
        p.count += 1
        if p.count % 2 == 0:
            p.opt.step()
            p.opt.zero_grad()
        return loss

    assert len(Trainer(p.net, step=every_other).fit(batches(16))) == 1

    norm = nn.BatchNorm1d(6)

    def statistics(x: Any, y: Any) -> Any:
        return norm(x).detach().mean()

    assert len(Trainer(norm, step=statistics).fit(batches())) == 1
