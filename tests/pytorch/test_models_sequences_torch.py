"""Recurrent and encoder-decoder models against the PyTorch programs they are known from, written out here."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from test_models_language import VOCAB, frames, texts  # noqa: E402
from torch_twins import assert_close, compare, draw, load  # noqa: E402

import stratal as st  # noqa: E402
from stratal import models  # noqa: E402

pytestmark = pytest.mark.torch
F = torch.nn.functional


class RNNModel(torch.nn.Module):
    """After PyTorch's example word_language_model."""

    def __init__(self, kind: str, tied: bool) -> None:
        super().__init__()
        self.encoder = torch.nn.Embedding(VOCAB, 8)
        if kind in ("LSTM", "GRU"):
            self.rnn = getattr(torch.nn, kind)(8, 8, 2)
        else:
            self.rnn = torch.nn.RNN(8, 8, 2, nonlinearity=kind[4:].lower())
        self.decoder = torch.nn.Linear(8, VOCAB)
        if tied:
            self.decoder.weight = self.encoder.weight

    def forward(self, input: Any, hidden: Any = None) -> Any:
        output, hidden = self.rnn(self.encoder(input), hidden)
        return F.log_softmax(self.decoder(output).view(-1, VOCAB), dim=1), hidden


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN_TANH", "RNN_RELU"])
def test_a_model_of_words_agrees_with_pytorchs_example(kind: str, tied: bool) -> None:
    torch.manual_seed(0)
    theirs = RNNModel(kind, tied).double()
    ours = models.RNNModel(kind, VOCAB, 8, 8, 2, 0.0, tied).double()
    load(ours, theirs)
    words = texts(6, 3)
    found, state = ours(st.tensor(words), ours.init_hidden(3))
    expected, their_state = theirs(torch.tensor(words))
    assert_close(found.detach(), expected.detach().numpy())
    found, _ = ours(st.tensor(words), state)
    expected, _ = theirs(torch.tensor(words), their_state)
    assert_close(found.detach(), expected.detach().numpy())


class Attention(torch.nn.Module):
    """This and the two below after PyTorch's tutorial on sequence to sequence networks."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.Wa, self.Ua = torch.nn.Linear(width, width), torch.nn.Linear(width, width)
        self.Va = torch.nn.Linear(width, 1)

    def forward(self, query: Any, keys: Any) -> Any:
        scores = self.Va(torch.tanh(self.Wa(query) + self.Ua(keys)))
        weights = F.softmax(scores.squeeze(2).unsqueeze(1), dim=-1)
        return torch.bmm(weights, keys), weights


class Encoder(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCAB, width)
        self.gru = torch.nn.GRU(width, width, batch_first=True)

    def forward(self, words: Any) -> Any:
        return self.gru(self.embedding(words))


class Decoder(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCAB, width)
        self.attention = Attention(width)
        self.gru = torch.nn.GRU(2 * width, width, batch_first=True)
        self.out = torch.nn.Linear(width, VOCAB)

    def forward(self, outputs: Any, hidden: Any, target: Any, length: int) -> Any:
        word = torch.zeros((len(outputs), 1), dtype=torch.long)
        found, attentions = [], []
        for k in range(length):
            context, weights = self.attention(hidden.permute(1, 0, 2), outputs)
            output, hidden = self.gru(torch.cat((self.embedding(word), context), dim=2), hidden)
            found.append(self.out(output))
            attentions.append(weights)
            word = found[-1].topk(1)[1].squeeze(-1).detach() if target is None else target[:, k : k + 1]
        return F.log_softmax(torch.cat(found, 1), dim=-1), hidden, torch.cat(attentions, 1)


class Seq2Seq(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.encoder, self.decoder = Encoder(width), Decoder(width)

    def forward(self, source: Any, target: Any, length: int) -> Any:
        return self.decoder(*self.encoder(source), target, length)


@pytest.mark.parametrize("led", [False, True])
def test_a_sequence_to_sequence_model_agrees_with_pytorchs_tutorial(led: bool) -> None:
    torch.manual_seed(0)
    theirs = Seq2Seq(6).double()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.6)
    ours = models.Seq2Seq(VOCAB, VOCAB, 6, dropout_p=0.0).double()
    load(ours, theirs)
    source, target = texts(4, 5), texts(4, 7)[:, ::-1].copy()
    found = ours(st.tensor(source), st.tensor(target)) if led else ours(st.tensor(source), length=7)
    expected = theirs(torch.tensor(source), torch.tensor(target) if led else None, 7)
    for a, b in zip(found, expected, strict=True):
        assert_close(a.detach(), b.detach().numpy())
    found.log_probs.square().sum().backward()
    expected[0].square().sum().backward()
    gradients = {name: p.grad.numpy() for name, p in theirs.named_parameters()}
    scale = max(np.abs(g).max() for g in gradients.values())
    for name, parameter in ours.named_parameters():
        np.testing.assert_allclose(parameter.grad, gradients[name], 1e-8, 1e-10 * scale, err_msg=name)


class Positions(torch.nn.Module):
    """This and the one below after PyTorch's tutorial on translation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        powers = torch.exp(-torch.arange(0, width, 2) * math.log(10000) / width)
        angles = torch.arange(0, 50).reshape(50, 1) * powers
        self.register_buffer(
            "pos_embedding", torch.stack([angles.sin(), angles.cos()], -1).reshape(50, 1, width)
        )

    def forward(self, x: Any) -> Any:
        return x + self.pos_embedding[: x.size(0)]


