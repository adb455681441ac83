"""What is absurdly deep or large: networks of many layers, nested lists, ints that no float holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from test_undivided_calls import with_room

import stratal as st
from stratal import models, nn, optim
from stratal.base import tree
from stratal.base.errors import CaptureError, DTypeError, ShapeError
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


def _nested(depth: int) -> list[Any]:
    made: list[Any] = [st.ones(2)]
    for _ in range(depth):
        made = [made]
    return made


def _sequence(depth: int) -> nn.Module:
    made: nn.Module = nn.Linear(2, 2)
    for _ in range(depth):
        made = nn.Sequential(made)
    return made


TOO_DEEP: dict[str, Callable[[], Any]] = {
    "module": lambda: _sequence(400)(st.ones(1, 2)),
    "argument": lambda: st.compile(lambda x: 1)(_nested(5000)),
}


@pytest.mark.parametrize("kind", TOO_DEEP)
def test_what_is_too_deep_for_the_stack_is_a_recursion_error(kind: str) -> None:
    with pytest.raises(RecursionError):
        TOO_DEEP[kind]()


def test_a_step_at_the_end_of_the_stack_fails_with_a_recursion_error_and_nothing_else() -> None:
    weight = nn.Parameter(st.zeros(2))
    optimizer = optim.SGD([weight], lr=1.0)

    def step() -> None:
        optimizer.zero_grad()
        (weight * 1).sum().backward()
        optimizer.step()

    step()
    assert sum(with_room(room, step) for room in range(140, 3, -3)) < 46


def test_a_container_that_holds_itself_is_told_from_a_deep_one() -> None:
    cycle: list[Any] = [st.ones(2)]
    cycle.append({"again": cycle})
    shared = [st.ones(2)]
    assert tree.holds_itself(cycle)
    assert tree.holds_itself([[shared], cycle])
    assert not tree.holds_itself([shared, [shared, {"a": shared}]])
    assert not tree.holds_itself(_nested(5000))
    with pytest.raises(CaptureError, match="holds itself"):
        st.compile(lambda x: 1)(cycle)


@pytest.mark.parametrize("value", [10**400, -(10**400), 10**6000], ids=["large", "negative", "huge"])
@pytest.mark.parametrize(
    "apply",
    [lambda x, n: x * n, lambda x, n: n - x, lambda x, n: x == n, lambda x, n: x.fill_(n),
     lambda x, n: x.add_(n), lambda x, n: st.compile(lambda x, n: x * n)(x, n),
     lambda x, n: st.where(x > 0, n, 1.0)],
)  # fmt: skip
def test_an_int_that_no_float_holds_is_refused(apply: Callable[[Any, int], Any], value: int) -> None:
    with pytest.raises(DTypeError, match=r"(?s)does not fit the dtype.*an int of [0-9]+ bits for f32"):
        apply(st.ones(2), value)
