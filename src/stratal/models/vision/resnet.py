"""Residual networks: every block adds what it computes to what it was given.

See: He et al. 2015, Deep residual learning for image recognition, table 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from stratal import nn
from stratal.base.errors import AttributeValueError
from stratal.models.vision.layers import Layer, constructor, scaled, start_convolutions
from stratal.nn.depth import repeated
from stratal.tensor.tensor import Tensor


def _conv3x3(n_in: int, n_out: int, stride: int = 1, groups: int = 1, dilation: int = 1) -> nn.Conv2d:
    return nn.Conv2d(n_in, n_out, 3, stride, dilation, dilation, groups, bias=False)


def _conv1x1(n_in: int, n_out: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(n_in, n_out, 1, stride, bias=False)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut.

    Shapes: [N, inplanes, H, W] -> [N, planes, H / stride, W / stride].
    """

    expansion = 1

    def __init__(
        self, inplanes: int, planes: int, stride: int = 1, downsample: nn.Module | None = None,
        groups: int = 1, base_width: int = 64, dilation: int = 1, norm_layer: Layer | None = None
    ) -> None:
        super().__init__()
        if (groups, base_width, dilation) != (1, 64, 1):
            raise AttributeValueError(
                "BasicBlock: takes groups=1, base_width=64 and dilation=1 only",
                got=f"groups={groups}, base_width={base_width}, dilation={dilation}",
                hint="Bottleneck takes others",
            )
        norm = norm_layer or nn.BatchNorm2d
        self.conv1 = _conv3x3(inplanes, planes, stride)
        self.bn1 = norm(planes)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = _conv3x3(planes, planes)
        self.bn2 = norm(planes)
        self.downsample = downsample
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        y = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(y)) + shortcut)


class Bottleneck(nn.Module):
    """A 1x1, a 3x3 and a 1x1 convolution and a shortcut; the 3x3 has the stride, as in torchvision.

    Shapes: [N, inplanes, H, W] -> [N, 4 planes, H / stride, W / stride].
    """

    expansion = 4

    def __init__(
        self, inplanes: int, planes: int, stride: int = 1, downsample: nn.Module | None = None,
        groups: int = 1, base_width: int = 64, dilation: int = 1, norm_layer: Layer | None = None
    ) -> None:
        super().__init__()
        norm = norm_layer or nn.BatchNorm2d
        width = int(planes * (base_width / 64)) * groups
        self.conv1 = _conv1x1(inplanes, width)
        self.bn1 = norm(width)
        self.conv2 = _conv3x3(width, width, stride, groups, dilation)
        self.bn2 = norm(width)
        self.conv3 = _conv1x1(width, planes * self.expansion)
        self.bn3 = norm(planes * self.expansion)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        return self.relu(self.bn3(self.conv3(y)) + shortcut)


class ResNet(nn.Module):
    """A 7x7 stem, four stages of residual blocks, a mean over the image, a linear head.

    `layers` says how many blocks each stage has; `width_mult` scales all channels.
    Shapes: [N, 3, H, W] -> [N, num_classes] logits; H and W are 224 in the paper, 32 and up are useful.
    """

    def __init__(
        self, block: type[BasicBlock] | type[Bottleneck], layers: Sequence[int], num_classes: int = 1000,
        zero_init_residual: bool = False, groups: int = 1, width_per_group: int = 64,
        replace_stride_with_dilation: Sequence[bool] | None = None, norm_layer: Layer | None = None, *,
        width_mult: float = 1.0
    ) -> None:
        super().__init__()
        dilate = (False, *(replace_stride_with_dilation or (False, False, False)))
        if len(layers) != 4 or len(dilate) != 4:
            raise AttributeValueError(
                "ResNet: layers has 4 numbers, replace_stride_with_dilation None or 3 bools",
                got=f"{layers}, {replace_stride_with_dilation}",
            )
        norm = norm_layer or nn.BatchNorm2d
        self.inplanes, self.dilation = scaled(64, width_mult), 1
        self.groups, self.base_width = groups, width_per_group
        self.conv1 = nn.Conv2d(3, self.inplanes, 7, stride=2, padding=3, bias=False)
        self.bn1 = norm(self.inplanes)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        for k, count in enumerate(layers):
            planes, stride = scaled(64 << k, width_mult), 1 if k == 0 else 2
            setattr(self, f"layer{k + 1}", self._stage(block, planes, count, stride, dilate[k], norm))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(self.inplanes, num_classes)
        start_convolutions(self)
        if zero_init_residual:
            self._start_as_identity()

    def _stage(
        self, block: Any, planes: int, count: int, stride: int, dilate: bool, norm: Layer
    ) -> nn.Sequential:
        """Return `count` blocks, of which the first changes size and channels."""
        before, n_out = self.dilation, planes * block.expansion
        if dilate:
            self.dilation, stride = self.dilation * stride, 1
        project = None
        if stride != 1 or self.inplanes != n_out:
            project = nn.Sequential(_conv1x1(self.inplanes, n_out, stride), norm(n_out))

        def make(k: int) -> nn.Module:
            first = (stride, project) if k == 0 else (1, None)
            dilation = before if k == 0 else self.dilation
            n_in, self.inplanes = self.inplanes, n_out
            return block(n_in, planes, *first, self.groups, self.base_width, dilation, norm)

        return nn.Sequential(*repeated("ResNet", count, make))

    def _start_as_identity(self) -> None:
        """Set the last scale of every block to zero. See: Goyal et al. 2017, section 5.1."""
        for part in self.modules():
            if isinstance(part, (BasicBlock, Bottleneck)):
                last = part.bn3 if isinstance(part, Bottleneck) else part.bn2
                if last.weight is not None:
                    nn.init.zeros_(last.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))


def _resnet(depth: int, block: type[nn.Module], layers: Sequence[int], text: str) -> Layer:
    return constructor(__name__, f"resnet{depth}", f"ResNet-{depth}: {text}", partial(ResNet, block, layers))


resnet18 = _resnet(18, BasicBlock, (2, 2, 2, 2), "two basic blocks a stage")
resnet34 = _resnet(34, BasicBlock, (3, 4, 6, 3), "basic blocks, 3, 4, 6 and 3")
resnet50 = _resnet(50, Bottleneck, (3, 4, 6, 3), "bottlenecks, 3, 4, 6 and 3")
resnet101 = _resnet(101, Bottleneck, (3, 4, 23, 3), "bottlenecks, 3, 4, 23 and 3")
resnet152 = _resnet(152, Bottleneck, (3, 8, 36, 3), "bottlenecks, 3, 8, 36 and 3")
