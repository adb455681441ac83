"""Pooling layers: the maximum or mean of windows, of fixed size or of a fixed number per axis."""

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


class _AvgPool(Module):
    """Mean over windows; `count_include_pad` says whether padding counts in the divisor."""

    dims = 0

    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        super().__init__()
        self.kernel_size, self.padding = kernel_size, padding
        self.stride = kernel_size if stride is None else stride
        self.ceil_mode, self.count_include_pad = ceil_mode, count_include_pad

    def forward(self, input: Tensor) -> Tensor:
        return F.avg_pool(
            self.dims,
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.ceil_mode,
            self.count_include_pad,
        )

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool1d(_AvgPool):
    """Mean over windows of [N, C, L]."""

    dims = 1

    def extra_repr(self) -> str:
        size, stride, padding = (
            per_axis("AvgPool1d", v, 1, 0) for v in (self.kernel_size, self.stride, self.padding)
        )
        return f"kernel_size={size}, stride={stride}, padding={padding}"


class AvgPool2d(_AvgPool):
    """Mean over windows of [N, C, H, W]."""

    dims = 2


class _Adaptive(Module):
    def __init__(self, output_size: int | Sequence[int | None] | None) -> None:
        super().__init__()
        self.output_size = output_size

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class AdaptiveAvgPool1d(_Adaptive):
    """Mean over `output_size` nearly equal windows of [N, C, L]."""

    def forward(self, input: Tensor) -> Tensor:
        return F.adaptive_avg_pool1d(input, self.output_size)


class AdaptiveAvgPool2d(_Adaptive):
    """Mean over `output_size` nearly equal windows of [N, C, H, W]; None keeps an axis as it is."""

    def forward(self, input: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(input, self.output_size)
