"""Thousands of small tensors joined: without a program for each number of them, with the same bits and
gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal.base.errors import ShapeError
from stratal.tensor.lazy import program_cache

JOINED: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "stack": (st.stack, np.stack),
    "stack last": (lambda x: st.stack(x, axis=-1), lambda x: np.stack(x, axis=-1)),
    "concat": (st.concat, np.concatenate),
    "concat columns": (lambda x: st.concat(x, axis=1), lambda x: np.concatenate(x, axis=1)),
    "concat flat": (lambda x: st.concat(x, axis=None), lambda x: np.concatenate(x, axis=None)),
    "vstack": (st.vstack, np.vstack),
}


def arrays(count: int, dtype: str = "float32") -> list[Any]:
    values = np.random.default_rng(1).normal(size=(count, 2, 3)) * 100
    values[0, 0] = np.nan, -0.0, np.inf
    with np.errstate(invalid="ignore"):
        return list(values.astype(dtype))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "bool", "complex64"])
@pytest.mark.parametrize("kind", JOINED)
def test_thousands_of_stored_tensors_join_without_a_program(kind: str, dtype: str) -> None:
    joined, numpy = JOINED[kind]
    given = arrays(2000, dtype)
    tensors = [st.tensor(a) for a in given]
    before = program_cache.COMPILED[0]
    for _ in range(3):  # calls are kept from the second one on
        got = joined(tensors).numpy()
        assert got.tobytes() == numpy(given).tobytes()
        assert got.dtype == dtype
    assert program_cache.COMPILED[0] - before == 0


@pytest.mark.parametrize("kind", JOINED)
def test_gradients_flow_through_many_stored_operands(kind: str) -> None:
    joined, numpy = JOINED[kind]
    given = arrays(141)[1:]
    weights = [st.tensor(a, requires_grad=k % 2 == 0) for k, a in enumerate(given)]
    got = joined(weights)
    assert got.requires_grad
    (got * got).sum().backward()
    np.testing.assert_array_equal(got.detach().numpy(), numpy(given))
    for k, (weight, a) in enumerate(zip(weights, given, strict=True)):
        if k % 2:
            assert weight.grad is None
        else:
            np.testing.assert_array_equal(weight.grad.numpy(), 2 * a)


def test_what_is_joined_is_a_copy() -> None:
    given = [st.tensor(a) for a in arrays(140)[1:]]
    joined = st.stack(given)
    before = joined.numpy().copy()
    given[0].add_(1)
    np.testing.assert_array_equal(joined.numpy(), before)
    joined.zero_()
    assert given[1].numpy().any()


def test_a_history_of_many_operands_ends_where_one_is_written() -> None:
    weights = [st.tensor(a, requires_grad=True) for a in arrays(140)[1:]]
    y = st.stack(weights)
    with st.no_grad():
        weights[3].add_(1)
    (y * 2).sum().backward()
    np.testing.assert_array_equal(weights[3].grad.numpy(), np.full((2, 3), 2, np.float32))


def test_shapes_that_do_not_fit_are_refused_as_of_a_few() -> None:
    with pytest.raises(ShapeError, match="sizes differ off axis 0"):
        st.concat([*(st.tensor(a) for a in arrays(140)), st.ones(2, 4)])
    with pytest.raises(ShapeError, match="stack: shapes differ"):
        st.stack([*(st.tensor(a) for a in arrays(140)), st.ones(2, 4)])
