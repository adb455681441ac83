"""Inception with batch normalisation, also called Inception v2: 5x5 convolutions are two 3x3.

See: Ioffe and Szegedy 2015, Batch normalization, figure 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from stratal import nn
from stratal.models.vision.layers import constructor, scaled
from stratal.tensor.functions.shapes import concat
from stratal.tensor.tensor import Tensor

F = nn.functional


class Block(NamedTuple):
    """Channels of a block: of the 1x1 convolution; before and of the 3x3; before and of the double 3x3.

    Then how the input is pooled and to how many channels that is projected. Without a 1x1 convolution the
    block has stride 2, and what is pooled passes as it is.
    """

    ones: int
    reduce: int
    threes: int
    double_reduce: int
    doubles: int
    pool: Literal["avg", "max"]
    projected: int


BLOCKS = {
    "3a": Block(64, 64, 64, 64, 96, "avg", 32),
    "3b": Block(64, 64, 96, 64, 96, "avg", 64),
    "3c": Block(0, 128, 160, 64, 96, "max", 0),
    "4a": Block(224, 64, 96, 96, 128, "avg", 128),
    "4b": Block(192, 96, 128, 96, 128, "avg", 128),
    "4c": Block(160, 128, 160, 128, 160, "avg", 96),
    "4d": Block(96, 128, 192, 160, 192, "avg", 96),
    "4e": Block(0, 128, 192, 192, 256, "max", 0),
    "5a": Block(352, 192, 320, 160, 224, "avg", 128),
    "5b": Block(352, 192, 320, 192, 224, "max", 128),
}
# The weights that are published, made with Caffe, belong to a network that is wider in two places.
CAFFE_BLOCKS = BLOCKS | {
    "4c": BLOCKS["4c"]._replace(projected=128),
    "4d": BLOCKS["4d"]._replace(projected=128),
}


class BNInception(nn.Module):
    """A stem of convolutions, ten inceptions, a mean over the image, a linear head.

    Layers have the names of the published weights; those fit with `blocks=CAFFE_BLOCKS`. As there, the first
    convolution is a plain one (in the paper it is separable), and convolutions have biases, which batch
    normalisation makes void. `width_mult` scales all channels.

    Shapes: [N, 3, H, W] -> [N, num_classes] logits; H and W are multiples of 32, 224 in the paper.
    """

    def __init__(
        self, num_classes: int = 1000, blocks: Mapping[str, Block] = BLOCKS, *, width_mult: float = 1.0
    ) -> None:
        super().__init__()
        self.blocks = dict(blocks)
        stem, wide = scaled(64, width_mult), scaled(192, width_mult)
        self._add("conv1_7x7_s2", 3, stem, 7, 2)
        self._add("conv2_3x3_reduce", stem, stem, 1)
        self._add("conv2_3x3", stem, wide, 3)
        n_in = wide
        for name, block in self.blocks.items():
            n_in = self._add_block(f"inception_{name}_", n_in, block, width_mult)
        self.last_linear = nn.Linear(n_in, num_classes)

    def _add(self, name: str, n_in: int, n_out: int, kernel_size: int, stride: int = 1) -> None:
        self.add_module(name, nn.Conv2d(n_in, n_out, kernel_size, stride, kernel_size // 2))
        self.add_module(f"{name}_bn", nn.BatchNorm2d(n_out))

    def _add_block(self, at: str, n_in: int, block: Block, width_mult: float) -> int:
        """Add the layers of a block and return how many channels it gives."""
        widths = [scaled(n, width_mult) if n else 0 for n in block if not isinstance(n, str)]
        ones, reduce, threes, double_reduce, doubles, projected = widths
        stride = 1 if ones else 2
        if ones:
            self._add(f"{at}1x1", n_in, ones, 1)
        self._add(f"{at}3x3_reduce", n_in, reduce, 1)
        self._add(f"{at}3x3", reduce, threes, 3, stride)
        self._add(f"{at}double_3x3_reduce", n_in, double_reduce, 1)
        self._add(f"{at}double_3x3_1", double_reduce, doubles, 3)
        self._add(f"{at}double_3x3_2", doubles, doubles, 3, stride)
        if projected:
            self._add(f"{at}pool_proj", n_in, projected, 1)
        return ones + threes + doubles + (projected or n_in)

    def _run(self, x: Tensor, *names: str) -> Tensor:
        """Return x through convolutions by name, each normalised and cut at zero."""
        for name in names:
            x = F.relu(getattr(self, f"{name}_bn")(getattr(self, name)(x)))
        return x

    def _run_block(self, x: Tensor, at: str, block: Block) -> Tensor:
        branches = [self._run(x, f"{at}1x1")] if block.ones else []
        branches.append(self._run(x, f"{at}3x3_reduce", f"{at}3x3"))
        branches.append(self._run(x, f"{at}double_3x3_reduce", f"{at}double_3x3_1", f"{at}double_3x3_2"))
        if not block.ones:
            pooled = F.max_pool2d(x, 3, stride=2, ceil_mode=True)
        elif block.pool == "max":
            pooled = F.max_pool2d(x, 3, stride=1, padding=1)
        else:
            pooled = F.avg_pool2d(x, 3, stride=1, padding=1)
        branches.append(self._run(pooled, f"{at}pool_proj") if block.projected else pooled)
        return concat(branches, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self._run(x, "conv1_7x7_s2"), 3, stride=2, ceil_mode=True)
        x = F.max_pool2d(self._run(x, "conv2_3x3_reduce", "conv2_3x3"), 3, stride=2, ceil_mode=True)
        for name, block in self.blocks.items():
            x = self._run_block(x, f"inception_{name}_", block)
        return self.last_linear(x.mean(dim=(2, 3)))


bn_inception = constructor(__name__, "bn_inception", "Inception with batch normalisation", BNInception)
