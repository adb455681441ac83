"""Predictions of a model that a recipe trained, for files that are prepared as those it learned from.

    kind      a file or folder                    a row
    table     Parquet or CSV with its features    of the file, from 0
    images    an image, or a folder of them       a path
    text      Parquet or CSV with its column,     of the file, from 0
              .txt, or a folder of those          a path
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from stratal.base.counts import as_count
from stratal.base.errors import AttributeValueError, DTypeError, FormatError
from stratal.data.bad_rows import BadRowError
from stratal.data.sources.class_folders import files_below
from stratal.data.sources.csv_columns import number
from stratal.data.sources.images import EXTENSIONS, ImageReader
from stratal.data.sources.opening import MissingSourceError
from stratal.formats import SavedModel, load
from stratal.tensor.tensor import tensor
from stratal.train.recipes.problem import Array
from stratal.train.recipes.tables import SUFFIXES, encoded, is_missing, names_of, read_columns
from stratal.train.recipes.texts import SPECIAL, numbers_of, text_of

_Check = Callable[[Any], bool]
_LEAST: Final = 2  # rows of a batch that every saved graph takes
_SKIPPED: Final = "get no prediction with skip=True, or `stratal predict --skip`"


class Predictions(NamedTuple):
    """What a model says of each row: a class, or a number; None of a row that was skipped.

    `rows` are numbers from 0, or paths of files; `probabilities` are those of the classes that are predicted,
    None of a regression; `notes` say what in the rows the model does not know.
    """

    rows: list[int] | list[str]
    values: list[Any]
    probabilities: list[float | None] | None
    notes: list[str]


class _Rows(NamedTuple):
    """Rows by position: `read(k)` gives the model's input, None where row k is to be skipped."""

    names: list[int] | list[str]
    read: Callable[[int], Array | None]
    notes: Sequence[str] = ()


def predict(
    model: str | Path | SavedModel, path: str | Path, *, skip: bool = False, batch_size: int = 256
) -> Predictions:
    """Return what a model of `stratal train` says of a file or folder, prepared as those it was trained on.

    A row with a missing value and an image or a text file that cannot be read end it, unless `skip`: they
    have no prediction then. A text that is none of a column's categories is as no category, and noted.
    Raises: FormatError for another model; MissingSourceError, AttributeValueError and BadRowError where the
    file does not have what the model takes.
    """
    batch_size = as_count("predict: a batch has at least one row", batch_size)
    saved = model if isinstance(model, SavedModel) else load(model)
    options = _checked_options(saved)
    if not (file := Path(path)).exists():
        raise MissingSourceError(f"predict: {file} is not there", got="no such file or folder")
    rows = _SOURCES[options["kind"]](options, file, skip)
    if not rows.names:
        raise FormatError(f"predict: {file} has rows to predict for", got="none")
    outputs: list[Any] = [None] * len(rows.names)
    size = max(_LEAST, min(batch_size, len(rows.names)))
    for start in range(0, len(rows.names), size):
        read = {k: rows.read(k) for k in range(start, min(start + size, len(rows.names)))}
        inputs = {k: x for k, x in read.items() if x is not None}
        if inputs:
            outputs_of = _computed(saved, np.stack([*inputs.values()]), size)
            for k, output in zip(inputs, outputs_of, strict=True):
                outputs[k] = output
    if options["kind"] == "table" and options["task"] == "regression":
        numbers = [None if output is None else float(output) for output in outputs]
        return Predictions(rows.names, numbers, None, list(rows.notes))
    return _classified(rows, outputs, options["classes"])


def _computed(saved: SavedModel, x: Array, size: int) -> Array:
    """Return what a model computes of rows, as a batch of one size: it is compiled once."""
    filled = np.concatenate([x, np.repeat(x[-1:], size - len(x), 0)])
    return np.asarray(saved(tensor(filled)))[: len(x)]


