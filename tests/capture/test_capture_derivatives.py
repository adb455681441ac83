"""What a function that is differentiated inside of a compiled one writes: state, lists, generators."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal import nn
from stratal.base.errors import CaptureError
from stratal.nn import functional as F


class World:
    """State a loss writes to, of its argument and of itself."""

    def __init__(self) -> None:
        st.manual_seed(0)
        self.norm, self.total, self.log = nn.BatchNorm1d(2), st.zeros(2), []

    def loss(self, x: st.Tensor) -> st.Tensor:
        y = self.norm(x)
        self.log.append(y.detach().mean())
        with st.no_grad():
            self.total.add_(x[0].detach())
        return (F.dropout(y, 0.5) ** 2 * x).sum()

    def checkpointed(self, x: st.Tensor) -> st.Tensor:
        return (st.checkpoint(lambda v: F.dropout(v, 0.5) * v, x) + st.checkpoint(st.sin, x)).sum()

    def seen(self) -> list[Any]:
        return [self.total.tolist(), self.norm.running_mean.tolist(), *(v.item() for v in self.log)]


WAYS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "grad": st.grad,
    "value_and_grad": lambda f: lambda x: st.value_and_grad(f)(x)[1],
    "grad of grad": lambda f: st.grad(lambda z: (st.grad(f)(z) * z).sum()),
    "vjp": lambda f: lambda x: st.vjp(f, x)[1](st.tensor(1.0))[0],
    "jvp": lambda f: lambda x: st.jvp(f, (x,), (x,))[1],
    "in a branch": lambda f: lambda x: st.cond(x.sum() > 0, st.grad(f), lambda v: v * 1, x),
    "twice": lambda f: lambda x: st.grad(f)(x) + st.grad(f)(x * 2),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ["loss", "checkpointed"])
@pytest.mark.parametrize("way", WAYS)
def test_what_a_differentiated_function_writes(way: str, name: str) -> None:
    if (way, name) == ("in a branch", "loss"):
        pytest.skip("a branch has no list to append to")
    x = st.tensor([[1.0, 2.0], [3.0, 5.0], [2.0, 1.0]])
    plain, compiled = World(), World()
    function = WAYS[way](getattr(plain, name))
    replayed = st.compile(WAYS[way](getattr(compiled, name)))
    st.manual_seed(0)
    want = [(function(x).numpy(), plain.seen()) for _ in range(4)]
    st.manual_seed(0)
    got = [(replayed(x).numpy(), compiled.seen()) for _ in range(4)]
    for (a, seen), (b, expected) in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
        for one, other in zip(seen, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


HELD: list[Any] = []
KEPT: dict[str, Callable[[Any], Any]] = {
    "returned": lambda pull: pull, "in a list": lambda pull: [pull], "stored": HELD.append,
    "called by another": lambda pull: lambda cotangent: pull(cotangent * 2),
}  # fmt: skip


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("derivative", [st.vjp, st.linearize])
def test_functions_that_hold_the_graph_of_a_call_are_refused_by_their_line(
    derivative: Callable[..., Any], kept: str
) -> None:
    @st.compile
    def f(x: Any) -> Any:
        y, pull = derivative(lambda a: (a * a).sum(), x)
        return y, KEPT[kept](pull)

    with pytest.raises(CaptureError, match="holds a graph") as refused:
        f(st.ones(2))
    assert f"where: {Path(__file__).name}:" in str(refused.value) and not HELD


MAKING: dict[str, Callable[[Any], Any]] = {
    "grad": lambda s: st.grad(lambda z: (z * z * s).sum()), "vmap": lambda s: st.vmap(lambda z: z * s[0]),
    "jvp": lambda s: lambda z: st.jvp(lambda a: a * s, (s,), (z,))[1],
    "compile": lambda s: st.compile(lambda z: z * s),
}  # fmt: skip


@pytest.mark.parametrize("kind", MAKING)
def test_functions_of_derivatives_that_are_returned_hold_their_own_calls_values(kind: str) -> None:
    f = st.compile(lambda x: MAKING[kind](x * 2))
    plain = [MAKING[kind](st.ones(2) * call * 2) for call in range(6)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = [f(st.ones(2) * call) for call in range(6)]
    z = st.tensor([1.0, 3.0])
    assert [g(z).tolist() for g in made] == [g(z).tolist() for g in plain]
