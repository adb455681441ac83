"""True division, floor division and remainder."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stratal.base.dtypes import float64
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, record
from stratal.loops import math
from stratal.loops.expr import Expr, call
from stratal.ops.families import Elementwise

_FLOAT64 = "a float64 quotient may be 2**2098, and the native remainder is exact below 2**100 only"


@record
class Div(Elementwise):
    """x / y of floats or complex numbers, IEEE division; integers are cast to floats by the front end."""

    arity = 2
    kinds = "fc"
    domain = (0.5, 2.0)
    ufunc = np.divide
    fn = "div"

    def in_reals(self, b: Builder, *inputs: Node) -> Node | None:
        return _quotient(b, *((b.real(v), b.imag(v)) for v in inputs))

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        y = inputs[1]
        if ct.dtype.is_complex:
            y, out = b.conj(y), b.conj(out)
        by_x = b.div(ct, y)
        return [by_x, b.neg(b.mul(by_x, out)) if b.needed(1) else None]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Node | None:
        tx, ty = tangents
        moved = tx
        if ty is not None:
            fall = b.mul(out, ty)
            moved = b.neg(fall) if tx is None else b.sub(tx, fall)
        tangent: Node = b.div(moved, inputs[1])
        return tangent


def _quotient(b: Builder, x: tuple[Node, Node], y: tuple[Node, Node]) -> Node:
    """Return x / y of parts as NumPy does: by the larger part of y first (Smith, 1962)."""
    (a, c), (p, q) = x, y
    by_real = b.ge(b.abs(p), b.abs(q))
    large, small = b.select(by_real, p, q), b.select(by_real, q, p)
    ratio = b.div(small, large)
    scale = b.div(b.like(p, 1), b.add(large, b.mul(small, ratio)))
    re = b.add(b.select(by_real, a, c), b.mul(b.select(by_real, c, a), ratio))
    im = b.select(by_real, b.sub(c, b.mul(a, ratio)), b.sub(b.mul(c, ratio), a))
    zero = b.op("and", b.eq(large, b.like(p, 0)), b.eq(small, b.like(p, 0)))
    nothing = b.like(p, 0)
    parts = (b.select(zero, b.div(v, nothing), b.mul(scaled, scale)) for v, scaled in ((a, re), (c, im)))
    quotient: Node = b.complex(*parts)
    return quotient


@record
class FloorDiv(Elementwise):
    """The largest integer not above x / y, as Python's `//`; integers divided by 0 give 0.

    The derivative is 0."""

    arity = 2
    domain = (0.5, 3.0)

    def host_reason(self, *types: TensorType) -> str:
        return _FLOAT64 if types[0].dtype is float64 else super().host_reason(*types)

    def numpy(self, *arrays: Array) -> Array:
        return np.asarray(np.floor_divide(*arrays))  # integers: 0 where y is 0

    def scalar(self, *args: Expr) -> Expr:
        return math.floor_divide(*args) if args[0].dtype.is_float else math.integer_floor_divide(*args)

    def partials(self, b: Builder, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [None, None]


@record
class Rem(Elementwise):
    """x - floor(x / y) * y, exactly: with the divisor's sign, as Python's `%`.

    Integers divided by 0 leave 0."""

    arity = 2
    domain = (0.5, 3.0)

    def host_reason(self, *types: TensorType) -> str:
        return _FLOAT64 if types[0].dtype is float64 else super().host_reason(*types)

    def numpy(self, *arrays: Array) -> Array:
        return np.asarray(np.remainder(*arrays))  # integers: 0 where y is 0

    def scalar(self, *args: Expr) -> Expr:
        return math.remainder(*args) if args[0].dtype.is_float else math.integer_remainder(*args)

    def partials(self, b: Builder, out: Node, *inputs: Node) -> Sequence[Node | None]:
        x, y = inputs
        return [b.like(x, 1), b.neg(b.floordiv(x, y))]


@record
class Fmod(Elementwise):
    """x - trunc(x / y) * y, exactly: with the dividend's sign, as C's `fmod`.

    Integers divided by 0 leave 0."""

    arity = 2
    domain = (0.5, 3.0)

    def host_reason(self, *types: TensorType) -> str:
        return _FLOAT64 if types[0].dtype is float64 else super().host_reason(*types)

    def numpy(self, *arrays: Array) -> Array:
        with np.errstate(invalid="ignore"):
            return np.asarray(np.fmod(*arrays))  # integers: 0 where y is 0

    def scalar(self, *args: Expr) -> Expr:
        return math.fmod(*args) if args[0].dtype.is_float else call("irem", *args)

    def partials(self, b: Builder, out: Node, *inputs: Node) -> Sequence[Node | None]:
        x, y = inputs
        return [b.like(x, 1), b.neg(b.trunc(b.div(x, y)))]
