"""A gradient that is known to be zero is zeros, not missing: weight decay and moments depend on it."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pytest

import stratal as st
from stratal import nn, optim

CASES: dict[str, Callable[[st.Tensor], st.Tensor]] = {
    "round": lambda x: x.round(),
    "floor": lambda x: x.floor(),
    "ceil": lambda x: x.ceil(),
    "trunc": lambda x: x.trunc(),
    "sign": lambda x: x.sign(),
    "floor_divide": lambda x: x // 2,
    "heaviside": lambda x: st.heaviside(x, st.tensor(0.5)),
    "zero_": lambda x: (x * 1).zero_(),
    "fill_": lambda x: (x * 1).fill_(3.0),
    "masked_fill": lambda x: x.masked_fill(st.ones_like(x).bool(), 0.0),
    "dropout": lambda x: nn.functional.dropout(x, 1.0),
    "alpha_dropout": lambda x: nn.functional.alpha_dropout(x, 1.0, training=True),
    "dropout1d": lambda x: nn.functional.dropout1d(x.reshape(1, 2, 1), 1.0),
}

WRITES: dict[str, Callable[[st.Tensor], object]] = {  # all of a tensor, in place
    "copy_": lambda y: y.copy_(st.tensor([3.0, 4.0])),
    "copy_ of a number": lambda y: y.copy_(st.tensor(3)),
    "y[:]": lambda y: y.__setitem__(slice(None), 0.0),
    "y[...]": lambda y: y.__setitem__(..., st.tensor([3.0, 4.0])),
    "y[0:2]": lambda y: y.__setitem__(slice(0, 2), 1.0),
    "y[mask]": lambda y: y.__setitem__(st.tensor([True, True]), 1.0),
    "y[None][0]": lambda y: y[None].__setitem__(0, 1.0),
    "a view": lambda y: y.view(2, 1).__setitem__((slice(None), 0), 1.0),
    "a view's copy_": lambda y: y.reshape(2, 1).copy_(st.ones(2, 1)),
}


def _written(write: Callable[[st.Tensor], object], x: st.Tensor) -> st.Tensor:
    y = x * 1
    write(y)
    return y


CASES |= {name: functools.partial(_written, write) for name, write in WRITES.items()}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_what_does_not_depend_on_its_input_gives_zeros_and_weights_decay(name: str, compiled: bool) -> None:
    p = nn.Parameter(st.tensor([1.25, -2.0]))
    optimizer = optim.AdamW([p], lr=0.1, weight_decay=0.5)

    def step() -> None:
        optimizer.zero_grad()
        CASES[name](p).sum().backward()
        optimizer.step()

    (st.compile(step) if compiled else step)()
    assert p.grad is not None
    assert p.grad.tolist() == [0.0, 0.0]
    np.testing.assert_allclose(p.detach().numpy(), np.float32([1.25, -2.0]) * (1 - 0.1 * 0.5), rtol=1e-6)


def test_an_overwritten_value_passes_nothing_but_zeros_and_infinities_do_not_leak() -> None:
    x = st.tensor([np.inf, np.nan, 1.0], requires_grad=True)
    y = x * 2
    y.zero_()
    (y + x).sum().backward()
    assert y.tolist() == [0.0, 0.0, 0.0]
    assert x.grad.tolist() == [1.0, 1.0, 1.0]
