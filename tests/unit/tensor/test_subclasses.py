"""Subclasses of public bases: PyTorch's ways work, what a class leaves out or returns wrongly is named."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal import nn, optim
from stratal.base.errors import StratalError
from stratal.optim import lr_scheduler


def optimizer(update: Any = None, slots: Any = None, **defaults: float) -> Any:
    """Return an optimizer of one parameter with a gradient, of a class with these methods."""
    body: dict[str, Any] = {"update": update} if update else {}
    if slots:
        body["slots"] = lambda self, group, shape: slots
    p = nn.Parameter(st.ones(2, 3))
    p.grad = st.ones(2, 3)
    made = type("Mine", (optim.Optimizer,), body)
    return made([p], defaults or {"lr": 0.5})


def plain(self: Any, group: Any, param: Any, grad: Any, state: Any, scalars: Any) -> Any:
    return param - scalars["lr"] * grad, state


def returning(make: Callable[[Any, Any], Any]) -> Callable[[], Any]:
    """Return a step of an optimizer with a slot `m` whose update returns what is made of its parts."""
    return lambda: optimizer(lambda s, g, param, grad, state, c: make(param, state), {"m": 0.0}).step()


def schedule(**body: Any) -> Callable[[], Any]:
    return lambda: type("Mine", (lr_scheduler.LRScheduler,), body)(optimizer(plain))


class Unusable:
    pass


class Endless:
    def __getitem__(self, index: int) -> float:
        return 1.0


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "no update": (lambda: optimizer().step(), "Mine: has no update(?s:.*)define update.*step"),
    "one result": (returning(lambda p, s: p), "Mine.update: returns a pair"),
    "three results": (returning(lambda p, s: (p, s, 1)), "Mine.update: returns a pair"),
    "a list of state": (returning(lambda p, s: (p, [s])), "Mine.update: returns a pair"),
    "a number": (returning(lambda p, s: (0.5, s)), "Mine.update: returns a pair"),
    "a sum": (returning(lambda p, s: (p.sum(), s)), r"Mine.update: the new parameter.*(?s:.*)f32\[\]"),
    "another dtype": (returning(lambda p, s: (p.double(), s)), "Mine.update: the new parameter has"),
    "a sum as state": (returning(lambda p, s: (p, {"m": p.sum()})), "Mine.update: the new m has the shape"),
    "state of another dtype": (returning(lambda p, s: (p, {"m": p.half()})), "Mine.update: the new m has"),
    "a number as state": (returning(lambda p, s: (p, {"m": 0.5})), "Mine.update: the new m has"),
    "no state": (returning(lambda p, s: (p, {})), "Mine.update: the new state is of the slots m"),
    "more state": (returning(lambda p, s: (p, {**s, "n": p})), "(?s)Mine.update: the new state.*m, n"),
    "no rate": (lambda: lr_scheduler.StepLR(optimizer(plain, speed=1.0), 1), "(?s)StepLR: needs.*lr.*speed"),
    "no get_lr": (schedule(), "Mine: has no get_lr(?s:.*)define get_lr"),
    "a rate": (schedule(get_lr=lambda s: 0.1), "Mine: get_lr .or rates. returns a list"),
    "rates of more groups": (schedule(rates=lambda s: [0.1, 0.1]), "(?s)Mine: get_lr.*for 1 groups"),
    "no start": (lambda: type("Mine", (st.metrics.Metric,), {})(), "Mine: has no start(?s:.*)add_state"),
    "no batch": (
        lambda: type("Mine", (st.metrics.Metric,), {"start": lambda s: {}})().update(1), "Mine: has no batch"
    ),
    "no value": (
        lambda: type("M", (st.metrics.Metric,), {"start": lambda s: {}, "batch": lambda s: {}})()(),
        "M: has no value",
    ),
    "no forward": (lambda: type("Mine", (nn.Module,), {})()(1), "Mine: has no forward"),
    "no map": (lambda: type("Mine", (st.distributions.Transform,), {})()(1.0), "Mine: has no forward"),
    "no elements": (lambda: st.data.DataLoader(Unusable()), "(?s)DataLoader: .*__getitem__"),
    "no length": (lambda: st.data.DataLoader(Endless()), "(?s)DataLoader: .*__len__"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_subclass_leaves_out_or_returns_wrongly_is_named(name: str) -> None:
    call, says = REFUSED[name]
    with pytest.raises(StratalError, match=says):
        call()


@pytest.mark.parametrize("compiled", [False, True])
def test_an_optimizer_that_fails_leaves_its_parameter_as_it_was(compiled: bool) -> None:
    opt = optimizer(lambda s, g, param, *rest: (param.sum(), {}))
    step = st.compile(opt.step) if compiled else opt.step
    with pytest.raises(StratalError, match="the new parameter has the shape"):
        step()
    (p,) = opt.param_groups[0]["params"]
    assert np.asarray(p.detach()).tolist() == [[1.0] * 3] * 2


@pytest.mark.parametrize("defaults", [{"lr": 0.5}, {"lr": 0.5, "weight_decay": 0.0}, {"speed": 0.5}])
def test_an_optimizer_needs_no_slots_and_no_weight_decay(defaults: dict[str, float]) -> None:
    (name, *_) = defaults
    opt = optimizer(lambda s, g, param, grad, state, c: (param - g[name] * grad, state), **defaults)
    opt.step()
    (p,) = opt.param_groups[0]["params"]
    assert np.asarray(p.detach()).tolist() == [[0.5] * 3] * 2


# -- schedules of PyTorch's ----------------------------------------------------------------------------------
def noam(lib: Any) -> type:
    class Noam(lib.lr_scheduler._LRScheduler):  # type: ignore[misc,name-defined]
        def __init__(self, optimizer: Any, warm: int, last_epoch: int = -1) -> None:
            self.warm = warm
            super().__init__(optimizer, last_epoch)

        def get_lr(self) -> list[float]:
            t = self.last_epoch + 1
            return [base * min(t**-0.5, t * self.warm**-1.5) for base in self.base_lrs]

    return Noam


def halved(lib: Any) -> type:
    class Halved(lib.lr_scheduler.LRScheduler):  # type: ignore[misc,name-defined]
        def get_lr(self) -> list[float]:
            factor = 1.0 if self.last_epoch % 2 else 0.5
            return [group["lr"] * factor for group in self.optimizer.param_groups]

    return Halved


def warmed(lib: Any) -> type:
    class Warmed(lib.lr_scheduler.CosineAnnealingLR):  # type: ignore[misc,name-defined]
        def get_lr(self) -> list[float]:
            if self.last_epoch < 3:
                return [base * (self.last_epoch + 1) / 3 for base in self.base_lrs]
            return super().get_lr()  # type: ignore[no-any-return]

    return Warmed


@pytest.mark.torch
@pytest.mark.parametrize(("make", "args"), [(noam, (3,)), (halved, ()), (warmed, (8,))])
def test_a_schedule_with_get_lr_gives_the_rates_it_gives_in_pytorch(
    make: Callable[[Any], type], args: tuple[int, ...]
) -> None:
    torch = pytest.importorskip("torch")
    seen = []
    for lib, layer in ((torch.optim, torch.nn.Linear(2, 1)), (optim, nn.Linear(2, 1))):
        groups = [{"params": [layer.weight]}, {"params": [layer.bias], "lr": 0.3}]
        opt = lib.SGD(groups, lr=0.1)
        made = make(lib)(opt, *args)
        rates = [made.get_last_lr()]
        for _ in range(6):
            opt.step()
            made.step()
            rates.append([group["lr"] for group in opt.param_groups])
        assert made.get_last_lr() == rates[-1]
        seen.append(rates)
    assert seen[0] == seen[1]


def test_a_schedule_with_get_lr_steps_in_a_compiled_function() -> None:
    opt = optimizer(plain)
    made = noam(optim)(opt, 4)

    @st.compile
    def step() -> Any:
        opt.step()
        made.step()

    for _ in range(5):
        step()
    assert made.last_epoch == 5
    assert math.isclose(opt.param_groups[0]["lr"], 0.5 * 6**-0.5)
