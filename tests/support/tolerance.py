"""How far two computations of one op may differ: the one table of tolerances, by dtype and op.

Two correct results of an op differ by the rounding of each: the bound its record states for the lowered form
(`ulp`) and what NumPy's own implementation may be off. Ops that add many terms differ by the order of the
additions too, in proportion to the sizes of the terms rather than of the result.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stratal.base.dtypes import DType, as_dtype, float16, float32
from stratal.graph.op import Op

Array = np.ndarray[Any, Any]

NUMPY_ULP = {  # error of NumPy's own functions, in units in the last place
    "pow": 1.0, "exp": 3.0, "exp_within": 3.0, "exp2": 3.0, "expm1": 1.0, "log": 4.0, "log2": 4.0,
    "log1p": 1.0, "rsqrt": 1.5, "sin": 2.0, "cos": 2.0, "tan": 4.0, "asin": 4.0, "acos": 4.0, "atan": 4.0,
    "atan2": 1.0, "sinh": 4.0, "cosh": 4.0, "tanh": 4.0, "asinh": 4.0, "acosh": 4.0, "atanh": 4.0,
    "erf": 0.5, "erfc": 0.5, "logistic": 4.0, "cbrt": 4.0,
}  # fmt: skip

# Sums in another order: relative to the largest term times the number of terms of these samples.
SUMMING = {"sum", "prod", "mean", "var", "cumsum", "cumprod", "cumlogsumexp", "contract", "conv", "window",
           "scatter", "scatter_along", "window_reduce", "window_scatter",
           "linear_recurrence", "attention", "attention_grad", "dft", "fft", "rfft", "irfft"}  # fmt: skip
SUM_RTOL = {"f16": 4e-3, "bf16": 3e-2, "f32": 2e-5, "f64": 1e-13, "c64": 2e-5, "c128": 1e-13}

STRIDED_ULP = 2.0  # NumPy takes another code path for strided operands

GRADIENT_RTOL = 1e-5  # derivative rules against finite differences in float64
GRADIENT_ATOL = 1e-8


def ulp_distance(a: Array, b: Array) -> Array:
    """Return how many representable values lie between two float arrays; NaN equals NaN, -0.0 equals 0.0."""
    both_nan = np.isnan(a) & np.isnan(b)
    first, second = _ordered(a), _ordered(b)
    same = (first < 0) == (second < 0)  # then the difference is a int64, and exact where it is small
    apart = np.abs(np.where(same, first - second, 0)).astype(np.float64)
    distance = np.where(same, apart, np.abs(first.astype(np.float64) - second.astype(np.float64)))
    distance = np.where(np.isnan(a) != np.isnan(b), np.inf, distance)
    return np.asarray(np.where(both_nan, 0.0, distance))


def _ordered(x: Array) -> Array:
    """Return the position of each float among all floats of its dtype, 0 for both zeros."""
    bits = x.view({2: np.int16, 4: np.int32, 8: np.int64}[x.dtype.itemsize]).astype(np.int64)
    low = -(2 ** (8 * x.dtype.itemsize - 1))
    return np.where(bits < 0, low - bits, bits)


def allowed_ulps(op: Op, dtype: DType) -> float:
    """Return how many units in the last place a lowered op may be away from its reference."""
    if dtype.kind in op.exact:
        return 0.0
    if dtype in (float32,) or dtype.bits == 64:
        slack = NUMPY_ULP.get(op.name, 0.0)
        return op.ulp + slack if op.ulp > 0.5 or slack else 0.0
    # 16-bit floats compute in float32 and round once: only a near tie can round the other way.
    return 1.0 if op.ulp > 0.5 or op.name in NUMPY_ULP else 0.0


def disagreement(op: Op, got: Array, want: Array, slack: float = 0.0) -> str:
    """Return how a result differs by more than the table and `slack` ulp allow; empty where it does not."""
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"{got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}"
    dtype = as_dtype(want.dtype)
    if want.size == 0:
        return ""
    if dtype.is_complex:
        rtol, scale = 8 * float(np.finfo(want.real.dtype).eps), 1.0
        if op.name in SUMMING:
            rtol, scale = SUM_RTOL[dtype.short], float(np.max(np.abs(want), initial=1.0))
        close = np.allclose(got, want, rtol=rtol, atol=rtol * scale, equal_nan=True)
        return "" if close else f"{got} instead of {want}"
    if not dtype.is_float:
        return "" if np.array_equal(got, want) else f"{got} instead of {want}"
    if op.name in SUMMING:
        rtol = SUM_RTOL[dtype.short]
        wide = np.float64 if dtype is not float16 else np.float32
        scale = float(np.max(np.abs(want.astype(wide)), initial=1.0, where=np.isfinite(want.astype(wide))))
        close = np.allclose(got.astype(wide), want.astype(wide), rtol=rtol, atol=rtol * scale, equal_nan=True)
        return "" if close else f"{got} instead of {want} (relative tolerance {rtol:g})"
    distance, allowed = ulp_distance(got, want), allowed_ulps(op, dtype) + slack
    if np.all(distance <= allowed):
        return ""
    at = np.unravel_index(int(np.argmax(distance)), distance.shape)
    place = tuple(map(int, at))
    return f"{got[at]!r} instead of {want[at]!r} at {place}: {distance[at]:g} ulp, allowed {allowed:g}"


def same_zeros(op: Op, got: Array, want: Array) -> str:
    """Return where zeros of an exactly rounded op have the other sign; max and min may give either zero."""
    if (
        as_dtype(want.dtype).kind != "f"
        or allowed_ulps(op, as_dtype(want.dtype))
        or op.name in ("max", "min")
    ):
        return ""
    wrong = (got == 0) & (want == 0) & (np.signbit(got) != np.signbit(want))
    return f"a zero of the other sign at {np.flatnonzero(wrong).tolist()}" if np.any(wrong) else ""
