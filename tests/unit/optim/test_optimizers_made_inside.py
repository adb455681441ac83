"""Optimizers that a compiled function makes itself: their state begins anew with every call."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

import stratal as st
from stratal import optim

OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "SGD": lambda p: optim.SGD(p, lr=0.1),
    "momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "ASGD": lambda p: optim.ASGD(p, lr=0.1),
    "Adadelta": lambda p: optim.Adadelta(p, lr=0.1),
    "Adafactor": lambda p: optim.Adafactor(p, lr=0.1),
    "Adagrad": lambda p: optim.Adagrad(p, lr=0.1),
    "Adam": lambda p: optim.Adam(p, lr=0.1),
    "amsgrad": lambda p: optim.Adam(p, lr=0.1, amsgrad=True),
    "AdamW": lambda p: optim.AdamW(p, lr=0.1),
    "Adamax": lambda p: optim.Adamax(p, lr=0.1),
    "LAMB": lambda p: optim.LAMB(p, lr=0.1),
    "LARS": lambda p: optim.LARS(p, lr=0.1),
    "Lion": lambda p: optim.Lion(p, lr=0.1),
    "Muon": lambda p: optim.Muon(p, lr=0.1),
    "NAdam": lambda p: optim.NAdam(p, lr=0.1),
    "RAdam": lambda p: optim.RAdam(p, lr=0.1),
    "RMSprop": lambda p: optim.RMSprop(p, lr=0.1, momentum=0.5, centered=True),
    "Rprop": lambda p: optim.Rprop(p, lr=0.1),
}
MASTER = {
    "momentum with masters": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, master_weights=True),
    "Adam with masters": lambda p: optim.Adam(p, lr=0.1, master_weights=True),
}


def descend(opt: optim.Optimizer, z: st.Tensor, x: st.Tensor, steps: int) -> None:
    for _ in range(steps):
        opt.zero_grad()
        (z - x).float().pow(2).sum().backward()
        opt.step()


def over_an_inner_parameter(make: Any, steps: int, dtype: Any) -> Callable[[Any], Any]:
    def fit(x: st.Tensor) -> st.Tensor:
        z = st.zeros(3, 2, dtype=dtype, requires_grad=True)
        descend(make([z]), z, x, steps)
        return z.detach().sum()

    return fit


def over_an_outer_parameter(make: Any, steps: int, dtype: Any) -> Callable[[Any], Any]:
    z = st.zeros(3, 2, dtype=dtype, requires_grad=True)

    def fit(x: st.Tensor) -> st.Tensor:
        descend(make([z]), z, x, steps)
        return z.detach().sum()

    return fit


def a_copy_of_an_outer_one(make: Any, steps: int, dtype: Any) -> Callable[[Any], Any]:
    z = st.zeros(3, 2, dtype=dtype, requires_grad=True)
    opt = make([z])
    descend(opt, z, st.ones(3, 2, dtype=dtype), 2)

    def fit(x: st.Tensor) -> st.Tensor:
        mine, w = copy.deepcopy((opt, z))
        descend(mine, w, x, steps)
        return w.detach().sum() + z.detach().sum()

    return fit


def with_state_that_was_loaded(make: Any, steps: int, dtype: Any) -> Callable[[Any], Any]:
    z = st.zeros(3, 2, dtype=dtype, requires_grad=True)
    opt = make([z])
    descend(opt, z, st.ones(3, 2, dtype=dtype), 2)
    kept = opt.state_dict()

    def fit(x: st.Tensor) -> st.Tensor:
        w = z.detach().clone().requires_grad_()
        mine = make([w])
        mine.load_state_dict(kept)
        descend(mine, w, x, steps)
        return w.detach().sum()

    return fit


def in_a_branch(make: Any, steps: int, dtype: Any) -> Callable[[Any], Any]:
    def fit(x: st.Tensor) -> st.Tensor:
        def one() -> st.Tensor:
            z = st.zeros(3, 2, dtype=dtype, requires_grad=True)
            descend(make([z]), z, x, steps)
            return z.detach().sum()

        return st.cond(x.sum() > 12, one, lambda: x.sum())

    return fit


def in_a_loop(make: Any, steps: int, dtype: Any) -> Callable[[Any], Any]:
    def fit(x: st.Tensor) -> st.Tensor:
        def body(k: st.Tensor, total: st.Tensor) -> st.Tensor:
            z = st.zeros(3, 2, dtype=dtype, requires_grad=True)
            descend(make([z]), z, x + k.astype(dtype), steps)
            return total + z.detach().sum()

        return st.fori_loop(0, 3, body, st.zeros((), dtype=dtype))

    return fit


PROGRAMS = [
    over_an_inner_parameter, over_an_outer_parameter, a_copy_of_an_outer_one, with_state_that_was_loaded,
    in_a_branch, in_a_loop,
]  # fmt: skip


def agree(program: Any, make: Any, audit: bool, dtype: Any) -> None:
    """Six calls, compiled and not, give equal numbers."""
    plain, compiled = program(make, 2, dtype), st.compile(program(make, 2, dtype), audit=audit)
    rel = 1e-6 if dtype is st.float32 else 2e-2
    for k in range(1, 7):
        x = st.full((3, 2), float(k), dtype=dtype)
        want = plain(x).item()
        assert compiled(x).item() == pytest.approx(want, rel=rel), f"call {k}"


def cases(optimizers: dict[str, Any]) -> Any:
    """Audited and not in turns: each optimizer and each program in both ways."""
    made = [
        pytest.param(name, program, (i + j) % 2 == 0, id=f"{name}-{program.__name__}")
        for i, name in enumerate(optimizers) for j, program in enumerate(PROGRAMS)
    ]  # fmt: skip
    return pytest.mark.parametrize("name, program, audit", made)


@pytest.mark.sampled(31)
@cases(OPTIMIZERS)
def test_every_call_begins_anew(name: str, program: Any, audit: bool) -> None:
    agree(program, OPTIMIZERS[name], audit, st.float32)


@cases(MASTER)
def test_master_weights_begin_anew(name: str, program: Any, audit: bool) -> None:
    agree(program, MASTER[name], audit, st.bfloat16)
