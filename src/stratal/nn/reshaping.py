"""Layers that move elements: flatten, unflatten, windows as columns and back, shuffles; and other sizes."""

from __future__ import annotations

from typing import Any

from stratal.nn import functional as F
from stratal.nn.applied import Applied
from stratal.nn.dimensions import Sizes
from stratal.tensor.functions.shapes import unflatten


class Flatten(Applied, function=F.flatten):
    """Merge the axes from `start_dim` to `end_dim` into one."""

    _options = ("start_dim", "end_dim")

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim


class Unflatten(Applied, function=unflatten):
    """Split the axis `dim` into the axes of `unflattened_size`, one of which may be -1."""

    _options = ("dim", "unflattened_size")

    def __init__(self, dim: int, unflattened_size: Any) -> None:
        super().__init__()
        self.dim, self.unflattened_size = dim, tuple(unflattened_size)


class Unfold(Applied, function=F.unfold):
    """Every window of an image as a column: [N, C, H, W] -> [N, C * KH * KW, windows]."""

    _options = ("kernel_size", "dilation", "padding", "stride")

    def __init__(
        self, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1
    ) -> None:
        super().__init__()
        self.kernel_size, self.dilation, self.padding, self.stride = kernel_size, dilation, padding, stride


class Fold(Applied, function=F.fold):
    """Columns added up as windows of an image: [N, C * KH * KW, windows] -> [N, C, H, W]."""

    _options = ("output_size", "kernel_size", "dilation", "padding", "stride")

    def __init__(
        self, output_size: Sizes, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0,
        stride: Sizes = 1
    ) -> None:
        super().__init__()
        self.output_size, self.kernel_size, self.dilation = output_size, kernel_size, dilation
        self.padding, self.stride = padding, stride


class PixelShuffle(Applied, function=F.pixel_shuffle):
    """Channels become space: [..., C r r, H, W] -> [..., C, H r, W r]."""

    _options = ("upscale_factor",)

    def __init__(self, upscale_factor: int) -> None:
        super().__init__()
        self.upscale_factor = upscale_factor


class PixelUnshuffle(Applied, function=F.pixel_unshuffle):
    """Space becomes channels: [..., C, H r, W r] -> [..., C r r, H, W]."""

    _options = ("downscale_factor",)

    def __init__(self, downscale_factor: int) -> None:
        super().__init__()
        self.downscale_factor = downscale_factor


class ChannelShuffle(Applied, function=F.channel_shuffle):
    """The channels of every group are dealt to all groups in turn."""

    _options = ("groups",)

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups


class Upsample(Applied, function=F.interpolate):
    """Resize the axes after the first two to `size`, or by `scale_factor`; modes as for `interpolate`."""

    _options = ("size", "scale_factor", "mode", "align_corners", "recompute_scale_factor")

    def __init__(
        self, size: Any = None, scale_factor: Any = None, mode: str = "nearest",
        align_corners: bool | None = None, recompute_scale_factor: bool | None = None
    ) -> None:
        super().__init__()
        self.size = size
        self.scale_factor = (
            tuple(map(float, scale_factor)) if isinstance(scale_factor, (tuple, list))
            else float(scale_factor) if scale_factor else None
        )  # fmt: skip
        self.mode, self.align_corners = mode, align_corners
        self.recompute_scale_factor = recompute_scale_factor

    def extra_repr(self) -> str:
        first = f"size={self.size}" if self.scale_factor is None else f"scale_factor={self.scale_factor!r}"
        return f"{first}, mode={self.mode!r}"


class UpsamplingNearest2d(Upsample):
    """Resize images to the nearest elements: the older name."""

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        super().__init__(size, scale_factor, "nearest")


class UpsamplingBilinear2d(Upsample):
    """Resize images linearly with the corners fixed: the older name."""

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        super().__init__(size, scale_factor, "bilinear", align_corners=True)
