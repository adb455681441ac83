"""Orders: stable, NaN greatest, of every dtype, in full and in part, as Python and PyTorch have them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import stratal as st
from stratal.ops.indexing.rows import HELD
from stratal.tensor.functions.sorting import first

DTYPES = (
    np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int64, np.uint64, np.int8, np.uint16, np.bool_
)  # fmt: skip
RNG = np.random.default_rng(0)


def numbers(dtype, shape) -> np.ndarray:
    """Return numbers of which many are equal, with ends, signed zeros and NaN where there are such."""
    x = np.rint(RNG.normal(size=shape) * 3) * RNG.choice([1, -1], shape)
    if np.dtype(dtype).kind in "iub":
        x = np.abs(x) if np.dtype(dtype).kind != "i" else x
        x = x.astype(dtype)
        if x.dtype.itemsize == 8 and x.size:
            x.flat[0], x.flat[1] = np.iinfo(dtype).min, np.iinfo(dtype).max
        return x
    for value in (np.inf, -np.inf, np.nan):
        x[RNG.random(shape) < 0.05] = value
    return x.astype(dtype)


def stable_places(x: np.ndarray, axis: int, descending: bool) -> np.ndarray:
    """Return NumPy's stable order, in which NaN is last; falling, equal elements keep their order, too."""
    x = x if x.dtype.kind in "iubf" else x.astype(np.float32)
    if not descending:
        return np.argsort(x, axis=axis, kind="stable")
    back = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
    return x.shape[axis] - 1 - np.flip(back, axis)


def same_bits(got: np.ndarray, want: np.ndarray) -> bool:
    return got.dtype == want.dtype and got.tobytes() == want.tobytes()


# rows sorted by a network, by digits in a worker's memory and by digits in parts; along two axes
ROWS = {
    "short": ((5, 3, 40), 1), "held": ((3, 300), 1), "held across": ((300, 3), 0),
    "long": ((2, HELD + 77), 1), "one": ((4, 1), 1), "empty": ((0, 4), 0), "no rows": ((0, 4), 1),
}  # fmt: skip


@pytest.mark.sampled(13)
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_orders_are_those_of_numpy_in_full_and_in_part(dtype, rows, descending) -> None:
    shape, axis = ROWS[rows]
    x = numbers(dtype, shape)
    order = stable_places(x, axis, descending)
    got = st.sort(st.tensor(x), dim=axis, descending=descending)
    np.testing.assert_array_equal(got.indices, order)
    assert same_bits(got.values.numpy(), np.take_along_axis(x, order, axis))
    values = st.sort(st.tensor(x), axis=axis, descending=descending)
    assert bool(st.all((values == got.values) | (values != values) & (got.values != got.values)))
    n = shape[axis]
    for start, stop in {(min(2, n), min(n, 5)), (n // 2, min(n, n // 2 + 1)), (n // 2, min(n, n // 2 + 20))}:
        part = first("first", st.tensor(x), axis, stop, descending, start)
        asked = np.take(order, range(start, stop), axis)
        np.testing.assert_array_equal(part.indices, asked)
        assert same_bits(part.values.numpy(), np.take_along_axis(x, asked, axis))


@pytest.mark.parametrize("n", [1, 2, 3, 15, 16, 17, 31, 33, 64, 127, 128, 129])
def test_rows_of_every_length_are_sorted(n: int) -> None:
    x = RNG.normal(size=(7, n)).astype(np.float32)
    np.testing.assert_array_equal(st.sort(st.tensor(x), axis=1), np.sort(x, 1))
    np.testing.assert_array_equal(st.argsort(st.tensor(x), axis=1), np.argsort(x, 1))


@pytest.mark.parametrize("fill", [np.nan, np.inf, -np.inf, 0.0], ids=str)
def test_the_first_of_equal_elements_are_the_first_ones(fill: float) -> None:
    x = np.full((2, 400), fill, np.float32)
    for largest in (False, True):
        np.testing.assert_array_equal(st.topk(st.tensor(x), 5, largest=largest).indices, [range(5)] * 2)


@pytest.mark.parametrize("n, k", [(400, 7), (3000, 20), (HELD + 77, 45)])
def test_the_first_few_are_found_however_rows_are_ordered(n: int, k: int) -> None:
    rising = np.arange(n, dtype=np.float64)
    rows = np.stack(
        [rising, -rising, rising % 64, np.roll(rising, n // 3), np.where(rising < n - 3, np.nan, rising)]
    )
    for largest in (False, True):
        got = st.topk(st.tensor(rows), k, largest=largest)
        np.testing.assert_array_equal(got.indices, stable_places(rows, 1, largest)[:, :k])


def test_orders_run_as_kernels() -> None:
    def orders(x: st.Tensor) -> tuple:
        found = x.sort(), st.topk(x, 3), st.kthvalue(x, 40), st.median(x, 1), st.mode(x)
        return *(part for pair in found for part in pair), st.quantile(x, 0.3), st.nanmedian(x), st.msort(x)

    step = st.compile(orders)
    step(st.tensor(numbers(np.float32, (20, 70))))
    assert not step.plan.host_calls


CALLS = {
    "sort": lambda lib, x: lib.sort(x, dim=-1, stable=True),
    "sort falling": lambda lib, x: lib.sort(x, dim=0, descending=True, stable=True),
    "argsort": lambda lib, x: lib.argsort(x, dim=1, descending=True, stable=True),
    "topk": lambda lib, x: lib.topk(x, 3, dim=1).values,
    "topk least": lambda lib, x: lib.topk(x, 3, dim=1, largest=False).values,
    "the best": lambda lib, x: lib.topk(x, 1, dim=1).values,
    "kthvalue": lambda lib, x: lib.kthvalue(x, 17, dim=1).values,
    "median": lambda lib, x: lib.median(x, dim=1).values,
    "median of all": lambda lib, x: lib.median(x),
}


@pytest.mark.torch
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_nan_and_equal_elements_stand_where_pytorch_has_them(name, dtype) -> None:
    torch = pytest.importorskip("torch")
    x = numbers(dtype, (5, 40))
    got, want = CALLS[name](st, st.tensor(x)), CALLS[name](torch, torch.tensor(x))
    for ours, theirs in zip(*((r,) if hasattr(r, "dtype") else tuple(r) for r in (got, want)), strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


def test_values_alone_are_in_the_same_order() -> None:
    x = numbers(np.float32, (6, 50))
    for descending in (False, True):
        values = st.sort(st.tensor(x), axis=1, descending=descending)
        np.testing.assert_array_equal(values, st.sort(st.tensor(x), dim=1, descending=descending).values)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: st.topk(x, 3, dim=1).values,
        lambda x: st.median(x, dim=0).values,
        lambda x: st.kthvalue(x, 4, dim=1).values,
        lambda x: st.sort(x, axis=1, descending=True),
    ],
)
def test_gradients_flow_to_what_was_chosen(f) -> None:
    x = np.random.default_rng(1).permutation(35).reshape(5, 7) / 5.0
    assert st.check_grad(f, [x], order=2)
