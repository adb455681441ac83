"""Metrics of numbers: errors, means, how much of a variance is explained, correlations."""

from __future__ import annotations

from typing import Any

import numpy as np

from stratal.base.errors import AttributeValueError, ShapeError
from stratal.metrics.metric import Array, Metric, pair, ratio


class MeanMetric(Metric):
    """The mean of values, weighted by `weight`."""

    def start(self) -> dict[str, Any]:
        return {"total": 0.0, "weight": 0.0}

    def batch(self, value: Any, weight: Any = 1.0) -> dict[str, Any]:
        x = np.asarray(value, np.float64)
        w = np.broadcast_to(np.asarray(weight, np.float64), x.shape)
        return {"total": float((x * w).sum()), "weight": float(w.sum())}

    def value(self, state: dict[str, Any]) -> Any:
        return float(ratio(state["total"], state["weight"]))


class MeanError(MeanMetric):
    """The mean of a function of predictions and targets."""

    higher_is_better = False

    def error(self, preds: Array, target: Array) -> Array:
        """Return the error of each element."""
        raise NotImplementedError

    def batch(self, preds: Any, target: Any) -> dict[str, Any]:  # type: ignore[override]  # a pair for a value
        return super().batch(self.error(*pair(type(self).__name__, preds, target)))


class MeanSquaredError(MeanError):
    """The mean of (preds - target)^2; its root with squared=False."""

    def __init__(self, squared: bool = True) -> None:
        self.squared = squared
        super().__init__()

    def error(self, preds: Array, target: Array) -> Array:
        return np.asarray((preds - target) ** 2)

    def value(self, state: dict[str, Any]) -> Any:
        return super().value(state) ** (1.0 if self.squared else 0.5)


class MeanAbsoluteError(MeanError):
    """The mean of |preds - target|."""

    def error(self, preds: Array, target: Array) -> Array:
        return np.abs(preds - target)


class MeanAbsolutePercentageError(MeanError):
    """The mean of |preds - target| / |target|, where |target| is at least 1.17e-6."""

    def error(self, preds: Array, target: Array) -> Array:
        return np.asarray(np.abs(preds - target) / np.maximum(np.abs(target), 1.17e-6))


class MeanSquaredLogError(MeanError):
    """The mean of (log(1 + preds) - log(1 + target))^2."""

    def error(self, preds: Array, target: Array) -> Array:
        if np.any(preds <= -1) or np.any(target <= -1):
            raise AttributeValueError("MeanSquaredLogError: takes numbers above -1")
        return np.asarray((np.log1p(preds) - np.log1p(target)) ** 2)


class Kept(Metric):
    """A number of all predictions and targets together, [N] or [N, outputs]; they are kept."""

    def start(self) -> dict[str, Any]:
        return {"preds": (), "target": ()}

    def batch(self, preds: Any, target: Any) -> dict[str, Any]:
        p, t = pair(type(self).__name__, preds, target)
        if p.ndim > 2:
            raise ShapeError(f"{type(self).__name__}: takes [N] or [N, outputs]", got=str(list(p.shape)))
        shape = p.shape if p.ndim == 2 else (-1, 1)
        return {"preds": (p.reshape(shape),), "target": (t.reshape(shape),)}

    def columns(self, preds: Array, target: Array) -> Array:
        """Return the number of each output, from arrays [N, outputs]."""
        raise NotImplementedError

    def value(self, state: dict[str, Any]) -> Any:
        each = self.columns(*(np.concatenate(state[name]) for name in ("preds", "target")))
        return float(each[0]) if each.size == 1 else each


class Explained(Kept):
    """1 - an error over a variance, of several outputs as `multioutput` says: mean, by variance, or each."""

    higher_is_better = True

    def __init__(self, multioutput: str = "uniform_average") -> None:
        if multioutput not in ("raw_values", "uniform_average", "variance_weighted"):
            raise AttributeValueError(
                f"{type(self).__name__}: multioutput is raw_values, uniform_average or variance_weighted",
                got=repr(multioutput),
            )
        self.multioutput = multioutput
        super().__init__()

    def error(self, preds: Array, target: Array) -> Array:
        """Return the mean square of what is not explained."""
        raise NotImplementedError

    def columns(self, preds: Array, target: Array) -> Array:
        error, about = self.error(preds, target), target.var(0)
        each = np.where(about > 0, 1 - ratio(error, about), np.nan)
        if self.multioutput == "raw_values":
            return each
        weights = about if self.multioutput == "variance_weighted" else np.ones(each.shape)
        return np.atleast_1d(np.average(each, weights=weights) if weights.sum() else np.nan)


class R2Score(Explained):
    """1 - the mean squared error over the variance; of a constant target, NaN."""

    def error(self, preds: Array, target: Array) -> Array:
        return np.asarray(((preds - target) ** 2).mean(0))


class ExplainedVariance(Explained):
    """1 - the variance of errors over the variance; of a constant target, NaN."""

    def error(self, preds: Array, target: Array) -> Array:
        return np.asarray((preds - target).var(0))


class PearsonCorrCoef(Kept):
    """The correlation of predictions and targets; NaN where either does not vary."""

    higher_is_better = True

    def columns(self, preds: Array, target: Array) -> Array:
        p, t = preds - preds.mean(0), target - target.mean(0)
        under = np.sqrt((p * p).sum(0) * (t * t).sum(0))
        return np.where(under > 0, ratio((p * t).sum(0), under), np.nan)


class SpearmanCorrCoef(PearsonCorrCoef):
    """The correlation of ranks; equal numbers share the mean of theirs, NaN has none, nor a correlation."""

    def columns(self, preds: Array, target: Array) -> Array:
        return super().columns(*(np.apply_along_axis(_ranks, 0, x) for x in (preds, target)))


def _ranks(x: Array) -> Array:
    _, place, count = np.unique(x, return_inverse=True, return_counts=True)
    return np.where(np.isnan(x).any(), np.nan, (np.cumsum(count) - (count - 1) / 2)[place])


class CosineSimilarity(Metric):
    """The cosine of the angle between rows of predictions and targets: "sum", "mean" or "none" of them."""

    higher_is_better = True

    def __init__(self, reduction: str | None = "sum") -> None:
        if reduction not in ("sum", "mean", "none", None):
            raise AttributeValueError("CosineSimilarity: reduction is sum, mean or none", got=repr(reduction))
        self.reduction = reduction
        super().__init__()

    def start(self) -> dict[str, Any]:
        return {"rows": ()}

    def batch(self, preds: Any, target: Any) -> dict[str, Any]:
        p, t = pair("CosineSimilarity", preds, target)
        if p.ndim < 2:
            raise ShapeError("CosineSimilarity: takes rows [N, D]", got=str(list(p.shape)))
        norms = np.linalg.norm(p, axis=-1) * np.linalg.norm(t, axis=-1)
        return {"rows": (ratio((p * t).sum(-1), norms),)}

    def value(self, state: dict[str, Any]) -> Any:
        rows = np.concatenate(state["rows"])
        if self.reduction in ("none", None):
            return rows
        return float(rows.sum() if self.reduction == "sum" else rows.mean())
