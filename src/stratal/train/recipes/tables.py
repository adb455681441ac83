"""Tables: rows of Parquet and CSV files, classified or regressed by a perceptron."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from stratal.data.bad_rows import BadRowError
from stratal.data.datasets import TensorDataset
from stratal.data.loader import DataLoader
from stratal.data.sources import CSV, Parquet
from stratal.data.sources.csv_columns import number_or_empty, whole, whole_or_missing
from stratal.metrics import Accuracy, MeanAbsoluteError, R2Score
from stratal.nn.activation import ReLU
from stratal.nn.containers import Sequential
from stratal.nn.dropout import Dropout
from stratal.nn.functional import cross_entropy, mse_loss
from stratal.nn.linear import Linear
from stratal.nn.module import Module
from stratal.tensor.tensor import Tensor
from stratal.train.recipes.config import Config
from stratal.train.recipes.problem import Array, Problem, Standardized, classes_of, missing_column, split

TAKES: Final = (
    "float32 [rows, columns]: for each of features, in order, its number as it is in the file or, where it "
    "has categories, a 0 or 1 for each"
)
SUFFIXES: Final = (".parquet", ".csv")


class TableNet(Module):
    """A perceptron with ReLU on columns, standardised; its result is a score for each class or, of a
    regression, a number for each row in the target's units, `mean + std * output`.
    """

    def __init__(
        self, prepared: Standardized, sizes: Sequence[int], dropout: float,
        target: tuple[float, float] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.prepared = prepared
        layers: list[Module] = []
        for before, after in pairwise(sizes):
            layers += [Linear(before, after), ReLU(), *([Dropout(dropout)] if dropout else [])]
        self.layers = Sequential(*layers[: -(3 if dropout else 2)], Linear(sizes[-2], sizes[-1]))
        self.target = target

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = self.layers(self.prepared(input))
        if self.target is not None:
            mean, std = self.target
            output = output[:, 0] * std + mean
        return output


def table_problem(config: Config) -> Problem:
    """Return what a table's configuration asks for. Raises: AttributeValueError, and what sources raise."""
    target, wanted = config.data["target"], config.data["features"]
    columns = read_table(config, None if wanted is None else [*dict.fromkeys([target, *wanted])])
    if target not in columns:
        raise missing_column(config, target, columns)
    names = [name for name in columns if name != target] if wanted is None else wanted
    if target in names or not names:
        raise config.refuse("features are columns beside the target", ", ".join(names) or "none")
    columns = without_missing(config, {name: columns[name] for name in [*names, target]})
    regression = config.data["task"] == "regression"
    values = columns[target]
    if regression:
        classes: list[Any] = []
        y = _numbers(config, target, values)
    else:
        classes, y = classes_of(config, list(values))
    training, held_out = split(config, None if regression else y, len(y))
    features = [_feature(config, name, columns[name], training) for name in names]
    x = np.concatenate([encoded(columns[f["name"]], f.get("categories")) for f in features], 1)
    prepared = _standardized(x[training], features)
    target_scale = (float(y[training].mean()), float(y[training].std()) or 1.0) if regression else None
    sizes = [x.shape[1], *config.model["hidden"], 1 if regression else len(classes)]
    net = TableNet(prepared, sizes, config.model["dropout"], target_scale)
    options = {"features": features, "target": target, "task": config.data["task"], "classes": classes,
               "delimiter": config.data["delimiter"], "takes": TAKES}  # fmt: skip
    size, seed = config.training["batch_size"], config.training["seed"]
    text = f"{len(y):,} rows: {len(training):,} to train on, {len(held_out):,} held out; "
    text += f"{len(names)} features"
    return Problem(
        net, _relative_error(target_scale[1]) if target_scale else cross_entropy,
        {"mean_absolute_error": MeanAbsoluteError(), "r2": R2Score()} if regression else {
            "accuracy": Accuracy(task="multiclass", num_classes=len(classes))},
        DataLoader(TensorDataset(x[training], y[training]), size, shuffle=True, seed=seed),
        DataLoader(TensorDataset(x[held_out], y[held_out]), size),
        x[training][:8], options, text + ("" if regression else f", {len(classes)} classes"),
    )  # fmt: skip


def _relative_error(std: float) -> Any:
    """Return the mean squared error, as a share of the target's variance."""

    def loss(output: Tensor, target: Tensor) -> Tensor:
        error: Tensor = mse_loss(output / std, target / std)
        return error

    return loss


def read_table(config: Config, wanted: Sequence[str] | None, texts: Sequence[str] = ()) -> dict[str, Any]:
    """Return the columns of a Parquet or CSV file that are wanted, `texts` as they stand in a CSV file.

    Missing values are None or NaN. Raises: AttributeValueError, and what sources raise.
    """
    path = config.located(config.data["path"])
    if path.suffix.lower() not in SUFFIXES:
        raise config.refuse("[data] path ends in .parquet or .csv", config.data["path"])
    there = names_of(path, config.data["delimiter"])
    for name in wanted or ():
        if name not in there:
            raise missing_column(config, name, there)
    columns = read_columns(path, wanted or there, config.data["delimiter"], dict.fromkeys(texts, str))
    if not columns or not len(next(iter(columns.values()))):
        raise config.refuse("the file has no rows", config.data["path"])
    return columns


