"""The error function and the logistic function."""

from __future__ import annotations

import math as python_math
from collections.abc import Sequence

import numpy as np

from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, record
from stratal.loops import math
from stratal.loops.expr import Expr
from stratal.ops.families import Elementwise

_ERF = np.frompyfunc(python_math.erf, 1, 1)
_ERFC = np.frompyfunc(python_math.erfc, 1, 1)


class Special(Elementwise):
    """A function of one float."""

    arity = 1
    kinds = "f"


@record
class Erf(Special):
    """The error function."""

    ulp = 2.0

    def numpy(self, *arrays: Array) -> Array:
        return np.asarray(_ERF(arrays[0]), dtype=np.float64)

    def scalar(self, *args: Expr) -> Expr:
        return math.erf(*args)

    def partials(self, b: Builder, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [_bell(b, inputs[0])]


@record
class Erfc(Special):
    """1 - erf(x), precise where erf is near 1."""

    ulp = 3.0

    def numpy(self, *arrays: Array) -> Array:
        return np.asarray(_ERFC(arrays[0]), dtype=np.float64)

    def scalar(self, *args: Expr) -> Expr:
        return math.erfc(*args)

    def partials(self, b: Builder, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [b.neg(_bell(b, inputs[0]))]


def _bell(b: Builder, x: Node) -> Node:
    """Return 2/sqrt(pi) * exp(-x*x), the derivative of erf."""
    bell: Node = b.mul(b.like(x, 2 / python_math.sqrt(python_math.pi)), b.exp(b.neg(b.mul(x, x))))
    return bell


@record
class Logistic(Special):
    """1 / (1 + exp(-x)), the sigmoid."""

    ulp = 2.5

    def numpy(self, *arrays: Array) -> Array:
        x = arrays[0]
        small = np.exp(-abs(x))
        return np.asarray(np.where(x < 0, small, 1) / (1 + small)).astype(x.dtype)

    def scalar(self, *args: Expr) -> Expr:
        return math.sigmoid(*args)

    def partials(self, b: Builder, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [b.mul(out, b.sub(b.like(out, 1), out))]
