"""MobileNetV2: residual blocks that are narrow outside and wide, but cheap, inside.

See: Sandler et al. 2018, MobileNetV2: inverted residuals and linear bottlenecks, table 2.
"""

from __future__ import annotations

from collections.abc import Sequence

from stratal import nn
from stratal.base.errors import AttributeValueError
from stratal.models.vision.layers import Layer, constructor, conv_norm_act, start_convolutions, start_linear
from stratal.nn.depth import repeated
from stratal.tensor.tensor import Tensor

# Expansion, channels, number of blocks, stride of the first.
SETTING = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def rounded(channels: float, divisor: int) -> int:
    """Return the multiple of `divisor` nearest to a number of channels, at least `divisor`, 90 % or more."""
    nearest = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return nearest if nearest >= 0.9 * channels else nearest + divisor


class InvertedResidual(nn.Module):
    """1x1 to `expand_ratio` times the channels, 3x3 of each channel alone, 1x1 back, without activation.

    With stride 1 and equal channels the input is added. Shapes: [N, inp, H, W] -> [N, oup, H / stride, W /
    stride].
    """

    def __init__(
        self, inp: int, oup: int, stride: int, expand_ratio: int, norm_layer: Layer | None = None
    ) -> None:
        super().__init__()
        if stride not in (1, 2):
            raise AttributeValueError("InvertedResidual: stride is 1 or 2", got=repr(stride))
        norm, hidden = norm_layer or nn.BatchNorm2d, round(inp * expand_ratio)
        wide = [conv_norm_act(inp, hidden, 1, 1, 1, norm, nn.ReLU6)] if expand_ratio != 1 else []
        self.conv = nn.Sequential(
            *wide,
            conv_norm_act(hidden, hidden, 3, stride, hidden, norm, nn.ReLU6),
            nn.Conv2d(hidden, oup, 1, bias=False),
            norm(oup),
        )
        self.stride, self.use_res_connect = stride, stride == 1 and inp == oup

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.use_res_connect else self.conv(x)


class MobileNetV2(nn.Module):
    """A stem, inverted residuals by a table, a 1x1 convolution, a mean over the image, a linear head.

    `inverted_residual_setting` has rows of expansion, channels, number of blocks, stride of the first;
    channels times `width_mult` are rounded to multiples of `round_nearest`.

    Shapes: [N, 3, H, W] -> [N, num_classes] logits; H and W are 224 in the paper, 32 and up are useful.
    """

    def __init__(
        self, num_classes: int = 1000, width_mult: float = 1.0,
        inverted_residual_setting: Sequence[Sequence[int]] | None = None, round_nearest: int = 8,
        block: Layer | None = None, norm_layer: Layer | None = None, dropout: float = 0.2
    ) -> None:
        super().__init__()
        setting = SETTING if inverted_residual_setting is None else inverted_residual_setting
        if not len(setting) or any(len(row) != 4 for row in setting):
            raise AttributeValueError(
                "MobileNetV2: inverted_residual_setting has rows of four numbers", got=f"{setting}"
            )
        make, norm = block or InvertedResidual, norm_layer or nn.BatchNorm2d
        n_in = rounded(32 * width_mult, round_nearest)
        self.last_channel = rounded(1280 * max(1.0, width_mult), round_nearest)
        features = [conv_norm_act(3, n_in, 3, 2, 1, norm, nn.ReLU6)]
        for expansion, channels, count, stride in setting:
            n_out = rounded(channels * width_mult, round_nearest)
            features += _row(make, norm, n_in, n_out, expansion, count, stride)
            n_in = n_out if count else n_in
        features.append(conv_norm_act(n_in, self.last_channel, 1, 1, 1, norm, nn.ReLU6))
        self.features = nn.Sequential(*features)
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(self.last_channel, num_classes))
        start_convolutions(self)
        start_linear(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).mean(dim=(2, 3)))


def _row(
    block: Layer, norm: Layer, n_in: int, n_out: int, expansion: int, count: int, stride: int
) -> list[nn.Module]:
    """Return the blocks of a row of the table, of which the first changes size and channels."""
    options = (expansion, norm)
    return repeated(
        "MobileNetV2",
        count,
        lambda k: block(n_out, n_out, 1, *options) if k else block(n_in, n_out, stride, *options),
    )


mobilenet_v2 = constructor(__name__, "mobilenet_v2", "MobileNetV2", MobileNetV2)
