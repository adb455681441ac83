"""The public functions on tensors, array API names first, PyTorch's names beside them."""

from __future__ import annotations

from typing import Any

from stratal.tensor import (
    calculus,
    composites,
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
    spaced,
)
from stratal.tensor import (
    tensor as cells,
)
from stratal.tensor.explained import explained
from stratal.tensor.kept import kept

_ALIASES: dict[str, Any] = {
    "around": elementwise.round,
    "array": cells.tensor,
    "as_tensor": creation.asarray,
    "broadcast_tensors": shapes.broadcast_arrays,
    "cat": shapes.concat,
    "clamp": elementwise.clip,
    "clone": methods.clone,
    "concatenate": shapes.concat,
    "degrees": composites.FUNCTIONS["rad2deg"],
    "ger": linear.outer,
    "is_complex": methods.is_complex,
    "is_floating_point": methods.is_floating_point,
    "invert": elementwise.FUNCTIONS["bitwise_invert"],
    "left_shift": elementwise.FUNCTIONS["bitwise_left_shift"],
    "mod": elementwise.FUNCTIONS["remainder"],
    "movedim": shapes.moveaxis,
    "permute": shapes.permute_dims,
    "power": elementwise.pow,
    "radians": composites.FUNCTIONS["deg2rad"],
    "repeat": shapes.repeat_interleave,
    "right_shift": elementwise.FUNCTIONS["bitwise_right_shift"],
    "rint": elementwise.FUNCTIONS["round"],
    "row_stack": composites.FUNCTIONS["vstack"],
    "swapaxes": shapes.transpose,
    "swapdims": shapes.transpose,
    "t": methods.t,
    "take_along_dim": indexing.take_along_axis,
    "tensor": cells.tensor,
    "unbind": shapes.unstack,
    "unsqueeze": shapes.expand_dims,
}

_MODULES = (
    calculus, creation, elementwise, indexing, linear, parts, reductions, selection, sets, shapes, sorting,
    spaced,
)  # fmt: skip
_ALL: dict[str, Any] = (
    {name: getattr(module, name) for module in _MODULES for name in module.__all__}
    | composites.FUNCTIONS
    | _ALIASES
)
FUNCTIONS: dict[str, Any] = {name: explained(kept(function)) for name, function in _ALL.items()}


def __getattr__(name: str) -> Any:
    if name in FUNCTIONS:
        return FUNCTIONS[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
