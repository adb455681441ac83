"""Addition, subtraction, multiplication, sign and size: exact or correctly rounded in one operation."""

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
from stratal.ops.families import REAL_OF, Elementwise, linear_jvp, widened


@record
class Add(Elementwise):
    """x + y; integers wrap."""

    arity = 2
    kinds = "uifc"
    by_parts = True
    ufunc = np.add
    fn = "add"

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [ct, ct]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Node | None:
        x, y = tangents
        return y if x is None else x if y is None else b.add(x, y)


@record
class Sub(Elementwise):
    """x - y; integers wrap."""

    arity = 2
    kinds = "uifc"
    by_parts = True
    ufunc = np.subtract
    fn = "sub"

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [ct, b.neg(ct) if b.needed(1) else None]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Node | None:
        x, y = tangents
        if y is None:
            return x
        moved: Node = b.neg(y) if x is None else b.sub(x, y)
        return moved


@record
class Mul(Elementwise):
    """x * y; integers wrap."""

    arity = 2
    kinds = "uifc"
    ufunc = np.multiply
    fn = "mul"

    def partials(self, b: Builder, out: Node, *inputs: Node) -> Sequence[Node | None]:
        x, y = inputs
        return [y, x]

    def in_reals(self, b: Builder, *inputs: Node) -> Node | None:
        (a, c), (p, q) = ((b.real(x), b.imag(x)) for x in inputs)
        product: Node = b.complex(b.sub(b.mul(a, p), b.mul(c, q)), b.add(b.mul(a, q), b.mul(c, p)))
        return product


@record
class Neg(Elementwise):
    """-x; unsigned integers wrap."""

    arity = 1
    kinds = "uifc"
    by_parts = True
    ufunc = np.negative
    fn = "neg"

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [b.neg(ct)]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Node | None:
        return linear_jvp(self, b, tangents, *inputs)


@record
class Abs(Elementwise):
    """|x|, real also for complex x; the least signed integer wraps to itself. The derivative at 0 is 0."""

    arity = 1
    kinds = "uifc"

    def infer(self, *types: TensorType) -> TensorType:
        x = super().infer(*types)
        return x.with_dtype(REAL_OF.get(x.dtype, x.dtype))

    def ref(self, *arrays: Array) -> Array:
        x = arrays[0]
        return (
            np.asarray(np.abs(x)) if x.dtype.kind == "c" else np.asarray(np.abs(widened(x))).astype(x.dtype)
        )

    def scalar(self, *args: Expr) -> Expr:
        return args[0] if args[0].dtype.kind == "u" else call("abs", *args)

    def in_reals(self, b: Builder, *inputs: Node) -> Node | None:
        (x,) = inputs
        wide = (b.cast(part(x), dtype=float64) for part in (b.real, b.imag))
        found: Node = b.cast(_length(b, *wide), dtype=x.dtype.real)
        return found

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        x = inputs[0]
        if not x.dtype.is_complex:
            return [b.mul(ct, b.sign(x))]
        return [b.mul(b.cast(ct, dtype=x.dtype), _direction(b, out, x))]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Node | None:
        x, tangent = inputs[0], tangents[0]
        moved: Node
        if x.dtype.is_complex:
            moved = b.real(b.mul(b.conj(_direction(b, out, x)), tangent))
        else:
            moved = b.mul(b.sign(x), tangent)
        return moved


def _length(b: Builder, re: Node, im: Node) -> Node:
    """Return sqrt(re^2 + im^2) where squares of float64 would leave its range, too; infinite if a part is."""
    size, other = (b.abs(v) for v in (re, im))
    larger = b.max(size, other)
    factor, back = b.like(re, 1), b.like(re, 1)
    for power, beyond in (
        (-600, b.gt(larger, b.like(re, 2.0**500))),
        (600, b.lt(larger, b.like(re, 2.0**-400))),
    ):
        factor = b.select(beyond, b.like(re, 2.0**power), factor)
        back = b.select(beyond, b.like(re, 2.0**-power), back)
    x, y = (b.mul(v, factor) for v in (size, other))
    length = b.mul(b.sqrt(b.add(b.mul(x, x), b.mul(y, y))), back)
    infinite = b.op("or", b.isinf(re), b.isinf(im))
    found: Node = b.select(infinite, b.like(re, float("inf")), length)
    return found


