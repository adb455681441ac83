"""Metrics of classes, all read off confusion matrices; rows are the true classes, columns the predicted."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from stratal.base.errors import AttributeValueError, ShapeError
from stratal.metrics.metric import Array, Metric, ratio

TASKS = ("binary", "multiclass", "multilabel")


class ConfusionMatrix(Metric):
    """How often each class was taken for each: [classes, classes], or [labels, 2, 2] of a multilabel task.

    `task` "binary" takes bits, or probabilities or logits compared with `threshold`, of the target's shape;
    "multiclass" takes labels of the target's shape, or scores with one axis more, axis 1, of the classes, of
    which a target among the `top_k` greatest counts as predicted; "multilabel" takes what binary tasks take,
    with axis 1 of the labels. Where any score of any batch lies outside [0, 1], all are logits; until then
    both are counted, so that results do not depend on how rows come in batches.
    Targets of `ignore_index` do not count. Raises: AttributeValueError for scores that are NaN, too.
    """

    def __init__(
        self, task: str, *, threshold: float = 0.5, num_classes: int | None = None,
        num_labels: int | None = None, top_k: int = 1, ignore_index: int | None = None,
    ) -> None:  # fmt: skip
        who = type(self).__name__
        needed = {"binary": 2, "multiclass": num_classes, "multilabel": num_labels}.get(task)
        if task not in TASKS or not isinstance(needed, int) or needed < 2 - (task == "multilabel"):
            raise AttributeValueError(
                f"{who}: task is binary, multiclass with num_classes above 1, or multilabel with num_labels",
                got=f"{task!r}, num_classes={num_classes}, num_labels={num_labels}",
            )
        if not 1 <= top_k <= needed or (top_k > 1 and task != "multiclass"):
            raise AttributeValueError(
                f"{who}: top_k counts classes of a multiclass task", got=f"{top_k}, task {task}"
            )
        self.task, self.threshold, self.top_k, self.ignore_index = task, threshold, top_k, ignore_index
        self.num_labels = needed if task == "multilabel" else 1
        self.num_classes = needed if task == "multiclass" else 2
        super().__init__()

    def start(self) -> dict[str, Any]:
        return {"matrix": np.zeros((self._readings(), *self._shape()), np.int64), "outside": 0}

    def _readings(self) -> int:
        """Return how many ways scores are read: as probabilities, and as logits, where that differs."""
        return 1 if self.task == "multiclass" else 2

    def _shape(self) -> tuple[int, int, int]:
        return self.num_labels, self.num_classes, self.num_classes

    def batch(self, preds: Any, target: Any) -> dict[str, Any]:
        p, t = np.asarray(preds), np.asarray(target)
        counted = np.ones(t.shape, bool) if self.ignore_index is None else t != self.ignore_index
        t = self._labels("target", np.where(counted, t, 0).astype(t.dtype))
        outside, readings = 0, [p]
        if self.task != "multiclass" and p.dtype.kind == "f":
            if p.shape == t.shape:
                self._check_numbers(p[counted])
                outside = int(np.count_nonzero(outside_of_probabilities(p[counted])))
            readings = [p.astype(np.float64) > self.threshold, sigmoid(p) > self.threshold]
        elif self.task == "multiclass" and p.ndim == t.ndim + 1 and p.shape[1] == self.num_classes:
            best = self._best(p, t)
            if best.shape == t.shape:
                self._check_numbers(np.moveaxis(p, 1, -1)[counted])
            readings = [best]
        matrices = [self._counted(self._labels("preds", reading), t, counted) for reading in readings]
        return {"matrix": np.stack(matrices * (self._readings() // len(matrices))), "outside": outside}

    def _check_numbers(self, scores: Array) -> None:
        if scores.dtype.kind == "f" and np.any(np.isnan(scores)):
            raise AttributeValueError(f"{type(self).__name__}: preds must be numbers", got="NaN")

    def _counted(self, p: Array, t: Array, counted: Array) -> Array:
        """Return how often each class was taken for each, of those that count."""
        labelled = self.task == "multilabel"
        if p.shape != t.shape or (labelled and (t.ndim < 2 or t.shape[1] != self.num_labels)):
            wanted = f", {self.num_labels} labels" * (self.num_labels > 1)
            raise ShapeError(
                f"{type(self).__name__}: preds and target do not fit",
                got=f"{list(p.shape)}, {list(t.shape)}{wanted}",
            )
        label = np.arange(self.num_labels).reshape(-1, *(1,) * (t.ndim - 2)) if labelled else 0
        cell = (label * self.num_classes + t) * self.num_classes + p
        return np.bincount(cell[counted], minlength=int(np.prod(self._shape()))).reshape(self._shape())

    def _best(self, scores: Array, target: Array) -> Array:
        """Return the class of the greatest score, but the target where it is among the `top_k`."""
        best = np.asarray(scores.argmax(axis=1))
        if self.top_k == 1 or scores.shape[:1] + scores.shape[2:] != target.shape:
            return best
        top = np.argsort(-scores, axis=1, kind="stable").take(np.arange(self.top_k), axis=1)
        return np.where((top == np.expand_dims(target, 1)).any(axis=1), target, best)

    def _labels(self, name: str, labels: Array) -> Array:
        whole = labels.astype(np.int64)
        if labels.dtype.kind not in "biu" or np.any((whole < 0) | (whole >= self.num_classes)):
            raise AttributeValueError(
                f"{type(self).__name__}: {name} must be classes from 0 to {self.num_classes - 1}",
                got=f"{labels.dtype}{list(labels.shape)}",
            )
        return whole

    def value(self, state: dict[str, Any]) -> Any:
        matrix = self.matrix(state)
        return matrix if self.task == "multilabel" else matrix[0]

    def matrix(self, state: dict[str, Any]) -> Array:
        """Return the counts [labels, classes, classes]: those of logits where a score was no probability."""
        return np.asarray(state["matrix"][-1 if state["outside"] > 0 else 0])


def outside_of_probabilities(scores: Array) -> Array:
    """Return which scores are no probabilities: those outside [0, 1]."""
    return np.asarray((scores < 0) | (scores > 1))


def sigmoid(scores: Array) -> Array:
    """Return the probabilities of logits, in double precision."""
    return np.asarray(1 / (1 + np.exp(-np.clip(scores.astype(np.float64), -700, 700))))


def softmax(scores: Array) -> Array:
    """Return the probabilities of logits of classes, axis 1."""
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


class Averaged(ConfusionMatrix):
    """A ratio of counts, of the positive class if binary, else averaged over classes or labels.

    `average`: "micro" counts all together, "macro" takes the plain mean over the classes that occur, without
    `ignore_index`, or over the labels, "weighted" weights them by how often they are true, None or "none"
    gives one value per class.
    """

    higher_is_better = True
    usual: ClassVar[str] = "micro"

    def __init__(
        self, task: str, *, threshold: float = 0.5, num_classes: int | None = None,
        num_labels: int | None = None, average: str | None = "", top_k: int = 1,
        ignore_index: int | None = None,
    ) -> None:  # fmt: skip
        average = self.usual if average == "" else average
        if average not in ("micro", "macro", "weighted", "none", None):
            raise AttributeValueError(
                f"{type(self).__name__}: average is micro, macro, weighted or None", got=repr(average)
            )
        self.average = None if average == "none" else average
        super().__init__(
            task, threshold=threshold, num_classes=num_classes, num_labels=num_labels, top_k=top_k,
            ignore_index=ignore_index,
        )  # fmt: skip

    def score(self, hit: Array, predicted: Array, true: Array, count: Array) -> Array:
        """Return the ratio from how often a class was hit, predicted, true, and how many there are in all."""
        raise NotImplementedError

    def value(self, state: dict[str, Any]) -> Any:
        matrix = self.matrix(state)
        if self.task == "multiclass":
            hit, predicted, true = np.diag(matrix[0]), matrix[0].sum(0), matrix[0].sum(1)
        else:
            hit, predicted, true = matrix[:, 1, 1], matrix[:, :, 1].sum(1), matrix[:, 1, :].sum(1)
        counts = (hit, predicted, true, np.broadcast_to(matrix.sum((1, 2)), hit.shape))
        if self.task == "binary" or self.average == "micro":
            return float(self.score(*(np.asarray(c.sum()) for c in counts)))
        each = self.score(*counts)
        if self.average is None:
            return each
        occurs = np.ones(hit.shape, bool) if self.task == "multilabel" else predicted + true > 0
        if self.task == "multiclass" and self.ignore_index in range(self.num_classes):
            occurs[self.ignore_index] = False  # it may be predicted, but is never true
        weights = true if self.average == "weighted" else occurs
        return float(ratio((each * weights).sum(), weights.sum()))


class Precision(Averaged):
    """The share of what was predicted that is true."""

    def score(self, hit: Array, predicted: Array, true: Array, count: Array) -> Array:
        return ratio(hit, predicted)


class Recall(Averaged):
    """The share of what is true that was predicted."""

    def score(self, hit: Array, predicted: Array, true: Array, count: Array) -> Array:
        return ratio(hit, true)


class Specificity(Averaged):
    """The share of what is not true that was not predicted."""

    def score(self, hit: Array, predicted: Array, true: Array, count: Array) -> Array:
        return ratio(count - predicted - true + hit, count - true)


class JaccardIndex(Averaged):
    """Intersection over union."""

    usual = "macro"

    def score(self, hit: Array, predicted: Array, true: Array, count: Array) -> Array:
        return ratio(hit, predicted + true - hit)


class FBetaScore(Averaged):
    """The harmonic mean of precision and recall, recall counting beta^2 times as much."""

    def __init__(self, task: str, beta: float = 1.0, **options: Any) -> None:
        if not beta > 0:
            raise AttributeValueError(f"{type(self).__name__}: beta must be positive", got=str(beta))
        self.beta = beta
        super().__init__(task, **options)

    def score(self, hit: Array, predicted: Array, true: Array, count: Array) -> Array:
        square = self.beta**2
        return ratio((1 + square) * hit, square * true + predicted)


class F1Score(FBetaScore):
    """The harmonic mean of precision and recall."""

    def __init__(self, task: str, **options: Any) -> None:
        super().__init__(task, 1.0, **options)


class Accuracy(Averaged):
    """The share of correct predictions; of several classes, averaged, the mean of their recalls."""

    def score(self, hit: Array, predicted: Array, true: Array, count: Array) -> Array:
        if self.task == "multiclass":
            return ratio(hit, true)
        return ratio(count - predicted - true + 2 * hit, count)


class HammingDistance(Accuracy):
    """The share of wrong predictions of each class or label, by default the plain mean of these ("macro", as
    torchmetrics has it); "micro" is 1 - `Accuracy`.
    """

    higher_is_better = False
    usual = "macro"

    def score(self, hit: Array, predicted: Array, true: Array, count: Array) -> Array:
        return np.asarray(1 - super().score(hit, predicted, true, count))


class ExactMatch(ConfusionMatrix):
    """The share of rows all of whose labels, or classes along the other axes, are right."""

    higher_is_better = True

    def start(self) -> dict[str, Any]:
        return {"right": np.zeros(2, np.int64), "rows": 0, "outside": 0}  # as probabilities, as logits

    def batch(self, preds: Any, target: Any) -> dict[str, Any]:
        state = self.start()
        for p, t in zip(np.asarray(preds), np.asarray(target), strict=True):
            row = super().batch(p[None], t[None])
            matrices = row["matrix"].sum(1)
            state["right"] += np.trace(matrices, axis1=1, axis2=2) == matrices.sum((1, 2))
            state["rows"] += 1
            state["outside"] += row["outside"]
        return state

    def value(self, state: dict[str, Any]) -> Any:
        return float(ratio(state["right"][int(state["outside"] > 0)], state["rows"]))


class MatthewsCorrCoef(ConfusionMatrix):
    """The correlation of true and predicted classes, 0 where either never varies. See: Gorodkin 2004."""

    higher_is_better = True

    def value(self, state: dict[str, Any]) -> Any:
        matrix = self.matrix(state).sum(0).astype(np.float64)
        predicted, true, count = matrix.sum(0), matrix.sum(1), matrix.sum()
        shared = np.trace(matrix) * count - true @ predicted
        return float(ratio(shared, np.sqrt((count**2 - predicted @ predicted) * (count**2 - true @ true))))


class CohenKappa(ConfusionMatrix):
    """How far agreement exceeds that of chance, 1 at most; NaN where only one class occurs. See: Cohen 1960.

    `weights`: how much a disagreement of classes i and j counts: 1 (None), |i - j| ("linear") or its square
    ("quadratic").
    """

    higher_is_better = True

    def __init__(self, task: str, *, weights: str | None = None, **options: Any) -> None:
        if weights not in ("linear", "quadratic", "none", None):
            raise AttributeValueError("CohenKappa: weights are linear, quadratic or None", got=repr(weights))
        if task == "multilabel":
            raise AttributeValueError("CohenKappa: task is binary or multiclass", got=repr(task))
        self.weights = None if weights == "none" else weights
        super().__init__(task, **options)

    def value(self, state: dict[str, Any]) -> Any:
        matrix = self.matrix(state)[0].astype(np.float64)
        places = np.arange(self.num_classes)
        off = np.abs(places[:, None] - places)
        cost = {None: (off > 0).astype(float), "linear": off, "quadratic": off**2}[self.weights]
        chance = (cost * np.outer(matrix.sum(1), matrix.sum(0))).sum()
        return float(1 - (cost * matrix).sum() * matrix.sum() / chance) if chance else float("nan")
