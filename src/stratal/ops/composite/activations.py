"""Activation functions, with PyTorch's values and gradients also at their kinks."""

from __future__ import annotations

import math

from stratal.base.errors import AttributeValueError
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.ops.composite.family import check_float, in_floats, named, scaled, shifted


@named
def relu(b: Builder, x: Node) -> Node:
    """Return x where it is positive, else 0; the gradient at 0 is 0, NaN stays."""
    zero = b.like(x, 0)
    return b.op("select", b.le(x, zero), zero, x)


@named
def leaky_relu(b: Builder, x: Node, *, slope: float = 0.01) -> Node:
    """Return x where it is positive, else slope * x."""
    check_float("leaky_relu", x)
    return b.op("select", b.gt(x, b.like(x, 0)), x, scaled(b, x, slope))


@named
def elu(b: Builder, x: Node, *, alpha: float = 1.0) -> Node:
    """Return x where it is positive, else alpha * (exp(x) - 1) (Clevert et al., 2015)."""
    check_float("elu", x)
    positive = b.gt(x, b.like(x, 0))
    low = b.select(positive, b.like(x, 0), x)  # keeps exp from overflowing where it is not used
    return b.op("select", positive, x, scaled(b, b.expm1(low), alpha))


@in_floats
def celu(b: Builder, x: Node, *, alpha: float = 1.0) -> Node:
    """Return x where it is positive, else alpha * (exp(x / alpha) - 1) (Barron, 2017)."""
    positive = b.gt(x, b.like(x, 0))
    low = b.select(positive, b.like(x, 0), x)
    return b.select(positive, x, scaled(b, b.expm1(scaled(b, low, 1 / alpha)), alpha))


# The fixed point of mean 0 and variance 1: equation 14 of Klambauer et al., 2017.
SELU_ALPHA, SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


@in_floats
def selu(b: Builder, x: Node) -> Node:
    """Return elu(x) with the alpha and scale that keep mean 0 and variance 1 (Klambauer et al., 2017)."""
    return scaled(b, b.elu(x, alpha=SELU_ALPHA), SELU_SCALE)


@in_floats
def silu(b: Builder, x: Node) -> Node:
    """Return x * sigmoid(x) (Elfwing et al., 2017)."""
    return b.mul(x, b.logistic(x))


@in_floats
def gelu(b: Builder, x: Node, *, approximate: str = "none") -> Node:
    """Return x times the normal distribution function of x, exact or by tanh (Hendrycks and Gimpel, 2016)."""
    if approximate == "tanh":
        cube = b.mul(b.mul(x, x), x)
        gate = b.tanh(scaled(b, b.add(x, scaled(b, cube, 0.044715)), math.sqrt(2 / math.pi)))
    elif approximate == "none":
        gate = b.erf(scaled(b, x, math.sqrt(0.5)))
    else:
        raise AttributeValueError("gelu: approximate is none or tanh", got=repr(approximate))
    return b.mul(scaled(b, x, 0.5), shifted(b, gate, 1.0))


@in_floats
def softplus(b: Builder, x: Node, *, beta: float = 1.0, threshold: float | None = None) -> Node:
    """Return log(1 + exp(beta * x)) / beta without overflow; x where beta * x exceeds `threshold`."""
    y = scaled(b, x, beta) if beta != 1.0 else x
    if threshold is None:
        # Half of the gradient at 0 comes from max (a tie), none from abs: together sigmoid(0).
        soft = b.add(b.max(y, b.like(y, 0)), b.log1p(b.exp(b.neg(b.abs(y)))))
    else:
        straight = b.gt(y, b.like(y, threshold))
        soft = b.select(straight, y, b.log1p(b.exp(b.select(straight, b.like(y, 0), y))))
    return scaled(b, soft, 1 / beta) if beta != 1.0 else soft


@named
def logsigmoid(b: Builder, x: Node) -> Node:
    """Return log(1 / (1 + exp(-x))), without overflow."""
    check_float("logsigmoid", x)
    return b.op("neg", b.softplus(b.neg(x)))


@in_floats
def mish(b: Builder, x: Node) -> Node:
    """Return x * tanh(log(1 + exp(x))) (Misra, 2019)."""
    return b.mul(x, b.tanh(b.softplus(x)))


# -- put together of lines -----------------------------------------------------------------------------------
@named
def hardtanh(b: Builder, x: Node, *, low: float = -1.0, high: float = 1.0) -> Node:
    """Return x clipped to [low, high]; no gradient at the ends, nor at NaN, which stays."""
    check_float("hardtanh", x)
    bottom, top = b.like(x, low), b.like(x, high)
    inside = b.op("and", b.gt(x, bottom), b.lt(x, top))
    return b.op("select", inside, x, b.stop_gradient(b.min(b.max(x, bottom), top)))


@in_floats
def hardsigmoid(b: Builder, x: Node) -> Node:
    """Return x / 6 + 1 / 2 clipped to [0, 1]; no gradient at the ends (Courbariaux et al., 2015)."""
    y = b.hardtanh(x, low=-3.0, high=3.0)
    return b.div(shifted(b, y, 3.0), b.like(y, 6))


@in_floats
def hardswish(b: Builder, x: Node) -> Node:
    """Return x * hardsigmoid(x): 0 up to -3, x from 3 on (Howard et al., 2019)."""
    zero, above, below = b.like(x, 0), b.ge(x, b.like(x, 3)), b.le(x, b.like(x, -3))
    inner = b.select(b.op("or", above, below), zero, x)  # infinities have no part in the curve's gradient
    middle = b.div(b.mul(inner, shifted(b, inner, 3.0)), b.like(x, 6))
    return b.select(above, x, b.select(below, zero, middle))


@named
def threshold(b: Builder, x: Node, *, threshold: float, value: float) -> Node:
    """Return x where it exceeds the threshold, else a value."""
    return b.op("select", b.le(x, b.like(x, threshold)), b.like(x, value), x)


@named
def hardshrink(b: Builder, x: Node, *, lambd: float = 0.5) -> Node:
    """Return 0 within `lambd` of 0, else x; NaN stays, without a gradient."""
    check_float("hardshrink", x)
    return _shrunk(b, x, x, lambd)


def _shrunk(b: Builder, x: Node, far: Node, lambd: float) -> Node:
    """Return `far` where |x| > lambd, else 0; NaN stays, without a gradient."""
    size, bound = b.abs(x), b.like(x, lambd)
    near = b.stop_gradient(b.select(b.le(size, bound), b.like(x, 0), x))
    return b.op("select", b.gt(size, bound), far, near)


@named
def softshrink(b: Builder, x: Node, *, lambd: float = 0.5) -> Node:
    """Return x moved towards 0 by `lambd`, and 0 within `lambd` of it; NaN stays, without a gradient."""
    check_float("softshrink", x)
    moved = b.select(b.gt(x, b.like(x, 0)), shifted(b, x, -lambd), shifted(b, x, lambd))
    return _shrunk(b, x, moved, lambd)


@named
def prelu(b: Builder, x: Node, slope: Node) -> Node:
    """Return x where it is positive, else slope * x; both have one shape (He et al., 2015)."""
    check_float("prelu", x, slope)
    positive, zero = b.gt(x, b.like(x, 0)), b.like(x, 0)
    return b.op("select", positive, x, b.mul(slope, b.select(positive, zero, x)))
