"""Orders: stable, NaN greatest, of every dtype, in full and in part, as Python and PyTorch have them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import stratal as st
from stratal.ops.indexing.packed import order_of

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
        if x.dtype.itemsize == 8:
            x.flat[0], x.flat[1] = np.iinfo(dtype).min, np.iinfo(dtype).max
        return x
    for value in (np.inf, -np.inf, np.nan):
        x[RNG.random(shape) < 0.05] = value
    return x.astype(dtype)


def sorted_places(row: list, descending: bool) -> list[int]:
    def key(k: int) -> tuple:
        return (row[k] != row[k], 0 if row[k] != row[k] else row[k])

    return sorted(range(len(row)), key=key, reverse=descending)  # of equal ones the first first, both ways


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_orders_are_those_of_python_in_full_and_in_part(dtype, descending) -> None:
    for shape, axis in (((200,), 0), ((200, 4), 0), ((3, 7), 1)):
        x = numbers(dtype, shape)
        n = shape[axis]
        want = np.apply_along_axis(lambda row: sorted_places(row.tolist(), descending), axis, x)
        for start, stop in ((0, None), (0, 1), (0, 2), (n // 2, n // 2 + 1), (2, 6), (n - 1, n), (0, 0)):
            got = order_of(x, axis, descending, start, stop)
            np.testing.assert_array_equal(got, np.take(want, range(start, n if stop is None else stop), axis))


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
