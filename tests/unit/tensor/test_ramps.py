"""Ramps, windows and places that are made at once: NumPy's values, at sizes of one block and of many."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal.base.dtypes import as_dtype

SIZES = (0, 1, 2, 7, 8192, 8193, 20_001)
BELOW = 2 * np.finfo(np.float32).eps  # an ulp of float32 where blocks start anew, and the rounding


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize(
    ("start", "step", "dtype"),
    [
        (0, 1, "int64"), (5, -3, "int64"), (-7, 1 << 40, "int64"), (250, 1, "uint8"),
        (3, 7, "int32"), (0, 300, "int8"),
        (0, 1, "float32"), (0, 1, "float64"), (0, 1, "bfloat16"), (0.25, 0.1, "float64"),
        (-3, -0.7, "float64"), (0.0, 0.3, "int32"), (1, 3, "complex64"), (np.int32(4), np.int32(2), "int64"),
    ],
)  # fmt: skip
def test_ramps_are_numpys_bit_for_bit(count: int, start: Any, step: Any, dtype: str) -> None:
    with np.errstate(all="ignore"):
        expected = (start + step * np.arange(count)).astype(as_dtype(dtype).np)
    whole = isinstance(step, (int, np.integer))
    stop = start + step * count - (0 if whole or not count else step / 2)
    found = st.arange(start, stop, step, dtype=dtype).numpy()
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize(("start", "step"), [(0.25, 0.1), (-1000.0, 0.1), (7.0, -1e-3)])
def test_ramps_of_float32_are_within_an_ulp(count: int, start: float, step: float) -> None:
    expected = start + step * np.arange(count)
    found = st.arange(start, start + step * count - step / 2, step).numpy()
    np.testing.assert_allclose(found, expected, rtol=BELOW, atol=1e-9)


@pytest.mark.parametrize("endpoint", [True, False])
@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize(("start", "stop"), [(0, 1), (-3.5, 12.25), (5, -5), (2, 2), (0, 5e-324)])
def test_linspace_is_numpys(start: float, stop: float, count: int, endpoint: bool) -> None:
    expected = np.linspace(start, stop, count, endpoint=endpoint)
    found = st.linspace(start, stop, count, dtype="float64", endpoint=endpoint)
    np.testing.assert_array_equal(found, expected)
    short = st.linspace(start, stop, count, endpoint=endpoint)
    np.testing.assert_allclose(short, expected, rtol=BELOW, atol=1e-9)
    ints = st.linspace(start, stop, count, dtype="int32", endpoint=endpoint)
    np.testing.assert_array_equal(ints, expected.astype(np.int32))


@pytest.mark.parametrize("n", [1, 2, 9, 10, 20_000, 20_001])
@pytest.mark.parametrize("d", [1.0, 0.1, -2.0])
def test_frequencies_are_numpys_bit_for_bit(n: int, d: float) -> None:
    for name in ("fftfreq", "rfftfreq"):
        expected = getattr(np.fft, name)(n, d)
        found = getattr(st.fft, name)(n, d, dtype="float64").numpy()
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 401, 1000, 30_000])
@pytest.mark.parametrize("name", ["hanning", "hamming", "blackman", "bartlett"])
def test_windows_are_numpys_and_symmetric(name: str, n: int) -> None:
    window = getattr(st, f"{'hann' if name == 'hanning' else name}_window")
    found = window(n, periodic=False, dtype="float64").numpy()
    np.testing.assert_allclose(found, getattr(np, name)(n), rtol=1e-12, atol=2e-15)
    np.testing.assert_array_equal(found, found[::-1])
    periodic = window(n)
    assert n == 1 or float(periodic[-1]) == pytest.approx(float(periodic[1]), rel=1e-6)


@pytest.mark.parametrize("sizes", [(5, 5), (5, 3), (3, 5), (1, 4), (0, 4), (4, 0), (200, 150)])
@pytest.mark.parametrize("offset", [-300, -4, -1, 0, 2, 5, 300])
def test_places_of_triangles_and_diagonals_are_numpys(sizes: tuple[int, int], offset: int) -> None:
    rows, columns = sizes
    for name in ("tril_indices", "triu_indices"):
        expected = np.stack(getattr(np, name)(rows, offset, columns))
        np.testing.assert_array_equal(getattr(st, name)(rows, columns, offset), expected)
    made = st.eye(rows, columns, k=offset)
    np.testing.assert_array_equal(made, np.eye(rows, columns, offset, dtype=np.float32))
    captured = st.compile(lambda x: x + st.eye(rows, columns, k=offset))(st.zeros(sizes))
    np.testing.assert_array_equal(captured, made)


@pytest.mark.parametrize("dimensions", [(), (3,), (0, 2), (3, 4, 2)])
def test_indices_are_numpys(dimensions: tuple[int, ...]) -> None:
    np.testing.assert_array_equal(st.indices(dimensions), np.indices(dimensions))
    assert st.indices(dimensions, dtype="float32").dtype is st.float32


@pytest.mark.parametrize("value", [0, 1, -1, -0.0, 257, float("nan"), True])
@pytest.mark.parametrize("dtype", ["float32", "int16", "bool", "bfloat16", "complex64"])
def test_filled_memory_holds_the_value_and_its_sign(value: Any, dtype: str) -> None:
    if dtype in ("int16", "bool") and value != value:
        return
    for shape in ((3, 5), (130, 131)):
        found = st.full(shape, value, dtype=dtype).numpy()
        expected = np.full(shape, np.asarray(value).astype(found.dtype))
        assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("name", "sizes"),
    [("eye", (-1,)), ("eye", (2.5,)), ("eye", (3, -1)), ("tril_indices", (-1,)), ("indices", ((-1, 2),))],
)
def test_sizes_that_are_none_are_clear_errors(name: str, sizes: tuple[Any, ...]) -> None:
    with pytest.raises(st.StratalError, match=r"negative|are ints"):
        getattr(st, name)(*sizes)
