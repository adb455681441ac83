"""Padding layers, from a table: each mode in one, two and three dimensions."""

from __future__ import annotations

from typing import Any

from stratal.nn import functional as F
from stratal.nn.module import Module
from stratal.nn.sizes import Sizes, per_axis
from stratal.tensor.tensor import Tensor


class _Pad(Module):
    """Surround the last `dims` axes: one size, or (before, after) pairs from the last axis backwards."""

    dims = 0
    mode = "constant"
    value: float | None = None

    def __init__(self, padding: Sizes) -> None:
        super().__init__()
        self.padding = per_axis(f"{type(self).__name__}: padding", padding, 2 * self.dims, None)

    def forward(self, input: Tensor) -> Tensor:
        return F.pad(input, self.padding, self.mode, self.value)

    def extra_repr(self) -> str:
        return str(self.padding)


class _Constant(_Pad):
    def __init__(self, padding: Sizes, value: float) -> None:
        super().__init__(padding)
        self.value = value

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


KINDS: dict[str, tuple[type[_Pad], dict[str, Any], str]] = {
    "ConstantPad": (_Constant, {}, "a value"),
    "ZeroPad": (_Pad, {"value": 0.0}, "zeros"),
    "ReflectionPad": (_Pad, {"mode": "reflect"}, "what lies inside, mirrored at the border"),
    "ReplicationPad": (_Pad, {"mode": "replicate"}, "the element at the border"),
    "CircularPad": (_Pad, {"mode": "circular"}, "what lies at the other end"),
}


def _made(kind: str, dims: int) -> type[_Pad]:
    base, fields, meaning = KINDS[kind]
    axes = "the last axis" if dims == 1 else f"the last {dims} axes"
    text = f"Surround {axes} by {meaning}; sizes are (before, after) pairs from the last axis backwards."
    return type(f"{kind}{dims}d", (base,), {"dims": dims, "__module__": __name__, "__doc__": text, **fields})


ConstantPad1d, ConstantPad2d, ConstantPad3d = (_made("ConstantPad", n) for n in (1, 2, 3))
ZeroPad1d, ZeroPad2d, ZeroPad3d = (_made("ZeroPad", n) for n in (1, 2, 3))
ReflectionPad1d, ReflectionPad2d, ReflectionPad3d = (_made("ReflectionPad", n) for n in (1, 2, 3))
ReplicationPad1d, ReplicationPad2d, ReplicationPad3d = (_made("ReplicationPad", n) for n in (1, 2, 3))
CircularPad1d, CircularPad2d, CircularPad3d = (_made("CircularPad", n) for n in (1, 2, 3))
