"""Circular and hyperbolic functions and their inverses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import record
from stratal.loops import math
from stratal.ops.families import Elementwise, Unary, derivative


@record
@derivative(lambda b, out, x: b.cos(x))
class Sin(Unary):
    """The sine of x radians."""

    ulp = 2.0
    ufunc = np.sin
    formula = math.sin


@record
@derivative(lambda b, out, x: b.neg(b.sin(x)))
class Cos(Unary):
    """The cosine of x radians."""

    ulp = 2.0
    ufunc = np.cos
    formula = math.cos


@record
@derivative(lambda b, out, x: b.add(b.mul(out, out), b.like(out, 1)))
class Tan(Unary):
    """The tangent of x radians."""

    ulp = 2.5
    domain = (-1.2, 1.2)
    ufunc = np.tan
    formula = math.tan


@record
@derivative(lambda b, out, x: b.rsqrt(_one_minus_square(b, x)))
class Asin(Unary):
    """The angle in [-pi/2, pi/2] whose sine is x; NaN outside [-1, 1]."""

    ulp = 2.5
    domain = (-0.8, 0.8)
    ufunc = np.arcsin
    formula = math.asin


@record
@derivative(lambda b, out, x: b.neg(b.rsqrt(_one_minus_square(b, x))))
class Acos(Unary):
    """The angle in [0, pi] whose cosine is x; NaN outside [-1, 1]."""

    ulp = 2.0
    domain = (-0.8, 0.8)
    ufunc = np.arccos
    formula = math.acos


@record
@derivative(lambda b, out, x: b.div(b.like(x, 1), b.add(b.mul(x, x), b.like(x, 1))))
class Atan(Unary):
    """The angle in (-pi/2, pi/2) whose tangent is x."""

    ulp = 2.0
    domain = (-0.9, 0.9)
    ufunc = np.arctan
    formula = math.atan


@record
class Atan2(Elementwise):
    """The angle in [-pi, pi] of the point (y, x), given in that order; the gradient at (0, 0) is 0."""

    ulp = 2.0
    arity = 2
    kinds = "f"
    domain = (0.3, 2.0)
    ufunc = np.arctan2
    formula = math.atan2

    def partials(self, b: Builder, out: Node, *inputs: Node) -> Sequence[Node | None]:
        y, x = inputs
        square, zero = b.add(b.mul(x, x), b.mul(y, y)), b.like(x, 0)
        origin = b.eq(square, zero)
        square = b.select(origin, b.like(x, 1), square)
        return [b.select(origin, zero, b.div(part, square)) for part in (x, b.neg(y))]


@record
@derivative(lambda b, out, x: b.cosh(x))
class Sinh(Unary):
    """The hyperbolic sine."""

    ulp = 2.5
    ufunc = np.sinh
    formula = math.sinh


@record
@derivative(lambda b, out, x: b.sinh(x))
class Cosh(Unary):
    """The hyperbolic cosine."""

    ulp = 2.0
    ufunc = np.cosh
    formula = math.cosh


@record
@derivative(lambda b, out, x: b.sub(b.like(out, 1), b.mul(out, out)))
class Tanh(Unary):
    """The hyperbolic tangent."""

    ulp = 3.0
    ufunc = np.tanh
    formula = math.tanh


@record
@derivative(lambda b, out, x: b.rsqrt(b.add(b.mul(x, x), b.like(x, 1))))
class Asinh(Unary):
    """The inverse hyperbolic sine."""

    ulp = 2.5
    domain = (-0.9, 0.9)
    ufunc = np.arcsinh
    formula = math.asinh


@record
class Acosh(Unary):
    """The inverse hyperbolic cosine; NaN below 1."""

    ulp = 2.5
    domain = (1.2, 4.0)
    ufunc = np.arccosh
    formula = math.acosh

    def partials(self, b: Builder, out: Node, *inputs: Node) -> Sequence[Node | None]:
        x, one = inputs[0], b.like(inputs[0], 1)
        return [b.mul(b.rsqrt(b.sub(x, one)), b.rsqrt(b.add(x, one)))]


@record
@derivative(lambda b, out, x: b.div(b.like(out, 1), _one_minus_square(b, x)))
class Atanh(Unary):
    """The inverse hyperbolic tangent; NaN outside [-1, 1]."""

    ulp = 2.5
    domain = (-0.8, 0.8)
    ufunc = np.arctanh
    formula = math.atanh


def _one_minus_square(b: Builder, x: Node) -> Node:
    """Return 1 - x*x without cancellation near 1."""
    one = b.like(x, 1)
    return b.mul(b.sub(one, x), b.add(one, x))