def _classified(rows: _Rows, outputs: Sequence[Any], classes: Sequence[Any]) -> Predictions:
    values: list[Any] = [None] * len(outputs)
    probabilities: list[float | None] = [None] * len(outputs)
    for k, scores in enumerate(outputs):
        if scores is None:
            continue
        if scores.shape != (len(classes),):
            raise FormatError("predict: a model has a score for each class", got=f"{list(scores.shape)}")
        best = int(scores.argmax())
        values[k] = classes[best]
        probabilities[k] = float(1 / np.exp(scores.astype(np.float64) - float(scores[best])).sum())
    return Predictions(rows.names, values, probabilities, list(rows.notes))


def _checked_options(saved: Any) -> Mapping[str, Any]:
    """Return the options of a model of a recipe. Raises: FormatError."""
    options = saved.options if isinstance(saved, SavedModel) else {}
    needed = _NEEDED.get(str(options.get("kind")))
    if needed is None or not all(check(options.get(name)) for name, check in needed.items()):
        raise FormatError(
            "predict: takes a model of `stratal train`, which says how its inputs are prepared",
            got=f"a {type(saved).__name__} with the options {sorted(options)}"[:120],
            hint="another one is called with its inputs, st.load(path)(x); an old one is trained again",
        )
    return options


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_size(value: Any) -> bool:
    return type(value) is int and value > 0


def _list_of(check: _Check, least: int = 0) -> _Check:
    return lambda value: type(value) is list and len(value) >= least and all(map(check, value))


def _is_feature(value: Any) -> bool:
    return type(value) is dict and _is_text(value.get("name")) and (
        value.get("categories") is None or _list_of(_is_text)(value["categories"])
    )


def _is_class(value: Any) -> bool:
    return type(value) in (str, int, bool)


_DELIMITER: Final[_Check] = lambda value: _is_text(value) and len(value) == 1  # noqa: E731
_NEEDED: Final[dict[str, dict[str, _Check]]] = {  # options of a model, by kind
    "table": {"features": _list_of(_is_feature, 1), "task": _is_text, "classes": _list_of(_is_class),
              "delimiter": _DELIMITER},
    "images": {"classes": _list_of(_is_text), "mode": _is_text,
               "size": lambda value: _list_of(_is_size)(value) and len(value) == 2},
    "text": {"classes": _list_of(_is_class), "vocabulary": _list_of(_is_text), "length": _is_size,
             "text": _is_text, "delimiter": _DELIMITER},
}  # fmt: skip


# -- what rows are -------------------------------------------------------------------------------------------
def _table(options: Mapping[str, Any], file: Path, skip: bool) -> _Rows:
    features = [(f["name"], f.get("categories")) for f in options["features"]]
    types = {name: number if categories is None else str for name, categories in features}
    columns, bad = _columns(file, types, options["delimiter"], skip)
    parts, notes = [], []
    for name, categories in features:
        part = encoded(_array(name, columns[name], bad, categories is not None), categories)
        unknown = int((part.sum(1) == 0)[~bad].sum()) if categories is not None else 0
        if unknown:
            notes.append(f"column {name!r}: {unknown} rows with a text that was not there in training")
        parts.append(part)
    x = np.concatenate(parts, 1)
    return _Rows(list(range(len(x))), lambda k: None if bad[k] else x[k], notes)


def _skipping(read: Callable[[int], Array], what: str, skip: bool) -> Callable[[int], Array | None]:
    """Return what reads a row, or gives None, with `skip`, where it cannot be read."""

    def reads(k: int) -> Array | None:
        try:
            return read(k)
        except FormatError as error:
            if skip:
                return None
            error.hint = f"{what} that cannot be read {_SKIPPED}"
            raise

    return reads


def _images(options: Mapping[str, Any], file: Path, skip: bool) -> _Rows:
    names, paths = _files(file, EXTENSIONS)
    height, width = options["size"]
    reader = ImageReader(size=(height, width), mode=options["mode"])

    return _Rows(names, _skipping(lambda k: reader(paths[k], k), "images", skip))


