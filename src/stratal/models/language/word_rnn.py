"""A recurrent language model over words: embedding, recurrent layers, projection to words.

Names, arguments and state dicts are those of `RNNModel` in PyTorch's example `word_language_model`. See:
Zaremba et al. 2014, Recurrent neural network regularization; for tied weights Press and Wolf 2017.
"""

from __future__ import annotations

from typing import Any

from stratal import nn
from stratal.base.errors import AttributeValueError
from stratal.models.language.pretrained import share_weight
from stratal.tensor.functions.creation import zeros
from stratal.tensor.tensor import Tensor

F = nn.functional
_KINDS = ("LSTM", "GRU", "RNN_TANH", "RNN_RELU")


class RNNModel(nn.Module):
    """Log-probabilities of the next word after each, and the state to go on from.

    `rnn_type` is "LSTM", "GRU", "RNN_TANH" or "RNN_RELU"; `tie_weights` uses the table of words as
    projection, for which nhid is ninp. Shapes: input [L, N] integers -> [L * N, ntoken], and the states of
    nn.LSTM or nn.GRU.
    """

    def __init__(
        self, rnn_type: str, ntoken: int, ninp: int, nhid: int, nlayers: int, dropout: float = 0.5,
        tie_weights: bool = False
    ) -> None:
        super().__init__()
        if rnn_type not in _KINDS:
            raise AttributeValueError("RNNModel: rnn_type is one of " + ", ".join(_KINDS), got=repr(rnn_type))
        if tie_weights and nhid != ninp:
            raise AttributeValueError(
                "RNNModel: tied weights need nhid equal to ninp", got=f"{nhid} and {ninp}"
            )
        self.rnn_type, self.ntoken, self.nhid, self.nlayers = rnn_type, ntoken, nhid, nlayers
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(ntoken, ninp)
        between = dropout if nlayers > 1 else 0.0
        if rnn_type.startswith("RNN"):
            kind = rnn_type.removeprefix("RNN_").lower()
            self.rnn: Any = nn.RNN(ninp, nhid, nlayers, nonlinearity=kind, dropout=between)
        else:
            self.rnn = getattr(nn, rnn_type)(ninp, nhid, nlayers, dropout=between)
        self.decoder = nn.Linear(nhid, ntoken)
        self.init_weights()
        if tie_weights:
            share_weight(self, "decoder.weight", "encoder.weight")

    def init_weights(self) -> None:
        """Draw embedding and projection from U(-0.1, 0.1), the bias being 0."""
        for weight in (self.encoder.weight, self.decoder.weight):
            nn.init.uniform_(weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)

    def init_hidden(self, bsz: int) -> Any:
        """Return the state before the first word: zeros."""
        shape, dtype = (self.nlayers, bsz, self.nhid), self.encoder.weight.dtype
        if self.rnn_type == "LSTM":
            return zeros(shape, dtype=dtype), zeros(shape, dtype=dtype)
        return zeros(shape, dtype=dtype)

    def forward(self, input: Tensor, hidden: Any = None) -> tuple[Tensor, Any]:
        output, hidden = self.rnn(self.drop(self.encoder(input)), hidden)
        decoded = self.decoder(self.drop(output)).reshape((-1, self.ntoken))
        return F.log_softmax(decoded, dim=1), hidden
