"""GoogLeNet, the first Inception network: blocks that look at several scales side by side.

See: Szegedy et al. 2014, Going deeper with convolutions, table 1. As in torchvision, every convolution is
followed by batch normalisation, and where the paper has 5x5 there is 3x3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from stratal import nn
from stratal.base.errors import AttributeValueError
from stratal.models.vision.layers import Layer, constructor, scaled
from stratal.tensor.functions.shapes import concat
from stratal.tensor.tensor import Tensor, tensor

F = nn.functional

# Of each block the channels of: 1x1; 1x1 before 3x3, 3x3; 1x1 before "5x5", "5x5"; 1x1 after the pooling.
INCEPTIONS = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}


class GoogLeNetOutputs(NamedTuple):
    """Logits of the network and of its two auxiliary heads, the later one first."""

    logits: Any
    aux_logits2: Any
    aux_logits1: Any


class BasicConv2d(nn.Module):
    """A convolution without bias, batch normalisation, ReLU. `options` are Conv2d's."""

    def __init__(self, in_channels: int, out_channels: int, **options: Any) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, bias=False, **options)
        self.bn = nn.BatchNorm2d(out_channels, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(x)))


class Inception(nn.Module):
    """Four branches over one input, their channels side by side.

    Shapes: [N, in_channels, H, W] -> [N, ch1x1 + ch3x3 + ch5x5 + pool_proj, H, W].
    """

    def __init__(
        self, in_channels: int, ch1x1: int, ch3x3red: int, ch3x3: int, ch5x5red: int, ch5x5: int,
        pool_proj: int, conv_block: Layer | None = None
    ) -> None:
        super().__init__()
        conv = conv_block or BasicConv2d
        self.branch1 = conv(in_channels, ch1x1, kernel_size=1)
        self.branch2 = nn.Sequential(
            conv(in_channels, ch3x3red, kernel_size=1), conv(ch3x3red, ch3x3, kernel_size=3, padding=1)
        )
        self.branch3 = nn.Sequential(
            conv(in_channels, ch5x5red, kernel_size=1), conv(ch5x5red, ch5x5, kernel_size=3, padding=1)
        )
        self.branch4 = nn.Sequential(
            nn.MaxPool2d(3, stride=1, padding=1, ceil_mode=True), conv(in_channels, pool_proj, kernel_size=1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return concat([self.branch1(x), self.branch2(x), self.branch3(x), self.branch4(x)], 1)


class InceptionAux(nn.Module):
    """A head on features from the middle, which brings gradients there while training.

    Shapes: [N, in_channels, H, W] -> [N, num_classes].
    """

    def __init__(
        self, in_channels: int, num_classes: int, conv_block: Layer | None = None, dropout: float = 0.7, *,
        width_mult: float = 1.0
    ) -> None:
        super().__init__()
        channels, hidden = scaled(128, width_mult), scaled(1024, width_mult)
        self.conv = (conv_block or BasicConv2d)(in_channels, channels, kernel_size=1)
        self.fc1 = nn.Linear(channels * 4 * 4, hidden)
        self.fc2 = nn.Linear(hidden, num_classes)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(F.adaptive_avg_pool2d(x, (4, 4))).flatten(1)
        return self.fc2(self.dropout(F.relu(self.fc1(x))))


class GoogLeNet(nn.Module):
    """A stem of convolutions, nine inceptions, a mean over the image, a linear head.

    While training with `aux_logits` it returns GoogLeNetOutputs, else logits alone. `transform_input` takes
    images normalised by ImageNet's statistics, as torchvision's, to the scale of the first weights, [-1, 1].
    `blocks` makes convolutions, inceptions and heads; `width_mult` scales all widths.

    Shapes: [N, 3, H, W] -> [N, num_classes] logits; H and W are 15 or more, 224 in the paper.
    """

    def __init__(
        self, num_classes: int = 1000, aux_logits: bool = True, transform_input: bool = False,
        init_weights: bool | None = None, blocks: Sequence[Layer] | None = None, dropout: float = 0.2,
        dropout_aux: float = 0.7, *, width_mult: float = 1.0
    ) -> None:
        super().__init__()
        conv, inception, head = _three(blocks or (BasicConv2d, Inception, InceptionAux))
        stem, wide = scaled(64, width_mult), scaled(192, width_mult)
        self.aux_logits, self.transform_input = aux_logits, transform_input
        self.conv1 = conv(3, stem, kernel_size=7, stride=2, padding=3)
        self.maxpool1 = nn.MaxPool2d(3, stride=2, ceil_mode=True)
        self.conv2 = conv(stem, stem, kernel_size=1)
        self.conv3 = conv(stem, wide, kernel_size=3, padding=1)
        self.maxpool2 = nn.MaxPool2d(3, stride=2, ceil_mode=True)
        n_in, after = wide, {}
        for name, widths in INCEPTIONS.items():
            ones, reduce3, threes, reduce5, fives, pooled = (scaled(n, width_mult) for n in widths)
            block = inception(n_in, ones, reduce3, threes, reduce5, fives, pooled)
            setattr(self, f"inception{name}", block)
            after[name] = n_in = ones + threes + fives + pooled
        self.maxpool3 = nn.MaxPool2d(3, stride=2, ceil_mode=True)
        self.maxpool4 = nn.MaxPool2d(2, stride=2, ceil_mode=True)
        for name, at in (("aux1", "4a"), ("aux2", "4d")):
            made = head(after[at], num_classes, dropout=dropout_aux, width_mult=width_mult)
            setattr(self, name, made if aux_logits else None)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(n_in, num_classes)
        if init_weights is None or init_weights:
            for layer in self.modules():
                if isinstance(layer, (nn.Conv2d, nn.Linear)):
                    nn.init.trunc_normal_(layer.weight, 0.0, 0.01, -2, 2)

    def forward(self, x: Tensor) -> Tensor | GoogLeNetOutputs:
        with_heads = self.training and self.aux_logits
        x = _rescaled(x) if self.transform_input else x
        x = self.maxpool1(self.conv1(x))
        x = self.maxpool2(self.conv3(self.conv2(x)))
        x = self.maxpool3(self.inception3b(self.inception3a(x)))
        x = self.inception4a(x)
        aux1 = self.aux1(x) if with_heads else None
        x = self.inception4d(self.inception4c(self.inception4b(x)))
        aux2 = self.aux2(x) if with_heads else None
        x = self.maxpool4(self.inception4e(x))
        x = self.avgpool(self.inception5b(self.inception5a(x))).flatten(1)
        logits = self.fc(self.dropout(x))
        return GoogLeNetOutputs(logits, aux2, aux1) if with_heads else logits


def _three(blocks: Sequence[Layer]) -> Sequence[Layer]:
    if len(blocks) != 3:
        raise AttributeValueError(
            "GoogLeNet: blocks are three, of convolutions, inceptions and heads", got=f"{len(blocks)}"
        )
    return blocks


def _rescaled(x: Tensor) -> Tensor:
    """Undo (x - mean) / std by ImageNet's statistics of each channel, and map [0, 1] to [-1, 1]."""
    mean, std = ([[[[c]] for c in channels]] for channels in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    scale = tensor(std, dtype=x.dtype) / 0.5
    shift = (tensor(mean, dtype=x.dtype) - 0.5) / 0.5
    return x * scale + shift


googlenet = constructor(__name__, "googlenet", "GoogLeNet", GoogLeNet)
