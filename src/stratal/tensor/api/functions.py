"""The public functions on tensors, array API names first, PyTorch's names beside them."""

from __future__ import annotations

from typing import Any

from stratal.tensor import tensor as cells
from stratal.tensor.api.explained import explained
from stratal.tensor.calls.call_cache import cached_call
from stratal.tensor.composites import (
    arithmetic,
    histograms,
    joining,
    matrices,
    quantiles,
    signals,
    statistics,
    writing,
)
from stratal.tensor.functions import (
    calculus,
    creation,
    elementwise,
    indexing,
    linear,
    parts,
    reductions,
    selection,
    sets,
    shapes,
    sorting,
    triangles,
)

_ALIASES: dict[str, Any] = {
    "around": elementwise.round,
    "array": cells.tensor,
    "as_tensor": creation.asarray,
    "broadcast_tensors": shapes.broadcast_arrays,
    "cat": shapes.concat,
    "clamp": elementwise.clip,
    "concatenate": shapes.concat,
    **dict.fromkeys(("divide", "true_divide"), elementwise.div),
    "degrees": arithmetic.rad2deg,
    "ger": linear.outer,
    "invert": elementwise.FUNCTIONS["bitwise_invert"],
    "left_shift": elementwise.FUNCTIONS["bitwise_left_shift"],
    "mod": elementwise.FUNCTIONS["remainder"],
    "movedim": shapes.moveaxis,
    "permute": shapes.permute_dims,
    "power": elementwise.pow,
    "radians": arithmetic.deg2rad,
    "repeat": shapes.repeat_interleave,
    "right_shift": elementwise.FUNCTIONS["bitwise_right_shift"],
    "rint": elementwise.FUNCTIONS["round"],
    "row_stack": joining.vstack,
    "sub": arithmetic.subtract,
    "swapaxes": shapes.transpose,
    "swapdims": shapes.transpose,
    "take_along_dim": indexing.take_along_axis,
    "tensor": cells.tensor,
    "unbind": shapes.unstack,
    "unsqueeze": shapes.expand_dims,
}

_MODULES = (
    calculus, creation, elementwise, indexing, linear, parts, reductions, selection, sets, shapes, sorting,
    triangles, arithmetic, histograms, joining, matrices, quantiles, signals, statistics, writing,
)  # fmt: skip
PLAIN: dict[str, Any] = {name: getattr(module, name) for module in _MODULES for name in module.__all__}
PLAIN |= _ALIASES
FUNCTIONS: dict[str, Any] = {name: explained(cached_call(function)) for name, function in PLAIN.items()}
