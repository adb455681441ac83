"""Pooling layers: the maximum, mean or p-norm of windows, of fixed size or of a fixed number per axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stratal.nn import functional as F
from stratal.nn.module import Module
from stratal.nn.sizes import Sizes, per_axis
from stratal.tensor.tensor import Tensor


class _MaxPool(Module):
    """Maximum over windows; padding never wins."""

    dims = 0

    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__()
        self.kernel_size, self.padding, self.dilation = kernel_size, padding, dilation
        self.stride = kernel_size if stride is None else stride
        self.return_indices, self.ceil_mode = return_indices, ceil_mode

    def forward(self, input: Tensor) -> Any:
        return F.max_pool(
            self.dims, input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode,
            self.return_indices,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, "
            f"dilation={self.dilation}, ceil_mode={self.ceil_mode}"
        )


class MaxPool1d(_MaxPool):
    """Maximum over windows of [N, C, L]."""

    dims = 1


class MaxPool2d(_MaxPool):
    """Maximum over windows of [N, C, H, W]."""

    dims = 2


class MaxPool3d(_MaxPool):
    """Maximum over windows of [N, C, D, H, W]."""

    dims = 3


class _MaxUnpool(Module):
    """Maxima put back where a pooling layer with return_indices found them, zeros elsewhere."""

    dims = 0

    def __init__(self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0) -> None:
        super().__init__()
        name = type(self).__name__
        self.kernel_size = per_axis(f"{name}: kernel_size", kernel_size, self.dims)
        self.stride = per_axis(f"{name}: stride", kernel_size if stride is None else stride, self.dims)
        self.padding = per_axis(f"{name}: padding", padding, self.dims, 0)

    def forward(self, input: Tensor, indices: Tensor, output_size: Any = None) -> Tensor:
        return F.max_unpool(
            self.dims, input, indices, self.kernel_size, self.stride, self.padding, output_size
        )

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class MaxUnpool1d(_MaxUnpool):
    """The maxima of MaxPool1d where they stood, zeros elsewhere."""

    dims = 1


class MaxUnpool2d(_MaxUnpool):
    """The maxima of MaxPool2d where they stood, zeros elsewhere."""

    dims = 2


class MaxUnpool3d(_MaxUnpool):
    """The maxima of MaxPool3d where they stood, zeros elsewhere."""

    dims = 3


class _FractionalMaxPool(Module):
    """Maximum over windows whose distances are random; the result's size, or its ratio, is given."""

    dims = 0

    def __init__(
        self,
        kernel_size: Sizes,
        output_size: Any = None,
        output_ratio: Any = None,
        return_indices: bool = False,
        _random_samples: Any = None,
    ) -> None:
        super().__init__()
        self.kernel_size = per_axis(f"{type(self).__name__}: kernel_size", kernel_size, self.dims)
        self.output_size, self.output_ratio, self.return_indices = output_size, output_ratio, return_indices
        self.register_buffer("_random_samples", _random_samples)

    def forward(self, input: Tensor) -> Any:
        return F.fractional_max_pool(
            self.dims, input, self.kernel_size, self.output_size, self.output_ratio, self.return_indices,
            self._random_samples,
        )  # fmt: skip


class FractionalMaxPool2d(_FractionalMaxPool):
    """Maximum over randomly placed windows of [N, C, H, W]."""

    dims = 2


class FractionalMaxPool3d(_FractionalMaxPool):
    """Maximum over randomly placed windows of [N, C, D, H, W]."""

    dims = 3


class _LPPool(Module):
    """(sum of x^p)^(1/p) over windows."""

    dims = 0

    def __init__(
        self, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None, ceil_mode: bool = False
    ) -> None:
        super().__init__()
        self.norm_type, self.kernel_size, self.stride = norm_type, kernel_size, stride
        self.ceil_mode = ceil_mode

    def forward(self, input: Tensor) -> Tensor:
        return F.lp_pool(
            self.dims, input, float(self.norm_type), self.kernel_size, self.stride, self.ceil_mode
        )

    def extra_repr(self) -> str:
        names = ("norm_type", "kernel_size", "stride", "ceil_mode")
        return ", ".join(f"{name}={getattr(self, name)}" for name in names)


class LPPool1d(_LPPool):
    """The p-norm of windows of [N, C, L]."""

    dims = 1


class LPPool2d(_LPPool):
    """The p-norm of windows of [N, C, H, W]."""

    dims = 2


class LPPool3d(_LPPool):
    """The p-norm of windows of [N, C, D, H, W]."""

    dims = 3


class _AvgPool(Module):
    """Mean over windows; `count_include_pad` says whether padding counts; the divisor may be given."""

    dims = 0

    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        super().__init__()
        self.kernel_size, self.padding = kernel_size, padding
        self.stride = kernel_size if stride is None else stride
        self.ceil_mode, self.count_include_pad = ceil_mode, count_include_pad
        self.divisor_override = divisor_override

    def forward(self, input: Tensor) -> Tensor:
        return F.avg_pool(
            self.dims, input, self.kernel_size, self.stride, self.padding, self.ceil_mode,
            self.count_include_pad, self.divisor_override,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool1d(_AvgPool):
    """Mean over windows of [N, C, L]."""

    dims = 1

    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        stride = kernel_size if stride is None else stride
        sizes = (per_axis("AvgPool1d", v, 1, 0) for v in (kernel_size, stride, padding))
        super().__init__(*sizes, ceil_mode, count_include_pad)


class AvgPool2d(_AvgPool):
    """Mean over windows of [N, C, H, W]."""

    dims = 2


class AvgPool3d(_AvgPool):
    """Mean over windows of [N, C, D, H, W]."""

    dims = 3


class _AdaptiveAvgPool(Module):
    """Mean over nearly equal windows, of which there are `output_size`; None keeps an axis as it is."""

    dims = 0

    def __init__(self, output_size: int | Sequence[int | None] | None) -> None:
        super().__init__()
        self.output_size = output_size

    def forward(self, input: Tensor) -> Tensor:
        return F.adaptive_avg_pool(self.dims, input, self.output_size)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class AdaptiveAvgPool1d(_AdaptiveAvgPool):
    """Mean over `output_size` nearly equal windows of [N, C, L]."""

    dims = 1


class AdaptiveAvgPool2d(_AdaptiveAvgPool):
    """Mean over `output_size` nearly equal windows of [N, C, H, W]."""

    dims = 2


class AdaptiveAvgPool3d(_AdaptiveAvgPool):
    """Mean over `output_size` nearly equal windows of [N, C, D, H, W]."""

    dims = 3


class _AdaptiveMaxPool(Module):
    """Maximum over nearly equal windows, of which there are `output_size`; None keeps an axis as it is."""

    dims = 0

    def __init__(self, output_size: Any, return_indices: bool = False) -> None:
        super().__init__()
        self.output_size, self.return_indices = output_size, return_indices

    def forward(self, input: Tensor) -> Any:
        return F.adaptive_max_pool(self.dims, input, self.output_size, self.return_indices)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class AdaptiveMaxPool1d(_AdaptiveMaxPool):
    """Maximum over `output_size` nearly equal windows of [N, C, L]."""

    dims = 1


class AdaptiveMaxPool2d(_AdaptiveMaxPool):
    """Maximum over `output_size` nearly equal windows of [N, C, H, W]."""

    dims = 2


class AdaptiveMaxPool3d(_AdaptiveMaxPool):
    """Maximum over `output_size` nearly equal windows of [N, C, D, H, W]."""

    dims = 3
