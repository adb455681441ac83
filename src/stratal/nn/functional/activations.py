"""Activations: functions of each element alone, or of halves of an axis; softmax and its kin."""

from __future__ import annotations

from typing import Any

from stratal.base.errors import AttributeValueError, ShapeError
from stratal.tensor.arguments import check_axis
from stratal.tensor.functions import random
from stratal.tensor.functions.creation import arange
from stratal.tensor.functions.elementwise import FUNCTIONS, cast, composite, where
from stratal.tensor.functions.reductions import argmax
from stratal.tensor.functions.reductions import log_softmax as log_softmax_along
from stratal.tensor.functions.reductions import softmax as softmax_along
from stratal.tensor.functions.shapes import broadcast_to, split
from stratal.tensor.tensor import Tensor


# -- put together of lines -----------------------------------------------------------------------------------
def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """Return max(x, 0); the derivative at 0 is 0."""
    return composite("relu", input)


def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    """Return min(max(x, 0), 6)."""
    return hardtanh(input, 0.0, 6.0)


def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Tensor:
    """Return x clipped to [min_val, max_val]; no gradient flows at the ends."""
    if min_val > max_val:
        raise AttributeValueError("hardtanh: min_val is at most max_val", got=f"{min_val}, {max_val}")
    return composite("hardtanh", input, low=min_val, high=max_val)


def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """Return x / 6 + 1 / 2 clipped to [0, 1]. See: Courbariaux et al. 2015."""
    return composite("hardsigmoid", input)


def hardswish(input: Tensor, inplace: bool = False) -> Tensor:
    """Return x * hardsigmoid(x). See: Howard et al. 2019."""
    return composite("hardswish", input)


def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """Return 0 within `lambd` of 0, else x."""
    return composite("hardshrink", input, lambd=lambd)


def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """Return x moved towards 0 by `lambd`, and 0 within `lambd` of it."""
    if lambd < 0:
        raise AttributeValueError("softshrink: lambd must not be negative", got=str(lambd))
    return composite("softshrink", input, lambd=lambd)


