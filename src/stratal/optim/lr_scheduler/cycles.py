"""Schedules that rise and fall, and move the momentum the other way.

See: Smith 2017; Smith and Topin 2018.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from stratal.base.errors import AttributeValueError
from stratal.optim.group import ParamGroup
from stratal.optim.lr_scheduler.base import LRScheduler, per_group, set_rate
from stratal.optim.optimizer import Optimizer

Numbers = float | Sequence[float]


class _Cycling(LRScheduler):
    """A schedule that also writes each group's momentum, or the first of its betas."""

    cycle_momentum: bool

    def _cycle_momentum(self, low: Numbers, high: Numbers, fresh: bool) -> None:
        """Note every group's bounds, and start from the upper one where the schedule does not resume."""
        name, defaults = type(self).__name__, self.optimizer.defaults
        if "momentum" not in defaults and "betas" not in defaults:
            raise AttributeValueError(
                f"{name}: the optimizer has neither momentum nor betas", got=type(self.optimizer).__name__,
                hint="pass cycle_momentum=False",
            )  # fmt: skip
        self.use_beta1 = "betas" in defaults
        lows = per_group(f"{name}: base_momentum", self.optimizer, low)
        highs = per_group(f"{name}: max_momentum", self.optimizer, high)
        if fresh:
            for group, least, most in zip(self.optimizer.param_groups, lows, highs, strict=True):
                group["base_momentum"], group["max_momentum"] = least, most
                self._write_momentum(group, most)

    def _write_momentum(self, group: Any, momentum: float) -> None:
        if self.use_beta1:
            group["betas"] = (momentum, *group["betas"][1:])
        else:
            group["momentum"] = momentum


class CyclicLR(_Cycling):
    """Go from `base_lr` to `max_lr` in `step_size_up` steps and back in `step_size_down`, again and again.

    The height of cycle c, from 1, is scaled by 1 ("triangular"), 1 / 2^(c - 1) ("triangular2") or gamma^step
    ("exp_range"), or by `scale_fn` of the cycle or of the step (`scale_mode` "cycle" or "iterations").
    """

    _not_saved = ("optimizer", "_scale_fn")

    def __init__(
        self, optimizer: Optimizer, base_lr: Numbers, max_lr: Numbers, step_size_up: int = 2000,
        step_size_down: int | None = None, mode: str = "triangular", gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None, scale_mode: str = "cycle",
        cycle_momentum: bool = True, base_momentum: Numbers = 0.8, max_momentum: Numbers = 0.9,
        last_epoch: int = -1
    ) -> None:
        if mode not in ("triangular", "triangular2", "exp_range") and scale_fn is None:
            raise AttributeValueError(
                "CyclicLR: mode is triangular, triangular2 or exp_range, unless scale_fn is given",
                got=repr(mode),
            )
        self.optimizer = optimizer
        base_lrs = per_group("CyclicLR: base_lr", optimizer, base_lr)
        if last_epoch == -1:
            for lr, group in zip(base_lrs, optimizer.param_groups, strict=True):
                set_rate(group, lr)
        self.max_lrs = per_group("CyclicLR: max_lr", optimizer, max_lr)
        down = step_size_up if step_size_down is None else step_size_down
        self.total_size = float(step_size_up) + float(down)
        if step_size_up <= 0 or down < 0:
            raise AttributeValueError(
                "CyclicLR: a cycle takes at least one step up", got=f"{step_size_up} up, {down} down"
            )
        self.step_ratio = step_size_up / self.total_size
        self.mode, self.gamma, self._scale_fn, self.scale_mode = mode, gamma, scale_fn, scale_mode
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            self._cycle_momentum(base_momentum, max_momentum, last_epoch == -1)
        super().__init__(optimizer, last_epoch)
        self.base_lrs = base_lrs

    def _scale(self, cycle: int) -> float:
        if self._scale_fn is not None:
            return self._scale_fn(cycle if self.scale_mode == "cycle" else self.last_epoch)
        if self.mode == "exp_range":
            return float(self.gamma**self.last_epoch)
        return 1.0 if self.mode == "triangular" else 1 / (2.0 ** (cycle - 1))

    def rates(self) -> list[float]:
        cycle = math.floor(1 + self.last_epoch / self.total_size)
        x = 1.0 + self.last_epoch / self.total_size - cycle
        height = x / self.step_ratio if x <= self.step_ratio else (x - 1) / (self.step_ratio - 1)
        scale = self._scale(cycle)
        if self.cycle_momentum:
            for group in self.optimizer.param_groups:
                low, high = group["base_momentum"], group["max_momentum"]
                self._write_momentum(group, high - (high - low) * height * scale)
        return [
            low + (high - low) * height * scale for low, high in zip(self.base_lrs, self.max_lrs, strict=True)
        ]


