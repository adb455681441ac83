"""The Transformer: encoder and decoder layers, stacks of them, and both. See: Vaswani et al. 2017."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from stratal.base.errors import AttributeValueError, DTypeError, ShapeError
from stratal.nn import functional as F
from stratal.nn import init
from stratal.nn.attention import MultiheadAttention
from stratal.nn.containers import ModuleList
from stratal.nn.depth import repeated
from stratal.nn.dropout import Dropout
from stratal.nn.linear import Linear
from stratal.nn.module import Module
from stratal.nn.normalization import LayerNorm
from stratal.tensor.functions.creation import arange
from stratal.tensor.tensor import Tensor

Activation = str | Callable[[Tensor], Tensor]


def _activation(name: str, given: Activation) -> Callable[[Tensor], Tensor]:
    named = {"relu": F.relu, "gelu": F.gelu}
    if isinstance(given, str) and given not in named:
        raise AttributeValueError(f"{name}: activation is 'relu', 'gelu' or a function", got=repr(given))
    return named[given] if isinstance(given, str) else given


class _Layer(Module):
    """What encoder and decoder layers share: attention, a perceptron, norms and dropouts of their results."""

    reads_memory = False  # whether a second attention, to the encoder's output, stands between

    def __init__(
        self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.1,
        activation: Activation = F.relu, layer_norm_eps: float = 1e-5, batch_first: bool = False,
        norm_first: bool = False, bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__()
        blocks = 3 if self.reads_memory else 2
        for name in ("self_attn", "multihead_attn")[: blocks - 1]:
            attention = MultiheadAttention(
                d_model, nhead, dropout, bias, batch_first=batch_first, dtype=dtype
            )
            self.add_module(name, attention)
        self.linear1 = Linear(d_model, dim_feedforward, bias, dtype=dtype)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias, dtype=dtype)
        self.norm_first = norm_first
        for k in range(blocks):
            self.add_module(f"norm{k + 1}", LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype))
        for k in range(blocks):
            self.add_module(f"dropout{k + 1}", Dropout(dropout))
        self.activation = _activation(type(self).__name__, activation)

    def _perceptron(self, x: Tensor) -> Tensor:
        return self.linear2(self.dropout(self.activation(self.linear1(x))))


class TransformerEncoderLayer(_Layer):
    """Self-attention and a two-layer perceptron, each with a residual and a layer norm (after it, or before:
    `norm_first`).
    """

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        def attend(x: Tensor) -> Tensor:
            y, _ = self.self_attn(x, x, x, src_key_padding_mask, False, src_mask, is_causal=is_causal)
            return self.dropout1(y)

        def feed(x: Tensor) -> Tensor:
            return self.dropout2(self._perceptron(x))

        if self.norm_first:
            src = src + attend(self.norm1(src))
            return src + feed(self.norm2(src))
        src = self.norm1(src + attend(src))
        return self.norm2(src + feed(src))


class TransformerDecoderLayer(_Layer):
    """Self-attention, attention to the encoder's output, and a two-layer perceptron, each with a residual and
    a layer norm (after it, or before: `norm_first`).

    Shapes: tgt [T, N, E], memory [S, N, E] (batch first with `batch_first`; without N where unbatched).
    """

    reads_memory = True

    def forward(
        self, tgt: Tensor, memory: Tensor, tgt_mask: Tensor | None = None, memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None, memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False, memory_is_causal: bool = False
    ) -> Tensor:
        def attend(x: Tensor) -> Tensor:
            y, _ = self.self_attn(x, x, x, tgt_key_padding_mask, False, tgt_mask, is_causal=tgt_is_causal)
            return self.dropout1(y)

        def read(x: Tensor) -> Tensor:
            y, _ = self.multihead_attn(
                x, memory, memory, memory_key_padding_mask, False, memory_mask, is_causal=memory_is_causal
            )
            return self.dropout2(y)

        def feed(x: Tensor) -> Tensor:
            return self.dropout3(self._perceptron(x))

        x = tgt
        for norm, block in ((self.norm1, attend), (self.norm2, read), (self.norm3, feed)):
            x = x + block(norm(x)) if self.norm_first else norm(x + block(x))
        return x


def copies(layer: Module, count: int) -> list[Module]:
    """Return deep copies of a layer, each with its own weights. Raises: DTypeError for what is no module."""
    if not isinstance(layer, Module):
        raise DTypeError("Transformer: a stack is made of a layer", got=type(layer).__name__)
    return repeated("Transformer", count, lambda _: copy.deepcopy(layer))


class TransformerEncoder(Module):
    """A stack of encoder layers, each a deep copy of the first with its own weights, and a final norm.

    `enable_nested_tensor` and `mask_check` are accepted for compatibility: shapes are fixed, so there is
    nothing to nest.
    """

    def __init__(
        self, encoder_layer: Module, num_layers: int, norm: Module | None = None,
        enable_nested_tensor: bool = True, mask_check: bool = True
    ) -> None:
        super().__init__()
        self.layers = ModuleList(copies(encoder_layer, num_layers))
        self.num_layers, self.norm = num_layers, norm

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:
        for layer in self.layers:
            src = layer(src, mask, src_key_padding_mask, bool(is_causal))
        return src if self.norm is None else self.norm(src)


class TransformerDecoder(Module):
    """A stack of decoder layers, each a deep copy of the first with its own weights, and a final norm."""

    def __init__(self, decoder_layer: Module, num_layers: int, norm: Module | None = None) -> None:
        super().__init__()
        self.layers = ModuleList(copies(decoder_layer, num_layers))
        self.num_layers, self.norm = num_layers, norm

    def forward(
        self, tgt: Tensor, memory: Tensor, tgt_mask: Tensor | None = None, memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None, memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool | None = None, memory_is_causal: bool = False
    ) -> Tensor:
        masks = (tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask)
        for layer in self.layers:
            tgt = layer(tgt, memory, *masks, bool(tgt_is_causal), memory_is_causal)
        return tgt if self.norm is None else self.norm(tgt)


class Transformer(Module):
    """An encoder and a decoder that attends to its output.

    Shapes: src [S, N, E], tgt [T, N, E] -> [T, N, E] (batch first with `batch_first`; without N where
    unbatched). Masks are as for MultiheadAttention: src [S, S], tgt [T, T], memory [T, S], padding [N, ...].
    """

    def __init__(
        self, d_model: int = 512, nhead: int = 8, num_encoder_layers: int = 6, num_decoder_layers: int = 6,
        dim_feedforward: int = 2048, dropout: float = 0.1, activation: Activation = F.relu,
        custom_encoder: Module | None = None, custom_decoder: Module | None = None,
        layer_norm_eps: float = 1e-5, batch_first: bool = False, norm_first: bool = False, bias: bool = True,
        device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__()
        options: tuple[Any, ...] = (
            d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first,
            bias,
        )  # fmt: skip
        norms = [LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype) for _ in range(2)]
        if custom_encoder is None:
            layer = TransformerEncoderLayer(*options, dtype=dtype)
            custom_encoder = TransformerEncoder(layer, num_encoder_layers, norms[0])
        if custom_decoder is None:
            other = TransformerDecoderLayer(*options, dtype=dtype)
            custom_decoder = TransformerDecoder(other, num_decoder_layers, norms[1])
        self.encoder, self.decoder = custom_encoder, custom_decoder
        self.d_model, self.nhead, self.batch_first = d_model, nhead, batch_first
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all matrices by Glorot's rule."""
        for parameter in self.parameters():
            if parameter.ndim > 1:
                init.xavier_uniform_(parameter)

    def forward(
        self, src: Tensor, tgt: Tensor, src_mask: Tensor | None = None, tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None, memory_key_padding_mask: Tensor | None = None,
        src_is_causal: bool | None = None, tgt_is_causal: bool | None = None, memory_is_causal: bool = False
    ) -> Tensor:
        batch = 0 if self.batch_first else 1
        same_batch = src.ndim != 3 or (tgt.ndim == 3 and src.shape[batch] == tgt.shape[batch])
        widths = {int(x.shape[-1]) for x in (src, tgt) if x.ndim}
        if not same_batch or widths != {self.d_model}:
            raise ShapeError(
                f"Transformer: src and tgt have one batch and {self.d_model} features",
                got=f"{list(src.shape)} and {list(tgt.shape)}",
            )
        memory = self.encoder(src, src_mask, src_key_padding_mask, src_is_causal)
        masks = (tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask)
        return self.decoder(tgt, memory, *masks, tgt_is_causal, memory_is_causal)  # type: ignore[no-any-return]

    @staticmethod
    def generate_square_subsequent_mask(sz: int, device: Any = None, dtype: Any = None) -> Tensor:
        """Return the causal mask [sz, sz]: 0 on and below the diagonal, minus infinity above."""
        places = arange(sz)
        hidden = places > places.reshape((sz, 1))
        return F.additive_mask(hidden, arange(0, dtype=float if dtype is None else dtype))
