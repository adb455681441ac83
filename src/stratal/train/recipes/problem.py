"""What the kinds of problems share: what a fit is given, splits of rows, and layers of preparation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

import numpy as np

from stratal.base.errors import AttributeValueError
from stratal.data.shuffle import permutation, stratified_split
from stratal.nn.module import Module
from stratal.tensor.tensor import Tensor, tensor
from stratal.train.recipes.config import Config
from stratal.train.recipes.keys import toml_of

Array = np.ndarray[Any, Any]


class Problem(NamedTuple):
    """Data, net, loss and metrics of a configuration."""

    net: Module
    loss: Callable[[Any, Any], Tensor]
    metrics: Mapping[str, Any]
    training: Any  # batches
    validation: Any
    example: Any  # inputs to save the net's graph with
    options: dict[str, Any]  # what a reader of the model needs to know: classes, columns, words
    text: str  # what was found, in a line


class Standardized(Module):
    """(input - mean) / std, of numbers that are part of the model; shapes broadcast with the input's."""

    def __init__(self, mean: Array, std: Array) -> None:
        super().__init__()
        self.register_buffer("mean", tensor(mean.astype(np.float32)))
        self.register_buffer("std", tensor(np.where(std > 0, std, 1).astype(np.float32)))

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = (input - self.mean) / self.std
        return output


def classes_of(config: Config, values: Sequence[Any]) -> tuple[list[Any], Array]:
    """Return the classes of a target, sorted, and the number of each row's. Raises: AttributeValueError."""
    plain = [v.item() if hasattr(v, "item") else v for v in values]
    kinds = {type(v) for v in plain}
    if len(kinds) != 1 or not kinds <= {str, int, bool}:
        hint = 'task = "regression" in [data] predicts numbers' if kinds == {float} else ""
        raise config.refuse("classes are texts, whole numbers or truth values of one type",
                            ", ".join(sorted(k.__name__ for k in kinds)) or "no rows", hint)  # fmt: skip
    classes = sorted(set(plain))
    if len(classes) < 2:
        raise config.refuse("a target has at least two classes", f"{len(classes)} in {len(plain)} rows")
    numbers = {c: k for k, c in enumerate(classes)}
    return classes, np.array([numbers[v] for v in plain], np.int64)


def missing_column(config: Config, name: str, there: Collection[str]) -> AttributeValueError:
    """Return the error for a column that a file does not have."""
    near = get_close_matches(name, there, 1)
    hint = f"did you mean {near[0]}?" if near else ""
    if len(there) == 1 and (between := [c for c in ";\t|" if c in next(iter(there))]):
        hint = f"delimiter = {toml_of(between[0])} in [data], if that is what stands between columns"
    what = f"[data] names a column that the file does not have: {name!r}"
    return config.refuse(what, ", ".join(there), hint)


def split(config: Config, labels: Array | None, count: int) -> tuple[Array, Array]:
    """Return the positions to train on and those held out, of each class a share where there are labels.

    Raises: AttributeValueError where one of the two has no rows.
    """
    share, seed = config.data["validation"], config.training["seed"]
    if labels is not None:
        several = len(np.unique(labels)) < len(labels)  # rows of a label: one alone is not held out
        training, held_out = stratified_split(labels, share, seed) if several else (labels, labels[:0])
    else:
        order = permutation(count, seed)
        held_out, training = np.split(order, [round(share * count)])
    if not len(training) or not len(held_out):
        what = "too few rows to train on some and hold others out"
        raise config.refuse(what, f"{count}, validation = {share}")
    return training, held_out
