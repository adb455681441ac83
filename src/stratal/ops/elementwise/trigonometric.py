"""Circular and hyperbolic functions and their inverses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import record
from stratal.loops import math
from stratal.loops.expr import Expr
from stratal.ops.families import Elementwise


class Trigonometric(Elementwise):
    """A function of one float or complex number."""

    arity = 1
    kinds = "fc"


@record
class Sin(Trigonometric):
    """The sine of x radians."""

    ulp = 2.0
    ufunc = np.sin

    def scalar(self, *args: Expr) -> Expr:
        return math.sin(*args)

    def partials(self, b: Builder, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [b.cos(inputs[0])]


@record
class Cos(Trigonometric):
    """The cosine of x radians."""

    ulp = 2.0
    ufunc = np.cos

    def scalar(self, *args: Expr) -> Expr:
        return math.cos(*args)

    def partials(self, b: Builder, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [b.neg(b.sin(inputs[0]))]


@record
class Tan(Trigonometric):
    """The tangent of x radians."""

    ulp = 2.5
    domain = (-1.2, 1.2)
    ufunc = np.tan

    def scalar(self, *args: Expr) -> Expr:
        return math.tan(*args)

    def partials(self, b: Builder, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [b.add(b.mul(out, out), b.like(out, 1))]


@record
class Asin(Trigonometric):
    """The angle in [-pi/2, pi/2] whose sine is x; NaN outside [-1, 1]."""

    ulp = 2.5
    domain = (-0.8, 0.8)
    ufunc = np.arcsin

    def scalar(self, *args: Expr) -> Expr:
        return math.asin(*args)

    def partials(self, b: Builder, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [b.rsqrt(_one_minus_square(b, inputs[0]))]


@record
class Acos(Trigonometric):
    """The angle in [0, pi] whose cosine is x; NaN outside [-1, 1]."""

    ulp = 2.0
    domain = (-0.8, 0.8)
    ufunc = np.arccos

    def scalar(self, *args: Expr) -> Expr:
        return math.acos(*args)

    def partials(self, b: Builder, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [b.neg(b.rsqrt(_one_minus_square(b, inputs[0])))]


@record
class Atan(Trigonometric):
    """The angle in (-pi/2, pi/2) whose tangent is x."""

    ulp = 2.0
    domain = (-0.9, 0.9)
    ufunc = np.arctan

    def scalar(self, *args: Expr) -> Expr:
        return math.atan(*args)

    def partials(self, b: Builder, out: Node, *inputs: Node) -> Sequence[Node | None]:
        x = inputs[0]
        return [b.div(b.like(x, 1), b.add(b.mul(x, x), b.like(x, 1)))]


@record
class Atan2(Elementwise):
    """The angle in [-pi, pi] of the point (y, x), given in that order."""

    ulp = 2.0
    arity = 2
    kinds = "f"
    domain = (0.3, 2.0)
    ufunc = np.arctan2

    def scalar(self, *args: Expr) -> Expr:
        return math.atan2(*args)

    def partials(self, b: Builder, out: Node, *inputs: Node) -> Sequence[Node | None]:
        y, x = inputs
        square = b.add(b.mul(x, x), b.mul(y, y))
        return [b.div(x, square), b.neg(b.div(y, square))]


@record
class Sinh(Trigonometric):
    """The hyperbolic sine."""

    ulp = 2.5
    ufunc = np.sinh

    def scalar(self, *args: Expr) -> Expr:
        return math.sinh(*args)

    def partials(self, b: Builder, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [b.cosh(inputs[0])]


@record
class Cosh(Trigonometric):
    """The hyperbolic cosine."""

    ulp = 2.0
    ufunc = np.cosh

    def scalar(self, *args: Expr) -> Expr:
        return math.cosh(*args)

    def partials(self, b: Builder, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [b.sinh(inputs[0])]


@record
class Tanh(Trigonometric):
    """The hyperbolic tangent."""

    ulp = 3.0
    ufunc = np.tanh

    def scalar(self, *args: Expr) -> Expr:
        return math.tanh(*args)

    def partials(self, b: Builder, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [b.sub(b.like(out, 1), b.mul(out, out))]


@record
class Asinh(Trigonometric):
    """The inverse hyperbolic sine."""

    ulp = 2.5
    domain = (-0.9, 0.9)
    ufunc = np.arcsinh

    def scalar(self, *args: Expr) -> Expr:
        return math.asinh(*args)

    def partials(self, b: Builder, out: Node, *inputs: Node) -> Sequence[Node | None]:
        x = inputs[0]
        return [b.rsqrt(b.add(b.mul(x, x), b.like(x, 1)))]


@record
class Acosh(Trigonometric):
    """The inverse hyperbolic cosine; NaN below 1."""

    ulp = 2.5
    domain = (1.2, 4.0)
    ufunc = np.arccosh

    def scalar(self, *args: Expr) -> Expr:
        return math.acosh(*args)

    def partials(self, b: Builder, out: Node, *inputs: Node) -> Sequence[Node | None]:
        x, one = inputs[0], b.like(inputs[0], 1)
        return [b.mul(b.rsqrt(b.sub(x, one)), b.rsqrt(b.add(x, one)))]


@record
class Atanh(Trigonometric):
    """The inverse hyperbolic tangent; NaN outside [-1, 1]."""

    ulp = 2.5
    domain = (-0.8, 0.8)
    ufunc = np.arctanh

    def scalar(self, *args: Expr) -> Expr:
        return math.atanh(*args)

    def partials(self, b: Builder, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [b.div(b.like(out, 1), _one_minus_square(b, inputs[0]))]


def _one_minus_square(b: Builder, x: Node) -> Node:
    """Return 1 - x*x without cancellation near 1."""
    one = b.like(x, 1)
    product: Node = b.mul(b.sub(one, x), b.add(one, x))
    return product
