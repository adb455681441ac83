"""Schedules made of schedules: one after another, or all at once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from stratal.base.errors import AttributeValueError
from stratal.optim.lr_scheduler.base import LRScheduler, set_rate
from stratal.optim.optimizer import Optimizer


class _Composed(LRScheduler):
    """A schedule made of others, which it saves beside itself."""

    _not_saved = ("optimizer", "_schedulers")
    _schedulers: list[LRScheduler]

    def _compose(self, schedulers: Sequence[LRScheduler], optimizer: Optimizer) -> None:
        name = type(self).__name__
        for scheduler in schedulers:
            if not isinstance(scheduler, LRScheduler):
                raise AttributeValueError(
                    f"{name}: takes schedules whose step needs no metric", got=type(scheduler).__name__
                )
        if any(s.optimizer is not optimizer for s in schedulers):
            raise AttributeValueError(f"{name}: every schedule must drive the same optimizer")
        self._schedulers, self.optimizer = list(schedulers), optimizer

    def undo(self) -> None:
        """Take back one step of every schedule."""
        for scheduler in self._schedulers:
            scheduler.undo()

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "_schedulers": [s.state_dict() for s in self._schedulers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        own = dict(state_dict)
        for scheduler, state in zip(self._schedulers, own.pop("_schedulers"), strict=True):
            scheduler.load_state_dict(state)
        self.__dict__.update(own)


class SequentialLR(_Composed):
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
        self._compose(schedulers, optimizer)
        self.milestones = list(milestones)
        self.last_epoch = last_epoch + 1
        for group in optimizer.param_groups:
            set_rate(group, group["initial_lr"])
        for scheduler in schedulers:  # take back the step each one took when it was made
            scheduler.undo()
        first = self._schedulers[bisect_right(self.milestones, 0)]
        first._start()
        self._last_lr = first.get_last_lr()

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


class ChainedScheduler(_Composed):
    """Step several schedules one after another: their factors multiply."""

    def __init__(self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None) -> None:
        if not schedulers:
            raise AttributeValueError("ChainedScheduler: needs at least one schedule")
        self._compose(schedulers, optimizer if optimizer is not None else schedulers[0].optimizer)
        self._last_lr = self._current()

    def _start(self) -> None:
        for scheduler in self._schedulers:
            scheduler._start()
        self._last_lr = self._current()

    def step(self) -> None:
        for scheduler in self._schedulers:
            scheduler.step()
        self._last_lr = self._current()
