"""Scatters at sizes where several threads take part, and what they do not copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal.base.errors import IndexOutOfRangeError

RNG = np.random.default_rng(0)
Index = tuple[Any, ...]


def _x(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape).astype(np.float32)


ROWS = RNG.integers(-300, 300, 500)  # repeated, some from the end
WRITES: dict[str, tuple[tuple[int, ...], Index]] = {
    "rows of a prime length": ((300, 1009), (ROWS,)),
    "short rows": ((300, 5), (ROWS,)),
    "rows of blocks": ((300, 8, 50), (ROWS,)),
    "columns": ((7, 300), (slice(None), ROWS)),
    "slices in the middle": ((6, 300, 40), (slice(None), ROWS)),
    "few slabs": ((2, 300, 100), (slice(None), ROWS)),
    "single elements": ((300 * 300,), (ROWS * 200,)),
    "two axes": ((300, 300, 20), (ROWS, ROWS[::-1])),
    "two axes apart": ((300, 20, 300), (ROWS, slice(None), ROWS[::-1])),
    "a table of rows": ((300, 33), (ROWS.reshape(20, 25),)),
    "a new axis": ((300, 33), (None, ROWS)),
    "an int and an array": ((4, 300, 33), (2, ROWS)),
    "a part of the columns": ((300, 100), (ROWS, slice(3, 90, 2))),
    "no row": ((300, 33), (ROWS[:0],)),
    "rows without elements": ((300, 0), (ROWS,)),
}


@pytest.mark.parametrize("name", WRITES)
def test_the_last_value_stands_where_indices_repeat(name: str) -> None:
    shape, index = WRITES[name]
    x = _x(*shape)
    values = _x(*x[index].shape)
    expected = x.copy()
    expected[index] = values
    tensors = tuple(st.tensor(i) if isinstance(i, np.ndarray) else i for i in index)

    def write(x: Any, values: Any) -> Any:
        return x.at[tensors].set(values)

    found = st.compile(write)(st.tensor(x), st.tensor(values))
    np.testing.assert_array_equal(found.numpy(), expected)


@pytest.mark.parametrize("name", WRITES)
def test_values_that_meet_are_added(name: str) -> None:
    shape, index = WRITES[name]
    x = _x(*shape).astype(np.float64)
    values = _x(*x[index].shape).astype(np.float64)
    expected = x.copy()
    np.add.at(expected, index, values)
    tensors = tuple(st.tensor(i) if isinstance(i, np.ndarray) else i for i in index)
    found = st.tensor(x).at[tensors].add(st.tensor(values))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("dtype", ["int8", "bool", "float64", "int64"])
def test_matrices_are_written_by_place_without_other_copies(dtype: str) -> None:
    x = RNG.integers(0, 2, (500, 400)).astype(dtype)
    places, values = RNG.integers(0, x.size, 600), RNG.integers(0, 2, 600).astype(dtype)
    put = st.compile(st.put, dynamic=False)
    found = put(st.tensor(x), st.tensor(places), st.tensor(values))
    expected = x.copy()
    np.put(expected, places, values)
    np.testing.assert_array_equal(found.numpy(), expected)
    explained = str(put.explain())
    assert "computes reshape" not in explained, "the matrix lies as the vector does"
    assert "is made there" in explained, "the result is written where it is returned"


def test_one_place_per_row_is_written_in_few_chunks() -> None:
    x, places = _x(3000, 70), RNG.integers(0, 70, (3000, 1))
    values = _x(3000, 1)
    expected = x.copy()
    np.put_along_axis(expected, places, values, axis=1)
    found = st.put_along_axis(st.tensor(x), st.tensor(places), st.tensor(values), axis=1)
    np.testing.assert_array_equal(found.numpy(), expected)


@pytest.mark.parametrize("shape", [(300, 40), (300, 2), (9,)])
def test_an_index_out_of_range_is_refused(shape: tuple[int, ...]) -> None:
    x = st.tensor(_x(*shape))
    where_to = st.tensor([0, shape[0]])
    with pytest.raises(IndexOutOfRangeError, match="out of range"):
        st.index_put(x, (where_to,), st.tensor(_x(2, *shape[1:]))).numpy()


def test_gradients_of_rows_that_are_set_are_right() -> None:
    rows = st.tensor([3, 1, 3])

    def f(x: st.Tensor, v: st.Tensor) -> st.Tensor:
        return (x.at[rows].set(v) ** 2).sum()

    inputs = [st.tensor(RNG.standard_normal(shape)) for shape in ((5, 20), (3, 20))]
    st.check_grad(f, inputs, order=2)


@pytest.mark.parametrize("turned", [False, True])
def test_what_a_running_sum_reads_may_be_a_reshape(turned: bool) -> None:
    x = _x(60, 70).astype(np.float64)
    read = (lambda a: a.T.reshape(-1)) if turned else (lambda a: a.reshape(-1))
    found = st.compile(lambda t: st.cumsum(read(t * 2), 0) + st.cumsum(read(t), 0))(st.tensor(x))
    np.testing.assert_allclose(found.numpy(), np.cumsum(read(x * 2)) + np.cumsum(read(x)), rtol=1e-12)