def _texts(options: Mapping[str, Any], file: Path, skip: bool) -> _Rows:
    vocabulary, length = options["vocabulary"], options["length"]
    if vocabulary[:2] != SPECIAL:
        raise FormatError("predict: a vocabulary begins with those of padding and unknown words",
                          got=str(vocabulary[:2])[:80], hint="train the model again")  # fmt: skip
    if file.is_dir() or file.suffix.lower() == ".txt":
        names, paths = _files(file, (".txt",))

        def read(k: int) -> Array:
            return np.asarray(numbers_of([text_of(Path(paths[k]))], vocabulary, length)[0])

        return _Rows(names, _skipping(read, "texts", skip))
    columns, bad = _columns(file, {options["text"]: str}, options["delimiter"], skip)
    texts = _array(options["text"], columns[options["text"]], bad, True)
    x = numbers_of(texts.tolist(), vocabulary, length)
    return _Rows(list(range(len(x))), lambda k: None if bad[k] else x[k])


_SOURCES: Final[dict[str, Callable[[Mapping[str, Any], Path, bool], _Rows]]] = {
    "table": _table, "images": _images, "text": _texts,
}  # fmt: skip


def _files(file: Path, extensions: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the names and paths of a file, or of those in a folder."""
    if not file.is_dir():
        return [file.name], [str(file)]
    paths = list(files_below(file, extensions))
    return [Path(path).relative_to(file).as_posix() for path in paths], paths


def _columns(
    file: Path, types: Mapping[str, Any], delimiter: str, skip: bool
) -> tuple[dict[str, Any], Array]:
    """Return the columns of a file, and which rows miss a value. Raises: AttributeValueError."""
    if file.suffix.lower() not in SUFFIXES or file.is_dir():
        raise AttributeValueError("predict: the file ends in .parquet or .csv", got=str(file))
    there = names_of(file, delimiter)
    if lacking := [name for name in types if name not in there]:
        raise AttributeValueError(f"predict: {file.name} has the columns that the model takes",
                                  got=f"no {', '.join(lacking)} among {', '.join(there)}"[:120],
                                  hint=f"the model was trained on {', '.join(types)}"[:120])  # fmt: skip
    try:
        columns = read_columns(file, list(types), delimiter, types)
    except BadRowError as error:
        error.hint = f"correct it, or empty the cell: rows with missing values {_SKIPPED}"
        raise
    missing = {name: is_missing(values) for name, values in columns.items()}
    name, first = next(((n, m) for n, m in missing.items() if m.any()), ("", np.zeros(0, bool)))
    if name and not skip:
        raise AttributeValueError(
            f"predict: column {name!r} of {file.name} has missing values, or some that are not finite",
            got=f"{first.sum()} of {len(first)} rows, the first is row {int(first.argmax())}",
            hint=f"such rows {_SKIPPED}",
        )
    return columns, np.logical_or.reduce([*missing.values()])


def _array(name: str, values: Any, bad: Array, is_text: bool) -> Array:
    """Return a column as an array, with 0 or "" in bad rows. Raises: DTypeError for another kind."""
    if isinstance(values, (list, tuple)):
        filled = ["" if is_text else 0.0] * len(values)
        for k in np.flatnonzero(~bad).tolist():
            filled[k] = values[k]
        values = np.array(filled, object if is_text else None)
    texts = values.dtype == object and all(isinstance(v, str) for v in values)
    if values.ndim != 1 or (not texts if is_text else values.dtype.kind not in "biuf"):
        raise DTypeError(f"predict: column {name!r} has {'texts' if is_text else 'numbers'}, as in training",
                         got=f"{values.dtype} {values[0]!r:.40}",
                         hint="the column's type in the file is the one of training")  # fmt: skip
    return np.asarray(values)
