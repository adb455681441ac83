"""Addition, subtraction, multiplication, division and their kin."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, record
from stratal.loops.expr import Expr, call
from stratal.ops.families import Elementwise, linear_jvp


@record
class Add(Elementwise):
    """x + y; integers wrap."""

    arity = 2
    kinds = "uifc"

    def numpy(self, *arrays: Array) -> Array:
        x, y = arrays
        return np.asarray(x + y)

    def scalar(self, *args: Expr) -> Expr:
        return call("add", *args)

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [ct, ct]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Node | None:
        x, y = tangents
        return y if x is None else x if y is None else b.add(x, y)


@record
class Neg(Elementwise):
    """-x."""

    arity = 1
    kinds = "uifc"

    def numpy(self, *arrays: Array) -> Array:
        return np.negative(arrays[0])

    def scalar(self, *args: Expr) -> Expr:
        return call("neg", *args)

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [b.neg(ct)]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Node | None:
        return linear_jvp(self, b, tangents, *inputs)


@record
class Mul(Elementwise):
    """x * y; integers wrap."""

    arity = 2
    kinds = "uifc"

    def numpy(self, *arrays: Array) -> Array:
        x, y = arrays
        return np.asarray(x * y)

    def scalar(self, *args: Expr) -> Expr:
        return call("mul", *args)

    def partials(self, b: Builder, out: Node, *inputs: Node) -> Sequence[Node | None]:
        x, y = inputs
        return [y, x]
