"""Short rows: the same element of neighbouring rows in a vector, for every kind of row kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from differential import check_graph

import stratal as st
from stratal import nn
from stratal.base import settings
from stratal.compiler import decided
from stratal.plan.host import current_target
from stratal.tensor.tensor import Tensor

F = nn.functional
SHAPES = [(64, 1), (64, 2), (41, 3), (100, 10), (3, 37, 5), (2, 3, 33, 4), (2000, 7), (50, 15)]


def normalised(x: Tensor) -> Tensor:
    return x / st.sqrt((x * x).sum(axis=-1, keepdims=True) + 1e-3)


def sums_and_places(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.sum(axis=-1), x.argmax(axis=-1), x.amax(axis=-1)


KINDS: dict[str, Callable[..., Any]] = {
    "softmax": lambda x: F.softmax(x, dim=-1),
    "log_softmax": lambda x: F.log_softmax(x, dim=-1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "normalised": normalised,
    "sums_and_places": sums_and_places,
    "any_all": lambda x: ((x > 1).any(axis=-1), (x > -1).all(axis=-1)),
    "two_axes": lambda x: x.reshape(*x.shape, 1).sum(axis=(-2, -1)),
    "scaled": lambda x: (
        F.softmax(x * st.arange(x.shape[-1], dtype=x.dtype), dim=-1) * x.sum(axis=-1, keepdims=True)
    ),
}


def tactics_of(function: Callable[..., Any], *arrays: Any) -> list[str]:
    """Compile a function; return the tactics of its kernels after checking all its results."""
    step = st.compile(function)
    step(*map(st.tensor, arrays))
    graph = step.program.graph
    assert not check_graph(graph, list(arrays))
    return [k.tactic for k in decided(graph, current_target()).draft.kernels.values()]


@pytest.mark.sampled(29)
@pytest.mark.parametrize("target", ["host", "haswell"])
@pytest.mark.parametrize("kind", KINDS)
def test_short_rows_of_every_shape_equal_the_reference(kind: str, target: str) -> None:
    rng = np.random.default_rng(0)
    with settings.target(target):
        for shape in SHAPES:
            x = rng.standard_normal(shape).astype(np.float32)
            x[..., 0] = np.where(rng.random(shape[:-1]) < 0.1, -80, x[..., 0])
            tactics_of(KINDS[kind], x)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16", "int32", "uint8", "bool"])
def test_short_rows_of_other_dtypes_equal_the_reference(dtype: str) -> None:
    x = (np.random.default_rng(0).standard_normal((77, 6)) * 3).astype(np.float32)
    values = st.tensor(x).abs().astype(dtype).numpy()
    tactics_of(lambda x: (x.sum(axis=-1), x.astype("float32").max(axis=-1)), values)


def test_rows_go_across_where_that_is_shorter() -> None:
    def softmax(shape: tuple[int, ...]) -> list[str]:
        return tactics_of(KINDS["softmax"], np.ones(shape, np.float32))

    assert softmax((2000, 10)) == softmax((4, 500, 3)) == ["rows across"]
    assert softmax((2000, 64)) == softmax((8, 10)) == softmax((500, 4, 3)) == ["rows"]


def test_a_result_may_take_the_place_of_the_rows_it_is_made_of() -> None:
    x = st.tensor(np.random.default_rng(0).standard_normal((640, 10), dtype=np.float32))
    want = x.numpy().astype(np.float64)

    @st.compile
    def step() -> None:
        x.copy_(F.softmax(x, dim=-1))

    for _ in range(2):
        step()
        want = np.exp(want - want.max(-1, keepdims=True))
        want /= want.sum(-1, keepdims=True)
    np.testing.assert_allclose(x.numpy(), want, rtol=2e-6)
    assert "rows across" in str(step.explain(kernel=1)) and "writes over" in str(step.explain(kernel=1))


def test_a_row_of_one_element_that_is_kept_is_stored_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stratal.compiler.simplify", lambda graph: graph)  # which leaves no such rows

    def pooled(x: Tensor) -> tuple[Tensor, Tensor]:
        sides = st.cat([x, st.exp(x)], dim=1)
        return sides, F.avg_pool2d(sides, 1, 1)

    assert "rows" in tactics_of(pooled, np.random.default_rng(0).standard_normal((2, 24, 4, 4)))
