"""Small models as people write them in PyTorch, with the whole step of training; written once for any library
with PyTorch's module names.

`torch` is the library itself, `torch` or `stratal`, `nn` its modules. A model is given its data and returns
its loss. With `p = 0` nothing is drawn, so that two libraries compute the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Arrays = tuple[np.ndarray[Any, Any], ...]
VOCAB, CONTEXT = 65, 64


class SmallModel(NamedTuple):
    """A model that returns its loss, what draws its data, and how it is trained."""

    build: Callable[[Any, float], Any]  # of the library and the probability of dropping
    data: Callable[[np.random.Generator], Arrays]
    optimizer: str
    rate: float
    clip: float | None = None


def text_cnn(torch: Any, p: float) -> Any:
    """Return convolutions of three widths over embedded words, their maxima over the text, a linear head."""
    nn, F = torch.nn, torch.nn.functional

    class TextCNN(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(2000, 64)
            self.convs = nn.ModuleList([nn.Conv1d(64, 64, k) for k in (3, 4, 5)])
            self.drop, self.head = nn.Dropout(p), nn.Linear(192, 4)

        def forward(self, words: Any, labels: Any) -> Any:
            x = self.embed(words).transpose(1, 2)
            found = torch.cat([F.relu(conv(x)).max(dim=2).values for conv in self.convs], dim=1)
            return F.cross_entropy(self.head(self.drop(found)), labels)

    return TextCNN()


def transformer(torch: Any, p: float) -> Any:
    """Return an encoder of two layers that classifies texts by the mean over their places."""
    nn, F = torch.nn, torch.nn.functional

    class Classifier(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.places = nn.Embedding(1000, 64), nn.Embedding(32, 64)
            layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=p, batch_first=True)
            self.encoder, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(64, 4)

        def forward(self, words: Any, labels: Any) -> Any:
            x = self.embed(words) + self.places(torch.arange(words.shape[1]))
            return F.cross_entropy(self.head(self.encoder(x).mean(dim=1)), labels)

    return Classifier()


def siamese(torch: Any, p: float) -> Any:
    """Return one convolutional network over two images each, and the contrastive loss of their distance."""
    nn, F = torch.nn, torch.nn.functional

    class Siamese(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.features = nn.Sequential(
                nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.ReLU(),
                nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(p), nn.Linear(800, 64),
            )  # fmt: skip

        def forward(self, a: Any, b: Any, same: Any) -> Any:
            distance = F.pairwise_distance(self.features(a), self.features(b))
            return (same * distance**2 + (1 - same) * F.relu(1.0 - distance) ** 2).mean()

    return Siamese()


def gpt(torch: Any, p: float) -> Any:
    """Return a decoder of three layers with learned places, as small ones are written; it writes texts."""
    nn, F = torch.nn, torch.nn.functional
    width, heads = 96, 4

    class Attention(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.drop, self.out_drop = nn.Dropout(p), nn.Dropout(p)
            self.register_buffer("mask", torch.tril(torch.ones(CONTEXT, CONTEXT)))

        def forward(self, x: Any) -> Any:
            b, t, c = x.shape
            q, k, v = (
                y.view(b, t, heads, c // heads).transpose(1, 2) for y in self.qkv(x).split(width, dim=2)
            )
            scores = (q @ k.transpose(-2, -1)) * (c // heads) ** -0.5
            scores = scores.masked_fill(self.mask[:t, :t] == 0, float("-inf"))
            y = self.drop(F.softmax(scores, dim=-1)) @ v
            return self.out_drop(self.proj(y.transpose(1, 2).contiguous().view(b, t, c)))

    class Block(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.ln1, self.attn, self.ln2 = nn.LayerNorm(width), Attention(), nn.LayerNorm(width)
            self.mlp = nn.Sequential(
                nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(p)
            )

        def forward(self, x: Any) -> Any:
            x = x + self.attn(self.ln1(x))
            return x + self.mlp(self.ln2(x))

    class GPT(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(VOCAB, width), nn.Embedding(CONTEXT, width)
            self.drop = nn.Dropout(p)
            self.blocks = nn.Sequential(*[Block() for _ in range(3)])
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCAB)

        def logits(self, tokens: Any) -> Any:
            x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
            return self.head(self.norm(self.blocks(self.drop(x))))

        def forward(self, tokens: Any, following: Any) -> Any:
            return F.cross_entropy(self.logits(tokens).view(-1, VOCAB), following.view(-1))

        def generate(self, tokens: Any, count: int) -> Any:
            with torch.no_grad():
                for _ in range(count):
                    last = self.logits(tokens[:, -CONTEXT:])[:, -1, :]
                    tokens = torch.cat([tokens, last.argmax(dim=-1, keepdim=True)], dim=1)
            return tokens

    return GPT()


def mlp(torch: Any, p: float) -> Any:
    """Return a perceptron whose step takes PyTorch half a millisecond."""
    nn, F = torch.nn, torch.nn.functional

    class MLP(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(
                nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)
            )

        def forward(self, x: Any, labels: Any) -> Any:
            return F.cross_entropy(self.layers(x), labels)

    return MLP()


def texts(words: int, length: int, classes: int) -> Callable[[np.random.Generator], Arrays]:
    """Return what draws a batch of texts with a label each."""
    return lambda rng: (rng.integers(0, words, (16, length)), rng.integers(0, classes, 16))


def _pairs(rng: np.random.Generator) -> Arrays:
    a, b = rng.standard_normal((2, 16, 1, 28, 28), dtype=np.float32)
    return a, b, rng.integers(0, 2, 16).astype(np.float32)


def _continued(rng: np.random.Generator) -> Arrays:
    text = rng.integers(0, VOCAB, (8, CONTEXT + 1))
    return text[:, :-1].copy(), text[:, 1:].copy()


def _rows(rng: np.random.Generator) -> Arrays:
    return rng.standard_normal((32, 64), dtype=np.float32), rng.integers(0, 10, 32)


MODELS = {
    "text_cnn": SmallModel(text_cnn, texts(2000, 48, 4), "Adam", 1e-3),
    "transformer": SmallModel(transformer, texts(1000, 32, 4), "AdamW", 1e-3),
    "siamese": SmallModel(siamese, _pairs, "Adam", 1e-3),
    "gpt": SmallModel(gpt, _continued, "AdamW", 1e-3, clip=1.0),
    "mlp": SmallModel(mlp, _rows, "Adam", 1e-3),
}


def training(torch: Any, name: str, p: float) -> tuple[Any, Callable[..., Any]]:
    """Return a model and a step of its training, which returns the loss as a number."""
    small = MODELS[name]
    model = small.build(torch, p)
    optimizer = getattr(torch.optim, small.optimizer)(model.parameters(), lr=small.rate)

    def step(*batch: Any) -> float:
        loss = model(*batch)
        optimizer.zero_grad()
        loss.backward()
        if small.clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), small.clip)
        optimizer.step()
        return float(loss.item())

    return model, step
