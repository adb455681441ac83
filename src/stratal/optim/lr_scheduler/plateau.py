"""The schedule that looks at a metric."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from stratal.base.errors import AttributeValueError
from stratal.optim.lr_scheduler.base import per_group, set_rate
from stratal.optim.optimizer import Optimizer
from stratal.tensor.api.explained import explain_methods
from stratal.tensor.capture.replayed_calls import replayed_method


class ReduceLROnPlateau:
    """Multiply the rate by `factor` once a metric has not improved for more than `patience` epochs."""

    def __init__(
        self, optimizer: Optimizer, mode: str = "min", factor: float = 0.1, patience: int = 10,
        threshold: float = 1e-4, threshold_mode: str = "rel", cooldown: int = 0,
        min_lr: float | Sequence[float] = 0.0, eps: float = 1e-8
    ) -> None:
        if factor >= 1.0:
            raise AttributeValueError("ReduceLROnPlateau: factor must be below 1", got=str(factor))
        if mode not in ("min", "max") or threshold_mode not in ("rel", "abs"):
            raise AttributeValueError(
                "ReduceLROnPlateau: mode is min or max, threshold_mode rel or abs",
                got=f"{mode}, {threshold_mode}",
            )
        self.optimizer = optimizer
        self.mode, self.threshold, self.threshold_mode = mode, threshold, threshold_mode
        self.factor, self.patience, self.cooldown, self.eps = factor, patience, cooldown, eps
        self.min_lrs = [float(m) for m in per_group("ReduceLROnPlateau: min_lr", optimizer, min_lr)]
        self.best = math.inf if mode == "min" else -math.inf
        self.num_bad_epochs = self.cooldown_counter = self.last_epoch = 0
        self._last_lr = [float(group["lr"]) for group in optimizer.param_groups]

    def replayed_state(self) -> list[Any]:
        """Return what a step changes: this schedule and the groups' rates."""
        return [self, *self.optimizer.param_groups]

    @replayed_method
    def step(self, metrics: Any) -> None:
        """Look at the metric of one epoch and lower the rates where it has stopped improving."""
        current = float(metrics)
        self.last_epoch += 1
        if self._improves(current):
            self.best, self.num_bad_epochs = current, 0
        else:
            self.num_bad_epochs += 1
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self._reduce()
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
        self._last_lr = [float(group["lr"]) for group in self.optimizer.param_groups]

    def _improves(self, current: float) -> bool:
        if self.threshold_mode == "rel":
            sign = -1 if self.mode == "min" else 1
            bar = self.best * (1.0 + sign * self.threshold)
        else:
            bar = self.best - self.threshold if self.mode == "min" else self.best + self.threshold
        return current < bar if self.mode == "min" else current > bar

    def _reduce(self) -> None:
        for group, least in zip(self.optimizer.param_groups, self.min_lrs, strict=True):
            old = float(group["lr"])
            new = max(old * self.factor, least)
            if old - new > self.eps:
                set_rate(group, new)

    def get_last_lr(self) -> list[float]:
        """Return the rates after the last step, one per group."""
        return list(self._last_lr)

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the optimizer, as plain values."""
        return {k: v for k, v in self.__dict__.items() if k != "optimizer"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the values of a state dict."""
        self.__dict__.update(state_dict)


explain_methods(ReduceLROnPlateau, "__init__", "step")
