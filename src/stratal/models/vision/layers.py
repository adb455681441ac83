"""What networks for images share: how widths scale, what stands in a row, how weights start or are loaded."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from stratal import nn
from stratal.base.errors import AttributeValueError
from stratal.formats.safetensors import load_tensors

Layer = Callable[..., Any]  # makes a module: a normalisation of so many channels, an activation


def constructor(module: str, name: str, text: str, build: Layer) -> Layer:
    """Return the function of a module that builds a network, and loads its `weights` where they are given."""

    def construct(*, weights: Weights = None, progress: bool = True, **options: Any) -> Any:
        return loaded(build(**options), weights)

    construct.__module__ = module
    construct.__doc__ = f"Return {text}. `options` are those of the network; nothing shows progress."
    construct.__name__ = construct.__qualname__ = name
    return construct


def scaled(channels: int, width_mult: float) -> int:
    """Return a number of channels times the width multiplier, at least one."""
    if not width_mult > 0:
        raise AttributeValueError("width_mult: is positive", got=repr(width_mult))
    return max(1, round(channels * width_mult))


def conv_norm_act(
    n_in: int, n_out: int, kernel_size: int = 3, stride: int = 1, groups: int = 1,
    norm_layer: Layer = nn.BatchNorm2d, activation_layer: Layer = nn.ReLU
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


Weights = str | os.PathLike[str] | None
Model = TypeVar("Model", bound=Any)


def loaded(model: Model, weights: Weights) -> Model:
    """Return the model; with a path, with the values of that safetensors file in it, which must fit exactly.

    Raises: AttributeValueError where `weights` is no file, FormatError, StateDictError.
    """
    if weights is None:
        return model
    if not isinstance(weights, (str, os.PathLike)) or not Path(weights).is_file():
        raise AttributeValueError(
            f"{type(model).__name__}: weights is None or the path of a safetensors file",
            got=repr(weights),
            hint="no weights are offered for download; net.load_state_dict(st.load(path)) takes what "
            "torch.save(model.state_dict(), path) wrote of PyTorch's model",
        )
    model.load_state_dict(load_tensors(weights))
    return model
