"""The cube root, by a Newton step from y = x^(-1/3), which needs no division."""

from __future__ import annotations

from typing import Final

from stratal.base.dtypes import float32
from stratal.loops.expr import Expr, const
from stratal.loops.math.arith import (
    INF,
    absolute,
    add,
    fma,
    from_bits,
    like,
    lt,
    mul,
    neg,
    polynomial,
    select,
    shr,
    sub,
    to_bits,
    with_sign,
)

# The bits of x^(-1/3) are about these less a third of those of x: 1 - x y^3 is at most 0.1026
_GUESS: Final = {32: 0x54A1D5AD, 64: 0x553EE978D4FDF3B7}
# ((1 - e)^(-1/3) - 1) / e, degree 2 / 3, |e| <= 0.1026: relative error of y 2^-18.4 / 2^-23.3
_ROOT32: Final = (0.3333297669887543, 0.22348730266094208, 0.17441557347774506)
_ROOT64: Final = (0.3333290370830205, 0.2222157401301652, 0.17448799148031685, 0.14579822141693022)


def _third(bits: Expr) -> Expr:
    """Return about a third of an unsigned integer: 1/4 + 1/16 + 1/64 + ..."""
    third = add(shr(bits, 2), shr(bits, 4))
    for shift in (4, 8, 16)[: 2 if bits.dtype.bits == 32 else 3]:
        third = add(third, shr(third, shift))
    return third


def cbrt(x: Expr) -> Expr:
    """Return the cube root, of the sign of x."""
    single = x.dtype is float32
    one, third = like(1.0, x), like(1 / 3, x)
    size = absolute(x)
    small = lt(size, like(2.0**-72 if single else 2.0**-900, x))  # what is left below would be subnormal
    a = select(small, mul(size, like(2.0**72, x)), size)
    bits = to_bits(a)
    y = from_bits(sub(const(_GUESS[x.dtype.bits], bits.dtype), _third(bits)))
    e = fma(neg(mul(a, y)), mul(y, y), one)
    y = fma(mul(y, e), polynomial(e, _ROOT32 if single else _ROOT64), y)
    if not single:
        e = fma(neg(mul(a, y)), mul(y, y), one)
        y = fma(mul(y, e), third, y)
    square = mul(y, y)
    root = mul(a, square)
    left = fma(neg(root), mul(root, root), a)
    root = fma(left, mul(square, third), root)
    root = select(small, mul(root, like(2.0**-24, x)), root)
    return with_sign(select(lt(size, like(INF, x)), root, size), x)
