"""Metrics by name: those of `stratal.metrics`, and plain functions of (outputs, targets)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np

from stratal.base import tree
from stratal.base.errors import AttributeValueError, DTypeError, StratalError
from stratal.metrics import MeanMetric, Metric
from stratal.tensor.tensor import Tensor
from stratal.train.history import TIMES
from stratal.train.monitored import higher_is_better

Given = Mapping[str, Any] | Sequence[Any] | None


class MeanOf(MeanMetric):
    """The mean over samples of a function of outputs and targets that returns the mean of a batch.

    `rows` is how many samples the batch has; targets that are one tensor say so themselves, trees do not.
    """

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self.function = function
        self.higher_is_better = higher_is_better(function)
        super().__init__()

    def batch(self, preds: Any, target: Any, rows: int) -> dict[str, Any]:  # type: ignore[override]
        own = isinstance(target, Tensor) and target.ndim
        return super().batch(np.asarray(self.function(preds, target)), len(target) if own else rows)


class MetricSet(Mapping[str, Metric]):
    """Metrics that see the same batches. A list is named by the metrics' classes, in snake case.

    Raises: AttributeValueError, DTypeError for what is no metric and no function.
    """

    def __init__(self, given: Given) -> None:
        if isinstance(given, Metric | str) or not isinstance(given, Mapping | Sequence | None):
            raise DTypeError(
                "Trainer: metrics is a list, or a dict of names", got=f"{given!r:.60}",
                hint="metrics=[metric]",
            )  # fmt: skip
        pairs = given.items() if isinstance(given, Mapping) else [(_name_of(m), m) for m in given or ()]
        self.members: dict[str, Metric] = {}
        for name, metric in pairs:
            if name in self.members or name in (*TIMES, "epoch", "loss", "lr", "skipped"):
                raise AttributeValueError(
                    "Trainer: metrics have names of their own", got=name, hint="metrics={name: metric, ..}"
                )
            self.members[name] = self._member(name, metric)

    @staticmethod
    def _member(name: str, metric: Any) -> Metric:
        if isinstance(metric, Metric):
            return metric
        if not callable(metric) or isinstance(metric, type):
            raise DTypeError(
                "Trainer: a metric is one of st.metrics, or a function of (outputs, targets)",
                got=f"{name}: {getattr(metric, '__name__', repr(metric))}",
                hint="metrics=[st.metrics.Accuracy(..)], or a dict of names",
            )  # fmt: skip
        return MeanOf(metric)

    def __getitem__(self, name: str) -> Metric:
        return self.members[name]

    def __iter__(self) -> Any:
        return iter(self.members)

    def __len__(self) -> int:
        return len(self.members)

    def update(self, outputs: Any, target: Any, rows: int) -> None:
        """Add a batch of so many samples to all."""
        for name, metric in self.members.items():
            try:
                metric.update(outputs, target, *([rows] if isinstance(metric, MeanOf) else []))
            except StratalError as error:
                if isinstance(metric, MeanOf) or isinstance(target, Tensor):
                    raise
                kind = type(metric).__name__
                raise DTypeError(
                    f"Trainer: the metric {name} takes no targets that are a {type(target).__name__}",
                    got=error.summary,
                    hint=f"a subclass of {kind} whose batch(self, preds, target) returns "
                    "super().batch(preds, target[0]), or a function",
                ) from error  # fmt: skip

    def reset(self) -> None:
        """Forget all batches."""
        for metric in self.members.values():
            metric.reset()

    def copies(self) -> MetricSet:
        """Return metrics of the same kind that have seen nothing."""
        made = MetricSet({name: deepcopy(metric) for name, metric in self.members.items()})
        made.reset()
        return made

    def results(self) -> dict[str, Any]:
        """Return the values by name: floats, or arrays where a metric has several."""
        return {name: _plain(metric.compute()) for name, metric in self.members.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the sums of each metric; nothing of those that have seen no batch."""
        return {name: m.state for name, m in self.members.items() if m._seen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self.reset()
        for name, sums in state.items():
            if name not in self.members:
                raise AttributeValueError("Trainer: the checkpoint has a metric that is not here", got=name)
            self.members[name].state = tree.map(_array, sums)
            self.members[name]._seen = True


def _array(leaf: Any) -> Any:
    return np.asarray(leaf) if isinstance(leaf, Tensor) else leaf


def _plain(value: Any) -> Any:
    return float(value) if np.ndim(value) == 0 else np.asarray(value).tolist()


def _name_of(metric: Any) -> str:
    name = getattr(metric, "__name__", type(metric).__name__)
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
