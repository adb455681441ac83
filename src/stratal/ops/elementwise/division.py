"""True division, floor division and remainder."""

from __future__ import annotations

import math as pymath
from collections.abc import Sequence

import numpy as np

from stratal.base.dtypes import float64
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, record
from stratal.loops.expr import Expr, call, cast, const
from stratal.ops.families import Elementwise

# A float32 quotient is below 2**277, and a step of float64 reduces it by 2**52 at least.
_STEPS = 6
_FLOAT64 = "an exact float64 remainder reduces the quotient 2**2098 in a loop of unknown length"


@record
class Div(Elementwise):
    """x / y of floats or complex numbers, IEEE division; integers are cast to floats by the front end."""

    arity = 2
    kinds = "fc"
    domain = (0.5, 2.0)
    ufunc = np.divide
    fn = "div"

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        y = inputs[1]
        if ct.dtype.is_complex:
            y, out = b.conj(y), b.conj(out)
        by_x = b.div(ct, y)
        return [by_x, b.neg(b.mul(by_x, out))]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Node | None:
        tx, ty = tangents
        y = inputs[1]
        if ty is None:
            return b.div(tx, y)
        moved = b.mul(out, ty)
        return b.div(b.neg(moved) if tx is None else b.sub(tx, moved), y)


@record
class FloorDiv(Elementwise):
    """The largest integer not above x / y, as Python's `//`; integers divided by 0 give 0. Its derivative is 0."""

    arity = 2
    domain = (0.5, 3.0)

    def host_reason(self, *types: TensorType) -> str:
        return _FLOAT64 if types[0].dtype is float64 else super().host_reason(*types)

    def numpy(self, *arrays: Array) -> Array:
        x, y = arrays
        if x.dtype.kind in "iu":
            return np.floor_divide(x, y)  # 0 where y is 0
        return np.floor_divide(x.astype(np.float64), y.astype(np.float64))

    def scalar(self, *args: Expr) -> Expr:
        x, y = args
        if x.dtype.is_integer:
            quotient = call("idiv", x, y)
            if x.dtype.kind == "u":
                return quotient
            rest = call("irem", x, y)
            return call("select", _crosses(rest, y), call("sub", quotient, const(1, x.dtype)), quotient)
        x, y = cast(x, float64), cast(y, float64)
        zero, one = const(0.0, float64), const(1.0, float64)
        rest = _fmod(x, y)
        ratio = call("div", x, y)
        quotient = call("div", call("sub", x, rest), y)
        quotient = call("select", _crosses(rest, y), call("sub", quotient, one), quotient)
        whole = call("floor", quotient)
        off = call("gt", call("sub", quotient, whole), const(0.5, float64))
        whole = call("select", off, call("add", whole, one), whole)
        signed_zero = call("select", call("lt", ratio, zero), const(-0.0, float64), zero)
        whole = call("select", call("eq", quotient, zero), signed_zero, whole)
        return call("select", call("eq", y, zero), ratio, whole)

    def partials(self, b: Builder, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [None, None]


@record
class Rem(Elementwise):
    """x - floor(x / y) * y, exactly: the sign is the divisor's, as Python's `%`; integers divided by 0 leave 0."""

    arity = 2
    domain = (0.5, 3.0)

    def host_reason(self, *types: TensorType) -> str:
        return _FLOAT64 if types[0].dtype is float64 else super().host_reason(*types)

    def numpy(self, *arrays: Array) -> Array:
        return np.asarray(np.remainder(*arrays))  # integers: 0 where y is 0

    def scalar(self, *args: Expr) -> Expr:
        x, y = args
        if x.dtype.is_integer:
            rest = call("irem", x, y)
            return call("select", _crosses(rest, y), call("add", rest, y), rest)
        # The sum of remainder and divisor rounds in the operands' own dtype, as the reference does.
        rest = cast(_fmod(cast(x, float64), cast(y, float64)), x.dtype)
        zero = const(0.0, x.dtype)
        signed_zero = call("select", call("lt", y, zero), const(-0.0, x.dtype), zero)
        moved = call("select", _crosses(rest, y), call("add", rest, y), rest)
        return call("select", call("eq", rest, zero), signed_zero, moved)

    def partials(self, b: Builder, out: Node, *inputs: Node) -> Sequence[Node | None]:
        x, y = inputs
        return [b.like(x, 1), b.neg(b.floordiv(x, y))]


def _crosses(rest: Expr, divisor: Expr) -> Expr:
    """Return whether a remainder is not zero and of the other sign than its divisor."""
    zero = const(0, rest.dtype)
    if rest.dtype.kind == "u":
        return const(False, call("eq", rest, rest).dtype)
    differ = call("ne", call("lt", rest, zero), call("lt", divisor, zero))
    return call("and", call("ne", rest, zero), differ)


def _fmod(x: Expr, y: Expr) -> Expr:
    """Return the exact remainder with the sign of x of two float32 values held as float64.

    Each step takes the rounded quotient off; the difference is exact, since the quotient's rounding error times y
    has no more bits than y. A quotient rounded up leaves a remainder of the wrong sign, put right at the end.
    """
    zero = const(0.0, float64)
    rest = x
    for _ in range(_STEPS):
        rest = call("fma", call("neg", call("trunc", call("div", rest, y))), y, rest)
    size = call("abs", y)
    wrong = call("and", call("ne", rest, zero), call("ne", call("lt", rest, zero), call("lt", x, zero)))
    back = call("add", rest, call("select", call("lt", x, zero), call("neg", size), size))
    rest = call("select", wrong, back, rest)
    y_infinite = call("eq", size, const(pymath.inf, float64))
    x_finite = call("lt", call("abs", x), const(pymath.inf, float64))
    return call("select", call("and", y_infinite, x_finite), x, rest)
