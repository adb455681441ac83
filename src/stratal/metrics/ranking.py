"""Metrics of binary scores over all thresholds. They keep every score and target they have seen."""

from __future__ import annotations

from typing import Any

import numpy as np

from stratal.base.errors import AttributeValueError
from stratal.metrics.metric import Array, Metric, pair


class _Ranking(Metric):
    def start(self) -> dict[str, Any]:
        return {"preds": (), "target": ()}

    def batch(self, preds: Any, target: Any) -> dict[str, Any]:
        p, t = pair(type(self).__name__, preds, target)
        if not np.all((t == 0) | (t == 1)) or np.any(np.isnan(p)):
            raise AttributeValueError(f"{type(self).__name__}: target must be 0 or 1, preds not NaN")
        return {"preds": (p.ravel(),), "target": (t.ravel(),)}

    def curve(self, state: dict[str, Any]) -> tuple[Array, Array]:
        """Return how many true and false ones score at least each distinct score, greatest first."""
        p, t = (np.concatenate(state[name]) for name in ("preds", "target"))
        order = np.argsort(-p, kind="stable")
        p, t = p[order], t[order]
        last = np.append(np.flatnonzero(np.diff(p)), p.size - 1) if p.size else np.zeros(0, np.int64)
        return np.cumsum(t)[last], np.cumsum(1 - t)[last]


class AUROC(_Ranking):
    """The probability that a true one scores above a false one, a tie counts half; NaN without both kinds."""

    def value(self, state: dict[str, Any]) -> Any:
        hits, misses = self.curve(state)
        if not hits.size or not hits[-1] or not misses[-1]:
            return float("nan")
        y, x = np.append(0, hits) / hits[-1], np.append(0, misses) / misses[-1]
        return float(((y[1:] + y[:-1]) / 2 * np.diff(x)).sum())


class AveragePrecision(_Ranking):
    """The mean of precision over recall, one step per distinct score; NaN where no target is 1."""

    def value(self, state: dict[str, Any]) -> Any:
        hits, misses = self.curve(state)
        if not hits.size or not hits[-1]:
            return float("nan")
        steps = np.diff(np.append(0, hits)) / hits[-1]
        return float((steps * hits / (hits + misses)).sum())
