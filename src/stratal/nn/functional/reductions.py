"""What losses share: reductions, and targets of the input's shape and dtype."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from stratal.base.errors import AttributeValueError, DTypeError, ShapeError
from stratal.tensor.functions.elementwise import clip, where
from stratal.tensor.tensor import Tensor, tensor
from stratal.tensor.values.state import MODE

LEAST_DIVISOR: Final = 2.0**-30  # stands for 0 where divisors are noted, and takes what is divided through it


def maybe_tensor(value: Any) -> Tensor | None:
    """Return a tensor of a value, None of None."""
    return value if value is None or isinstance(value, Tensor) else tensor(value)


def reduced(loss: Tensor, reduction: str, divisor: Any = None) -> Tensor:
    """Return the elements' losses reduced; a mean divides by `divisor` where one is given."""
    if reduction == "none":
        return loss
    if reduction == "sum":
        return loss.sum()
    if reduction == "mean":
        if divisor is None:
            return loss.mean()
        if (noted := MODE.divisors) is not None:
            noted.append(divisor)
            divisor = where(divisor == 0, LEAST_DIVISOR, divisor)
        return loss.sum() / divisor
    raise AttributeValueError("loss: reduction must be 'mean', 'sum' or 'none'", got=repr(reduction))


def same_shape(name: str, input: Tensor, target: Any) -> Tensor:
    """Return the target as a tensor of the input's shape, in its own dtype: ops promote the two."""
    found = target if isinstance(target, Tensor) else tensor(np.asarray(target))
    if found.shape != input.shape:
        raise ShapeError(
            f"{name}: input and target differ in shape", got=f"{list(input.shape)} and {list(found.shape)}",
            hint="reshape one side; a loss does not broadcast",
        )  # fmt: skip
    return found


def same_type(name: str, input: Tensor, target: Any) -> Tensor:
    """Return the target as a tensor of the input's shape and dtype, in which PyTorch computes some losses."""
    return like_input(same_shape(name, input, target), input)


def like_input(value: Any, like: Tensor) -> Tensor:
    """Return a value as a tensor of the dtype of `like`."""
    found = value if isinstance(value, Tensor) else tensor(np.asarray(value))
    return found.astype(like.dtype, copy=False)


def class_weights(name: str, weight: Any, like: Tensor, axis: int) -> Tensor:
    """Return class weights, one for each class. Raises: ShapeError."""
    found = like_input(weight, like)
    if found.shape != (like.shape[axis],):
        raise ShapeError(
            f"{name}: weight has one number per class",
            got=f"weights {list(found.shape)} for {like.shape[axis]} classes",
        )
    return found


def positive_part(x: Tensor) -> Tensor:
    """Return max(x, 0), whose gradient at 0 is 1, as in PyTorch's losses with a margin; NaN stays."""
    return clip(x, 0.0)


def one_float_dtype(name: str, *tensors: Tensor) -> None:
    """Refuse inputs that are not floats of one dtype. Raises: DTypeError."""
    if any(not t.dtype.is_float or t.dtype is not tensors[0].dtype for t in tensors):
        raise DTypeError(f"{name}: takes floats of one dtype", got=", ".join(str(t.type) for t in tensors))


def class_indices(name: str, target: Any, shape: tuple[Any, ...]) -> Tensor:
    """Return a target of integers in the shape expected. Raises: DTypeError, ShapeError."""
    found = target if isinstance(target, Tensor) else tensor(np.asarray(target))
    if not found.dtype.is_integer:
        raise DTypeError(f"{name}: class indices are integers", got=str(found.dtype))
    if found.shape != tuple(shape):
        raise ShapeError(
            f"{name}: input and target do not fit",
            got=f"class indices of shape {list(found.shape)}",
            hint=f"class indices for this input have shape {list(shape)}",
        )
    return found
