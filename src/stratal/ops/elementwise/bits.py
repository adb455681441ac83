"""Logic and bits: and, or, xor, not, and the shifts."""

from __future__ import annotations

import numpy as np

from stratal.graph.op import Array, record
from stratal.loops.expr import Expr, call, const
from stratal.ops.families import Elementwise


class Bitwise(Elementwise):
    """An operation on bits: logical on bool, bitwise on integers."""

    arity = 2
    kinds = "bui"
    not_differentiable = "bool and integers have no tangents"


@record
class And(Bitwise):
    """x & y."""

    ufunc = np.bitwise_and
    fn = "and"


@record
class Or(Bitwise):
    """x | y."""

    ufunc = np.bitwise_or
    fn = "or"


@record
class Xor(Bitwise):
    """x ^ y."""

    ufunc = np.bitwise_xor
    fn = "xor"


@record
class Not(Bitwise):
    """~x: `not` on bool, the complement on integers."""

    arity = 1
    ufunc = np.invert
    fn = "not"


class Shift(Bitwise):
    """x shifted by y bits. A count that is negative or not below the width shifts every bit out."""

    kinds = "ui"

    def numpy(self, *arrays: Array) -> Array:
        x, count = arrays
        width = 8 * x.dtype.itemsize
        inside = (count >= 0) & (count < width)
        return np.where(inside, self.shifted(x, np.where(inside, count, 0).astype(x.dtype)), self.emptied(x))

    def shifted(self, x: Array, count: Array) -> Array:
        """Return x shifted by counts in [0, width)."""
        raise NotImplementedError

    def emptied(self, x: Array) -> Array:
        """Return what is left when every bit is shifted out."""
        raise NotImplementedError

    def scalar(self, *args: Expr) -> Expr:
        x, count = args
        if count.dtype.kind == "i":
            every = const(count.dtype.bits, count.dtype)
            count = call("select", call("lt", count, const(0, count.dtype)), every, count)
        return call(self.fn, x, count)


@record
class Shl(Shift):
    """x << y; zeros come in."""

    fn = "shl"

    def shifted(self, x: Array, count: Array) -> Array:
        return np.left_shift(x, count)

    def emptied(self, x: Array) -> Array:
        return np.zeros_like(x)


@record
class Shr(Shift):
    """x >> y; copies of the sign come in for signed x, zeros for unsigned."""

    fn = "shr"

    def shifted(self, x: Array, count: Array) -> Array:
        return np.right_shift(x, count)

    def emptied(self, x: Array) -> Array:
        return np.where(x < 0, -1, 0).astype(x.dtype) if x.dtype.kind == "i" else np.zeros_like(x)
