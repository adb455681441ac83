"""The Vision Transformer: an image as a sequence of patches.

See: Dosovitskiy et al. 2020, An image is worth 16x16 words, section 3.1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from stratal import nn
from stratal.base.errors import AttributeValueError, ShapeError
from stratal.models.vision.layers import Layer, constructor, conv_norm_act
from stratal.nn.depth import repeated
from stratal.tensor.functions.creation import zeros
from stratal.tensor.functions.shapes import broadcast_to, concat
from stratal.tensor.tensor import Tensor

_NORM = partial(nn.LayerNorm, eps=1e-6)


class ConvStemConfig(NamedTuple):
    """A convolution of a stem that takes the place of cutting into patches. See: Xiao et al. 2021."""

    out_channels: int
    kernel_size: int
    stride: int
    norm_layer: Layer = nn.BatchNorm2d
    activation_layer: Layer = nn.ReLU


class EncoderBlock(nn.Module):
    """Self-attention and a perceptron, each normalised before and added to its input. Shapes: [N, S, E]."""

    def __init__(
        self, num_heads: int, hidden_dim: int, mlp_dim: int, dropout: float, attention_dropout: float,
        norm_layer: Layer = _NORM
    ) -> None:
        super().__init__()
        self.ln_1 = norm_layer(hidden_dim)
        self.self_attention = nn.MultiheadAttention(
            hidden_dim, num_heads, attention_dropout, batch_first=True
        )
        self.dropout = nn.Dropout(dropout)
        self.ln_2 = norm_layer(hidden_dim)
        self.mlp = nn.Sequential(
            nn.Linear(hidden_dim, mlp_dim), nn.GELU(), nn.Dropout(dropout),
            nn.Linear(mlp_dim, hidden_dim), nn.Dropout(dropout),
        )  # fmt: skip
        for layer in (self.mlp[0], self.mlp[3]):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.normal_(layer.bias, std=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        y = self.ln_1(x)
        y, _ = self.self_attention(y, y, y, need_weights=False)
        x = x + self.dropout(y)
        return x + self.mlp(self.ln_2(x))


class Encoder(nn.Module):
    """Learned positions are added, then blocks follow, then a normalisation. Shapes: [N, seq_length, E]."""

    def __init__(
        self, seq_length: int, num_layers: int, num_heads: int, hidden_dim: int, mlp_dim: int, dropout: float,
        attention_dropout: float, norm_layer: Layer = _NORM
    ) -> None:
        super().__init__()
        self.pos_embedding = nn.Parameter(zeros((1, seq_length, hidden_dim)))
        nn.init.normal_(self.pos_embedding, std=0.02)
        self.dropout = nn.Dropout(dropout)
        sizes = (num_heads, hidden_dim, mlp_dim, dropout, attention_dropout, norm_layer)
        blocks = repeated("VisionTransformer", num_layers, lambda _: EncoderBlock(*sizes))
        self.layers = nn.Sequential({f"encoder_layer_{k}": block for k, block in enumerate(blocks)})
        self.ln = norm_layer(hidden_dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.ln(self.layers(self.dropout(x + self.pos_embedding)))


class VisionTransformer(nn.Module):
    """Patches through a linear map, a token before them, an encoder, a head on what became of the token.

    `representation_size` puts a layer with tanh before the head, `conv_stem_configs` convolutions in the
    place of the linear map: strides have to multiply to `patch_size`.

    Shapes: [N, 3, image_size, image_size] -> [N, num_classes] logits.
    """

    def __init__(
        self, image_size: int, patch_size: int, num_layers: int, num_heads: int, hidden_dim: int,
        mlp_dim: int, dropout: float = 0.0, attention_dropout: float = 0.0, num_classes: int = 1000,
        representation_size: int | None = None, norm_layer: Layer = _NORM,
        conv_stem_configs: Sequence[ConvStemConfig] | None = None
    ) -> None:
        super().__init__()
        if patch_size < 1 or image_size < 1 or image_size % patch_size:
            raise AttributeValueError(
                "VisionTransformer: patch_size divides image_size", got=f"{patch_size}, {image_size}"
            )
        self.image_size, self.patch_size, self.hidden_dim = image_size, patch_size, hidden_dim
        if conv_stem_configs is None:
            self.conv_proj = nn.Conv2d(3, hidden_dim, patch_size, stride=patch_size)
            _start(self.conv_proj, math.sqrt(1 / (3 * patch_size**2)))
        else:
            self.conv_proj = _stem(conv_stem_configs, hidden_dim)
        self.seq_length = (image_size // patch_size) ** 2 + 1
        self.class_token = nn.Parameter(zeros((1, 1, hidden_dim)))
        block = (num_heads, hidden_dim, mlp_dim, dropout, attention_dropout, norm_layer)
        self.encoder = Encoder(self.seq_length, num_layers, *block)
        self.heads = _head(hidden_dim, representation_size, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        n, *shape = x.shape
        size = self.image_size
        if shape != [3, size, size]:
            raise ShapeError(
                f"VisionTransformer: images are [N, 3, {size}, {size}]", got=f"{list(x.shape)}",
                hint="image_size= makes one for others",
            )  # fmt: skip
        x = self.conv_proj(x).flatten(2).permute(0, 2, 1)
        token = broadcast_to(self.class_token, (n, 1, self.hidden_dim))
        x = self.encoder(concat([token, x], 1))
        return self.heads(x[:, 0])


def _start(layer: Any, std: float) -> None:
    nn.init.trunc_normal_(layer.weight, std=std)
    nn.init.zeros_(layer.bias)


def _stem(configs: Sequence[ConvStemConfig], hidden_dim: int) -> nn.Sequential:
    """Return convolutions as configured, and a 1x1 convolution to the width of the encoder."""
    stem, n_in = nn.Sequential(), 3
    for k, c in enumerate(configs):
        layers = conv_norm_act(
            n_in, c.out_channels, c.kernel_size, c.stride, 1, c.norm_layer, c.activation_layer
        )
        stem.add_module(f"conv_bn_relu_{k}", layers)
        n_in = c.out_channels
    last = nn.Conv2d(n_in, hidden_dim, 1)
    nn.init.normal_(last.weight, std=math.sqrt(2 / hidden_dim))
    nn.init.zeros_(last.bias)
    stem.add_module("conv_last", last)
    return stem


def _head(hidden_dim: int, representation_size: int | None, num_classes: int) -> nn.Sequential:
    """Return the layers after the encoder; the last one starts at zero."""
    head = nn.Sequential()
    if representation_size is not None:
        before = nn.Linear(hidden_dim, representation_size)
        _start(before, math.sqrt(1 / hidden_dim))
        head.add_module("pre_logits", before)
        head.add_module("act", nn.Tanh())
    last = nn.Linear(hidden_dim if representation_size is None else representation_size, num_classes)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    head.add_module("head", last)
    return head


def _vit(name: str, patch_size: int, layers: int, heads: int, width: int) -> Layer:
    def build(image_size: int = 224, **options: Any) -> VisionTransformer:
        return VisionTransformer(image_size, patch_size, layers, heads, width, 4 * width, **options)

    text = f"ViT-{name[4].upper()}/{patch_size}, for images of 224x224 unless `image_size` is given"
    return constructor(__name__, name, text, build)


vit_b_16 = _vit("vit_b_16", 16, 12, 12, 768)
vit_b_32 = _vit("vit_b_32", 32, 12, 12, 768)
vit_l_16 = _vit("vit_l_16", 16, 24, 16, 1024)
vit_l_32 = _vit("vit_l_32", 32, 24, 16, 1024)
vit_h_14 = _vit("vit_h_14", 14, 32, 16, 1280)
