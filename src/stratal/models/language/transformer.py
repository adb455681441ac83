"""The Transformer from tokens to tokens: `nn.Transformer` between embeddings with positions and a projection.

Names, arguments and state dicts are those of PyTorch's tutorial "Language translation with nn.Transformer".
See: Vaswani et al. 2017.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from stratal import nn
from stratal.base.errors import AttributeValueError
from stratal.tensor.capture import compile
from stratal.tensor.functions.indexing import take
from stratal.tensor.functions.reductions import argmax
from stratal.tensor.tensor import Tensor, tensor
from stratal.tensor.values.state import no_grad


class TokenEmbedding(nn.Module):
    """Rows of a table times the root of their length."""

    def __init__(self, vocab_size: int, emb_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, emb_size)
        self.emb_size = emb_size

    def forward(self, tokens: Tensor) -> Tensor:
        return self.embedding(tokens) * math.sqrt(self.emb_size)


class Seq2SeqTransformer(nn.Module):
    """Logits for the next target token after each. Masks are those of nn.Transformer.

    Shapes: src [S, N], trg [T, N] integers -> [T, N, tgt_vocab_size].
    """

    def __init__(
        self, num_encoder_layers: int, num_decoder_layers: int, emb_size: int, nhead: int,
        src_vocab_size: int, tgt_vocab_size: int, dim_feedforward: int = 512, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.transformer = nn.Transformer(
            emb_size, nhead, num_encoder_layers, num_decoder_layers, dim_feedforward, dropout
        )
        self.generator = nn.Linear(emb_size, tgt_vocab_size)
        self.src_tok_emb = TokenEmbedding(src_vocab_size, emb_size)
        self.tgt_tok_emb = TokenEmbedding(tgt_vocab_size, emb_size)
        self.positional_encoding = nn.SinusoidalPositions(emb_size, dropout)
        self.register_load_state_dict_pre_hook(_without_positions)

    def forward(
        self, src: Tensor, trg: Tensor, src_mask: Tensor | None = None, tgt_mask: Tensor | None = None,
        src_padding_mask: Tensor | None = None, tgt_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None
    ) -> Tensor:
        source, target = self._embedded(self.src_tok_emb, src), self._embedded(self.tgt_tok_emb, trg)
        padding = (src_padding_mask, tgt_padding_mask, memory_key_padding_mask)
        return self.generator(self.transformer(source, target, src_mask, tgt_mask, None, *padding))

    def _embedded(self, table: nn.Module, tokens: Tensor) -> Tensor:
        return self.positional_encoding(table(tokens))

    def encode(
        self, src: Tensor, src_mask: Tensor | None = None, src_padding_mask: Tensor | None = None
    ) -> Tensor:
        """Return the encoder's output [S, N, emb_size], the memory of `decode`."""
        return self.transformer.encoder(self._embedded(self.src_tok_emb, src), src_mask, src_padding_mask)

    def decode(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
    ) -> Tensor:
        """Return the decoder's output [T, N, emb_size], which `generator` maps to logits."""
        return self.transformer.decoder(
            self._embedded(self.tgt_tok_emb, tgt), memory, tgt_mask,
            memory_key_padding_mask=memory_key_padding_mask,
        )  # fmt: skip

    @compile(dynamic=False)
    def _following(self, tokens: Tensor, count: Tensor, memory: Tensor, padding: Tensor | None) -> Tensor:
        """Return the likeliest token [N] after the first `count`; those behind change nothing."""
        hidden = self.decode(tokens, memory, self._causal(tokens.shape[0]), padding)
        return argmax(self.generator(take(hidden, count - 1, axis=0)), axis=1)

    def _causal(self, length: Any) -> Tensor:
        return self.transformer.generate_square_subsequent_mask(length, dtype=self.generator.weight.dtype)

    def greedy_decode(
        self, src: Any, max_len: int, start_symbol: int, end_symbol: int | None = None,
        src_padding_mask: Tensor | None = None
    ) -> Tensor:
        """Return the likeliest targets [up to max_len, N], which start with `start_symbol`.

        Behind `end_symbol` a target repeats it; the result ends when all have. Two programs run, however long
        targets become. Dropout is off only in `eval()`.
        """
        if max_len < 1:
            raise AttributeValueError("greedy_decode: max_len is at least 1", got=str(max_len))
        src = tensor(np.asarray(src))
        found = np.full((max_len, int(src.shape[1])), start_symbol, np.int64)
        ended = np.zeros(found.shape[1], np.bool_)
        with no_grad():
            memory = self.encode(src, None, src_padding_mask)
            for k in range(1, max_len):
                token = np.asarray(self._following(tensor(found), tensor(k), memory, src_padding_mask))
                found[k] = token if end_symbol is None else np.where(ended, end_symbol, token)
                ended |= found[k] == end_symbol if end_symbol is not None else False
                if ended.all():
                    return tensor(found[: k + 1])
        return tensor(found)


def _without_positions(module: nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    """Drop the table of positions that PyTorch's model keeps: here they are computed."""
    state.pop(prefix + "positional_encoding.pos_embedding", None)
