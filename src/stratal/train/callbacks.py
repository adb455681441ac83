"""Callbacks: plain objects with methods that `fit` calls, any of those in `EVENTS`.

    on_fit_begin(trainer)        before a checkpoint is loaded, and before the first epoch
    on_epoch_begin(trainer)
    on_step_end(trainer)         after each update; `trainer.steps` counts them
    on_epoch_end(trainer, row)   with the epoch's row of the history, which may be added to
    on_fit_end(trainer)          also where training was interrupted or failed

A callback with `state_dict` and `load_state_dict` is part of checkpoints.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, Protocol

from stratal.base.errors import AttributeValueError, DTypeError
from stratal.formats.files import write_atomically
from stratal.nn.module import Module
from stratal.optim import Optimizer
from stratal.optim.grad_scaler import GradScaler
from stratal.optim.lr_scheduler import ReduceLROnPlateau
from stratal.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from stratal.tensor.capture import compile as compile_function
from stratal.tensor.tensor import Tensor
from stratal.train.history import History, Row, Running
from stratal.train.monitored import Monitor, monitored

EVENTS: Final = ("on_fit_begin", "on_epoch_begin", "on_step_end", "on_epoch_end", "on_fit_end")


class Training(Protocol):
    """What callbacks see of a trainer."""

    net: Module
    history: History
    epoch: int
    steps: int
    running: Running

    def stop(self, reason: str) -> None: ...


def checked_callbacks(callbacks: Sequence[Any]) -> list[Any]:
    """Return callbacks.

    Raises: AttributeValueError for a method that begins with `on_` and is no event's; DTypeError for what is
    no callback.
    """
    if not isinstance(callbacks, Sequence):
        raise DTypeError(
            "Trainer: callbacks is a list", got=type(callbacks).__name__, hint="callbacks=[callback]"
        )
    for callback in callbacks:
        if isinstance(callback, type):
            raise DTypeError("Trainer: a callback is an object", got=f"the class {callback.__name__}",
                             hint=f"{callback.__name__}(..)")  # fmt: skip
        named = [name for name in dir(callback) if name.startswith("on_")]
        if not named and (unfit := _what_else(callback)):
            raise DTypeError("Trainer: a callback has some of the methods that fit calls",
                             got=f"{callback!r:.60}", hint=unfit)  # fmt: skip
        for name in named:
            if name not in EVENTS:
                near = get_close_matches(name, EVENTS, 1)
                raise AttributeValueError(
                    f"{type(callback).__name__}: an event that fit does not have", got=name,
                    hint=f"did you mean {near[0]}?" if near else f"there are {', '.join(EVENTS)}",
                )  # fmt: skip
    return list(callbacks)


def _what_else(given: Any) -> str:
    """Return what to do with an object that has no event's method; nothing where it holds state that goes
    into checkpoints. What steps or computes would be there for that alone, and do nothing.
    """
    name = type(given).__name__
    if isinstance(given, Optimizer | GradScaler | Module):
        return "the Trainer takes the net, and its optimizer= once; other state: a class with state_dict"
    if hasattr(given, "step"):
        return f"Schedule({name}(..)) moves a scheduler on, per epoch or per step"
    if hasattr(given, "state_dict") and hasattr(given, "load_state_dict"):
        return ""
    return f"there are {', '.join(EVENTS)}"


class EarlyStopping:
    """Stops when a column has not improved by more than `min_delta` for `patience` epochs, after the second
    at the earliest: a first value that is not finite is none to compare with.

    With `restore_best` the net has the weights of its best epoch afterwards. `mode` is "min" for a loss and
    else that of the metric that is monitored; of others it must be given.
    """

    def __init__(
        self, monitor: str = "validation_loss", *, patience: int = 3, min_delta: float = 0.0,
        mode: str | None = None, restore_best: bool = False,
    ) -> None:  # fmt: skip
        if patience < 1 or min_delta < 0:
            raise AttributeValueError(
                "EarlyStopping: patience counts epochs, from 1, and min_delta is not negative",
                got=f"{patience}, {min_delta}",
            )
        self.monitor, self.patience, self.min_delta = monitor, patience, min_delta
        self.restore_best = restore_best
        self.monitored_column = monitor
        self._monitor = Monitor(monitor, mode, "EarlyStopping")
        self.best, self.waited = math.inf, 0
        self._weights: dict[str, Tensor] | None = None

    def on_fit_begin(self, trainer: Training) -> None:
        """Forget an earlier fit."""
        self.best, self.waited, self._weights = math.inf, 0, None

    def on_epoch_end(self, trainer: Training, row: Row) -> None:
        """Compare the row with the best."""
        value = self._monitor.sign() * self._monitor.of(row)
        if value < self.best - self.min_delta:
            self.best, self.waited = value, 0
            if self.restore_best:
                self._weights = {k: v.detach().clone() for k, v in trainer.net.state_dict().items()}
            return
        self.waited += 1
        if self.waited >= self.patience and trainer.epoch:  # as in Keras
            trainer.stop(f"{self.monitor} has not improved for {self.patience} epochs")

    def on_fit_end(self, trainer: Training) -> None:
        """Give the net its best weights back."""
        if self._weights is not None:
            trainer.net.load_state_dict(self._weights)

    def state_dict(self) -> dict[str, Any]:
        """Return the best value and how long ago it was."""
        return {"best": self.best, "waited": self.waited, "weights": self._weights}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self.best, self.waited = float(state["best"]), int(state["waited"])
        self._weights = None if state["weights"] is None else dict(state["weights"])


class Schedule:
    """Moves a schedule of rates on, after each epoch or each update. ReduceLROnPlateau gets a column."""

    def __init__(self, scheduler: Any, *, per: str = "epoch", monitor: str = "validation_loss") -> None:
        if per not in ("epoch", "step"):
            raise AttributeValueError('Schedule: per is "epoch" or "step"', got=repr(per))
        if not hasattr(scheduler, "step") or isinstance(scheduler, type):
            name = getattr(scheduler, "__name__", "StepLR")
            raise DTypeError(
                "Schedule: takes a scheduler of optim.lr_scheduler", got=f"{scheduler!r:.60}",
                hint=f"{name}(optimizer, ..)",
            )  # fmt: skip
        self.scheduler, self.per, self.monitor = scheduler, per, monitor
        self.monitored_column = monitor if isinstance(scheduler, ReduceLROnPlateau) else None

    def on_step_end(self, trainer: Training) -> None:
        """Move on by an update."""
        if self.per == "step":
            self.scheduler.step()

    def on_epoch_end(self, trainer: Training, row: Row) -> None:
        """Move on by an epoch; the row gets the rate it had."""
        optimizer = self.scheduler.optimizer
        row["lr"] = float(optimizer.param_groups[0].as_numbers()["lr"])
        if isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step(monitored(row, self.monitor, "Schedule"))
        elif self.per == "epoch":
            self.scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        """Return the scheduler's own state."""
        return dict(self.scheduler.state_dict())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self.scheduler.load_state_dict(dict(state))


class EMA:
    """An exponential average of the weights: those after the first update, then after each further one
    `decay * average + (1 - decay) * weights`. Buffers follow the net.

    `net` is the averaged copy: evaluate it with a Trainer of its own, or save it.
    """

    def __init__(self, net: Module, decay: float = 0.999) -> None:
        self.average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(decay))
        self._update = compile_function(self.average.update_parameters)

    @property
    def net(self) -> Module:
        """The net with the averaged weights."""
        return self.average.module

    def on_step_end(self, trainer: Training) -> None:
        """Take the weights into the average."""
        self._update(trainer.net)

    def state_dict(self) -> dict[str, Any]:
        """Return the averages."""
        return dict(self.average.state_dict())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self.average.load_state_dict(dict(state))


class CSVLog:
    """Writes the history to a CSV file after each epoch, whole: a run that was resumed repeats no row."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def on_epoch_end(self, trainer: Training, row: Row) -> None:
        """Write all rows. Raises: FileWriteError."""
        text = io.StringIO()
        writer = csv.DictWriter(text, History([*trainer.history, row]).columns())
        writer.writeheader()
        writer.writerows([*trainer.history, row])
        write_atomically(self.path, [text.getvalue().encode()])