def names_of(path: Path, delimiter: str) -> list[str]:
    """Return the names of a file's columns. Raises: what sources raise."""
    parquet = path.suffix.lower() == ".parquet"
    return list(Parquet(path).names if parquet else CSV(path, delimiter=delimiter).columns)


def read_columns(
    path: Path, names: Sequence[str], delimiter: str, types: Mapping[str, Any]
) -> dict[str, Any]:
    """Return columns of a Parquet or CSV file. Raises: what sources raise.

    In a CSV file whose `types` do not say otherwise a column of whole numbers may have empty cells and
    fractions, in any row: it is then a list of integers, floats and None. Of texts those that are blank are
    None: a CSV file says in no other way that one is missing.
    """
    if path.suffix.lower() == ".parquet":
        source = Parquet(path, names)
        return dict(source.columns_at(range(len(source))))
    table = CSV(path, names, delimiter=delimiter, types=types)
    loose = {name: number_or_empty for name, kind in table.types.items() if kind is whole_or_missing}
    rows = range(len(table))
    try:
        if loose:
            table = CSV(path, names, delimiter=delimiter, types=table.types | loose)
        columns = table.columns_at(rows)
    except BadRowError:  # the first rows of a column were whole numbers, and this one is none
        loose |= {name: number_or_empty for name, kind in table.types.items() if kind is whole}
        columns = CSV(path, names, delimiter=delimiter, types=table.types | loose).columns_at(rows)
    return {name: _without_empty(values) for name, values in columns.items()}


def _without_empty(values: Any) -> Any:
    if not isinstance(values, (list, tuple)):
        return values
    return [None if isinstance(value, str) and not value.strip() else value for value in values]


def without_missing(config: Config, columns: Mapping[str, Any]) -> dict[str, Array]:
    """Return columns as arrays; rows with a missing value are left out, or refused.

    Raises: AttributeValueError.
    """
    bad = np.zeros(len(next(iter(columns.values()))), bool)
    for name, values in columns.items():
        missing = is_missing(values)
        if missing.any() and config.data["missing"] == "refuse":
            raise config.refuse(
                f"column {name!r} has missing values, or some that are not finite",
                f"{missing.sum()} of {len(missing)} rows, the first is row {int(missing.argmax())}",
                'missing = "drop" in [data] leaves such rows out',
            )
        bad |= missing
    if bad.all():
        raise config.refuse("every row has a missing value", f"{len(bad)} rows")
    return {
        name: np.array([v for v, is_bad in zip(values, bad, strict=True) if not is_bad])
        if isinstance(values, (list, tuple)) else values[~bad]
        for name, values in columns.items()
    }  # fmt: skip


def is_missing(values: Any) -> Array:
    array = np.asarray(values) if not isinstance(values, (list, tuple)) else None
    if array is not None and array.dtype.kind in "biuf":
        return ~np.isfinite(array) if array.dtype.kind == "f" else np.zeros(len(array), bool)
    return np.array([v is None or (isinstance(v, float) and not np.isfinite(v)) for v in values])


def _numbers(config: Config, name: str, values: Array) -> Array:
    """Return a column as float32. Raises: AttributeValueError where it is none of numbers."""
    if values.dtype.kind not in "biuf":
        raise config.refuse(f"column {name!r} has numbers", f"{values.dtype} {values[0]!r:.40}")
    return values.astype(np.float32)


def _feature(config: Config, name: str, values: Array, training: Array) -> dict[str, Any]:
    """Return how a column is encoded: as a number, or, of texts, by categories of the rows trained on."""
    if values.dtype.kind in "biuf" and values.ndim == 1:
        return {"name": name}
    if values.dtype.kind not in "OU" or not all(isinstance(v, str) for v in values):
        raise config.refuse(f"column {name!r} has numbers or texts", f"{values.dtype} {values[0]!r:.40}",
                            "features = [...] in [data] names the columns to use")  # fmt: skip
    categories = sorted(map(str, set(values[training].tolist())))
    if len(categories) > max(100, len(training) // 10):
        raise config.refuse(f"column {name!r} has too many different texts to be categories",
                            f"{len(categories)} in {len(training)} rows",
                            "features = [...] in [data] names the columns to use")  # fmt: skip
    return {"name": name, "categories": categories}


def encoded(values: Array, categories: list[str] | None) -> Array:
    """Return a column as float32 [rows, 1], or with a column for each category; others are zeros."""
    if categories is None:
        return values.astype(np.float32)[:, None]
    return np.asarray(values[:, None] == np.array(categories)[None, :], np.float32)


def _standardized(x: Array, features: Sequence[Mapping[str, Any]]) -> Standardized:
    """Return the layer that standardises numbers and leaves categories as they are."""
    is_number = np.concatenate([[True] if "categories" not in f else [False] * len(f["categories"])
                                for f in features])  # fmt: skip
    mean, std = x.mean(0, dtype=np.float64), x.std(0, dtype=np.float64)
    return Standardized(np.where(is_number, mean, 0), np.where(is_number, std, 1))
