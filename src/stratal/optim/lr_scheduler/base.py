"""What every schedule is: `step()` moves the rates of all groups on by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

from stratal.base.errors import AttributeValueError, not_given
from stratal.optim.group import ParamGroup
from stratal.optim.optimizer import Optimizer
from stratal.tensor.api.explained import explain_methods
from stratal.tensor.capture.replayed_calls import replayed_method
from stratal.tensor.tensor import Tensor

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


def set_rate(group: ParamGroup, rate: float) -> None:
    """Give a group another rate; one that is a tensor is filled with it, as by PyTorch."""
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


class LRScheduler:
    """Base of every schedule: `step()` after each epoch (or step) moves all groups' rates on by one.

    A subclass gives `get_lr()` as in PyTorch, or `rates()`, which is the same: the groups' rates at
    `last_epoch`, from `base_lrs` or from the present ones in `optimizer.param_groups`; and, where one exists,
    `closed_form()`, which needs only the base rates and `last_epoch`.
    """

    _not_saved: ClassVar[tuple[str, ...]] = ("optimizer",)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        explain_methods(cls, "__init__", "step")
        if "step" in cls.__dict__:
            cls.step = replayed_method(cls.step)  # type: ignore[method-assign]

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        if not isinstance(optimizer, Optimizer):
            raise AttributeValueError(
                f"{type(self).__name__}: needs an Optimizer", got=type(optimizer).__name__
            )
        self.optimizer = optimizer
        for k, group in enumerate(optimizer.param_groups):
            if "lr" not in group:
                raise AttributeValueError(
                    f"{type(self).__name__}: needs an optimizer whose groups have a rate, lr",
                    got=f"group {k} with {', '.join(n for n in group if n != 'params') or 'none'}",
                    hint=f"give {type(optimizer).__name__} lr among its defaults",
                )
            if last_epoch == -1:
                group.setdefault("initial_lr", float(group.as_numbers()["lr"]))
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
        raise not_given(self, "get_lr", "define get_lr(self): a list of one rate per group, such as base_lrs")

    def get_lr(self) -> list[float]:
        """Return the groups' rates at `last_epoch`: PyTorch's name of `rates`."""
        return self.rates()

    def closed_form(self) -> list[float]:
        """Return the groups' rates at `last_epoch` from the base rates alone."""
        return self.get_lr()

    def _current(self) -> list[float]:
        return [float(group.as_numbers()["lr"]) for group in self.optimizer.param_groups]

    def _scaled(self, factor: float) -> list[float]:
        return [lr * factor for lr in self._current()]

    def _write(self, rates: list[float]) -> None:
        groups = len(self.optimizer.param_groups)
        if not isinstance(rates, list | tuple) or len(rates) != groups:
            raise AttributeValueError(
                f"{type(self).__name__}: get_lr (or rates) returns a list of one rate per group",
                got=f"{rates!r:.60} for {groups} groups",
            )
        for group, lr in zip(self.optimizer.param_groups, rates, strict=True):
            set_rate(group, lr)
        self._last_lr = list(rates)

    def replayed_state(self) -> list[Any]:
        """Return what a step changes: this schedule and its parts, and the groups' rates."""
        parts: list[Any] = [self, *self.optimizer.param_groups]
        for scheduler in getattr(self, "_schedulers", ()):
            parts += scheduler.replayed_state()
        return parts

    @replayed_method
    def step(self) -> None:
        """Move on by one epoch and write the new rates into the optimizer's groups."""
        self.last_epoch += 1
        self._write(self.get_lr())

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
