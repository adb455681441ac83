"""Activation functions, with PyTorch's values and gradients also at their kinks."""

from __future__ import annotations

import math

from stratal.base.errors import AttributeValueError
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.ops.composite.family import cast_to, check_float, named, scaled, shifted, wide


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


@named
def celu(b: Builder, x: Node, *, alpha: float = 1.0) -> Node:
    """Return x where it is positive, else alpha * (exp(x / alpha) - 1) (Barron, 2017)."""
    check_float("celu", x)
    y = wide(b, x)
    positive = b.gt(y, b.like(y, 0))
    low = b.select(positive, b.like(y, 0), y)
    curve = scaled(b, b.expm1(scaled(b, low, 1 / alpha)), alpha)
    return cast_to(b, b.select(positive, y, curve), x.dtype)


# The fixed point of mean 0 and variance 1: equation 14 of Klambauer et al., 2017.
SELU_ALPHA, SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


@named
def selu(b: Builder, x: Node) -> Node:
    """Return elu(x) with the alpha and scale that keep mean 0 and variance 1 (Klambauer et al., 2017)."""
    check_float("selu", x)
    return cast_to(b, scaled(b, b.elu(wide(b, x), alpha=SELU_ALPHA), SELU_SCALE), x.dtype)


@named
def silu(b: Builder, x: Node) -> Node:
    """Return x * sigmoid(x) (Elfwing et al., 2017)."""
    check_float("silu", x)
    y = wide(b, x)
    return cast_to(b, b.mul(y, b.logistic(y)), x.dtype)


@named
def gelu(b: Builder, x: Node, *, approximate: str = "none") -> Node:
    """Return x times the normal distribution function of x, exact or by tanh (Hendrycks and Gimpel, 2016)."""
    check_float("gelu", x)
    y = wide(b, x)
    if approximate == "tanh":
        cube = b.mul(b.mul(y, y), y)
        gate = b.tanh(scaled(b, b.add(y, scaled(b, cube, 0.044715)), math.sqrt(2 / math.pi)))
    elif approximate == "none":
        gate = b.erf(scaled(b, y, math.sqrt(0.5)))
    else:
        raise AttributeValueError("gelu: approximate is none or tanh", got=repr(approximate))
    return cast_to(b, b.mul(scaled(b, y, 0.5), shifted(b, gate, 1.0)), x.dtype)


@named
def softplus(b: Builder, x: Node, *, beta: float = 1.0, threshold: float | None = None) -> Node:
    """Return log(1 + exp(beta * x)) / beta without overflow; x where beta * x exceeds `threshold`."""
    check_float("softplus", x)
    y = scaled(b, wide(b, x), beta) if beta != 1.0 else wide(b, x)
    if threshold is None:
        # Half of the gradient at 0 comes from max (a tie), none from abs: together sigmoid(0).
        soft = b.add(b.max(y, b.like(y, 0)), b.log1p(b.exp(b.neg(b.abs(y)))))
    else:
        straight = b.gt(y, b.like(y, threshold))
        soft = b.select(straight, y, b.log1p(b.exp(b.select(straight, b.like(y, 0), y))))
    return cast_to(b, scaled(b, soft, 1 / beta) if beta != 1.0 else soft, x.dtype)


@named
def logsigmoid(b: Builder, x: Node) -> Node:
    """Return log(1 / (1 + exp(-x))), without overflow."""
    check_float("logsigmoid", x)
    return b.op("neg", b.softplus(b.neg(x)))


@named
def mish(b: Builder, x: Node) -> Node:
    """Return x * tanh(log(1 + exp(x))) (Misra, 2019)."""
    check_float("mish", x)
    y = wide(b, x)
    return cast_to(b, b.mul(y, b.tanh(b.softplus(y))), x.dtype)
