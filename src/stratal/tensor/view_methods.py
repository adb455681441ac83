"""Methods that take a part of a tensor, or show it in another shape, and how the part is put back."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from stratal.tensor.build import REGISTRY, apply
from stratal.tensor.indexing import getitem, positions, set_at
from stratal.tensor.kept import kept
from stratal.tensor.shapes import reshape
from stratal.tensor.tensor import Tensor
from stratal.tensor.views import Step, taken

RESHAPED = (
    "flatten", "ravel", "reshape", "reshape_as", "squeeze", "unflatten", "unsqueeze", "view", "view_as",
)  # fmt: skip
MOVED = (
    "chunk", "diagonal", "moveaxis", "movedim", "narrow", "permute", "split", "split_with_sizes",
    "swapaxes", "swapdims", "t", "transpose", "unbind",
)  # fmt: skip
_BASIC = frozenset({int, slice, type(None), type(Ellipsis)})

_getitem = kept(getitem)


def get(self: Tensor, index: Any) -> Tensor:
    """Return x[index]: with ints, slices, None and `...` a view, with arrays and masks a value of its own."""
    made: Tensor = _getitem(self, index)
    kind = index.__class__
    if kind in _BASIC or (kind is tuple and all(part.__class__ in _BASIC for part in index)):
        taken(made, self, Step(_getitem, _put_indexed, (index,), {}, None))
    return made


def viewing(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a method whose result, or each of several, is a view of its tensor."""

    @functools.wraps(function)
    def method(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        made = function(self, *args, **kwargs)
        if name in RESHAPED:
            if made.dtype is self.dtype:  # x.view(dtype) shows bits
                taken(made, self, Step(reshape, _put_reshaped, (made.shape,), {}, None))
        elif isinstance(made, Tensor):
            taken(made, self, Step(function, _put_moved, args, kwargs, None))
        else:
            for k, part in enumerate(made):
                taken(part, self, Step(function, _put_moved, args, kwargs, k))
        return made

    return method


def _put_indexed(base: Tensor, value: Tensor, step: Step) -> Tensor:
    return set_at(base, step.args[0], value)


def _put_reshaped(base: Tensor, value: Tensor, step: Step) -> Tensor:
    return reshape(value, base.shape)


def _put_moved(base: Tensor, value: Tensor, step: Step) -> Tensor:
    """Write each element of the view where it stands in the base."""
    where_to, elements = (reshape(t, (t.numel(),)) for t in (step.take(positions(base)), value))
    op = REGISTRY["scatter"]("set", 0)  # type: ignore[call-arg]
    return reshape(apply(op, reshape(base, (base.numel(),)), where_to, elements), base.shape)
