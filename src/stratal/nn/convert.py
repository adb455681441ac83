"""Conversion of floating-point state to another dtype, in place."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stratal.base.dtypes import DType, as_dtype
from stratal.base.errors import AttributeValueError, DTypeError
from stratal.tensor.capture import note_mutation
from stratal.tensor.tensor import Tensor


def _is_device(value: Any) -> bool:
    return isinstance(value, str) and value.split(":")[0] in ("cpu", "cuda", "mps", "xpu", "meta")


def _read(arguments: tuple[Any, ...], dtype: Any, device: Any) -> DType | None:
    for value in arguments:
        if isinstance(value, Tensor):
            dtype = value.dtype
        elif _is_device(value):
            device = value
        elif isinstance(value, bool) or value is None:
            continue  # non_blocking: there is nothing to wait for
        else:
            dtype = value
    if device is not None and str(device).split(":")[0] != "cpu":
        raise AttributeValueError("to: the only device is the CPU", got=repr(device))
    found = None if dtype is None else as_dtype(dtype)
    if found is not None and not found.is_inexact:
        raise DTypeError("to: a module converts to floating-point dtypes only", got=str(found))
    return found


def convert(tensors: Iterable[Tensor], *arguments: Any, dtype: Any = None, device: Any = None) -> None:
    """Convert a module's tensors to what `Module.to` is asked for. Integer buffers stay as they are."""
    target = _read(arguments, dtype, device)
    if target is None:
        return
    for tensor in tensors:
        if tensor.dtype.is_inexact:
            _convert(tensor, target)
    note_mutation()


def _convert(tensor: Tensor, target: DType) -> None:
    """Give a tensor another dtype, and its gradient too."""
    if tensor.dtype is target:
        return
    grad = tensor.grad
    tensor.grad = None
    tensor.data = tensor.detach().astype(target)
    if grad is not None:
        tensor.grad = grad.detach().astype(target)
