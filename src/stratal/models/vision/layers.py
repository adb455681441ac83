"""What several networks for images share: how their widths scale, what stands in a row, how weights start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stratal import nn
from stratal.base.errors import AttributeValueError

Layer = Callable[..., Any]  # makes a module: a normalisation of so many channels, an activation


def scaled(channels: int, width_mult: float) -> int:
    """Return a number of channels times the width multiplier, at least one."""
    if not width_mult > 0:
        raise AttributeValueError("width_mult: is positive", got=repr(width_mult))
    return max(1, round(channels * width_mult))


def conv_norm_act(
    n_in: int,
    n_out: int,
    kernel_size: int = 3,
    stride: int = 1,
    groups: int = 1,
    norm_layer: Layer = nn.BatchNorm2d,
    activation_layer: Layer = nn.ReLU,
) -> nn.Sequential:
    """Return a convolution without bias that keeps H / stride and W / stride, normalised and activated."""
    padding = (kernel_size - 1) // 2
    convolution = nn.Conv2d(n_in, n_out, kernel_size, stride, padding, groups=groups, bias=False)
    return nn.Sequential(convolution, norm_layer(n_out), activation_layer(inplace=True))


def start_convolutions(model: nn.Module) -> None:
    """Draw the weights of convolutions so that gradients keep their variance, their biases zero.

    See: He et al. 2015, section 2.2 (the backward case).
    """
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def start_linear(model: nn.Module, std: float = 0.01) -> None:
    """Draw the weights of linear layers from N(0, std^2), their biases zero."""
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, 0.0, std)
            nn.init.zeros_(layer.bias)
