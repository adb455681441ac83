"""erf and erfc."""

from __future__ import annotations

from typing import Final

from stratal.base.dtypes import float32
from stratal.loops.expr import Expr
from stratal.loops.math.arith import (
    absolute,
    add,
    at_least,
    at_most,
    copysign,
    div,
    either,
    fma,
    like,
    lt,
    mul,
    neg,
    polynomial,
    select,
    sub,
)
from stratal.loops.math.exponential import exp

# erf(x)/x in w = x^2/7.7 - 1, degree 16, |x| <= 3.92 (Remez): relative error 2^-25.9. One polynomial without division:
# the inner loop of GELU.
_ERF32: Final = (
    0.3603436350822449, -0.17991630733013153, 0.13395370543003082, -0.10910504311323166, 0.0906049907207489,
    -0.07403852045536041, 0.05828757956624031, -0.04370077699422836, 0.030672848224639893, -0.019777288660407066,
    0.01247146911919117, -0.008199075236916542, 0.004191763233393431, -0.0010940011125057936, 0.0007122753304429352,
    -0.0009467775234952569, 0.0003631105355452746,
)  # fmt: skip
_ERF32_RANGE: Final = 15.4
_ERF32_LAST: Final = 3.92
# erf(x)/x - 1 in x^2, degree 12, |x| <= 1: relative error 2^-56.3
_ERF64: Final = (
    0.1283791670955126, -0.376126389031841, 0.11283791670971098, -0.026866170648031148, 0.005223977652692709,
    -0.0008548328535813517, 0.00012055386194155262, -1.492688148915029e-05, 1.6481059397507444e-06,
    -1.6557136823775e-07, 1.601329090746891e-08, -1.6465046672094007e-09, 1.4344191495600172e-10,
)  # fmt: skip
# (1 + 2a) exp(a^2) erfc(a) in q = (a - c)/(a + c), a >= 0: c = 3, degree 10: 2^-24.3; c = 4, degree 22: 2^-53.7
_ERFC32: Final = (
    1.2530080080032349, -0.13562114536762238, -0.04756242409348488, 0.1296464502811432, -0.11927055567502975,
    0.06829574704170227, -0.023799872025847435, 0.002565427217632532, 0.0020053347107023, -0.0007718660635873675,
    -0.0002659196616150439,
)  # fmt: skip
_ERFC64: Final = (
    1.2329951186255526, -0.1396211168405629, 0.015379652102619764, 0.0680970542547366, -0.10103906603630115,
    0.0937328349968239, -0.0663303658125639, 0.03716751556185176, -0.01619773404842424, 0.0050319697635733,
    -0.0007577734048624597, -0.00019925556127627854, 0.00015062247156695058, -2.4402941487048815e-05,
    -1.122528300339218e-05, 5.717295241818102e-06, 3.0195631121271856e-07, -8.342404364550518e-07,
    6.238919369608018e-08, 1.1456135761513052e-07, -7.778923785496763e-09, -1.3386283861909585e-08,
    -1.7176267300665925e-09,
)  # fmt: skip


def _erfc_positive(a: Expr) -> Expr:
    """Return erfc(a) for a >= 0; the rounding error of a^2 is put back after the exponential."""
    centre = either(a, 3.0, 4.0)
    q = div(sub(a, centre), add(a, centre))
    series = polynomial(q, _ERFC32 if a.dtype is float32 else _ERFC64)
    square = mul(a, a)
    lost = fma(a, a, neg(square))
    tail = mul(exp(neg(square)), div(series, fma(a, like(2.0, a), like(1.0, a))))
    return fma(neg(lost), tail, tail)


def erf(x: Expr) -> Expr:
    """Return the error function."""
    if x.dtype is float32:
        inner = at_least(at_most(x, _ERF32_LAST), -_ERF32_LAST)
        w = fma(mul(inner, inner), like(2.0 / _ERF32_RANGE, x), like(-1.0, x))
        return mul(inner, polynomial(w, _ERF32))
    a = at_most(absolute(x), 6.0)
    near = fma(x, polynomial(mul(x, x), _ERF64), x)
    far = copysign(sub(like(1.0, x), _erfc_positive(a)), x)
    return select(lt(a, like(1.0, x)), near, far)


def erfc(x: Expr) -> Expr:
    """Return 1 - erf(x) without cancellation for large x."""
    tail = _erfc_positive(at_most(absolute(x), 10.5 if x.dtype is float32 else 28.0))
    return select(lt(x, like(0.0, x)), sub(like(2.0, x), tail), tail)
