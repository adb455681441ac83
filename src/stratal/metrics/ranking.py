"""Metrics of scores over all thresholds. They keep every score and target they have seen."""

from __future__ import annotations

from typing import Any

import numpy as np

from stratal.base.errors import AttributeValueError, ShapeError
from stratal.metrics.classification import TASKS, outside_of_probabilities, sigmoid, softmax
from stratal.metrics.metric import Array, Metric, pair, ratio


class Ranking(Metric):
    """A number of a curve per class, against all others, or per label; averaged over them.

    `task` "binary" takes scores and bits of one shape; "multiclass" scores [N, classes] and classes [N];
    "multilabel" scores and bits [N, labels]. Where any score of any batch lies outside [0, 1], all are
    logits: they become probabilities, by softmax if multiclass, else by sigmoid.
    `average` "macro" is the plain mean over the classes whose curve exists, "weighted" weights by how often
    they are true, None gives one value per class.
    """

    def __init__(
        self, task: str = "binary", *, num_classes: int | None = None, num_labels: int | None = None,
        average: str | None = "macro",
    ) -> None:  # fmt: skip
        columns = {"binary": 1, "multiclass": num_classes, "multilabel": num_labels}.get(task)
        if task not in TASKS or not columns:
            raise AttributeValueError(
                f"{type(self).__name__}: task is binary, multiclass (num_classes) or multilabel (num_labels)",
                got=f"{task!r}, num_classes={num_classes}, num_labels={num_labels}",
            )
        if average not in ("macro", "weighted", "none", None):
            raise AttributeValueError(
                f"{type(self).__name__}: average is macro, weighted or None", got=repr(average)
            )
        self.task, self.columns, self.average = task, int(columns), None if average == "none" else average
        super().__init__()

    def start(self) -> dict[str, Any]:
        return {"preds": (), "target": ()}

    def batch(self, preds: Any, target: Any) -> dict[str, Any]:
        who = type(self).__name__
        if self.task == "multiclass":
            classes = np.asarray(target)
            if classes.dtype.kind not in "iu" or np.any((classes < 0) | (classes >= self.columns)):
                raise AttributeValueError(f"{who}: target must be classes from 0 to {self.columns - 1}")
            target = classes[..., None] == np.arange(self.columns)
        p, t = pair(who, preds, target)
        if self.task != "binary" and (p.ndim != 2 or p.shape[1] != self.columns):
            raise ShapeError(f"{who}: takes scores [N, {self.columns}]", got=str(list(p.shape)))
        if not np.all((t == 0) | (t == 1)) or np.any(np.isnan(p)):
            raise AttributeValueError(f"{who}: target must be 0 or 1, preds not NaN")
        return {"preds": (p.reshape(-1, self.columns),), "target": (t.reshape(-1, self.columns),)}

    def scores(self, state: dict[str, Any]) -> tuple[Array, Array]:
        """Return the probabilities and bits of all batches, [N, columns]."""
        p, t = (np.concatenate(state[name]) for name in ("preds", "target"))
        if not np.any(outside_of_probabilities(p)):
            return p, t
        return (softmax(p) if self.task == "multiclass" else sigmoid(p)), t

    def one(self, hits: Array, misses: Array) -> float:
        """Return the number of one curve; NaN where there is none."""
        raise NotImplementedError

    def value(self, state: dict[str, Any]) -> Any:
        p, t = self.scores(state)
        each = np.array([self.one(*curve(p[:, k], t[:, k])[:2]) for k in range(self.columns)])
        if self.task == "binary":
            return float(each[0])
        if self.average is None:
            return each
        weights = (t.sum(0) if self.average == "weighted" else np.ones(self.columns)) * ~np.isnan(each)
        found = ratio((np.nan_to_num(each) * weights).sum(), weights.sum())
        return float(found) if weights.sum() else float("nan")


def curve(scores: Array, bits: Array) -> tuple[Array, Array, Array]:
    """Return how many true and false ones score at least each distinct score, greatest first, and those."""
    order = np.argsort(-scores, kind="stable")
    p, t = scores[order], bits[order]
    last = np.append(np.flatnonzero(np.diff(p)), p.size - 1) if p.size else np.zeros(0, np.int64)
    return np.cumsum(t)[last], np.cumsum(1 - t)[last], p[last]


class AUROC(Ranking):
    """The probability that a true one scores above a false one, a tie counts half; NaN without both kinds."""

    higher_is_better = True

    def one(self, hits: Array, misses: Array) -> float:
        if not hits.size or not hits[-1] or not misses[-1]:
            return float("nan")
        y, x = np.append(0, hits) / hits[-1], np.append(0, misses) / misses[-1]
        return float(((y[1:] + y[:-1]) / 2 * np.diff(x)).sum())


class AveragePrecision(Ranking):
    """The mean of precision over recall, one step per distinct score; NaN where no target is 1."""

    higher_is_better = True

    def one(self, hits: Array, misses: Array) -> float:
        if not hits.size or not hits[-1]:
            return float("nan")
        steps = np.diff(np.append(0, hits)) / hits[-1]
        return float((steps * hits / (hits + misses)).sum())


class BinaryCurve(Ranking):
    """A curve of a binary task, as arrays; where scores are logits, its thresholds are probabilities."""

    def __init__(self) -> None:
        super().__init__("binary")

    def curve(self, state: dict[str, Any]) -> tuple[Array, Array, Array]:
        return curve(*(x[:, 0] for x in self.scores(state)))


class ROC(BinaryCurve):
    """The curve of true over false alarms of a binary task: (false rates, true rates, thresholds)."""

    def value(self, state: dict[str, Any]) -> Any:
        hits, misses, scores = self.curve(state)
        hits, misses = np.append(0, hits), np.append(0, misses)
        return ratio(misses, misses[-1]), ratio(hits, hits[-1]), np.append(np.inf, scores)


class PrecisionRecallCurve(BinaryCurve):
    """Precision and recall of a binary task at each threshold, least first, and at last 1 and 0."""

    def value(self, state: dict[str, Any]) -> Any:
        hits, misses, scores = self.curve(state)
        recall = ratio(hits, hits[-1] if hits.size else 0)
        return np.append(ratio(hits, hits + misses)[::-1], 1), np.append(recall[::-1], 0), scores[::-1]
