"""Activations, softmax, dropout, and the plain tensor functions PyTorch also keeps under `nn.functional`."""

from __future__ import annotations

from typing import Any

from stratal.base.errors import AttributeValueError, ShapeError
from stratal.tensor import random
from stratal.tensor.build import call
from stratal.tensor.elementwise import cast, composite, maximum
from stratal.tensor.elementwise import sigmoid as sigmoid
from stratal.tensor.elementwise import tanh as tanh
from stratal.tensor.shapes import flatten as flatten
from stratal.tensor.shapes import pad_constant
from stratal.tensor.tensor import Tensor


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """Return max(x, 0); the derivative at 0 is 0."""
    result: Tensor = composite("relu", input)
    return result


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """Return x where positive, else negative_slope * x."""
    result: Tensor = composite("leaky_relu", input, slope=negative_slope)
    return result


def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    """Return min(max(x, 0), 6)."""
    return hardtanh(input, 0.0, 6.0)


def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Tensor:
    """Return x clipped to [min_val, max_val]; no gradient flows at the ends."""
    result: Tensor = composite("hardtanh", input, low=min_val, high=max_val)
    return result


def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """Return x where positive, else alpha * (exp(x) - 1)."""
    result: Tensor = composite("elu", input, alpha=alpha)
    return result


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """Return x * Phi(x), exactly or by the tanh formula. See: Hendrycks and Gimpel 2016."""
    if approximate not in ("none", "tanh"):
        raise AttributeValueError("gelu: approximate must be 'none' or 'tanh'", got=repr(approximate))
    result: Tensor = composite("gelu", input, approximate=approximate)
    return result


def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """Return x * sigmoid(x)."""
    result: Tensor = composite("silu", input)
    return result


def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """Return log(1 + exp(beta x)) / beta, and x itself where beta x exceeds the threshold."""
    result: Tensor = composite("softplus", input, beta=beta, threshold=threshold)
    return result


def softmax(input: Tensor, dim: int | None = None, dtype: Any = None) -> Tensor:
    """Return exp(x) normalised to sum to one along `dim`."""
    x = input if dtype is None else cast(input, dtype)
    result: Tensor = composite("softmax", x, axis=_axis(x, dim))
    return result


def log_softmax(input: Tensor, dim: int | None = None, dtype: Any = None) -> Tensor:
    """Return the logarithm of softmax along `dim`, computed stably."""
    x = input if dtype is None else cast(input, dtype)
    result: Tensor = composite("log_softmax", x, axis=_axis(x, dim))
    return result


def _axis(x: Tensor, dim: int | None) -> int:
    """Return the axis in [0, ndim); without one, PyTorch's choice: 0 for 0, 1 or 3 axes, else 1."""
    if dim is None:
        return 0 if x.ndim in (0, 1, 3) else 1
    if not -x.ndim <= dim < x.ndim:
        raise AttributeValueError("softmax: dim out of range", got=f"{dim} of {x.ndim} dimensions")
    return dim % x.ndim


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Return, in training, x with elements zeroed with probability p and the rest scaled by 1 / (1 - p)."""
    if not 0 <= p <= 1:
        raise AttributeValueError("dropout: p must lie in [0, 1]", got=str(p))
    if not training or p == 0:
        return input
    result: Tensor = call("dropout", input, random.default_generator().next_key(), p=p)
    return result


def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """Return x divided along `dim` by its p-norm, or by eps where that is larger."""
    norm = (input * input).sum(axis=dim, keepdims=True).sqrt() if p == 2 else (
        (abs(input) ** p).sum(axis=dim, keepdims=True) ** (1.0 / p)
    )  # fmt: skip
    return input / maximum(norm, eps)


def pad(input: Tensor, pad: Any, mode: str = "constant", value: float | None = None) -> Tensor:
    """Return x surrounded by a value; sizes are (before, after) pairs from the last axis backwards."""
    if mode != "constant":
        raise AttributeValueError("pad: mode must be 'constant'", got=repr(mode))
    sizes = tuple(pad)
    if len(sizes) % 2 or len(sizes) > 2 * input.ndim:
        raise ShapeError("pad: takes a (before, after) pair per padded axis", got=str(list(sizes)))
    pairs = [(sizes[k], sizes[k + 1]) for k in range(0, len(sizes), 2)][::-1]
    pairs = [(0, 0)] * (input.ndim - len(pairs)) + pairs
    result: Tensor = pad_constant(input, pairs, 0 if value is None else value)
    return result


def one_hot(input: Tensor, num_classes: int = -1) -> Tensor:
    """Return int64 rows with a one at each index. The number of classes is given, or read from the data."""
    from stratal.tensor.creation import arange

    count = int(input.max()) + 1 if num_classes == -1 else num_classes
    return cast(input.reshape((*input.shape, 1)) == arange(count), "int64")
