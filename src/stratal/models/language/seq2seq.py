"""Sequence to sequence: a recurrent encoder, and a decoder that attends to all of the encoder's outputs.

Names and state dicts are those of PyTorch's tutorial "Translation with a sequence to sequence network and
attention". See: Sutskever et al. 2014; Bahdanau, Cho and Bengio 2015.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from stratal import nn
from stratal.base.errors import ShapeError
from stratal.nn.recurrent_cells import STEPS, weights_of
from stratal.tensor.functions.creation import arange, full
from stratal.tensor.functions.elementwise import where
from stratal.tensor.functions.reductions import argmax
from stratal.tensor.functions.shapes import concat
from stratal.tensor.tensor import Tensor
from stratal.tensor.transformations.control import scan

F = nn.functional


class Decoded(NamedTuple):
    """Log-probabilities [N, T, output_size], the last state [1, N, H], weights of attention [N, T, S]."""

    log_probs: Tensor
    hidden: Tensor
    attentions: Tensor


class EncoderRNN(nn.Module):
    """Embedding and a GRU. Shapes: input [N, S] integers -> outputs [N, S, H], last state [1, N, H]."""

    def __init__(self, input_size: int, hidden_size: int, dropout_p: float = 0.1) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.embedding = nn.Embedding(input_size, hidden_size)
        self.gru = nn.GRU(hidden_size, hidden_size, batch_first=True)
        self.dropout = nn.Dropout(dropout_p)

    def forward(self, input: Tensor) -> tuple[Tensor, Tensor]:
        return self.gru(self.dropout(self.embedding(input)))


class BahdanauAttention(nn.Module):
    """softmax(Va tanh(Wa query + Ua keys)), and the mean of the keys with these weights.

    Shapes: query [N, H], keys [N, S, H], mask [N, S] (False hides) -> [N, H], [N, S].
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.Wa, self.Ua = nn.Linear(hidden_size, hidden_size), nn.Linear(hidden_size, hidden_size)
        self.Va = nn.Linear(hidden_size, 1)

    def forward(self, query: Tensor, keys: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return self.attend(query, keys, self.Ua(keys), mask)

    def attend(
        self, query: Tensor, keys: Tensor, mapped: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The same where Ua keys is known: it is the same for all queries."""
        n, length, width = keys.shape
        scores = self.Va(F.tanh(self.Wa(query).reshape((n, 1, width)) + mapped)).reshape((n, length))
        weights = F.softmax(scores if mask is None else where(mask, scores, -float("inf")), dim=-1)
        return (weights.reshape((n, 1, length)) @ keys).reshape((n, width)), weights


class AttnDecoderRNN(nn.Module):
    """A GRU whose input is the word before and what the encoder's outputs say to its state.

    With `target` [N, T] the words before are given (teacher forcing); without, each is the likeliest, for
    `length` steps. The word before the first is `sos_token`.
    """

    def __init__(
        self, hidden_size: int, output_size: int, dropout_p: float = 0.1, sos_token: int = 0
    ) -> None:
        super().__init__()
        self.hidden_size, self.sos_token = hidden_size, sos_token
        self.embedding = nn.Embedding(output_size, hidden_size)
        self.attention = BahdanauAttention(hidden_size)
        self.gru = nn.GRU(2 * hidden_size, hidden_size, batch_first=True)
        self.out = nn.Linear(hidden_size, output_size)
        self.dropout = nn.Dropout(dropout_p)

    def forward(
        self, encoder_outputs: Tensor, encoder_hidden: Tensor, target: Tensor | None = None,
        length: int | None = None, mask: Tensor | None = None
    ) -> Decoded:
        if (target is None) == (length is None):
            raise ShapeError("AttnDecoderRNN: takes either a target or a length", got=f"{target}, {length}")
        mapped = self.attention.Ua(encoder_outputs)
        weights = weights_of(self.gru, "_l0")

        def after(hidden: Tensor, embedded: Tensor) -> tuple[Tensor, Tensor]:
            context, shares = self.attention.attend(hidden, encoder_outputs, mapped, mask)
            gates, rest = STEPS["gru"].before(concat([embedded, context], axis=1), weights)
            return STEPS["gru"].after(gates, (hidden,), rest)[0], shares

        def follow(hidden: Tensor, embedded: Tensor) -> tuple[Tensor, Any]:
            hidden, shares = after(hidden, embedded)
            return hidden, (hidden, shares)

        def choose(state: tuple[Tensor, Tensor], _: Tensor) -> tuple[tuple[Tensor, Tensor], Any]:
            hidden, shares = after(state[0], self.embedding(state[1]))
            return (hidden, argmax(self.out(hidden), axis=1)), (hidden, shares)

        first = encoder_hidden[0]
        start = full((first.shape[0], 1), self.sos_token, dtype="int64")
        if target is not None:
            words = concat([start, target[:, :-1]], axis=1)
            embedded = self.dropout(self.embedding(words)).permute(1, 0, 2)
            hidden, (hiddens, shares) = scan(follow, first, embedded)
        else:
            (hidden, _), (hiddens, shares) = scan(choose, (first, start[:, 0]), arange(length))
        log_probs = F.log_softmax(self.out(hiddens.permute(1, 0, 2)), dim=-1)
        return Decoded(log_probs, hidden.reshape((1, *hidden.shape)), shares.permute(1, 0, 2))


class Seq2Seq(nn.Module):
    """Both halves. `source_mask` [N, S] is False where a source is padded.

    Shapes: source [N, S] and target [N, T], or a length -> Decoded.
    """

    def __init__(
        self, input_size: int, output_size: int, hidden_size: int, dropout_p: float = 0.1, sos_token: int = 0
    ) -> None:
        super().__init__()
        self.encoder = EncoderRNN(input_size, hidden_size, dropout_p)
        self.decoder = AttnDecoderRNN(hidden_size, output_size, dropout_p, sos_token)

    def forward(
        self,
        source: Tensor,
        target: Tensor | None = None,
        length: int | None = None,
        source_mask: Tensor | None = None,
    ) -> Decoded:
        outputs, hidden = self.encoder(source)
        return self.decoder(outputs, hidden, target, length, source_mask)
