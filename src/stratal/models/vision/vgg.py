"""Deep networks of 3x3 convolutions alone.

See: Simonyan and Zisserman 2014, Very deep convolutional networks for large-scale image recognition, table 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from stratal import nn
from stratal.models.vision.layers import Layer, constructor, scaled, start_convolutions, start_linear
from stratal.tensor.tensor import Tensor

Row = Sequence[int | Literal["M"]]

# The paper's columns: channels of convolutions, M for a maximum over 2x2.
cfgs: dict[str, Row] = {
    "A": (64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M"),
    "B": (64, 64, "M", 128, 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M"),
    "D": (64, 64, "M", 128, 128, "M", *[256] * 3, "M", *[512] * 3, "M", *[512] * 3, "M"),
    "E": (64, 64, "M", 128, 128, "M", *[256] * 4, "M", *[512] * 4, "M", *[512] * 4, "M"),
}


def make_layers(cfg: Row, batch_norm: bool = False) -> nn.Sequential:
    """Return the convolutions of a row of the table, with ReLU, and batch normalisation if asked."""
    layers: list[Any] = []
    n_in = 3
    for width in cfg:
        if width == "M":
            layers.append(nn.MaxPool2d(2, stride=2))
            continue
        layers.append(nn.Conv2d(n_in, width, 3, padding=1))
        layers += [nn.BatchNorm2d(width)] if batch_norm else []
        layers.append(nn.ReLU(inplace=True))
        n_in = width
    return nn.Sequential(*layers)


class VGG(nn.Module):
    """Features of 512 channels, averaged to 7x7, and three linear layers; `width_mult` scales both widths.

    Shapes: [N, 3, H, W] -> [N, num_classes] logits; H and W are 32 or more, 224 in the paper.
    """

    def __init__(
        self, features: nn.Module, num_classes: int = 1000, init_weights: bool = True, dropout: float = 0.5,
        *, width_mult: float = 1.0
    ) -> None:
        super().__init__()
        channels, hidden = scaled(512, width_mult), scaled(4096, width_mult)
        self.features = features
        self.avgpool = nn.AdaptiveAvgPool2d((7, 7))
        self.classifier = nn.Sequential(
            nn.Linear(channels * 7 * 7, hidden), nn.ReLU(inplace=True), nn.Dropout(dropout),
            nn.Linear(hidden, hidden), nn.ReLU(inplace=True), nn.Dropout(dropout),
            nn.Linear(hidden, num_classes),
        )  # fmt: skip
        if init_weights:
            start_convolutions(self)
            start_linear(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.avgpool(self.features(x)).flatten(1))


def _vgg(name: str, column: str, text: str, *, batch_norm: bool = False) -> Layer:
    def build(**options: Any) -> VGG:
        width_mult = options.get("width_mult", 1.0)
        row: Row = [n if n == "M" else scaled(n, width_mult) for n in cfgs[column]]
        return VGG(make_layers(row, batch_norm), **options)

    return constructor(__name__, name, text, build)


_NORMED = "with batch normalisation after every convolution"
vgg11 = _vgg("vgg11", "A", "VGG-11, the paper's column A")
vgg11_bn = _vgg("vgg11_bn", "A", f"VGG-11 {_NORMED}", batch_norm=True)
vgg13 = _vgg("vgg13", "B", "VGG-13, the paper's column B")
vgg13_bn = _vgg("vgg13_bn", "B", f"VGG-13 {_NORMED}", batch_norm=True)
vgg16 = _vgg("vgg16", "D", "VGG-16, the paper's column D")
vgg16_bn = _vgg("vgg16_bn", "D", f"VGG-16 {_NORMED}", batch_norm=True)
vgg19 = _vgg("vgg19", "E", "VGG-19, the paper's column E")
vgg19_bn = _vgg("vgg19_bn", "E", f"VGG-19 {_NORMED}", batch_norm=True)
