"""Circular and hyperbolic functions and their inverses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import record
from stratal.loops import math
from stratal.ops.families import Elementwise, Unary, records


def _one_minus_square(b: Builder, x: Node) -> Node:
    """Return 1 - x*x without cancellation near 1."""
    one = b.like(x, 1)
    return b.mul(b.sub(one, x), b.add(one, x))


unary = records(__name__, Unary)
unary(
    "sin", "The sine of x radians.", ufunc=np.sin, formula=math.sin, ulp=2.0, slope=lambda b, out, x: b.cos(x)
)
unary(
    "cos", "The cosine of x radians.", ufunc=np.cos, formula=math.cos, ulp=2.0,
    slope=lambda b, out, x: b.neg(b.sin(x)),
)  # fmt: skip
unary(
    "tan", "The tangent of x radians.", ufunc=np.tan, formula=math.tan, ulp=2.5, domain=(-1.2, 1.2),
    slope=lambda b, out, x: b.add(b.mul(out, out), b.like(out, 1)),
)  # fmt: skip
unary(
    "asin", "The angle in [-pi/2, pi/2] whose sine is x; NaN outside [-1, 1].", ufunc=np.arcsin,
    formula=math.asin, ulp=2.5, domain=(-0.8, 0.8), slope=lambda b, out, x: b.rsqrt(_one_minus_square(b, x)),
)  # fmt: skip
unary(
    "acos", "The angle in [0, pi] whose cosine is x; NaN outside [-1, 1].", ufunc=np.arccos,
    formula=math.acos, ulp=2.0, domain=(-0.8, 0.8),
    slope=lambda b, out, x: b.neg(b.rsqrt(_one_minus_square(b, x))),
)  # fmt: skip
unary(
    "atan", "The angle in (-pi/2, pi/2) whose tangent is x.", ufunc=np.arctan, formula=math.atan, ulp=2.0,
    domain=(-0.9, 0.9), slope=lambda b, out, x: b.div(b.like(x, 1), b.add(b.mul(x, x), b.like(x, 1))),
)  # fmt: skip


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


unary(
    "sinh", "The hyperbolic sine.", ufunc=np.sinh, formula=math.sinh, ulp=2.5,
    slope=lambda b, out, x: b.cosh(x),
)  # fmt: skip
unary(
    "cosh", "The hyperbolic cosine.", ufunc=np.cosh, formula=math.cosh, ulp=2.0,
    slope=lambda b, out, x: b.sinh(x),
)  # fmt: skip
unary(
    "tanh", "The hyperbolic tangent.", ufunc=np.tanh, formula=math.tanh, ulp=3.0,
    slope=lambda b, out, x: b.sub(b.like(out, 1), b.mul(out, out)),
)  # fmt: skip
unary(
    "asinh", "The inverse hyperbolic sine.", ufunc=np.arcsinh, formula=math.asinh, ulp=2.5,
    domain=(-0.9, 0.9), slope=lambda b, out, x: b.rsqrt(b.add(b.mul(x, x), b.like(x, 1))),
)  # fmt: skip
unary(
    "acosh", "The inverse hyperbolic cosine; NaN below 1.", ufunc=np.arccosh, formula=math.acosh, ulp=2.5,
    domain=(1.2, 4.0),
    slope=lambda b, out, x: b.mul(b.rsqrt(b.sub(x, b.like(x, 1))), b.rsqrt(b.add(x, b.like(x, 1)))),
)  # fmt: skip
unary(
    "atanh", "The inverse hyperbolic tangent; NaN outside [-1, 1].", ufunc=np.arctanh, formula=math.atanh,
    ulp=2.5, domain=(-0.8, 0.8), slope=lambda b, out, x: b.div(b.like(out, 1), _one_minus_square(b, x)),
)  # fmt: skip
