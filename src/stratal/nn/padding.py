"""Padding layers: each mode in one, two and three dimensions."""

from __future__ import annotations

from stratal.nn import functional as F
from stratal.nn.dimensions import Sizes, layers, per_axis
from stratal.nn.module import Module
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


_TEXT = "Surround {last} by %s; sizes are (before, after) pairs from the last axis backwards."
ConstantPad1d, ConstantPad2d, ConstantPad3d = layers(_Constant, "ConstantPad", _TEXT % "a value")
ZeroPad1d, ZeroPad2d, ZeroPad3d = layers(_Pad, "ZeroPad", _TEXT % "zeros", value=0.0)
ReflectionPad1d, ReflectionPad2d, ReflectionPad3d = layers(
    _Pad, "ReflectionPad", _TEXT % "what lies inside, mirrored at the border", mode="reflect"
)
ReplicationPad1d, ReplicationPad2d, ReplicationPad3d = layers(
    _Pad, "ReplicationPad", _TEXT % "the element at the border", mode="replicate"
)
CircularPad1d, CircularPad2d, CircularPad3d = layers(
    _Pad, "CircularPad", _TEXT % "what lies at the other end", mode="circular"
)