def threshold(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """Return x where it exceeds the threshold, else a value."""
    return composite("threshold", input, threshold=threshold, value=value)


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """Return x where positive, else negative_slope * x."""
    return composite("leaky_relu", input, slope=negative_slope)


def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """Return x where positive, else weight * x. Shapes: x [N, C, ...], weight [C] or of one element."""
    if weight.ndim > 1 or (weight.numel() != 1 and (input.ndim < 2 or input.shape[1] != weight.numel())):
        raise ShapeError(
            "prelu: weight has one element, or one per channel (axis 1)",
            got=f"weight {list(weight.shape)}, input {list(input.shape)}",
        )
    sizes = (1,) * input.ndim if weight.numel() == 1 else (1, -1, *(1,) * (input.ndim - 2))
    slope = broadcast_to(weight.reshape(sizes), input.shape)
    return composite("prelu", input, slope)


def rrelu(
    input: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, inplace: bool = False
) -> Tensor:
    """Return x where positive, else a slope times x: drawn from U(lower, upper) in training, their mean
    otherwise. See: Xu et al. 2015.
    """
    if lower > upper:
        raise AttributeValueError("rrelu: lower is at most upper", got=f"{lower}, {upper}")
    if not training:
        return leaky_relu(input, (lower + upper) / 2)
    slope = random.uniform(input.shape, low=lower, high=upper, dtype=input.dtype)
    return composite("prelu", input, slope)


# -- smooth --------------------------------------------------------------------------------------------------
def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """Return x where positive, else alpha * (exp(x) - 1)."""
    return composite("elu", input, alpha=alpha)


def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """Return x where positive, else alpha * (exp(x / alpha) - 1). See: Barron 2017."""
    if alpha == 0:
        raise AttributeValueError("celu: alpha must not be 0", got=str(alpha))
    return composite("celu", input, alpha=alpha)


def selu(input: Tensor, inplace: bool = False) -> Tensor:
    """Return the scaled elu that keeps mean 0 and variance 1. See: Klambauer et al. 2017."""
    return composite("selu", input)


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """Return x * Phi(x), exactly or by the tanh formula. See: Hendrycks and Gimpel 2016."""
    if approximate not in ("none", "tanh"):
        raise AttributeValueError("gelu: approximate must be 'none' or 'tanh'", got=repr(approximate))
    return composite("gelu", input, approximate=approximate)


def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """Return x * sigmoid(x)."""
    return composite("silu", input)


def mish(input: Tensor, inplace: bool = False) -> Tensor:
    """Return x * tanh(softplus(x)). See: Misra 2019."""
    return composite("mish", input)


def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """Return log(1 + exp(beta x)) / beta, and x itself where beta x exceeds the threshold."""
    if beta == 0:
        raise AttributeValueError("softplus: beta must not be 0", got=str(beta))
    return composite("softplus", input, beta=beta, threshold=threshold)


def tanh(input: Tensor) -> Tensor:
    """Return the hyperbolic tangent."""
    return FUNCTIONS["tanh"](input)


def sigmoid(input: Tensor) -> Tensor:
    """Return 1 / (1 + exp(-x))."""
    return FUNCTIONS["sigmoid"](input)


def logsigmoid(input: Tensor) -> Tensor:
    """Return log(sigmoid(x)), without overflow."""
    return composite("logsigmoid", input)


def softsign(input: Tensor) -> Tensor:
    """Return x / (1 + |x|)."""
    result: Tensor = input / (1 + FUNCTIONS["abs"](input))
    return result


def tanhshrink(input: Tensor) -> Tensor:
    """Return x - tanh(x)."""
    return input - tanh(input)


def glu(input: Tensor, dim: int = -1) -> Tensor:
    """Return the first half along `dim` times the sigmoid of the second. See: Dauphin et al. 2016."""
    axis = check_axis("glu", dim, input.ndim)
    if int(input.shape[axis]) % 2:
        raise ShapeError("glu: the axis is halved, so its size is even", got=f"axis {axis} of {input.type}")
    first, second = split(input, int(input.shape[axis]) // 2, axis) if input.shape[axis] else (input, input)
    return first * sigmoid(second)


# -- softmax -------------------------------------------------------------------------------------------------
def softmax(input: Tensor, dim: int | None = None, dtype: Any = None) -> Tensor:
    """Return exp(x) normalised to sum to one along `dim`."""
    return softmax_along(input, _axis(input, dim), dtype=dtype)


def softmin(input: Tensor, dim: int | None = None, dtype: Any = None) -> Tensor:
    """Return the softmax of -x along `dim`."""
    return softmax(-input, dim, dtype)


def log_softmax(input: Tensor, dim: int | None = None, dtype: Any = None) -> Tensor:
    """Return the logarithm of softmax along `dim`, computed stably."""
    return log_softmax_along(input, _axis(input, dim), dtype=dtype)


def gumbel_softmax(
    logits: Tensor, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1
) -> Tensor:
    """Return a sample of the relaxed categorical distribution along `dim`, at temperature `tau`.

    With `hard` the value is a one-hot vector and the gradient that of the relaxed sample. `eps` has no
    effect, as in PyTorch. See: Jang et al. 2016.
    """
    noisy = (logits + random.gumbel(logits.shape, dtype=logits.dtype)) / tau
    soft = softmax(noisy, dim)
    if not hard:
        return soft
    axis = check_axis("gumbel_softmax", dim, logits.ndim)
    classes = arange(int(logits.shape[axis])).reshape((-1, *(1,) * (logits.ndim - 1 - axis)))
    chosen = where(classes == argmax(soft, axis=axis, keepdims=True), 1.0, 0.0)
    return cast(chosen, logits.dtype) + (soft - soft.detach())


def _axis(x: Tensor, dim: int | None) -> int:
    """Return the axis in [0, ndim); without one, PyTorch's choice: 0 for 0, 1 or 3 axes, else 1."""
    if dim is None:
        return 0 if x.ndim in (0, 1, 3) else 1
    ndim = max(x.ndim, 1)
    if not -ndim <= dim < ndim:
        raise AttributeValueError("softmax: dim out of range", got=f"{dim} of {x.ndim} dimensions")
    return dim % ndim
