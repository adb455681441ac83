"""What special functions share: operands as floats of one type, functions that are one record each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from stratal.graph.op import REGISTRY
from stratal.tensor.build import apply, as_tensor, common_dtype, default_float, normalise
from stratal.tensor.functions.elementwise import cast
from stratal.tensor.functions.shapes import broadcast_arrays
from stratal.tensor.tensor import Tensor


def floats(name: str, *operands: Any) -> list[Tensor]:
    """Return operands as tensors of one float dtype and one shape."""
    given = normalise(name, operands)
    dtype = default_float(common_dtype(name, given))
    tensors = [cast(as_tensor(x, name), dtype) for x in given]
    return broadcast_arrays(*tensors) if len(tensors) > 1 else tensors


def from_records(module: str, table: Mapping[str, str]) -> dict[str, Callable[..., Tensor]]:
    """Return functions by name, each of which applies one record to its operands as floats."""
    return {name: _function(module, name, op) for name, op in table.items()}


def _function(module: str, name: str, op: str) -> Callable[..., Tensor]:
    record = REGISTRY[op]

    def function(*operands: Any) -> Tensor:
        if len(operands) != record.arity:
            raise TypeError(f"{name}() takes {record.arity} arguments, got {len(operands)}")
        return apply(record(), *floats(name, *operands))

    function.__name__ = function.__qualname__ = name
    function.__module__ = module
    function.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(x, inspect.Parameter.POSITIONAL_ONLY) for x in "xyz"[: record.arity]]
    )
    function.__doc__ = f"Return of each element: {(record.__doc__ or '').strip()}"
    return function