class _Phase(NamedTuple):
    """A part of a cycle: where it ends, and between which entries of a group rate and momentum move."""

    end_step: float
    lrs: tuple[str, str]
    momenta: tuple[str, str]


class OneCycleLR(_Cycling):
    """Rise from max_lr / div_factor to `max_lr`, then fall to 1 / final_div_factor of where it started.

    The rise takes `pct_start` of `total_steps` (or of epochs * steps_per_epoch). With `three_phase` the fall
    first mirrors the rise. A step past the last is an error.
    """

    def __init__(
        self, optimizer: Optimizer, max_lr: Numbers, total_steps: int | None = None,
        epochs: int | None = None, steps_per_epoch: int | None = None, pct_start: float = 0.3,
        anneal_strategy: str = "cos", cycle_momentum: bool = True, base_momentum: Numbers = 0.85,
        max_momentum: Numbers = 0.95, div_factor: float = 25.0, final_div_factor: float = 1e4,
        three_phase: bool = False, last_epoch: int = -1
    ) -> None:
        if total_steps is None and epochs is not None and steps_per_epoch is not None:
            total_steps = epochs * steps_per_epoch
        if not isinstance(total_steps, int) or total_steps <= 0:
            raise AttributeValueError(
                "OneCycleLR: needs total_steps, or epochs and steps_per_epoch, positive integers",
                got=f"total_steps={total_steps}, epochs={epochs}, steps_per_epoch={steps_per_epoch}",
            )
        if not 0 <= pct_start <= 1 or anneal_strategy not in ("cos", "linear"):
            raise AttributeValueError(
                'OneCycleLR: pct_start lies in [0, 1], anneal_strategy is "cos" or "linear"',
                got=f"{pct_start}, {anneal_strategy!r}",
            )
        self.optimizer, self.total_steps = optimizer, total_steps
        self.anneal_strategy, self.cycle_momentum = anneal_strategy, cycle_momentum
        self.pct_start, self.three_phase = pct_start, three_phase
        if last_epoch == -1:
            for group, lr in zip(
                optimizer.param_groups, per_group("OneCycleLR: max_lr", optimizer, max_lr), strict=True
            ):
                group["initial_lr"], group["max_lr"] = lr / div_factor, lr
                group["min_lr"] = group["initial_lr"] / final_div_factor
        if cycle_momentum:
            self._cycle_momentum(base_momentum, max_momentum, last_epoch == -1)
        super().__init__(optimizer, last_epoch)

    def _between(self, group: ParamGroup, names: tuple[str, str], share: float) -> float:
        start, end = group[names[0]], group[names[1]]
        if self.anneal_strategy == "linear":
            return (end - start) * share + start
        return end + (start - end) / 2.0 * (math.cos(math.pi * share) + 1)

    def rates(self) -> list[float]:
        if self.last_epoch > self.total_steps:
            raise AttributeValueError(
                "OneCycleLR: more steps than the cycle has",
                got=f"step {self.last_epoch} of {self.total_steps}",
            )
        phases = _phases(float(self.pct_start * self.total_steps), self.total_steps, self.three_phase)
        begin, phase = 0.0, phases[-1]
        for phase in phases:
            if self.last_epoch <= phase.end_step or phase is phases[-1]:
                break
            begin = phase.end_step
        share = (self.last_epoch - begin) / (phase.end_step - begin)
        groups = self.optimizer.param_groups
        if self.cycle_momentum:
            for group in groups:
                self._write_momentum(group, self._between(group, phase.momenta, share))
        return [self._between(group, phase.lrs, share) for group in groups]


def _phases(rise: float, total: int, three: bool) -> list[_Phase]:
    up = _Phase(rise - 1, ("initial_lr", "max_lr"), ("max_momentum", "base_momentum"))
    if not three:
        return [up, _Phase(total - 1, ("max_lr", "min_lr"), ("base_momentum", "max_momentum"))]
    down = _Phase(2 * rise - 2, ("max_lr", "initial_lr"), ("base_momentum", "max_momentum"))
    return [up, down, _Phase(total - 1, ("initial_lr", "min_lr"), ("max_momentum", "max_momentum"))]
