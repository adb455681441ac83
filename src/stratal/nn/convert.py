"""What a module is asked about dtypes and devices: state converted in place, a look at `device=`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from stratal.base.dtypes import DType, as_dtype
from stratal.base.errors import DTypeError
from stratal.tensor.capture import note_mutation
from stratal.tensor.device import check_device, is_device
from stratal.tensor.tensor import Tensor


def on_the_cpu(init: Callable[..., None]) -> Callable[..., None]:
    """Let a constructor that takes a `device` refuse any but the CPU; return others as they are."""
    code = init.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    if "device" not in names:
        return init
    place = names.index("device") - 1

    @functools.wraps(init)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        check_device(args[place] if len(args) > place else kwargs.get("device"))
        init(self, *args, **kwargs)

    return checked


def _read(arguments: tuple[Any, ...], dtype: Any, device: Any) -> DType | None:
    for value in arguments:
        if isinstance(value, Tensor):
            dtype = value.dtype
        elif is_device(value):
            check_device(value)
        elif isinstance(value, bool) or value is None:
            continue  # non_blocking: there is nothing to wait for
        else:
            dtype = value
    check_device(device)
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
    tensor.data = tensor.detach().to(target)
    if grad is not None:
        tensor.grad = grad.detach().to(target)
