"""What several networks for images share: how their widths scale, how their layers start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stratal import nn
from stratal.base.errors import AttributeValueError

Norm = Callable[..., Any]  # makes a layer that normalises so many channels


def scaled(channels: int, width_mult: float) -> int:
    """Return a number of channels times the width multiplier, at least one."""
    if not width_mult > 0:
        raise AttributeValueError("width_mult: is positive", got=repr(width_mult))
    return max(1, round(channels * width_mult))


def start_convolutions(model: nn.Module) -> None:
    """Draw the weights of convolutions so that gradients keep their variance, their biases zero.

    See: He et al. 2015, section 2.2 (the backward case).
    """
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
