"""Logic, bits and comparisons: results of comparing are bool, and comparing with NaN is false, `ne` apart."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from stratal.base.dtypes import bool_, uint8
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, record
from stratal.loops import math
from stratal.loops.expr import Expr, call, cast, const
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
    keeps_sign: ClassVar[bool] = False

    def numpy(self, *arrays: Array) -> Array:
        x, count = arrays
        inside = (count >= 0) & (count < 8 * x.dtype.itemsize)
        shifted = super().numpy(x, np.where(inside, count, 0).astype(x.dtype))
        emptied = np.where((x < 0) & self.keeps_sign, -1, 0).astype(x.dtype)
        return np.where(inside, shifted, emptied)

    def scalar(self, *args: Expr) -> Expr:
        x, count = args
        if count.dtype.kind == "i":
            every = const(count.dtype.bits, count.dtype)
            count = call("select", count < 0, every, count)
        return call(self.fn, x, count)


@record
class Shl(Shift):
    """x << y; zeros come in."""

    ufunc = np.left_shift
    fn = "shl"


@record
class Shr(Shift):
    """x >> y; copies of the sign come in for signed x, zeros for unsigned."""

    ufunc = np.right_shift
    fn = "shr"
    keeps_sign = True


# -- comparisons and tests of floats -------------------------------------------------------------------------
class Test(Elementwise):
    """A question whose answer is bool."""

    result = bool_
    not_differentiable = "its result is bool"
    join: ClassVar[str]  # of complex numbers: joins the answers about real and imaginary parts

    def in_reals(self, b: Builder, *inputs: Node) -> Node | None:
        return b.op(self.join, *(b.op(self.name, *map(part, inputs)) for part in (b.real, b.imag)))


class Comparison(Test):
    """x compared with y, element by element."""

    arity = 2
    kinds = "buif"

    def scalar(self, *args: Expr) -> Expr:
        return call(self.fn, *[cast(x, uint8) if x.dtype.is_bool else x for x in args])


@record
class Eq(Comparison):
    """x == y."""

    kinds = "buifc"
    ufunc = np.equal
    fn = "eq"
    join = "and"


@record
class Ne(Comparison):
    """x != y; true where either is NaN."""

    kinds = "buifc"
    ufunc = np.not_equal
    fn = "ne"
    join = "or"


@record
class Lt(Comparison):
    """x < y; False < True."""

    ufunc = np.less
    fn = "lt"


@record
class Le(Comparison):
    """x <= y."""

    ufunc = np.less_equal
    fn = "le"


@record
class Gt(Comparison):
    """x > y."""

    ufunc = np.greater
    fn = "gt"


@record
class Ge(Comparison):
    """x >= y."""

    ufunc = np.greater_equal
    fn = "ge"


class FloatTest(Test):
    """A question about one float."""

    arity = 1
    kinds = "fc"


@record
class IsNan(FloatTest):
    """Whether x is NaN (either part, for complex)."""

    ufunc = np.isnan
    formula = math.isnan
    join = "or"


@record
class IsInf(FloatTest):
    """Whether x is infinite (either part, for complex)."""

    ufunc = np.isinf
    formula = math.isinf
    join = "or"


@record
class IsFinite(FloatTest):
    """Whether x is neither NaN nor infinite."""

    ufunc = np.isfinite
    formula = math.isfinite
    join = "and"