class TokenEmbedding(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding, self.width = torch.nn.Embedding(VOCAB, width), width

    def forward(self, tokens: Any) -> Any:
        return self.embedding(tokens.long()) * math.sqrt(self.width)


class Translator(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.transformer = torch.nn.Transformer(width, 2, 1, 2, 10, 0.0)
        self.generator = torch.nn.Linear(width, VOCAB)
        self.src_tok_emb, self.tgt_tok_emb = TokenEmbedding(width), TokenEmbedding(width)
        self.positional_encoding = Positions(width)

    def forward(self, src: Any, trg: Any, src_mask: Any, tgt_mask: Any, *padding: Any) -> Any:
        source = self.positional_encoding(self.src_tok_emb(src))
        target = self.positional_encoding(self.tgt_tok_emb(trg))
        return self.generator(self.transformer(source, target, src_mask, tgt_mask, None, *padding))


def test_a_transformer_agrees_with_pytorchs_tutorial() -> None:
    torch.manual_seed(0)
    theirs = Translator(8)
    ours = models.Seq2SeqTransformer(1, 2, 8, 2, VOCAB, VOCAB, 10, 0.0)
    ours.load_state_dict(theirs.state_dict())
    assert list(ours.state_dict()) == [k for k in theirs.state_dict() if "pos_embedding" not in k]
    source, target = texts(3, 6).T.copy(), texts(3, 5)[:, ::-1].T.copy()
    padding = np.array([[0] * 6, [0] * 4 + [1] * 2, [0] * 5 + [1]], bool)
    mask = np.triu(np.full((5, 5), -np.inf, np.float32), 1)
    arrays = (source, target, None, mask, padding, None, padding)
    found = ours(*(None if a is None else st.tensor(a) for a in arrays))
    expected = theirs(*(None if a is None else torch.tensor(a) for a in arrays))
    assert_close(found.detach(), expected.detach().numpy(), tolerance=1e-5)


class Frames(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = torch.nn.ModuleList(
            [torch.nn.Conv2d(2, 4, 3, padding=1), torch.nn.Conv2d(4, 6, 3, padding=1)]
        )
        self.lstm = torch.nn.LSTM(6, 8, 2, batch_first=True)
        self.fc = torch.nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        seen = []
        for k in range(x.shape[1]):
            y = x[:, k]
            for conv in self.convs:
                y = F.max_pool2d(F.relu(conv(y)), 2)
            seen.append(y.mean((2, 3)))
        return self.fc(self.lstm(torch.stack(seen, 1))[0][:, -1])


def test_a_network_over_frames_agrees_with_one_frame_at_a_time() -> None:
    torch.manual_seed(0)
    compare(models.CNNLSTM(3, 2, (4, 6), 8, 2), Frames(), draw(*frames(2).shape, dtype=np.float64))
