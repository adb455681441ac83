"""Identity, linear and bilinear layers."""

from __future__ import annotations

import math
from typing import Any

from stratal.base.errors import AttributeValueError
from stratal.nn import functional as F
from stratal.nn import init
from stratal.nn.module import Module
from stratal.nn.parameter import empty_parameter
from stratal.tensor.tensor import Tensor


class Identity(Module):
    """Return the input; any arguments are accepted and ignored."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, input: Tensor) -> Tensor:
        return input


class Linear(Module):
    """y = x @ weight.T + bias over the last axis.

    Shapes: x [..., in_features], weight [out_features, in_features], bias [out_features].
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = empty_parameter((out_features, in_features), dtype)
        self.register_parameter("bias", empty_parameter((out_features,), dtype) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weight and bias from U(-k, k) with k = 1 / sqrt(in_features)."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            bound = 1 / math.sqrt(self.in_features) if self.in_features > 0 else 0.0
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        )


class Bilinear(Module):
    """y_k = x1 W_k x2 + b_k over the last axes.

    Shapes: x1 [..., in1_features], x2 [..., in2_features], weight [out_features, in1_features, in2_features].
    """

    def __init__(
        self, in1_features: int, in2_features: int, out_features: int, bias: bool = True, device: Any = None,
        dtype: Any = None
    ) -> None:
        super().__init__()
        if in1_features < 1:
            raise AttributeValueError("Bilinear: in1_features must be positive", got=str(in1_features))
        self.in1_features, self.in2_features, self.out_features = in1_features, in2_features, out_features
        self.weight = empty_parameter((out_features, in1_features, in2_features), dtype)
        self.register_parameter("bias", empty_parameter((out_features,), dtype) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weight and bias from U(-k, k) with k = 1 / sqrt(in1_features)."""
        bound = 1 / math.sqrt(self.in1_features)
        for parameter in self.parameters():
            init.uniform_(parameter, -bound, bound)

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:
        return F.bilinear(input1, input2, self.weight, self.bias)

    def extra_repr(self) -> str:
        return (
            f"in1_features={self.in1_features}, in2_features={self.in2_features}, "
            f"out_features={self.out_features}, bias={self.bias is not None}"
        )
