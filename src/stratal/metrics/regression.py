"""Metrics of numbers: errors, means, and how much of a variance is explained."""

from __future__ import annotations

from typing import Any

import numpy as np

from stratal.metrics.metric import Metric, pair, ratio


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


class MeanSquaredError(MeanMetric):
    """The mean of (preds - target)^2; its root with squared=False."""

    def __init__(self, squared: bool = True) -> None:
        self.squared = squared
        super().__init__()

    def batch(self, preds: Any, target: Any) -> dict[str, Any]:
        p, t = pair(type(self).__name__, preds, target)
        return super().batch((p - t) ** 2)

    def value(self, state: dict[str, Any]) -> Any:
        return super().value(state) ** (1.0 if self.squared else 0.5)


class MeanAbsoluteError(MeanMetric):
    """The mean of |preds - target|."""

    def batch(self, preds: Any, target: Any) -> dict[str, Any]:
        p, t = pair(type(self).__name__, preds, target)
        return super().batch(np.abs(p - t))


class R2Score(Metric):
    """1 - the sum of squared errors over the sum of squares about the mean; of a constant target, NaN."""

    def start(self) -> dict[str, Any]:
        return {"error": 0.0, "targets": ()}

    def batch(self, preds: Any, target: Any) -> dict[str, Any]:
        p, t = pair("R2Score", preds, target)
        return {"error": float(((p - t) ** 2).sum()), "targets": (t.ravel(),)}

    def value(self, state: dict[str, Any]) -> Any:
        t = np.concatenate(state["targets"])
        about = float(((t - t.mean()) ** 2).sum()) if t.size else 0.0
        return 1 - state["error"] / about if about else float("nan")
