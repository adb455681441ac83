"""The keys of configurations: for each kind its sections, and of each key its default and what it takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import isfinite
from typing import Any, Final, NamedTuple

REQUIRED: Final = object()


class Key(NamedTuple):
    """What a key takes, its default, and what an example shows: the default where it has no own."""

    default: Any
    takes: str
    fits: Callable[[Any], bool]
    about: str = ""
    example: Any = None


def toml_of(value: Any) -> str:
    """Return a value as TOML writes it."""
    if isinstance(value, list):
        return f"[{', '.join(map(toml_of, value))}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _text(about: str, example: str, default: Any = REQUIRED) -> Key:
    fits = lambda v: type(v) is str and v != "" and "\0" not in v  # noqa: E731
    return Key(default, "text in quotes", fits, about, example)


def _character(default: str, about: str) -> Key:
    return Key(default, "one character in quotes", lambda v: type(v) is str and len(v) == 1, about)


def _truth(default: bool, about: str) -> Key:
    return Key(default, "true or false", lambda v: type(v) is bool, about)


def _whole(default: Any, least: int, about: str) -> Key:
    return Key(default, f"a whole number from {least} on", lambda v: type(v) is int and v >= least, about)


def _number(default: Any, words: str, fits: Callable[[float], bool], about: str, example: Any = None) -> Key:
    number = lambda v: type(v) in (int, float) and isfinite(v) and fits(v)  # noqa: E731
    return Key(default, f"a number {words}", number, about, example)


def _one_of(default: str | None, choices: tuple[str, ...], about: str, example: Any = None) -> Key:
    return Key(default, f"one of {', '.join(map(toml_of, choices))}", lambda v: v in choices, about, example)


def _wholes(default: Any, count: int | None, about: str, example: Any = None) -> Key:
    def fits(v: Any) -> bool:
        sizes = type(v) is list and all(type(n) is int and n > 0 for n in v)
        return sizes and (len(v) == count if count else True)

    words = "a list of whole numbers above 0" if count is None else f"a list of {count} whole numbers above 0"
    return Key(default, words, fits, about, example)


def _texts(about: str, example: list[str]) -> Key:
    fits = lambda v: type(v) is list and bool(v) and all(type(t) is str for t in v)  # noqa: E731
    return Key(None, "a list of texts in quotes", fits, about, example)


_SHARE: Final = _number(0.2, "between 0 and 1", lambda v: 0 < v < 1, "share of rows that are held out")
_CLASSES: Final = _texts("folders in the order of their numbers; all, by name, otherwise", ["cat", "dog"])
_MISSING: Final = _one_of("refuse", ("refuse", "drop"), "rows with missing values")
_DELIMITER: Final = _character(",", "between the columns of a CSV file")
_DROPOUT: Final = _number(0.0, "from 0 up to 1", lambda v: 0 <= v < 1, "share of units left out in training")

_TRAINING: Final = {
    "epochs": _whole(20, 1, "passes over the data"),
    "batch_size": _whole(32, 1, "rows of one update"),
    "optimizer": _one_of("adam", ("adam", "adamw", "sgd"), "sgd has a momentum of 0.9"),
    "lr": _number(1e-3, "above 0", lambda v: v > 0, "learning rate"),
    "weight_decay": _number(0.0, "from 0 on", lambda v: v >= 0, ""),
    "schedule": _one_of("none", ("none", "cosine"), "of the rate: down to 0 over all epochs"),
    "clip_norm": _number(None, "above 0", lambda v: v > 0, "bounds the gradients' joint norm", 1.0),
    "precision": _one_of(None, ("bfloat16", "float16"), "of products; float32 otherwise", "bfloat16"),
    "patience": _whole(5, 0, "epochs without a better validation loss before it stops; 0: never"),
    "seed": _whole(0, 0, "of the split, the initial weights and the order"),
}
_OUTPUT: Final = {
    "folder": _text("checkpoints, metrics and model", "run", "run"),
    "tensorboard": _truth(False, "event files for TensorBoard; needs stratal[tensorboard]"),
}
SECTIONS: Final = ("data", "model", "training", "output")

KINDS: Final[dict[str, dict[str, dict[str, Key]]]] = {
    "table": {
        "data": {
            "path": _text("a Parquet or CSV file", "pumps.parquet"),
            "target": _text("the column to predict", "failed"),
            "task": _one_of("classification", ("classification", "regression"), ""),
            "features": _texts("columns to predict from; all but the target otherwise", ["hours", "load"]),
            "missing": _MISSING, "delimiter": _DELIMITER,
            "validation": _SHARE,
        },
        "model": {"hidden": _wholes([64, 64], None, "sizes of hidden layers"), "dropout": _DROPOUT},
        "training": _TRAINING, "output": _OUTPUT,
    },
    "images": {
        "data": {
            "path": _text("a folder with a folder of images for each class", "photos"), "classes": _CLASSES,
            "size": _wholes([64, 64], 2, "[height, width] that images are scaled to"),
            "mode": _one_of("RGB", ("L", "RGB", "RGBA"), "channels: 1, 3 or 4"),
            "augment": _truth(True, "mirrored and moved at random"),
            "unreadable": _one_of("refuse", ("refuse", "skip"), "images that cannot be read"),
            "workers": _whole(2, 1, "threads that read images"),
            "validation": _SHARE,
        },
        "model": {
            "name": _one_of("cnn", ("cnn", "resnet18"), ""),
            "channels": _wholes([32, 64, 128], None, "of a cnn: of each block, which halves the image"),
            "dropout": _DROPOUT,
        },
        "training": _TRAINING, "output": _OUTPUT,
    },
    "text": {
        "data": {
            "path": _text("a CSV or Parquet file, or a folder of .txt files for each class", "reviews.csv"),
            "classes": _CLASSES,
            "text": _text("the column of texts", "review", "text"),
            "target": _text("the column of classes", "stars", "label"),
            "missing": _MISSING, "delimiter": _DELIMITER,
            "vocabulary": _whole(20_000, 1, "most words that are known, the commonest"),
            "length": _whole(128, 1, "words of a text that are read"),
            "validation": _SHARE,
        },
        "model": {
            "name": _one_of("bag", ("bag", "transformer"), "the mean of word vectors, or a Transformer"),
            "width": _whole(64, 1, "of word vectors"),
            "heads": _whole(4, 1, "of a transformer; they divide the width"),
            "layers": _whole(2, 1, "of a transformer"),
            "dropout": _DROPOUT._replace(default=0.1),
        },
        "training": _TRAINING, "output": _OUTPUT,
    },
}  # fmt: skip
MEANT: Final = {
    "learning_rate": "lr", "batch": "batch_size", "num_epochs": "epochs", "max_epochs": "epochs",
    "label": "target", "early_stopping": "patience", "output_dir": "folder", "out": "folder",
    "layers": "hidden", "file": "path", "columns": "features", "max_length": "length",
    "vocab_size": "vocabulary", "val_split": "validation", "root": "path", "image_size": "size",
    "folder": "path", "directory": "path", "dir": "path", "data": "path", "files": "path",
    "tabular": "table", "csv": "table", "image": "images", "texts": "text",
}  # fmt: skip
