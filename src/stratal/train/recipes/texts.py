"""Texts: a column, or a folder of files for each class; classified by word vectors or a Transformer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from stratal.base.errors import FormatError
from stratal.data.datasets import TensorDataset
from stratal.data.loader import DataLoader
from stratal.data.sources.class_folders import class_folders
from stratal.formats.files import read_whole
from stratal.metrics import Accuracy
from stratal.nn.dropout import Dropout
from stratal.nn.embedding import Embedding
from stratal.nn.functional import cross_entropy
from stratal.nn.linear import Linear
from stratal.nn.module import Module
from stratal.nn.transformer import TransformerEncoder, TransformerEncoderLayer
from stratal.tensor.functions.creation import arange
from stratal.tensor.tensor import Tensor
from stratal.train.recipes.config import Config
from stratal.train.recipes.problem import Array, Problem, classes_of, split
from stratal.train.recipes.tables import read_table, without_missing

PADDING, UNKNOWN = 0, 1  # numbers of words
SPECIAL: Final = ["<padding>", "<unknown>"]  # what stands there in a vocabulary; no text has such words
TAKES: Final = (
    "int64 [texts, length]: for each of the first words of a text its position in vocabulary, 1 where it is "
    r"not there, 0 after the last. Words are re.findall(r'\w+|[^\w\s]', text.lower()); "
    "stratal.train.recipes.numbers_of(texts, vocabulary, length) makes all of it"
)
_WORD: Final = re.compile(r"\w+|[^\w\s]")
_MOST_TEXT: Final = 1 << 24  # bytes of a file


class TextNet(Module):
    """Scores of classes for numbers of words, int64 [texts, words]: the mean over words of their vectors, or
    of what a Transformer makes of them. Padding does not count.
    """

    def __init__(self, config: Mapping[str, Any], words: int, length: int, classes: int) -> None:
        super().__init__()
        width, dropout = config["width"], config["dropout"]
        self.words = Embedding(words, width, padding_idx=PADDING)
        self.encoder: TransformerEncoder | None = None
        if config["name"] == "transformer":
            self.positions = Embedding(length, width)
            layer = TransformerEncoderLayer(width, config["heads"], 4 * width, dropout, batch_first=True)
            self.encoder = TransformerEncoder(layer, config["layers"])
        self.dropout = Dropout(dropout)
        self.scores = Linear(width, classes)

    def forward(self, input: Tensor) -> Tensor:
        x, padding = self.words(input), input == PADDING
        if self.encoder is not None:
            x = self.encoder(x + self.positions(arange(input.shape[1])), src_key_padding_mask=padding)
        counts = (~padding).float().unsqueeze(-1)
        mean = (x * counts).sum(1) / counts.sum(1).clamp(min=1)
        scores: Tensor = self.scores(self.dropout(mean))
        return scores


def words_of(text: str) -> list[str]:
    """Return the words and signs of a text, in lower case."""
    return _WORD.findall(text.lower())


def numbers_of(texts: Sequence[str], vocabulary: Sequence[str], length: int) -> Array:
    """Return texts as numbers of words, int64 [texts, length], cut or padded; a text has at least one.

    A word's number is its position in the vocabulary, of which the first two stand for padding and for words
    that are not there.
    """
    numbers = {word: k for k, word in enumerate(vocabulary)}
    made = np.full((len(texts), length), PADDING, np.int64)
    for row, text in zip(made, texts, strict=True):
        found = [numbers.get(word, UNKNOWN) for word in words_of(text)[:length]] or [UNKNOWN]
        row[: len(found)] = found
    return made


def text_problem(config: Config) -> Problem:
    """Return what a configuration of texts asks for. Raises: AttributeValueError, and what sources raise."""
    model, length = config.model, config.data["length"]
    if model["name"] == "transformer" and model["width"] % model["heads"]:
        got = f"{model['heads']} heads, width {model['width']}"
        raise config.refuse("[model] heads divide the width", got)
    texts, classes, y = _texts(config)
    training, held_out = split(config, y, len(y))
    counts = Counter(word for k in training for word in words_of(texts[k])[:length])
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    vocabulary = [*SPECIAL, *ranked[: config.data["vocabulary"]]]
    x = numbers_of(texts, vocabulary, length)
    net = TextNet(model, len(vocabulary), length, len(classes))
    size, seed = config.training["batch_size"], config.training["seed"]
    return Problem(
        net, cross_entropy, {"accuracy": Accuracy(task="multiclass", num_classes=len(classes))},
        DataLoader(TensorDataset(x[training], y[training]), size, shuffle=True, seed=seed),
        DataLoader(TensorDataset(x[held_out], y[held_out]), size),
        x[training][:8],
        {"classes": classes, "vocabulary": vocabulary, "length": length, "text": config.data["text"],
         "delimiter": config.data["delimiter"], "takes": TAKES},
        f"{len(y):,} texts: {len(training):,} to train on, {len(held_out):,} held out; "
        f"{len(vocabulary) - len(SPECIAL):,} words, {len(classes)} classes",
    )  # fmt: skip


def _texts(config: Config) -> tuple[list[str], list[Any], Array]:
    """Return texts, the classes, and the number of each text's.

    Raises: AttributeValueError, FormatError, and what sources raise.
    """
    path, wanted = config.located(config.data["path"]), config.data["classes"]
    if path.is_dir():
        names, samples = class_folders("text", path, (".txt",), wanted)
        if len(names) < 2:
            raise config.refuse("texts are of at least two classes", ", ".join(names))
        texts, numbers = [text_of(Path(file)) for file, _ in samples], [label for _, label in samples]
        return texts, names, np.array(numbers, np.int64)
    if wanted is not None:
        raise config.refuse("[data] classes are folders", config.data["path"], "of a file leave it out")
    text, target = config.data["text"], config.data["target"]
    columns = without_missing(config, read_table(config, [text, target], texts=[text]))
    return [str(value) for value in columns[text]], *classes_of(config, list(columns[target]))


def text_of(path: Path) -> str:
    """Return what a file of text says. Raises: FormatError where it is not UTF-8, or too large."""
    try:
        return bytes(read_whole(path, _MOST_TEXT)).decode()
    except UnicodeDecodeError as error:
        raise FormatError(f"text: {path.name} is text in UTF-8", got=str(error)[:80]) from None
