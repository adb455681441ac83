"""Schedules that fall, or rise, by a factor that depends on the epoch alone."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence

from stratal.base.errors import AttributeValueError
from stratal.optim.lr_scheduler.base import LRScheduler, per_group
from stratal.optim.optimizer import Optimizer


class LambdaLR(LRScheduler):
    """lr = base * lr_lambda(epoch); one function, or one per group."""

    _not_saved = ("optimizer", "lr_lambdas")

    def __init__(
        self,
        optimizer: Optimizer,
        lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]],
        last_epoch: int = -1,
    ) -> None:
        self.lr_lambdas = per_group("LambdaLR: lr_lambda", optimizer, lr_lambda)
        super().__init__(optimizer, last_epoch)

    def rates(self) -> list[float]:
        return [base * fn(self.last_epoch) for base, fn in zip(self.base_lrs, self.lr_lambdas, strict=True)]


class MultiplicativeLR(LambdaLR):
    """Multiply the rate by lr_lambda(epoch) every epoch; one function, or one per group."""

    def rates(self) -> list[float]:
        if self._initial:
            return self._current()
        return [lr * fn(self.last_epoch) for lr, fn in zip(self._current(), self.lr_lambdas, strict=True)]


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
        self, optimizer: Optimizer, start_factor: float = 1.0 / 3, end_factor: float = 1.0,
        total_iters: int = 5, last_epoch: int = -1
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


class PolynomialLR(LRScheduler):
    """lr = base * (1 - epoch / total_iters) ** power, down to 0 after `total_iters` epochs."""

    def __init__(
        self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1
    ) -> None:
        self.total_iters, self.power = total_iters, power
        super().__init__(optimizer, last_epoch)

    def rates(self) -> list[float]:
        if self._initial or self.last_epoch > self.total_iters:
            return self._current()
        now, before = (1.0 - t / self.total_iters for t in (self.last_epoch, self.last_epoch - 1))
        return self._scaled((now / before) ** self.power)

    def closed_form(self) -> list[float]:
        left = 1.0 - min(self.total_iters, self.last_epoch) / self.total_iters
        return [base * left**self.power for base in self.base_lrs]
