"""Addition, subtraction, multiplication, division, sign, size and rounding: exact, or rounded at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

import numpy as np

from stratal.base.dtypes import float64
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, record
from stratal.loops import math
from stratal.loops.expr import Expr, call
from stratal.ops.families import Elementwise, Linear, records, widened


@record
class Add(Elementwise):
    """x + y; integers wrap."""

    arity = 2
    commutative = True
    kinds = "uifc"
    by_parts = True
    exact = "uif"
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
    exact = "uif"
    ufunc = np.subtract
    fn = "sub"

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [ct, b.neg(ct) if b.needed(1) else None]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Node | None:
        x, y = tangents
        if y is None:
            return x
        return b.neg(y) if x is None else b.sub(x, y)


@record
class Mul(Elementwise):
    """x * y; integers wrap."""

    arity = 2
    commutative = True
    kinds = "uifc"
    exact = "uif"
    ufunc = np.multiply
    fn = "mul"

    def partials(self, b: Builder, out: Node, *inputs: Node) -> Sequence[Node | None]:
        x, y = inputs
        return [y, x]

    def in_reals(self, b: Builder, *inputs: Node) -> Node | None:
        (a, c), (p, q) = ((b.real(x), b.imag(x)) for x in inputs)
        return b.complex(b.sub(b.mul(a, p), b.mul(c, q)), b.add(b.mul(a, q), b.mul(c, p)))


@record
class Neg(Linear, Elementwise):
    """-x; unsigned integers wrap."""

    arity = 1
    kinds = "uifc"
    by_parts = True
    exact = "uif"
    ufunc = np.negative
    fn = "neg"

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [b.neg(ct)]


@record
class Abs(Elementwise):
    """|x|, real also for complex x; the least signed integer wraps to itself.

    The derivative at 0 and at NaN is 0.
    """

    arity = 1
    kinds = "uifc"
    exact = "uif"

    def infer(self, *types: TensorType) -> TensorType:
        x = super().infer(*types)
        return x.with_dtype(x.dtype.real)

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
        return b.cast(_length(b, *wide), dtype=x.dtype.real)

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        x = inputs[0]
        if not x.dtype.is_complex:
            return [_signed(b, ct, x)]
        return [b.mul(b.cast(ct, dtype=x.dtype), _direction(b, out, x))]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Node | None:
        x, tangent = inputs[0], tangents[0]
        if tangent is None or not x.dtype.is_complex:
            return None if tangent is None else _signed(b, tangent, x)
        return b.real(b.mul(b.conj(_direction(b, out, x)), tangent))


def _signed(b: Builder, t: Node, x: Node) -> Node:
    """Return t times the sign of a real x, which for NaN is 0."""
    zero = b.like(x, 0)
    sign = b.select(b.gt(x, zero), b.like(x, 1), b.select(b.lt(x, zero), b.like(x, -1), zero))
    return b.mul(t, sign)


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
    return b.select(infinite, b.like(re, float("inf")), length)


def _direction(b: Builder, modulus: Node, x: Node) -> Node:
    """Return x / |x|, and 0 at 0, of a complex x."""
    nonzero = b.select(b.eq(modulus, b.like(modulus, 0)), b.like(modulus, 1), modulus)
    return b.div(x, b.cast(nonzero, dtype=x.dtype))


@record
class Sign(Elementwise):
    """-1, 0 or 1 (0 also for -0.0); NaN stays NaN. Of a complex x / |x|, 0 at 0."""

    arity = 1
    kinds = "uifc"
    exact = "uif"
    formula = math.sign

    def numpy(self, *arrays: Array) -> Array:
        x = arrays[0]
        if x.dtype.kind != "c":
            return np.asarray(np.sign(x))
        modulus = np.abs(x)
        return np.asarray(np.where(modulus == 0, 0, x / np.where(modulus == 0, 1, modulus)))

    def in_reals(self, b: Builder, *inputs: Node) -> Node | None:
        (x,) = inputs
        length = b.abs(x)
        none = b.eq(length, b.like(length, 0))
        divisor = b.select(none, b.like(length, 1), length)
        zero = b.like(length, 0)
        parts = (b.select(none, zero, b.div(v, divisor)) for v in (b.real(x), b.imag(x)))
        return b.complex(*parts)

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
    return b.div(b.sub(t, along), b.cast(nonzero, dtype=x.dtype))


class Extreme(Elementwise):
    """What max and min share: where x == y each gets half of the cotangent."""

    arity = 2
    commutative = True
    exact = "ui"  # of -0.0 and 0.0 a kernel may give the other one

    def partials(self, b: Builder, out: Node, *inputs: Node) -> Sequence[Node | None]:
        x, y = inputs
        less, greater = b.lt(x, y), b.gt(x, y)
        return [_share(b, lost, x, y) for lost in ((less, greater) if self.fn == "max" else (greater, less))]


extreme = records(__name__, Extreme)
extreme(
    "max", "The larger of x and y; NaN where either is. Where x == y each gets half of the cotangent.",
    ufunc=np.maximum, fn="max",
)  # fmt: skip
extreme(
    "min", "The smaller of x and y; NaN where either is. Where x == y each gets half of the cotangent.",
    ufunc=np.minimum, fn="min",
)  # fmt: skip


def _share(b: Builder, lost: Node, x: Node, y: Node) -> Node:
    """Return 0 where an operand lost, 1/2 where both are equal, else 1 (also next to NaN)."""
    won = b.select(b.eq(x, y), b.like(x, 0.5), b.like(x, 1))
    return b.select(lost, b.like(x, 0), won)


# -- whole numbers that stay floats; the derivative is 0, also at the jumps ----------------------------------
class Rounding(Elementwise):
    """A rounding of floats: 16-bit floats hold every result exactly."""

    arity = 1
    kinds = exact = "f"

    def partials(self, b: Builder, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [None]


rounding = records(__name__, Rounding)
rounding("floor", "The largest integer not above x.", ufunc=np.floor, fn="floor")
rounding("ceil", "The smallest integer not below x.", ufunc=np.ceil, fn="ceil")
rounding("trunc", "x rounded towards 0.", ufunc=np.trunc, fn="trunc")
rounding("round", "x rounded to the nearest integer, ties to even.", ufunc=np.rint, fn="rint")


# -- division: true, floored, and what is left of it ---------------------------------------------------------
_FLOAT64 = "a float64 quotient may be 2**2098, and the native remainder is exact below 2**100 only"


@record
class Div(Elementwise):
    """x / y of floats or complex numbers, IEEE division; integers are cast to floats by the front end."""

    arity = 2
    kinds = "fc"
    domain = (0.5, 2.0)
    exact = "uif"
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
        return b.div(moved, inputs[1])


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
    return b.complex(*parts)


class Modular(Elementwise):
    """What comes out of a division as a whole number, or is left of it; integers divided by 0 give 0."""

    arity = 2
    exact = "uif"
    domain = (0.5, 3.0)
    of_integers: ClassVar[Callable[..., Expr]]  # the formula is that of floats

    def host_reason(self, *types: TensorType) -> str:
        return _FLOAT64 if types[0].dtype is float64 else super().host_reason(*types)

    def scalar(self, *args: Expr) -> Expr:
        return super().scalar(*args) if args[0].dtype.is_float else type(self).of_integers(*args)


@record
class FloorDiv(Modular):
    """The largest integer not above x / y, as Python's `//`; integers divided by 0 give 0.

    The derivative is 0."""

    ufunc = np.floor_divide
    formula = math.floor_divide
    of_integers = math.integer_floor_divide

    def partials(self, b: Builder, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [None, None]


@record
class Rem(Modular):
    """x - floor(x / y) * y, exactly: with the divisor's sign, as Python's `%`.

    Integers divided by 0 leave 0."""

    ufunc = np.remainder
    formula = math.remainder
    of_integers = math.integer_remainder

    def partials(self, b: Builder, out: Node, *inputs: Node) -> Sequence[Node | None]:
        x, y = inputs
        return [b.like(x, 1), b.neg(b.floordiv(x, y))]


@record
class Fmod(Modular):
    """x - trunc(x / y) * y, exactly: with the dividend's sign, as C's `fmod`.

    Integers divided by 0 leave 0."""

    formula = math.fmod
    of_integers = partial(call, "irem")

    def numpy(self, *arrays: Array) -> Array:
        with np.errstate(invalid="ignore"):
            return np.asarray(np.fmod(*arrays))

    def partials(self, b: Builder, out: Node, *inputs: Node) -> Sequence[Node | None]:
        x, y = inputs
        return [b.like(x, 1), b.neg(b.trunc(b.div(x, y)))]
