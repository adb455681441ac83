"""Twelve models of mixed sizes, frozen as artefacts: from 30 us to milliseconds a row on one core."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import models

Array = np.ndarray[Any, Any]
ROWS = 8  # of the sample that a model is frozen with
BATCH_SIZES = (1, 2, 4, 8, 16, 32)
CHECKED_ROWS = (1, 5, 32)  # that a saved model is asked for beside its module
TOLERANCE = 1e-4  # of the largest output: sums are in another order


class Kind(NamedTuple):
    """How a model is built from a library's `nn`, and the shape of a row; `vocab` is of rows of tokens."""

    build: Callable[[Any], Any]
    row: tuple[int, ...]
    vocab: int = 0

    def rows(self, count: int, seed: int = 0) -> Array:
        """Return rows as a client sends them."""
        rng = np.random.default_rng(seed)
        if self.vocab:
            return rng.integers(0, self.vocab, (count, *self.row))
        return rng.standard_normal((count, *self.row)).astype(np.float32)


def digits(nn: Any) -> Any:
    """Return the net of docs/serving.md: one convolution on 8x8, one product."""
    convolution = nn.Conv2d(1, 16, 3, padding=1)
    return nn.Sequential(convolution, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 10))


def encoder(nn: Any, layers: int, d: int, heads: int, vocab: int = 1000, classes: int = 2) -> Any:
    """Return an encoder as BERT's without positions: tokens, blocks, the mean, a linear head."""

    class Encoder(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.tok = nn.Embedding(vocab, d)
            self.layers = nn.ModuleList([
                nn.TransformerEncoderLayer(d, heads, 4 * d, dropout=0.0, activation="gelu", batch_first=True)
                for _ in range(layers)
            ])  # fmt: skip
            self.head = nn.Linear(d, classes)

        def forward(self, tokens: Any) -> Any:
            x = self.tok(tokens)
            for layer in self.layers:
                x = layer(x)
            return self.head(x.mean(1))

    return Encoder()


KINDS: dict[str, Kind] = {
    "digits": Kind(digits, (1, 8, 8)),
    "tabular": Kind(lambda nn: models.mlp(nn, (32, 128, 128, 1)), (32,)),
    "tabular_wide": Kind(lambda nn: models.mlp(nn, (64, 1024, 1024, 2)), (64,)),
    "mlp": Kind(models.mlp, (784,)),
    "mlp_wide": Kind(lambda nn: models.mlp(nn, (784, 2048, 2048, 10)), (784,)),
    "lenet": Kind(models.lenet, (1, 28, 28)),
    "lenet_wide": Kind(lambda nn: models.lenet(nn, (32, 64), (480, 240)), (1, 28, 28)),
    "resnet18_narrow": Kind(lambda nn: models.resnet18(nn, 16), (3, 32, 32)),
    "resnet18": Kind(models.resnet18, (3, 32, 32)),
    "bert_tiny": Kind(lambda nn: encoder(nn, 2, 128, 2), (32,), 1000),
    "bert_small": Kind(lambda nn: encoder(nn, 4, 512, 8), (16,), 1000),
    "gpt2_block": Kind(lambda nn: models.gpt(nn, 1, 768, 12, 16), (16,), 256),
}


def module(name: str) -> Any:
    """Return a model as Stratal's module: always the same weights."""
    import stratal as st
    from stratal import nn

    st.manual_seed(0)
    return KINDS[name].build(nn)


def save(folder: Path, names: Iterable[str] = KINDS, say: Callable[[str], None] = lambda _: None) -> Path:
    """Freeze models and save them into a folder."""
    import stratal as st

    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        say(f"freezing {name}")
        sample = KINDS[name].rows(ROWS)
        st.freeze(module(name), sample, batch_sizes=BATCH_SIZES, name=name).save(folder / f"{name}.stratal")
    return folder


def check(folder: Path, names: Iterable[str]) -> None:
    """Compare saved models with their modules, evaluated one operation at a time, on rows they have not seen.

    Raises: SystemExit naming a model that answers something else.
    """
    import stratal as st

    for name in names:
        net = module(name).eval()
        frozen: Any = st.load(folder / f"{name}.stratal")
        for count in CHECKED_ROWS:
            x = KINDS[name].rows(count, seed=count)
            with st.no_grad():
                expected = np.asarray(net(st.tensor(x)))
            difference(f"{name}, {count} rows, frozen beside its module", np.asarray(frozen(x)), expected)


def difference(what: str, got: Array, expected: Array) -> None:
    """Compare outputs. Raises: SystemExit where they differ by more than `TOLERANCE` of the largest."""
    scale = float(np.abs(expected).max())
    if got.shape != expected.shape:
        raise SystemExit(f"{what}: shapes {got.shape} and {expected.shape}")
    far = float(np.abs(got - expected).max())
    if not far <= TOLERANCE * scale:  # so that NaN is a difference, too
        raise SystemExit(f"{what}: outputs differ by {far:.3g}, and the largest is {scale:.3g}")
