"""Comparisons and tests of floats: results are bool. Comparing with NaN is false, `ne` apart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stratal.base.dtypes import bool_, uint8
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Op, record
from stratal.loops import math
from stratal.loops.expr import Expr, call, cast
from stratal.ops.families import Elementwise


def _of_parts(op: Op, join: str, b: Builder, inputs: Sequence[Node]) -> Node:
    """Return an answer about complex numbers: those about real and imaginary parts, joined."""
    return b.op(join, *(b.op(op.name, *map(part, inputs)) for part in (b.real, b.imag)))


class Comparison(Elementwise):
    """x compared with y, element by element."""

    arity = 2
    kinds = "buif"
    result = bool_
    not_differentiable = "its result is bool"

    def scalar(self, *args: Expr) -> Expr:
        return call(self.fn, *[cast(x, uint8) if x.dtype.is_bool else x for x in args])


@record
class Eq(Comparison):
    """x == y."""

    kinds = "buifc"
    ufunc = np.equal
    fn = "eq"

    def in_reals(self, b: Builder, *inputs: Node) -> Node | None:
        return _of_parts(self, "and", b, inputs)


@record
class Ne(Comparison):
    """x != y; true where either is NaN."""

    kinds = "buifc"
    ufunc = np.not_equal
    fn = "ne"

    def in_reals(self, b: Builder, *inputs: Node) -> Node | None:
        return _of_parts(self, "or", b, inputs)


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


class FloatTest(Elementwise):
    """A question about one float."""

    arity = 1
    kinds = "fc"
    result = bool_
    not_differentiable = "its result is bool"


@record
class IsNan(FloatTest):
    """Whether x is NaN (either part, for complex)."""

    ufunc = np.isnan

    def scalar(self, *args: Expr) -> Expr:
        return math.isnan(args[0])

    def in_reals(self, b: Builder, *inputs: Node) -> Node | None:
        return _of_parts(self, "or", b, inputs)


@record
class IsInf(FloatTest):
    """Whether x is infinite (either part, for complex)."""

    ufunc = np.isinf

    def scalar(self, *args: Expr) -> Expr:
        return math.isinf(args[0])

    def in_reals(self, b: Builder, *inputs: Node) -> Node | None:
        return _of_parts(self, "or", b, inputs)


@record
class IsFinite(FloatTest):
    """Whether x is neither NaN nor infinite."""

    ufunc = np.isfinite

    def scalar(self, *args: Expr) -> Expr:
        return math.isfinite(args[0])

    def in_reals(self, b: Builder, *inputs: Node) -> Node | None:
        return _of_parts(self, "and", b, inputs)
