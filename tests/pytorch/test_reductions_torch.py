"""Reductions in the corners where NumPy and the array API go another way than PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import stratal as st  # noqa: E402

pytestmark = pytest.mark.torch
NAN = float("nan")

TOTALS = {
    "x.sum": lambda m, x: x.sum() - 300,
    "x.sum of rows": lambda m, x: -x.sum(1, keepdim=True),
    "x.sum dim": lambda m, x: -x.sum(dim=0),
    "x.prod": lambda m, x: x.prod(0),
    "x.cumsum": lambda m, x: x.cumsum(0),
    "x.cumprod": lambda m, x: x.cumprod(1),
    "x.nansum": lambda m, x: x.nansum(),
    "x.trace": lambda m, x: x[:2, :2].trace() - 300,
    "cumsum": lambda m, x: m.cumsum(x, 1),
    "cumprod": lambda m, x: m.cumprod(x, 0),
    "nansum": lambda m, x: m.nansum(x),
    "trace": lambda m, x: m.trace(x[:2, :2]),
}


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int32", "float32"])
@pytest.mark.parametrize("name", TOTALS)
def test_integers_add_up_in_int64(name, dtype):
    values = np.array([[1, 2, 100], [3, 4, 5]])
    if dtype == "bool" and ("nansum" in name or "trace" in name):
        pytest.skip("PyTorch sums no bools there")
    values = values.astype(dtype)
    got, want = TOTALS[name](st, st.tensor(values)), TOTALS[name](torch, torch.tensor(values))
    assert got.dtype.name == str(want.dtype).removeprefix("torch.")
    np.testing.assert_array_equal(got.numpy(), want.numpy())


def test_the_array_apis_functions_keep_unsigned_integers():
    x = st.tensor([200, 100], dtype=st.uint8)
    assert st.sum(x).dtype is st.prod(x).dtype is st.cumulative_sum(x).dtype is st.uint64


@pytest.mark.parametrize("how", ["linear", "lower", "higher", "nearest", "midpoint"])
@pytest.mark.parametrize("name", ["quantile", "nanquantile"])
@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 9])
def test_a_quantile_at_a_half(name, how, n):
    values = np.arange(n) * 10.0
    for q in (0.0, 0.1, 0.25, 0.3, 0.5, 0.7, 0.75, 0.9, 1.0):
        got, want = (getattr(m, name)(m.tensor(values), q, interpolation=how) for m in (st, torch))
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-12, err_msg=str(q))


@pytest.mark.parametrize(
    "values",
    [[3.0, NAN, 3.0], [2.0, 1.0, 2.0, 1.0], [NAN, NAN, 1.0, 1.0], [NAN, 5.0, 5.0, NAN, NAN], [NAN],
     [1.0, NAN]],
)  # fmt: skip
def test_the_mode_with_nan(values):
    """NaN equals nothing. Where all numbers stand once, PyTorch's sorting decides, which knows no NaN."""
    got, want = st.tensor(values).mode(), torch.tensor(values).mode()
    np.testing.assert_array_equal(got.values.numpy(), want.values.numpy())
