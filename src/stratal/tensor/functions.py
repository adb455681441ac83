"""The public functions on tensors, array API names first, PyTorch's names beside them."""

from __future__ import annotations

from typing import Any

from stratal.tensor import (
    calculus,
    creation,
    elementwise,
    indexing,
    linear,
    methods,
    parts,
    reductions,
    selection,
    sets,
    shapes,
    sorting,
)
from stratal.tensor import (
    tensor as cells,
)

_ALIASES: dict[str, Any] = {
    "as_tensor": creation.asarray,
    "cat": shapes.concat,
    "clamp": elementwise.clip,
    "concatenate": shapes.concat,
    "movedim": shapes.moveaxis,
    "permute": shapes.permute_dims,
    "repeat": shapes.repeat_interleave,
    "swapaxes": shapes.transpose,
    "swapdims": shapes.transpose,
    "t": methods.t,
    "tensor": cells.tensor,
    "unbind": shapes.unstack,
    "unsqueeze": shapes.expand_dims,
}

_MODULES = (
    calculus, creation, elementwise, indexing, linear, parts, reductions, selection, sets, shapes, sorting,
)  # fmt: skip
FUNCTIONS: dict[str, Any] = {
    name: getattr(module, name)
    for module in _MODULES
    for name in module.__all__
} | _ALIASES


def __getattr__(name: str) -> Any:
    if name in FUNCTIONS:
        return FUNCTIONS[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
