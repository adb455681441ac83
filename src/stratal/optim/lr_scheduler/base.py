"""What every schedule is: `step()` moves the rates of all groups on by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

from stratal.base.errors import AttributeValueError
from stratal.optim.optimizer import Optimizer
from stratal.tensor.explained import explain_methods

T = TypeVar("T")


def per_group(name: str, optimizer: Optimizer, given: T | Sequence[T]) -> list[T]:
    """Return one value for each group, from one for all or from as many as there are groups."""
    if not isinstance(optimizer, Optimizer):
        raise AttributeValueError(f"{name}: needs an Optimizer", got=type(optimizer).__name__)
    count = len(optimizer.param_groups)
    if not isinstance(given, (list, tuple)):
        return [given] * count  # type: ignore[list-item]
    if len(given) != count:
        raise AttributeValueError(
            f"{name}: needs one value per group", got=f"{len(given)} for {count} groups"
        )
    return list(given)


class LRScheduler:
    """Base of every schedule: `step()` after each epoch (or step) moves all groups' rates on by one.

    A subclass gives `rates()`, the next rates from the current ones, and, where one exists, `closed_form()`,
    which needs only the base rates and `last_epoch`.
    """

    _not_saved: ClassVar[tuple[str, ...]] = ("optimizer",)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        explain_methods(cls, "__init__", "step")

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
        return {k: v for k, v in self.__dict__.items() if k not in self._not_saved}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the values of a state dict; the optimizer's rates come with the optimizer's own."""
        self.__dict__.update(state_dict)


explain_methods(LRScheduler, "step", "load_state_dict")
