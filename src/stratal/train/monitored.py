"""Columns of the history that are monitored, and which way they improve.

A loss should fall. A metric says itself which way is better (`Metric.higher_is_better`); of others, functions
and columns that callbacks add, it must be said, as a wrong guess would keep the worst in place of the best.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from stratal.base.errors import AttributeValueError, DTypeError
from stratal.optim.lr_scheduler import ReduceLROnPlateau
from stratal.train.history import column_like

_MODES = ("min", "max")


class Monitor:
    """A column, and whether its values should fall ("min") or rise ("max").

    Where `mode` is not given, it is that of the column's metric, which `fit` tells.
    Raises: AttributeValueError.
    """

    def __init__(self, column: str, mode: str | None, who: str) -> None:
        if mode not in (*_MODES, None):
            raise AttributeValueError(
                f'{who}: mode is "min" or "max"', got=repr(mode),
                hint="without mode it is that of the metric that is monitored",
            )  # fmt: skip
        self.column, self.who, self._given = column, who, mode
        self.mode = mode or mode_of(column, {})

    def decide(self, metrics: Mapping[str, Any]) -> None:
        """Take the mode from the metrics by name, where it is not given. Raises: AttributeValueError."""
        self.mode = self._given or mode_of(self.column, metrics)
        self.sign()

    def sign(self) -> float:
        """Return 1 for values that should fall, -1 for others. Raises: AttributeValueError."""
        if self.mode is None:
            raise AttributeValueError(
                f"{self.who}: it is not known which way {self.column} improves", got="no mode",
                hint='mode="max" where more is better, mode="min" where less is',
            )  # fmt: skip
        return 1.0 if self.mode == "min" else -1.0

    def of(self, row: Mapping[str, Any]) -> float:
        """Return the value in a row. Raises: AttributeValueError, DTypeError."""
        return monitored(row, self.column, self.who)


def monitored(row: Mapping[str, Any], name: str, who: str) -> float:
    """Return a column of a row. Raises: AttributeValueError, DTypeError."""
    _check_column(list(row), name, who)
    try:
        return float(row[name])
    except (TypeError, ValueError):
        raise DTypeError(
            f"{who}: monitors one number of each epoch", got=f"{name}: {row[name]!r:.60}",
            hint="a metric with an average, or a column that a callback sets to a number",
        ) from None  # fmt: skip


def check_monitored(
    columns: Sequence[str], callbacks: Sequence[Any], checkpoints: Any, metrics: Mapping[str, Any]
) -> None:
    """Check that the history will have what is monitored, where no callback of others may add to it, and that
    it is known which way that improves.

    Raises: AttributeValueError.
    """
    known = all(type(c).__module__.startswith("stratal.") for c in callbacks if hasattr(c, "on_epoch_end"))
    for watching in (*callbacks, checkpoints):
        name = getattr(watching, "monitored_column", None)
        if name is None:
            continue
        if known:
            _check_column(columns, name, type(watching).__name__)
        if isinstance(monitor := getattr(watching, "_monitor", None), Monitor):
            monitor.decide(metrics)
        scheduler = getattr(watching, "scheduler", None)
        mode = mode_of(name, metrics)
        if isinstance(scheduler, ReduceLROnPlateau) and mode not in (scheduler.mode, None):
            raise AttributeValueError(
                f"fit: ReduceLROnPlateau waits for {name} to {'fall' if mode == 'max' else 'rise'}, "
                f"which improves the other way", got=f'mode="{scheduler.mode}"', hint=f'mode="{mode}"',
            )  # fmt: skip


def mode_of(column: str, metrics: Mapping[str, Any]) -> str | None:
    """Return which way a column improves; None where that is not known."""
    metric = metrics.get(column.removeprefix("validation_"))
    higher = getattr(metric, "higher_is_better", None)
    if higher is not None:
        return "max" if higher else "min"
    return "min" if _is_loss(column) else None


def higher_is_better(function: Any) -> bool | None:
    """Return what a function, or that of a `functools.partial`, says of what it returns."""
    while isinstance(function, partial):
        function = function.func
    found = getattr(function, "higher_is_better", None)
    return found if isinstance(found, bool) else None


def _is_loss(column: str) -> bool:
    return column == "loss" or column.endswith("_loss")


def _check_column(columns: Sequence[str], name: str, who: str) -> None:
    if name not in columns:
        raise AttributeValueError(
            f"{who}: monitors a column that the history does not have", got=name,
            hint=column_like(name, columns),
        )  # fmt: skip
