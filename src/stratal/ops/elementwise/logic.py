"""Logic, bits and comparisons: results of comparing are bool, and comparing with NaN is false, `ne` apart."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from stratal.base.dtypes import bool_, uint8
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array
from stratal.loops import math
from stratal.loops.expr import Expr, call, cast, const
from stratal.ops.families import Elementwise, records


class Bitwise(Elementwise):
    """An operation on bits: logical on bool, bitwise on integers."""

    arity = 2
    kinds = exact = "bui"
    not_differentiable = "bool and integers have no tangents"


bitwise = records(__name__, Bitwise)
bitwise("and", "x & y.", ufunc=np.bitwise_and, fn="and", commutative=True)
bitwise("or", "x | y.", ufunc=np.bitwise_or, fn="or", commutative=True)
bitwise("xor", "x ^ y.", ufunc=np.bitwise_xor, fn="xor", commutative=True)
bitwise("not", "~x: `not` on bool, the complement on integers.", ufunc=np.invert, fn="not", arity=1)


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


shift = records(__name__, Shift)
shift("shl", "x << y; zeros come in.", ufunc=np.left_shift, fn="shl")
shift(
    "shr", "x >> y; copies of the sign come in for signed x, zeros for unsigned.", ufunc=np.right_shift,
    fn="shr", keeps_sign=True,
)  # fmt: skip


# -- comparisons and tests of floats -------------------------------------------------------------------------
class Test(Elementwise):
    """A question whose answer is bool."""

    result = bool_
    exact = "b"
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


comparison = records(__name__, Comparison)
comparison("eq", "x == y.", ufunc=np.equal, fn="eq", kinds="buifc", join="and", commutative=True)
comparison(
    "ne", "x != y; true where either is NaN.", ufunc=np.not_equal, fn="ne", kinds="buifc", join="or",
    commutative=True,
)  # fmt: skip
comparison("lt", "x < y; False < True.", ufunc=np.less, fn="lt")
comparison("le", "x <= y.", ufunc=np.less_equal, fn="le")
comparison("gt", "x > y.", ufunc=np.greater, fn="gt")
comparison("ge", "x >= y.", ufunc=np.greater_equal, fn="ge")


class FloatTest(Test):
    """A question about one float."""

    arity = 1
    kinds = "fc"


float_test = records(__name__, FloatTest)
float_test(
    "isnan", "Whether x is NaN (either part, for complex).", ufunc=np.isnan, formula=math.isnan, join="or"
)
float_test(
    "isinf", "Whether x is infinite (either part, for complex).", ufunc=np.isinf, formula=math.isinf,
    join="or",
)  # fmt: skip
float_test(
    "isfinite", "Whether x is neither NaN nor infinite.", ufunc=np.isfinite, formula=math.isfinite, join="and"
)
