"""The public functions on tensors, array API names first, PyTorch's names beside them."""

from __future__ import annotations

from typing import Any

from stratal.tensor import creation, elementwise, indexing, linear, methods, reductions, shapes
from stratal.tensor.creation import *  # noqa: F403
from stratal.tensor.elementwise import *  # noqa: F403
from stratal.tensor.indexing import *  # noqa: F403
from stratal.tensor.linear import *  # noqa: F403
from stratal.tensor.reductions import *  # noqa: F403
from stratal.tensor.shapes import *  # noqa: F403

ALIASES: dict[str, Any] = {
    "as_tensor": creation.asarray,
    "cat": shapes.concat,
    "clamp": elementwise.clip,
    "concatenate": shapes.concat,
    "movedim": shapes.moveaxis,
    "permute": shapes.permute_dims,
    "swapaxes": shapes.transpose,
    "swapdims": shapes.transpose,
    "t": methods._t,
    "unbind": shapes.unstack,
    "unsqueeze": shapes.expand_dims,
    "repeat": shapes.repeat_interleave,
}
globals().update(ALIASES)

NAMES = sorted({
    *creation.__all__, *elementwise.__all__, *indexing.__all__, *linear.__all__, *reductions.__all__, *shapes.__all__,
    *ALIASES, "tensor",
})  # fmt: skip
__all__ = NAMES
