"""Metrics of classes, all read off the confusion matrix; rows are the true classes, columns the predicted."""

from __future__ import annotations

from typing import Any

import numpy as np

from stratal.base.errors import AttributeValueError, ShapeError
from stratal.metrics.metric import Array, Metric, ratio


class ConfusionMatrix(Metric):
    """How often each class was taken for each, [classes, classes].

    `task` "binary" takes labels, or probabilities or logits compared with `threshold`, of the target's shape;
    "multiclass" takes labels of the target's shape, or scores with one axis more, axis 1, of the classes.
    """

    def __init__(self, task: str, *, threshold: float = 0.5, num_classes: int | None = None) -> None:
        if task not in ("binary", "multiclass") or (task == "multiclass" and not (num_classes or 0) > 1):
            raise AttributeValueError(
                f"{type(self).__name__}: task is binary, or multiclass with num_classes of at least 2",
                got=f"{task!r}, num_classes={num_classes}",
            )
        self.task, self.threshold = task, threshold
        self.num_classes = 2 if task == "binary" else int(num_classes or 0)
        super().__init__()

    def start(self) -> dict[str, Any]:
        return {"matrix": np.zeros((self.num_classes, self.num_classes), np.int64)}

    def batch(self, preds: Any, target: Any) -> dict[str, Any]:
        p, t = np.asarray(preds), np.asarray(target)
        if self.task == "binary" and p.dtype.kind == "f":
            p = _probabilities(p) > self.threshold
        elif p.ndim == t.ndim + 1 and p.shape[1] == self.num_classes:
            p = p.argmax(axis=1)
        p, t = self._labels("preds", p), self._labels("target", t)
        if p.shape != t.shape:
            raise ShapeError(
                f"{type(self).__name__}: preds and target do not fit", got=f"{list(p.shape)}, {list(t.shape)}"
            )
        counts = np.bincount(t.ravel() * self.num_classes + p.ravel(), minlength=self.num_classes**2)
        return {"matrix": counts.reshape(self.num_classes, self.num_classes)}

    def _labels(self, name: str, labels: Array) -> Array:
        whole = labels.astype(np.int64)
        if labels.dtype.kind == "f" or np.any((whole < 0) | (whole >= self.num_classes)):
            raise AttributeValueError(
                f"{type(self).__name__}: {name} must be classes from 0 to {self.num_classes - 1}",
                got=f"{labels.dtype}{list(labels.shape)}",
            )
        return whole

    def value(self, state: dict[str, Any]) -> Any:
        return state["matrix"]


def _probabilities(scores: Array) -> Array:
    scores = scores.astype(np.float64)
    if np.all((scores >= 0) & (scores <= 1)):
        return scores
    return np.asarray(1 / (1 + np.exp(-np.clip(scores, -700, 700))))


class _Averaged(ConfusionMatrix):
    """A ratio of counts, of the positive class if binary, else averaged over classes.

    `average`: "micro" counts all classes together, "macro" takes the plain mean over the classes that occur,
    "weighted" weights them by how often they are true, None returns one value per class.
    """

    def __init__(
        self,
        task: str,
        *,
        threshold: float = 0.5,
        num_classes: int | None = None,
        average: str | None = "micro",
    ) -> None:
        if average not in ("micro", "macro", "weighted", None):
            raise AttributeValueError(
                f"{type(self).__name__}: average is micro, macro, weighted or None", got=repr(average)
            )
        self.average = average
        super().__init__(task, threshold=threshold, num_classes=num_classes)

    def score(self, hit: Array, predicted: Array, true: Array) -> Array:
        """Return the ratio from how often a class was hit, predicted, and true."""
        raise NotImplementedError

    def value(self, state: dict[str, Any]) -> Any:
        matrix = state["matrix"]
        hit, predicted, true = np.diag(matrix), matrix.sum(0), matrix.sum(1)
        if self.task == "binary":
            return float(self.score(hit[1], predicted[1], true[1]))
        if self.average == "micro":
            return float(self.score(hit.sum(), predicted.sum(), true.sum()))
        each = self.score(hit, predicted, true)
        if self.average is None:
            return each
        weights = true if self.average == "weighted" else (predicted + true > 0)
        return float(ratio((each * weights).sum(), weights.sum()))


class Precision(_Averaged):
    """The share of what was predicted that is true."""

    def score(self, hit: Array, predicted: Array, true: Array) -> Array:
        return ratio(hit, predicted)


class Recall(_Averaged):
    """The share of what is true that was predicted."""

    def score(self, hit: Array, predicted: Array, true: Array) -> Array:
        return ratio(hit, true)


class JaccardIndex(_Averaged):
    """Intersection over union."""

    def score(self, hit: Array, predicted: Array, true: Array) -> Array:
        return ratio(hit, predicted + true - hit)


class FBetaScore(_Averaged):
    """The harmonic mean of precision and recall, recall counting beta^2 times as much."""

    def __init__(
        self,
        task: str,
        beta: float = 1.0,
        *,
        threshold: float = 0.5,
        num_classes: int | None = None,
        average: str | None = "micro",
    ) -> None:
        if not beta > 0:
            raise AttributeValueError(f"{type(self).__name__}: beta must be positive", got=str(beta))
        self.beta = beta
        super().__init__(task, threshold=threshold, num_classes=num_classes, average=average)

    def score(self, hit: Array, predicted: Array, true: Array) -> Array:
        square = self.beta**2
        return ratio((1 + square) * hit, square * true + predicted)


class F1Score(FBetaScore):
    """The harmonic mean of precision and recall."""

    def __init__(
        self,
        task: str,
        *,
        threshold: float = 0.5,
        num_classes: int | None = None,
        average: str | None = "micro",
    ) -> None:
        super().__init__(task, 1.0, threshold=threshold, num_classes=num_classes, average=average)


class Accuracy(Recall):
    """The share of correct predictions; averaged over classes, the mean of their recalls."""

    def value(self, state: dict[str, Any]) -> Any:
        if self.task == "binary":
            return float(ratio(np.trace(state["matrix"]), state["matrix"].sum()))
        return super().value(state)


class MatthewsCorrCoef(ConfusionMatrix):
    """The correlation of true and predicted classes, 0 where either never varies. See: Gorodkin 2004."""

    def value(self, state: dict[str, Any]) -> Any:
        matrix = state["matrix"].astype(np.float64)
        predicted, true, count = matrix.sum(0), matrix.sum(1), matrix.sum()
        shared = np.trace(matrix) * count - true @ predicted
        return float(ratio(shared, np.sqrt((count**2 - predicted @ predicted) * (count**2 - true @ true))))
