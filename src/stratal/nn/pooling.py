"""Pooling layers: the maximum, mean or p-norm of windows, of fixed size or of a fixed number per axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stratal.nn import functional as F
from stratal.nn.applied import Applied
from stratal.nn.dimensions import Sizes, layers, per_axis
from stratal.tensor.tensor import Tensor


class _Pool(Applied):
    """A layer whose function takes the number of spatial axes first."""

    dims = 0

    def _applied(self, *inputs: Any) -> Any:
        return super()._applied(self.dims, *inputs)


class _MaxPool(_Pool, function=F.max_pool):
    """Maximum over windows; padding never wins."""

    _shown = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")
    _options = (*_shown, "return_indices")

    def __init__(
        self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, dilation: Sizes = 1,
        return_indices: bool = False, ceil_mode: bool = False
    ) -> None:
        super().__init__()
        self.kernel_size, self.padding, self.dilation = kernel_size, padding, dilation
        self.stride = kernel_size if stride is None else stride
        self.return_indices, self.ceil_mode = return_indices, ceil_mode


MaxPool1d, MaxPool2d, MaxPool3d = layers(_MaxPool, "MaxPool", "Maximum over windows of {layout}.")


class _MaxUnpool(_Pool):
    """Maxima put back where a pooling layer with return_indices found them, zeros elsewhere."""

    _shown = ("kernel_size", "stride", "padding")

    def __init__(self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0) -> None:
        super().__init__()
        name = type(self).__name__
        self.kernel_size = per_axis(f"{name}: kernel_size", kernel_size, self.dims)
        self.stride = per_axis(f"{name}: stride", kernel_size if stride is None else stride, self.dims)
        self.padding = per_axis(f"{name}: padding", padding, self.dims, 0)

    def forward(self, input: Tensor, indices: Tensor, output_size: Any = None) -> Tensor:
        options = (self.kernel_size, self.stride, self.padding, output_size)
        return F.max_unpool(self.dims, input, indices, *options)


MaxUnpool1d, MaxUnpool2d, MaxUnpool3d = layers(
    _MaxUnpool, "MaxUnpool", "The maxima of MaxPool{n}d where they stood, zeros elsewhere."
)


class _FractionalMaxPool(_Pool, function=F.fractional_max_pool):
    """Maximum over windows whose distances are random; the result's size, or its ratio, is given."""

    _options, _shown = ("kernel_size", "output_size", "output_ratio", "return_indices", "_random_samples"), ()

    def __init__(
        self, kernel_size: Sizes, output_size: Any = None, output_ratio: Any = None,
        return_indices: bool = False, _random_samples: Any = None
    ) -> None:
        super().__init__()
        self.kernel_size = per_axis(f"{type(self).__name__}: kernel_size", kernel_size, self.dims)
        self.output_size, self.output_ratio, self.return_indices = output_size, output_ratio, return_indices
        self.register_buffer("_random_samples", _random_samples)


FractionalMaxPool2d, FractionalMaxPool3d = layers(
    _FractionalMaxPool, "FractionalMaxPool", "Maximum over randomly placed windows of {layout}.", (2, 3)
)


class _LPPool(_Pool):
    """(sum of x^p)^(1/p) over windows."""

    _shown = ("norm_type", "kernel_size", "stride", "ceil_mode")

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


LPPool1d, LPPool2d, LPPool3d = layers(_LPPool, "LPPool", "The p-norm of windows of {layout}.")


class _AvgPool(_Pool, function=F.avg_pool):
    """Mean over windows; `count_include_pad` says whether padding counts; the divisor may be given."""

    _shown = ("kernel_size", "stride", "padding")
    _options = (*_shown, "ceil_mode", "count_include_pad", "divisor_override")

    def __init__(
        self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: int | None = None
    ) -> None:
        super().__init__()
        self.kernel_size, self.padding = kernel_size, padding
        self.stride = kernel_size if stride is None else stride
        self.ceil_mode, self.count_include_pad = ceil_mode, count_include_pad
        self.divisor_override = divisor_override


class AvgPool1d(_AvgPool):
    """Mean over windows of [N, C, L]."""

    dims = 1

    def __init__(
        self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, ceil_mode: bool = False,
        count_include_pad: bool = True
    ) -> None:
        stride = kernel_size if stride is None else stride
        sizes = (per_axis("AvgPool1d", v, 1, 0) for v in (kernel_size, stride, padding))
        super().__init__(*sizes, ceil_mode, count_include_pad)


AvgPool2d, AvgPool3d = layers(_AvgPool, "AvgPool", "Mean over windows of {layout}.", (2, 3))


class _AdaptiveAvgPool(_Pool, function=F.adaptive_avg_pool):
    """Mean over nearly equal windows, of which there are `output_size`; None keeps an axis as it is."""

    _options = ("output_size",)

    def __init__(self, output_size: int | Sequence[int | None] | None) -> None:
        super().__init__()
        self.output_size = output_size


AdaptiveAvgPool1d, AdaptiveAvgPool2d, AdaptiveAvgPool3d = layers(
    _AdaptiveAvgPool, "AdaptiveAvgPool", "Mean over `output_size` nearly equal windows of {layout}."
)


class _AdaptiveMaxPool(_Pool, function=F.adaptive_max_pool):
    """Maximum over nearly equal windows, of which there are `output_size`; None keeps an axis as it is."""

    _options, _shown = ("output_size", "return_indices"), ("output_size",)

    def __init__(self, output_size: Any, return_indices: bool = False) -> None:
        super().__init__()
        self.output_size, self.return_indices = output_size, return_indices


AdaptiveMaxPool1d, AdaptiveMaxPool2d, AdaptiveMaxPool3d = layers(
    _AdaptiveMaxPool, "AdaptiveMaxPool", "Maximum over `output_size` nearly equal windows of {layout}."
)
