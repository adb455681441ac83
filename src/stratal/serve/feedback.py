"""Labelled feedback: what a model said, cached by request id until a client says what was true.

An output of floats with a score per class is compared by its largest score, integers by equality; an output
of one float by its absolute error. Other outputs take no feedback.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from stratal.formats.signature import Signature, TensorSpec
from stratal.serve.protocol import RequestError

Array = np.ndarray[Any, Any]
MOST_ROWS: Final = 200_000  # whose predictions are kept, of all models together
MOST_REQUESTS: Final = 50_000
LATEST: Final = 1000  # labelled rows that accuracy is of
LEAST_LABELS: Final = 50  # below which there is no alert


def kind_of(signature: Signature) -> str:
    """Return how the first output is compared: "scores", "class" or "value"; nothing where it is not."""
    spec: TensorSpec = signature.outputs[0]
    one = math.prod(spec.shape) == 1
    if not spec.batched or not (one or (len(spec.shape) == 1 and spec.shape[0] > 1)):
        return ""
    if spec.dtype.is_float:
        return "value" if one else "scores"
    return "class" if one and spec.dtype.is_integer else ""


def predictions(data: memoryview | bytes, signature: Signature) -> Array:
    """Return what the bytes of the first output say, one number a row. Raises: ValueError for others."""
    spec, kind = signature.outputs[0], kind_of(signature)
    values = np.frombuffer(data, spec.dtype.np).reshape(-1, math.prod(spec.shape))
    if kind == "scores":
        if values.dtype.kind != "f":  # bfloat16: NumPy has no argmax of it
            values = values.astype(np.float64)
        return np.asarray(values.argmax(1), np.int32)
    if not kind:
        raise ValueError("an output without predictions")
    return np.array(values[:, 0], np.int64 if kind == "class" else np.float64)  # a copy: data is a batch's


class Said(NamedTuple):
    """What was answered to a request: by which model and version, to whom, and the predictions."""

    model: str
    version: str
    caller: str
    kind: str
    values: Array


class Answers:
    """Predictions by the model that was asked and the request's id; the oldest are forgotten first."""

    def __init__(self) -> None:
        self._said: OrderedDict[tuple[str, str], Said] = OrderedDict()
        self._rows = 0

    def note(self, asked: str, identity: str, said: Said) -> None:
        """Keep what was answered; of an id that comes again the last answer."""
        self._forget(self._said.pop((asked, identity), None))
        self._said[asked, identity] = said
        self._rows += len(said.values)
        while self._rows > MOST_ROWS or len(self._said) > MOST_REQUESTS:
            self._forget(self._said.popitem(last=False)[1])

    def _forget(self, said: Said | None) -> None:
        if said is not None:
            self._rows -= len(said.values)

    def labelled(self, asked: str, identity: str, caller: str, label: Any) -> tuple[Said, Array]:
        """Return what was answered to an id, and how well: 1 or 0 a row, or its absolute error.

        An id takes feedback once, from whoever asked. Raises: RequestError.
        """
        said = self._said.get((asked, identity))
        if said is None or said.caller != caller:  # of another's request nothing is told
            raise RequestError(
                404,
                "feedback: no answer has this id, or it is forgotten, or has its label",
                got=identity[:128],
            )
        values = _labels(label, said)
        if said.kind == "value":
            with np.errstate(over="ignore", invalid="ignore"):
                found = np.abs(said.values - values)
            if not np.isfinite(found.sum()):  # no metric could forget it, and JSON does not have it
                raise RequestError(400, "feedback: the error of the answer is no finite number")
        else:
            found = (said.values == values).astype(np.float64)
        self._forget(self._said.pop((asked, identity)))
        return said, found


def _labels(label: Any, said: Said) -> Array:
    given = label if isinstance(label, list) else [label]
    fine = all(
        type(x) is int or (said.kind == "value" and type(x) is float and math.isfinite(x)) for x in given
    )
    if not fine or len(given) != len(said.values):
        what = "number" if said.kind == "value" else "class, an integer"
        raise RequestError(
            400, f"feedback: a {what} for each of {len(said.values)} rows", got=repr(label)[:80]
        )
    try:
        return np.array(given, np.float64 if said.kind == "value" else np.int64)
    except OverflowError:
        raise RequestError(400, "feedback: a label is beyond 64 bits", got=repr(label)[:80]) from None


@dataclass
class Accuracy:
    """The latest labelled rows of a model: 1 and 0, or absolute errors; their mean is watched."""

    kind: str
    latest: deque[float]

    @classmethod
    def of(cls, kind: str) -> Accuracy:
        return cls(kind, deque(maxlen=LATEST))

    def add(self, values: Sequence[float]) -> None:
        self.latest.extend(values)

    @property
    def mean(self) -> float:
        """Return the accuracy, or the mean absolute error, of the latest rows; NaN where there are none."""
        return sum(self.latest) / len(self.latest) if self.latest else math.nan

    def worse_than(self, least: float | None, most_error: float | None) -> bool:
        """Return whether it is surely worse than promised: by 1.645 standard errors (5 %, one-sided)."""
        bound = most_error if self.kind == "value" else least
        if bound is None or len(self.latest) < LEAST_LABELS:
            return False
        margin = 1.645 * float(np.std(list(self.latest))) / math.sqrt(len(self.latest))
        return self.mean - margin > bound if self.kind == "value" else self.mean + margin < bound
