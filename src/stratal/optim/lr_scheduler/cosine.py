"""Schedules along cosines, or, for averaged weights, lines."""

from __future__ import annotations

import math
from collections.abc import Sequence

from stratal.base.errors import AttributeValueError
from stratal.optim.lr_scheduler.base import LRScheduler, per_group
from stratal.optim.optimizer import Optimizer


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


class CosineAnnealingWarmRestarts(LRScheduler):
    """Follow half a cosine from the base rate down to `eta_min` in `T_0` epochs, then start again, every
    period `T_mult` times as long as the last.

    `step(epoch)` jumps to an epoch, which need not be whole. See: Loshchilov and Hutter 2017, equation 5.
    """

    def __init__(
        self, optimizer: Optimizer, T_0: int, T_mult: int = 1, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:
        for name, value in (("T_0", T_0), ("T_mult", T_mult)):
            if not isinstance(value, int) or value < 1:
                raise AttributeValueError(
                    f"CosineAnnealingWarmRestarts: {name} is an integer of at least 1", got=repr(value)
                )
        self.T_0 = self.T_i = T_0
        self.T_mult, self.eta_min = T_mult, eta_min
        self.T_cur: float = last_epoch
        super().__init__(optimizer, last_epoch)

    def rates(self) -> list[float]:
        swing = 1 + math.cos(math.pi * self.T_cur / self.T_i)
        return [self.eta_min + (base - self.eta_min) * swing / 2 for base in self.base_lrs]

    def step(self, epoch: float | None = None) -> None:
        if epoch is None and self.last_epoch >= 0:
            epoch = self.last_epoch + 1
            self.T_cur += 1
            if self.T_cur >= self.T_i:
                self.T_cur %= self.T_i
                self.T_i *= self.T_mult
        else:
            epoch = 0 if epoch is None else epoch
            self._find_period(epoch)
        self.last_epoch = math.floor(epoch)
        self._write(self.get_lr())

    def _find_period(self, epoch: float) -> None:
        if epoch < 0:
            raise AttributeValueError("CosineAnnealingWarmRestarts: epochs count from 0", got=str(epoch))
        if self.T_mult == 1:
            self.T_cur = epoch % self.T_0
            return
        past = int(math.log(epoch / self.T_0 * (self.T_mult - 1) + 1, self.T_mult))
        self.T_cur = epoch - self.T_0 * (self.T_mult**past - 1) / (self.T_mult - 1)
        self.T_i = self.T_0 * self.T_mult**past


class WarmupCosineLR(LRScheduler):
    """Rise in a straight line over `warmup_steps`, then follow half a cosine down to `min_lr` at
    `total_steps`, and stay.
    """

    def __init__(
        self, optimizer: Optimizer, warmup_steps: int, total_steps: int, min_lr: float = 0.0,
        last_epoch: int = -1
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


class SWALR(LRScheduler):
    """Move every group's rate to `swa_lr` in `anneal_epochs`, along a cosine or a line, and keep it there."""

    def __init__(
        self, optimizer: Optimizer, swa_lr: float | Sequence[float], anneal_epochs: int = 10,
        anneal_strategy: str = "cos", last_epoch: int = -1
    ) -> None:
        if anneal_strategy not in ("cos", "linear"):
            raise AttributeValueError(
                'SWALR: anneal_strategy is "cos" or "linear"', got=repr(anneal_strategy)
            )
        if not isinstance(anneal_epochs, int) or anneal_epochs < 0:
            raise AttributeValueError(
                "SWALR: anneal_epochs is an integer of at least 0", got=repr(anneal_epochs)
            )
        for group, rate in zip(
            optimizer.param_groups, per_group("SWALR: swa_lr", optimizer, swa_lr), strict=True
        ):
            group["swa_lr"] = rate
        self.anneal_epochs, self.anneal_strategy = anneal_epochs, anneal_strategy
        self._step_count = 0
        super().__init__(optimizer, last_epoch)

    def step(self) -> None:
        self._step_count += 1
        super().step()

    def _share(self, step: int) -> float:
        t = max(0, min(1, step / max(1, self.anneal_epochs)))
        return t if self.anneal_strategy == "linear" else (1 - math.cos(math.pi * t)) / 2

    def rates(self) -> list[float]:
        step = self._step_count - 1
        if self.anneal_epochs == 0:
            step = max(1, step)
        before, now = self._share(step - 1), self._share(step)
        rates = []
        for group in self.optimizer.param_groups:
            rate, target = group.as_numbers()["lr"], group["swa_lr"]
            start = target if before == 1 else (rate - before * target) / (1 - before)
            rates.append(target * now + start * (1 - now))
        return rates
