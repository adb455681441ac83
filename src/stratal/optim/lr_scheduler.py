"""Learning-rate schedules: what each parameter group's rate is after so many steps.

Rates are computed in double precision by the same recurrences as PyTorch's, so the values are equal to the
bit. They are runtime inputs of compiled steps: a schedule never recompiles.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from stratal.base.errors import AttributeValueError
from stratal.optim.optimizer import Optimizer


class LRScheduler:
    """Base of every schedule: `step()` after each epoch (or step) moves all groups' rates on by one.

    A subclass gives `rates()`, the next rates from the current ones, and, where one exists, `closed_form()`,
    which needs only the base rates and `last_epoch`.
    """

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        if not isinstance(optimizer, Optimizer):
            raise AttributeValueError(
                f"{type(self).__name__}: needs an Optimizer", got=type(optimizer).__name__
            )
        self.optimizer = optimizer
        for k, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", group["lr"])
            elif "initial_lr" not in group:
                raise AttributeValueError(
                    f"{type(self).__name__}: a schedule that resumes needs initial_lr in every group",
                    got=f"group {k} without it", hint="load the optimizer's state dict first",
                )  # fmt: skip
        self.base_lrs: list[float] = [float(group["initial_lr"]) for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        self._last_lr: list[float] = []
        self._start()

    def _start(self) -> None:
        self._initial = True
        try:
            self.step()
        finally:
            self._initial = False

    def rates(self) -> list[float]:
        """Return the groups' rates at `last_epoch`, given their present rates are those one epoch before."""
        raise NotImplementedError

    def closed_form(self) -> list[float]:
        """Return the groups' rates at `last_epoch` from the base rates alone."""
        return self.rates()

    def _current(self) -> list[float]:
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def _scaled(self, factor: float) -> list[float]:
        return [lr * factor for lr in self._current()]

    def _write(self, rates: list[float]) -> None:
        for group, lr in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = lr
        self._last_lr = list(rates)

    def step(self) -> None:
        """Move on by one epoch and write the new rates into the optimizer's groups."""
        self.last_epoch += 1
        self._write(self.rates())

    def _jump(self, epoch: int) -> None:
        self.last_epoch = epoch
        self._write(self.closed_form())

    def undo(self) -> None:
        """Take back one step's count; the rates are the caller's to restore."""
        self.last_epoch -= 1

    def get_last_lr(self) -> list[float]:
        """Return the rates the last step wrote, one per group."""
        return list(self._last_lr)

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the optimizer, as plain values."""
        return {k: v for k, v in self.__dict__.items() if k not in ("optimizer", "lr_lambdas", "_schedulers")}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the values of a state dict; the optimizer's rates come with the optimizer's own."""
        self.__dict__.update(state_dict)


class LambdaLR(LRScheduler):
    """lr = base * lr_lambda(epoch); one function, or one per group."""

    def __init__(
        self,
        optimizer: Optimizer,
        lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]],
        last_epoch: int = -1,
    ) -> None:
        count = len(optimizer.param_groups)
        self.lr_lambdas = [lr_lambda] * count if callable(lr_lambda) else list(lr_lambda)
        if len(self.lr_lambdas) != count:
            raise AttributeValueError(
                "LambdaLR: needs one function per group", got=f"{len(self.lr_lambdas)} for {count} groups"
            )
        super().__init__(optimizer, last_epoch)

    def rates(self) -> list[float]:
        return [base * fn(self.last_epoch) for base, fn in zip(self.base_lrs, self.lr_lambdas, strict=True)]


