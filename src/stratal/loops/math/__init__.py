"""Scalar mathematics: functions from expressions to expressions of `loops.expr.FUNCTIONS` alone.

Operands are float32 or float64 unless the name says integer. Everything is branch-free, so it vectorises.
Accuracy is measured by `tests/contract/test_math_ulp.py`.
"""

from stratal.loops.math.arith import sqrt
from stratal.loops.math.bessel import i0, i0e, i1, i1e, k0, k0e, k1, k1e
from stratal.loops.math.bessel_jy import j0, j1, y0, y1
from stratal.loops.math.division import (
    floor_divide,
    fmod,
    integer_floor_divide,
    integer_remainder,
    isfinite,
    isinf,
    isnan,
    remainder,
    sign,
)
from stratal.loops.math.error import erf, erfc, erfcinv, erfcx, erfinv, ndtri
from stratal.loops.math.exponential import (
    acosh,
    asinh,
    atanh,
    cosh,
    exp,
    exp2,
    exp2_below,
    exp_below,
    exp_near,
    expm1,
    sigmoid,
    sinh,
    tanh,
)
from stratal.loops.math.floats import copysign, signbit
from stratal.loops.math.gamma import digamma, gamma, lgamma, polygamma
from stratal.loops.math.logarithm import log, log1p, log2
from stratal.loops.math.power import cbrt, integer_power, pow, power_by_squaring, rsqrt
from stratal.loops.math.trigonometric import acos, asin, atan, atan2, cos, sin, tan

__all__ = [
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "copysign", "cos", "cosh",
    "digamma", "erf", "erfc", "erfcinv", "erfcx", "erfinv", "exp", "exp2", "exp2_below", "exp_below",
    "exp_near", "expm1", "floor_divide", "fmod", "gamma", "i0", "i0e", "i1", "i1e", "integer_floor_divide",
    "integer_power", "integer_remainder", "isfinite", "isinf", "isnan", "j0", "j1", "k0", "k0e", "k1",
    "k1e", "lgamma", "log", "log1p", "log2", "ndtri", "polygamma", "pow",
    "power_by_squaring", "remainder", "rsqrt", "sigmoid", "sign", "signbit", "sin",
    "sinh", "sqrt", "tan", "tanh", "y0", "y1",
]  # fmt: skip
