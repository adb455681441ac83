"""Networks of absurdly many layers are refused before they are built."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import stratal as st
from stratal import models, nn
from stratal.base.errors import ShapeError
from stratal.nn import depth

MANY = (2**40, 2**63 - 1)
NETWORKS: dict[str, Callable[[int], Any]] = {
    "RNN": lambda n: nn.RNN(3, 4, n),
    "LSTM": lambda n: nn.LSTM(3, 4, n, bidirectional=True),
    "GRU": lambda n: nn.GRU(3, 4, n),
    "TransformerEncoder": lambda n: nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), n),
    "TransformerDecoder": lambda n: nn.TransformerDecoder(nn.TransformerDecoderLayer(4, 2, 8), n),
    "Transformer encoder": lambda n: nn.Transformer(4, 2, n, 1, 8),
    "Transformer decoder": lambda n: nn.Transformer(4, 2, 1, n, 8),
    "RNNModel": lambda n: models.RNNModel("GRU", 7, 6, 6, n),
    "CNNLSTM": lambda n: models.CNNLSTM(3, num_layers=n),
    "Seq2SeqTransformer": lambda n: models.Seq2SeqTransformer(n, 1, 4, 2, 7, 7, 8),
    "ResNet": lambda n: models.ResNet(models.BasicBlock, (1, n, 1, 1), width_mult=0.125),
    "MobileNetV2": lambda n: models.MobileNetV2(4, 0.1, [[1, 8, n, 1]]),
    "VisionTransformer": lambda n: models.VisionTransformer(8, 4, n, 2, 4, 8),
    "GCN": lambda n: models.GCN(3, 4, n),
    "GPT-2": lambda n: models.GPT2Model(models.GPT2Config(n_layer=n, n_embd=12, vocab_size=9, n_positions=8)),
    "Llama": lambda n: models.LlamaModel(
        models.LlamaConfig(
            num_hidden_layers=n,
            hidden_size=16,
            intermediate_size=16,
            vocab_size=9,
            num_attention_heads=2,
            num_key_value_heads=2,
        )
    ),
    "BERT": lambda n: models.BertModel(
        models.BertConfig(num_hidden_layers=n, hidden_size=12, intermediate_size=16, vocab_size=9)
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_more_layers_than_fit_into_memory(name: str) -> None:
    for count in MANY:
        with pytest.raises(st.StratalError, match="layers do not fit into memory") as raised:
            NETWORKS[name](count)
        lines = str(raised.value).splitlines()
        assert [line.split(":")[0].strip() for line in lines[1:]] == ["got", "where", "hint"]
        assert str(count) in lines[1]


@pytest.mark.parametrize("name", NETWORKS)
def test_the_second_layer_says_what_all_take(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory for the objects of ten layers has no room for their parameters."""
    monkeypatch.setattr(depth, "memory_bytes", lambda: 10 * 4096)
    with pytest.raises(ShapeError, match="layers do not fit into memory"):
        NETWORKS[name](10)


def test_counts_of_layers_are_integers() -> None:
    encoder = nn.TransformerEncoderLayer(4, 2, 8)
    for bad in (-1, 1.5, "2", None):
        with pytest.raises(st.StratalError):
            nn.TransformerEncoder(encoder, bad)  # type: ignore[arg-type]
    x = st.ones((2, 3, 4))
    assert nn.TransformerEncoder(encoder, 0)(x).tolist() == x.tolist()


def test_where_the_system_does_not_say_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(depth, "memory_bytes", lambda: 0)
    assert depth.checked_depth("net", 2**40) == 2**40