class StepLR(LRScheduler):
    """Multiply the rate by `gamma` every `step_size` epochs."""

    def __init__(
        self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def rates(self) -> list[float]:
        if self.last_epoch == 0 or self.last_epoch % self.step_size:
            return self._current()
        return self._scaled(self.gamma)

    def closed_form(self) -> list[float]:
        return [base * self.gamma ** (self.last_epoch // self.step_size) for base in self.base_lrs]


class MultiStepLR(LRScheduler):
    """Multiply the rate by `gamma` at each of the milestones."""

    def __init__(
        self, optimizer: Optimizer, milestones: Sequence[int], gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.milestones, self.gamma = sorted(milestones), gamma
        super().__init__(optimizer, last_epoch)

    def rates(self) -> list[float]:
        times = Counter(self.milestones)[self.last_epoch]
        return self._scaled(self.gamma**times) if times else self._current()

    def closed_form(self) -> list[float]:
        passed = bisect_right(self.milestones, self.last_epoch)
        return [base * self.gamma**passed for base in self.base_lrs]


class ConstantLR(LRScheduler):
    """Multiply the rate by `factor` for the first `total_iters` epochs."""

    def __init__(
        self, optimizer: Optimizer, factor: float = 1.0 / 3, total_iters: int = 5, last_epoch: int = -1
    ) -> None:
        if not 0 <= factor <= 1:
            raise AttributeValueError("ConstantLR: factor must lie in [0, 1]", got=str(factor))
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer, last_epoch)

    def rates(self) -> list[float]:
        if self.last_epoch == 0:
            return self._scaled(self.factor)
        return self._scaled(1.0 / self.factor) if self.last_epoch == self.total_iters else self._current()

    def closed_form(self) -> list[float]:
        past = self.last_epoch >= self.total_iters
        return [base * (self.factor + past * (1 - self.factor)) for base in self.base_lrs]


class LinearLR(LRScheduler):
    """Move the factor of the rate in a straight line from `start_factor` to `end_factor` over `total_iters`
    epochs.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1.0 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        if not 0 < start_factor <= 1 or not 0 <= end_factor <= 1:
            raise AttributeValueError(
                "LinearLR: start_factor must lie in (0, 1] and end_factor in [0, 1]",
                got=f"{start_factor}, {end_factor}",
            )
        self.start_factor, self.end_factor, self.total_iters = start_factor, end_factor, total_iters
        super().__init__(optimizer, last_epoch)

    def rates(self) -> list[float]:
        if self.last_epoch == 0:
            return self._scaled(self.start_factor)
        if self._initial or self.last_epoch > self.total_iters:
            return self._current()
        rise = self.end_factor - self.start_factor
        before = self.total_iters * self.start_factor + (self.last_epoch - 1) * rise
        return self._scaled(1.0 + rise / before)

    def closed_form(self) -> list[float]:
        rise = self.end_factor - self.start_factor
        done = min(self.total_iters, self.last_epoch)
        return [base * (self.start_factor + rise * done / self.total_iters) for base in self.base_lrs]


class ExponentialLR(LRScheduler):
    """Multiply the rate by `gamma` every epoch."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def rates(self) -> list[float]:
        return self._current() if self._initial else self._scaled(self.gamma)

    def closed_form(self) -> list[float]:
        return [base * self.gamma**self.last_epoch for base in self.base_lrs]


class CosineAnnealingLR(LRScheduler):
    """Follow half a cosine from the base rate down to `eta_min` in `T_max` epochs, and back up in as many.

    See: Loshchilov and Hutter 2017, SGDR, equation 5 without restarts.
    """

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_epoch)

    def rates(self) -> list[float]:
        if self._initial:
            return self._current()
        t, period, low = self.last_epoch, self.T_max, self.eta_min
        if (t - 1 - period) % (2 * period) == 0:  # one past the bottom: the ratio below would be 0 / 0
            lift = (1 - math.cos(math.pi / period)) / 2
            return [lr + (base - low) * lift for lr, base in zip(self._current(), self.base_lrs, strict=True)]
        now, before = 1 + math.cos(math.pi * t / period), 1 + math.cos(math.pi * (t - 1) / period)
        return [now / before * (lr - low) + low for lr in self._current()]

    def closed_form(self) -> list[float]:
        swing = 1 + math.cos(math.pi * self.last_epoch / self.T_max)
        return [self.eta_min + (base - self.eta_min) * swing / 2 for base in self.base_lrs]


class WarmupCosineLR(LRScheduler):
    """Rise in a straight line over `warmup_steps`, then follow half a cosine down to `min_lr` at
    `total_steps`, and stay.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        warmup_steps: int,
        total_steps: int,
        min_lr: float = 0.0,
        last_epoch: int = -1,
    ) -> None:
        if not 0 <= warmup_steps < total_steps:
            raise AttributeValueError(
                "WarmupCosineLR: needs 0 <= warmup_steps < total_steps", got=f"{warmup_steps}, {total_steps}"
            )
        self.warmup_steps, self.total_steps, self.min_lr = warmup_steps, total_steps, min_lr
        super().__init__(optimizer, last_epoch)

    def rates(self) -> list[float]:
        if self.last_epoch < self.warmup_steps:
            return [base * (self.last_epoch + 1) / self.warmup_steps for base in self.base_lrs]
        done = min(1.0, (self.last_epoch - self.warmup_steps) / (self.total_steps - self.warmup_steps))
        swing = (1 + math.cos(math.pi * done)) / 2
        return [self.min_lr + (base - self.min_lr) * swing for base in self.base_lrs]


class SequentialLR(LRScheduler):
    """Follow one schedule after another; the next takes over at each milestone, from its own beginning."""

    def __init__(
        self,
        optimizer: Optimizer,
        schedulers: Sequence[LRScheduler],
        milestones: Sequence[int],
        last_epoch: int = -1,
    ) -> None:
        if len(milestones) != len(schedulers) - 1:
            raise AttributeValueError(
                "SequentialLR: needs one milestone less than schedules",
                got=f"{len(schedulers)} schedules, {len(milestones)} milestones",
            )
        if any(s.optimizer is not optimizer for s in schedulers):
            raise AttributeValueError("SequentialLR: every schedule must drive the same optimizer")
        self._schedulers = list(schedulers)
        self.milestones = list(milestones)
        self.optimizer = optimizer
        self.last_epoch = last_epoch + 1
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"]
        for scheduler in schedulers:  # take back the step each one took when it was made
            scheduler.undo()
        first = self._schedulers[bisect_right(self.milestones, 0)]
        first._start()
        self._last_lr = first.get_last_lr()

    def undo(self) -> None:
        """Take back one step of every schedule."""
        for scheduler in self._schedulers:
            scheduler.undo()

    def _start(self) -> None:
        self._schedulers[bisect_right(self.milestones, 0)]._start()

    def step(self) -> None:
        self.last_epoch += 1
        index = bisect_right(self.milestones, self.last_epoch)
        scheduler = self._schedulers[index]
        if index > 0 and self.milestones[index - 1] == self.last_epoch:
            scheduler._jump(0)
        else:
            scheduler.step()
        self._last_lr = scheduler.get_last_lr()

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "_schedulers": [s.state_dict() for s in self._schedulers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        own = dict(state_dict)
        for scheduler, state in zip(self._schedulers, own.pop("_schedulers"), strict=True):
            scheduler.load_state_dict(state)
        self.__dict__.update(own)


class ReduceLROnPlateau:
    """Multiply the rate by `factor` once a metric has not improved for more than `patience` epochs."""

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float | Sequence[float] = 0.0,
        eps: float = 1e-8,
    ) -> None:
        if factor >= 1.0:
            raise AttributeValueError("ReduceLROnPlateau: factor must be below 1", got=str(factor))
        if mode not in ("min", "max") or threshold_mode not in ("rel", "abs"):
            raise AttributeValueError(
                "ReduceLROnPlateau: mode is min or max, threshold_mode rel or abs",
                got=f"{mode}, {threshold_mode}",
            )
        count = len(optimizer.param_groups)
        self.optimizer = optimizer
        self.mode, self.threshold, self.threshold_mode = mode, threshold, threshold_mode
        self.factor, self.patience, self.cooldown, self.eps = factor, patience, cooldown, eps
        self.min_lrs = (
            [float(min_lr)] * count if isinstance(min_lr, (int, float)) else [float(m) for m in min_lr]
        )
        if len(self.min_lrs) != count:
            raise AttributeValueError(
                "ReduceLROnPlateau: needs one min_lr per group", got=f"{len(self.min_lrs)} for {count} groups"
            )
        self.best = math.inf if mode == "min" else -math.inf
        self.num_bad_epochs = self.cooldown_counter = self.last_epoch = 0
        self._last_lr = [float(group["lr"]) for group in optimizer.param_groups]

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
                group["lr"] = new

    def get_last_lr(self) -> list[float]:
        """Return the rates after the last step, one per group."""
        return list(self._last_lr)

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the optimizer, as plain values."""
        return {k: v for k, v in self.__dict__.items() if k != "optimizer"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the values of a state dict."""
        self.__dict__.update(state_dict)