def _direction(b: Builder, modulus: Node, x: Node) -> Node:
    """Return x / |x|, and 0 at 0, of a complex x."""
    nonzero = b.select(b.eq(modulus, b.like(modulus, 0)), b.like(modulus, 1), modulus)
    direction: Node = b.div(x, b.cast(nonzero, dtype=x.dtype))
    return direction


@record
class Sign(Elementwise):
    """-1, 0 or 1 (0 also for -0.0); NaN stays NaN. Of a complex x / |x|, 0 at 0."""

    arity = 1
    kinds = "uifc"

    def numpy(self, *arrays: Array) -> Array:
        x = arrays[0]
        if x.dtype.kind != "c":
            return np.asarray(np.sign(x))
        modulus = np.abs(x)
        return np.asarray(np.where(modulus == 0, 0, x / np.where(modulus == 0, 1, modulus)))

    def scalar(self, *args: Expr) -> Expr:
        return math.sign(*args)

    def in_reals(self, b: Builder, *inputs: Node) -> Node | None:
        (x,) = inputs
        length = b.abs(x)
        none = b.eq(length, b.like(length, 0))
        divisor = b.select(none, b.like(length, 1), length)
        zero = b.like(length, 0)
        parts = (b.select(none, zero, b.div(v, divisor)) for v in (b.real(x), b.imag(x)))
        direction: Node = b.complex(*parts)
        return direction

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        """The derivative of x / |x| is its own adjoint."""
        return [_turn(b, ct, out, inputs[0]) if ct.dtype.is_complex else None]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Node | None:
        t = tangents[0]
        return _turn(b, t, out, inputs[0]) if t is not None and t.dtype.is_complex else None


def _turn(b: Builder, t: Node, direction: Node, x: Node) -> Node:
    """Return what a change t of x changes in x / |x|: the part of t / |x| that turns it."""
    along = b.mul(direction, b.cast(b.real(b.mul(b.conj(direction), t)), dtype=x.dtype))
    modulus = b.abs(x)
    nonzero = b.select(b.eq(modulus, b.like(modulus, 0)), b.like(modulus, 1), modulus)
    turned: Node = b.div(b.sub(t, along), b.cast(nonzero, dtype=x.dtype))
    return turned


@record
class Max(Elementwise):
    """The larger of x and y; NaN where either is. Where x == y each gets half of the cotangent."""

    arity = 2
    ufunc = np.maximum
    fn = "max"

    def partials(self, b: Builder, out: Node, *inputs: Node) -> Sequence[Node | None]:
        x, y = inputs
        return [_share(b, b.lt(x, y), x, y), _share(b, b.gt(x, y), x, y)]


@record
class Min(Elementwise):
    """The smaller of x and y; NaN where either is. Where x == y each gets half of the cotangent."""

    arity = 2
    ufunc = np.minimum
    fn = "min"

    def partials(self, b: Builder, out: Node, *inputs: Node) -> Sequence[Node | None]:
        x, y = inputs
        return [_share(b, b.gt(x, y), x, y), _share(b, b.lt(x, y), x, y)]


def _share(b: Builder, lost: Node, x: Node, y: Node) -> Node:
    """Return 0 where an operand lost, 1/2 where both are equal, else 1 (also next to NaN)."""
    won = b.select(b.eq(x, y), b.like(x, 0.5), b.like(x, 1))
    share: Node = b.select(lost, b.like(x, 0), won)
    return share
