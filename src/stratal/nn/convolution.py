"""Convolution layers in one, two and three dimensions, and their transposes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from stratal.base.errors import AttributeValueError, ShapeError
from stratal.nn import functional as F
from stratal.nn import init
from stratal.nn.applied import changed
from stratal.nn.dimensions import Sizes, layers, per_axis
from stratal.nn.functional.convolution import padding_pairs
from stratal.nn.module import Module
from stratal.nn.parameter import empty_parameter
from stratal.tensor.tensor import Tensor


class _Convolution(Module):
    """What convolutions of any number of dimensions share.

    Layout: input [N, C, ...], weight [out, in / groups, ...].
    """

    dims = 0
    transposed = False

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Sizes, stride: Sizes = 1,
        padding: Sizes | str = 0, dilation: Sizes = 1, groups: int = 1, bias: bool = True,
        padding_mode: str = "zeros", device: Any = None, dtype: Any = None, *, output_padding: Sizes = 0
    ) -> None:
        super().__init__()
        name = type(self).__name__
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise AttributeValueError(
                f"{name}: groups must divide in_channels and out_channels",
                got=f"groups {groups}, channels {in_channels} -> {out_channels}",
            )
        modes = ("zeros",) if self.transposed else ("zeros", "reflect", "replicate", "circular")
        if padding_mode not in modes:
            raise AttributeValueError(
                f"{name}: padding_mode must be {' or '.join(map(repr, modes))}", got=repr(padding_mode)
            )
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel_size = per_axis(f"{name}: kernel_size", kernel_size, self.dims)
        self.stride = per_axis(f"{name}: stride", stride, self.dims)
        self.dilation = per_axis(f"{name}: dilation", dilation, self.dims)
        if isinstance(padding, str) and self.transposed:
            raise AttributeValueError(f"{name}: padding must be sizes, 'same' or 'valid'", got=repr(padding))
        pairs = padding_pairs(name, padding, self.kernel_size, self.stride, self.dilation)
        self.padding = padding if isinstance(padding, str) else tuple(p for p, _ in pairs)
        self.output_padding = per_axis(f"{name}: output_padding", output_padding, self.dims, 0)
        self.groups, self.padding_mode = groups, padding_mode
        first, second = (in_channels, out_channels) if self.transposed else (out_channels, in_channels)
        self.weight = empty_parameter((first, second // groups, *self.kernel_size), dtype)
        self.register_parameter("bias", empty_parameter((out_channels,), dtype) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weight and bias from U(-k, k) with k = 1 / sqrt(fan_in)."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            fan_in, _ = init.fans(self.weight)
            bound = 1 / math.sqrt(fan_in) if fan_in > 0 else 0.0
            init.uniform_(self.bias, -bound, bound)

    def extra_repr(self) -> str:
        words = [f"{self.in_channels}, {self.out_channels}"]
        words += [f"kernel_size={self.kernel_size}", f"stride={self.stride}"]
        zeros, ones = (0,) * self.dims, (1,) * self.dims
        words += changed(self, padding=zeros, dilation=ones, output_padding=zeros, groups=1)
        words += ["bias=False"] if self.bias is None else []
        return ", ".join(words + changed(self, padding_mode="zeros"))


class _Plain(_Convolution):
    def forward(self, input: Tensor) -> Tensor:
        x, padding = input, self.padding
        if self.padding_mode != "zeros":
            pairs = padding_pairs("conv", padding, self.kernel_size, self.stride, self.dilation)
            borders = [p for pair in reversed(pairs) for p in pair]  # from the last axis backwards
            x, padding = F.pad(input, borders, self.padding_mode), 0
        return F.conv(self.dims, x, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)


Conv1d, Conv2d, Conv3d = layers(
    _Plain, "Conv", "Convolution over {axes}. Shapes: {layout} -> [N, out_channels, {results}]."
)


class _Transposed(_Convolution):
    """The gradient of a convolution as a layer: weight [in, out / groups, ...].

    `output_size`, one size per spatial axis, chooses among the sizes a stride leaves open.
    """

    transposed = True

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Sizes, stride: Sizes = 1, padding: Sizes = 0,
        output_padding: Sizes = 0, groups: int = 1, bias: bool = True, dilation: Sizes = 1,
        padding_mode: str = "zeros", device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode,
            output_padding=output_padding, dtype=dtype,
        )  # fmt: skip

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        extra = self.output_padding if output_size is None else self._extra(input, tuple(output_size))
        return F.conv_transpose(
            self.dims, input, self.weight, self.bias, self.stride, self.padding, extra, self.groups,
            self.dilation,
        )  # fmt: skip

    def _extra(self, input: Tensor, wanted: tuple[int, ...]) -> tuple[int, ...]:
        """Return what is missing from the least output to the wanted one. Raises: ShapeError."""
        geometry = zip(self.stride, self.padding, self.dilation, self.kernel_size, strict=True)
        least = [
            (int(n) - 1) * s - 2 * p + d * (k - 1) + 1
            for n, (s, p, d, k) in zip(input.shape[-self.dims :], geometry, strict=True)
        ]
        sizes = wanted[-self.dims :]
        extra = tuple(w - n for w, n in zip(sizes, least, strict=False))
        if len(sizes) != self.dims or any(not 0 <= e < s for e, s in zip(extra, self.stride, strict=True)):
            most = [n + s - 1 for n, s in zip(least, self.stride, strict=True)]
            raise ShapeError(
                f"{type(self).__name__}: output_size lies between {least} and {most}", got=str(list(wanted))
            )
        return extra


ConvTranspose1d, ConvTranspose2d, ConvTranspose3d = layers(
    _Transposed, "ConvTranspose", "Transposed convolution over {axes}."
)
