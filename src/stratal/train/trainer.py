"""Trainer: the loop around a training step, and what belongs to it: metrics, callbacks, checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from math import isfinite
from typing import Any, Final, Protocol

from stratal.base import tree
from stratal.base.counts import as_count
from stratal.base.dtypes import float32
from stratal.base.errors import AttributeValueError, CallOrderError, DTypeError, ShapeError
from stratal.nn.module import Module
from stratal.optim import LBFGS, Optimizer
from stratal.tensor.capture import compile as compile_function
from stratal.tensor.capture.compiled import Compiled
from stratal.tensor.functions.shapes import concat
from stratal.train.callbacks import Schedule, checked_callbacks
from stratal.train.evaluation import Evaluating, MeanLoss, forward_of, modes_of, restore_modes
from stratal.train.feeding import Batches, inputs_of, is_rows, pair_of, rows_of
from stratal.train.finite import NonFiniteError, non_finite_loss
from stratal.train.history import TIMES, History, Row, Running
from stratal.train.measured import Given, MetricSet
from stratal.train.misuse import OF_FIT, explaining
from stratal.train.monitored import check_monitored
from stratal.train.progress import Progress
from stratal.train.provenance import Provenance
from stratal.train.randomness import random_state, set_random_state
from stratal.train.step_state import refuse_idle_step, refuse_unheld_parts, refuse_unheld_state
from stratal.train.steps import Loss, TrainingStep, missing_parts, number_of, step_options


class Checkpoints(Protocol):
    """What `fit` asks of a manager of checkpoints."""

    def begin(self, resume: bool) -> Mapping[str, Any] | None: ...
    def due(self, steps: int) -> bool: ...
    def save(self, state: Mapping[str, Any], row: Row | None = None) -> Any: ...
    def wait(self) -> None: ...


class Trainer:
    """Trains a net: `fit`, `evaluate`, `predict`.

    `loss(outputs, targets)` returns one number. The step is a `TrainingStep`, compiled, or a function
    `step(*batch)` of your own that trains on a batch and returns the loss, or (loss, outputs); it is
    compiled, too, unless `compiled=False`. `options` are those of `StepOptions`: precision, clip_norm,
    clip_value, accumulate, check_finite.
    `trainer.step(x, y)` in a loop written by hand does what `fit` does with a batch.
    Raises: AttributeValueError, DTypeError.
    """

    def __init__(
        self, net: Module, *, loss: Loss | None = None, optimizer: Optimizer | None = None,
        metrics: Given = None, callbacks: Sequence[Any] = (), step: Callable[..., Any] | None = None,
        compiled: bool = True, **options: Any
    ) -> None:  # fmt: skip
        if not isinstance(net, Module):
            raise DTypeError("Trainer: takes a module", got=type(net).__name__)
        if loss is not None and (not callable(loss) or isinstance(loss, type)):
            called_so = f"{loss.__name__}()" if isinstance(loss, type) else "nn.functional.mse_loss"
            raise DTypeError(
                "Trainer: loss is a function of (outputs, targets)", got=f"{loss!r:.60}",
                hint=f"loss={called_so}",
            )  # fmt: skip
        if not isinstance(optimizer, Optimizer | None):
            raise DTypeError(
                "Trainer: takes an optimizer of the net's parameters", got=f"{optimizer!r:.60}",
                hint="step= and one of them; a callback with state_dict and load_state_dict has the others"
                if isinstance(optimizer, Sequence | Mapping) and not isinstance(optimizer, str)
                else "optimizer=optim.Adam(net.parameters())",
            )  # fmt: skip
        if isinstance(optimizer, LBFGS) and step is None:
            raise DTypeError(
                "Trainer: LBFGS steps with a closure, which a step of your own gives it", got="LBFGS",
                hint="Trainer(net, step=step, optimizer=optimizer, compiled=False)",
            )  # fmt: skip
        self.net, self.loss, self.optimizer = net, loss, optimizer
        self.metrics = MetricSet(metrics)
        self.callbacks = checked_callbacks(callbacks)
        self.options = step_options(options, step)
        self.step: Any = step
        if step is None and loss is not None and optimizer is not None:
            self.step = TrainingStep(net, loss, optimizer, self.options, compiled)
        elif step is not None and compiled and not isinstance(step, Compiled | TrainingStep):
            self.step = compile_function(step)
        forward = forward_of(net, loss, self.options)
        self._evaluated: Any = compile_function(forward) if compiled else forward
        self.epoch = 0  # how many are complete
        self.steps = 0  # updates of the optimizer
        self.history = History()
        self.running = Running()  # of the epoch under way
        self._provenance: Provenance | None = None  # of a fit with checkpoints

    # -- training --------------------------------------------------------------------------------------------
    @explaining(OF_FIT)
    def fit(
        self, data: Any, *, epochs: int = 1, validation: Any = None, batch_size: int | None = None,
        shuffle: bool = True, checkpoints: Checkpoints | None = None, resume: bool = False,
        progress: bool | None = None,
    ) -> History:  # fmt: skip
        """Train for `epochs` passes over `data` and return what they gave.

        `data` and `validation` are pairs (x, y) of arrays, data sets, or iterables of batches (x, y), such as
        a DataLoader. `batch_size` and `shuffle` are for the first two; the order is drawn from the generator
        that `st.manual_seed` starts. With `checkpoints` and `resume`, training goes on from the last
        checkpoint, if there is one, up to `epochs` in all. `progress` is shown on a terminal.
        Parts of a net in training that `eval()` froze stay so; a net that is all in evaluation is trained,
        and in that mode again afterwards.
        Ctrl-C ends it between two steps: net, optimizer and history are those of the last step.
        Raises: NonFiniteError, FileWriteError, AttributeValueError, DTypeError.
        """
        if self.step is None:
            raise missing_parts()
        epochs = as_count("fit: epochs counts from 1", epochs)
        if resume and checkpoints is None:
            raise AttributeValueError("fit: resume goes on from checkpoints", got="no checkpoints",
                                      hint="checkpoints=CheckpointManager(folder)")  # fmt: skip
        feeds = {"data": self._batches("fit", data, batch_size, shuffle)}
        if validation is not None:
            size = batch_size if is_rows(validation) else None
            feeds["validation"] = self._batches("validation", validation, size)
        if checkpoints is not None and not hasattr(checkpoints, "begin"):
            raise DTypeError("fit: checkpoints is a manager of them", got=f"{checkpoints!r:.60}",
                             hint="checkpoints=CheckpointManager(folder)")  # fmt: skip
        self._refuse_other_schedules()
        check_monitored(self._columns(feeds), self.callbacks, checkpoints, self.metrics)
        if checkpoints is not None:
            refuse_unheld_parts(self.step, self._holders())
        with getattr(checkpoints, "locked", nullcontext)():
            return self._fit(feeds, epochs, checkpoints, resume, progress)

    def _fit(
        self, feeds: dict[str, Batches], epochs: int, checkpoints: Checkpoints | None, resume: bool,
        progress: bool | None,
    ) -> History:  # fmt: skip
        self._begin(feeds, checkpoints, resume)
        shown = Progress(progress, epochs)
        modes = modes_of(self.net)
        if not self.net.training:
            self.net.train()
        try:
            while self.epoch < epochs and not self.history.stopped:
                self._fit_epoch(feeds, checkpoints, shown)
        finally:
            shown.close()
            restore_modes(modes)
            self._notify("on_fit_end")
            if checkpoints is not None:
                checkpoints.wait()
        return self.history

    def _refuse_other_schedules(self) -> None:
        """Raises: AttributeValueError for a schedule of another optimizer than that of the step."""
        for callback in self.callbacks if isinstance(self.step, TrainingStep) else ():
            other = getattr(callback.scheduler, "optimizer", None) if isinstance(callback, Schedule) else None
            if other is not None and other is not self.step.optimizer:
                raise AttributeValueError(
                    "fit: a schedule moves the rates of another optimizer than the one that trains",
                    got=f"Schedule({type(callback.scheduler).__name__})",
                    hint="make the scheduler of the optimizer that the Trainer has",
                )  # fmt: skip

    def _columns(self, feeds: Mapping[str, Batches]) -> list[str]:
        """Return the columns of a history, without those that callbacks of others add."""
        of_validation = [*(["loss"] if self.loss else []), *self.metrics] if "validation" in feeds else []
        scheduled = ["lr"] if any(isinstance(c, Schedule) for c in self.callbacks) else []
        validated = [f"validation_{name}" for name in of_validation]
        return ["epoch", "loss", *self.metrics, *validated, *scheduled, *TIMES]

    def stop(self, reason: str) -> None:
        """End training when the epoch under way is complete."""
        self.history.stopped = reason

    def _begin(self, feeds: dict[str, Batches], checkpoints: Checkpoints | None, resume: bool) -> None:
        self.epoch, self.steps = 0, 0
        self.history, self.running = History(), Running()
        self.metrics.reset()
        if _pending(self.step):
            self.step.discard()
        self._notify("on_fit_begin")
        self._provenance = None if checkpoints is None else self._provenance or Provenance()
        state = None if checkpoints is None else checkpoints.begin(resume)
        if state is not None:
            if self._provenance is not None and "provenance" in state:
                self._provenance.load_state_dict(state["provenance"])
            self._load(state["trainer"], getattr(checkpoints, "ranks", None))
            if set(state["feeds"]) != set(feeds):
                raise AttributeValueError(
                    "fit: resumes with the data of the run it goes on with",
                    got=f"{'no' if 'validation' in state['feeds'] else 'a'} validation",
                    hint="validation= as in that run",
                )
            for name, feed in feeds.items():
                feed.load_state_dict(state["feeds"][name])

    def _fit_epoch(self, feeds: dict[str, Batches], checkpoints: Checkpoints | None, shown: Progress) -> None:
        began, batches, running = time.perf_counter(), feeds["data"], self.running
        if not running.batches:
            self._notify("on_epoch_begin")
        shown.begin(self.epoch + 1, batches.count())
        passes = batches.one_pass()
        last: tuple[Any, Any] | None = None
        while True:
            asked = time.perf_counter()
            batch = next(passes, None)
            running.data_s += time.perf_counter() - asked
            if batch is None:
                break
            last = batch, self._train_on(batch)
            if not _pending(self.step):
                self._updated(feeds, checkpoints)
            shown.step(running)
        if not running.rows:
            raise AttributeValueError("fit: the data gave no batch", got=type(batches.source).__name__)
        if last is not None and _pending(self.step):
            self._located(self.step.finish, *last)
            self._updated(feeds, None)
        if not isinstance(self.step, TrainingStep) and not self.epoch:
            refuse_idle_step(self.step, self.net, whole_epoch=True)
        row: Row = {"epoch": self.epoch + 1, "loss": running.mean_loss(), **self.metrics.results()}
        if "validation" in feeds:
            found = self._evaluate(feeds["validation"])
            row |= {f"validation_{name}": value for name, value in found.items()}
        if self.options.scales and hasattr(self.step, "skipped"):
            row["skipped"] = running.skipped
        row |= running.times(time.perf_counter() - began)
        for callback in self._having("on_epoch_end"):
            callback.on_epoch_end(self, row)
        shown.end(running, row)
        self.history.rows.append(row)
        self.epoch += 1
        self.running = Running()
        self.metrics.reset()
        if self._provenance is not None:
            self._provenance.compare()
        if checkpoints is not None:
            checkpoints.save(self._everything(feeds, checkpoints), row)

    def _train_on(self, batch: tuple[Any, ...]) -> Any:
        """Train on a batch and return its loss. Raises: NonFiniteError."""
        running, began = self.running, time.perf_counter()
        captures: int = getattr(self.step, "captures", 0)
        own = not isinstance(self.step, TrainingStep)
        result = self._located(self.step, *(batch if own else pair_of("fit", batch)))
        loss, outputs = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
        value = number_of(loss)
        took = time.perf_counter() - began
        if getattr(self.step, "captures", 0) > captures:
            running.compile_s += took
            self._look_at_capture(batch)
        else:
            running.compute_s += took
        if self.options.check_finite is not None and not isfinite(value):
            self._located(_refuse, value, batch)
        rows = rows_of(batch)
        running.loss += value * rows
        running.rows += rows
        running.batches += 1
        if self.metrics:
            if outputs is None:
                raise DTypeError(
                    "fit: metrics need the outputs of a step of your own", got="a step that returns the loss",
                    hint="return loss, outputs",
                )  # fmt: skip
            self.metrics.update(outputs, pair_of("fit", batch)[1], rows)
        return loss

    def _look_at_capture(self, batch: tuple[Any, ...]) -> None:
        """Note a program, and refuse a step that does not train, or whose state no checkpoint would have.

        Raises: CallOrderError, AttributeValueError.
        """
        if not isinstance(self.step, TrainingStep) and not self.steps:
            refuse_idle_step(self.step, self.net)
        if self._provenance is not None:
            refuse_unheld_state(self.step, self._holders())
            self._provenance.note(self.step, batch)

    def _holders(self) -> list[Any]:
        """Return what a checkpoint has the state of."""
        others = [getattr(self.step, "scaler", None), self.metrics.members]
        return [*self._parts().values(), *others, *self._having("state_dict")]

    def _located(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function; a NonFiniteError says in which batch it came."""
        try:
            return function(*args)
        except NonFiniteError as error:
            error.got += f"; epoch {self.epoch + 1}, batch {self.running.batches + 1}"
            raise

    def _updated(self, feeds: dict[str, Batches], checkpoints: Checkpoints | None) -> None:
        if getattr(self.step, "skipped", False):
            self.running.skipped += 1
            return
        self.steps += 1
        self._notify("on_step_end")
        if checkpoints is not None and checkpoints.due(self.steps):
            checkpoints.save(self._everything(feeds, checkpoints))

    def _having(self, method: str) -> list[Any]:
        return [callback for callback in self.callbacks if hasattr(callback, method)]

    def _notify(self, event: str) -> None:
        for callback in self._having(event):
            getattr(callback, event)(self)

    # -- evaluation ------------------------------------------------------------------------------------------
    @explaining(OF_FIT)
    def evaluate(self, data: Any, *, batch_size: int | None = None) -> dict[str, Any]:
        """Return the mean loss and the metrics over `data`, in evaluation mode, without gradients."""
        if self.loss is None and not self.metrics:
            raise CallOrderError("evaluate: needs a loss or metrics", got="a Trainer without")
        return self._evaluate(self._batches("evaluate", data, batch_size))

    def _evaluate(self, batches: Batches) -> dict[str, Any]:
        metrics, found = self.metrics.copies(), MeanLoss()
        with Evaluating(self.net):
            for batch in batches.one_pass():
                x, y = pair_of(batches.name, batch)
                outputs, loss, divisor = self._evaluated(x, y)
                rows = rows_of(batch)
                found.add(loss, divisor, rows)
                metrics.update(outputs, y, rows)
        if not found.rows:
            raise AttributeValueError(f"{batches.name}: the data gave no batch")
        return {**({} if self.loss is None else {"loss": found.mean()}), **metrics.results()}

    @explaining(OF_FIT)
    def predict(self, data: Any, *, batch_size: int | None = None) -> Any:
        """Return the net's outputs for all of `data`: an array of inputs, or batches, whose targets are left
        out. Outputs of batches are joined along their rows. Raises: ShapeError for those that have none.
        """
        batches = self._batches("predict", data, batch_size)
        with Evaluating(self.net):
            found = [self._evaluated(inputs_of("predict", batch), None)[0] for batch in batches.one_pass()]
        if not found:
            raise AttributeValueError("predict: the data gave no batch")
        if not all(getattr(leaf, "ndim", 0) for leaf in tree.leaves(found[0])):
            raise ShapeError(
                "predict: joins outputs along their rows", got="an output of no axes",
                hint="net(x) gives it of a batch; evaluate averages losses and metrics",
            )  # fmt: skip
        return tree.map(_joined, *found)

    def _batches(self, name: str, data: Any, batch_size: int | None, shuffle: bool = False) -> Batches:
        floats = (p.dtype for p in self.net.parameters() if p.dtype.is_float)
        own_step = name == "fit" and not isinstance(self.step, TrainingStep)
        alone = name == "predict" or own_step
        return Batches(name, data, batch_size, shuffle, next(floats, float32), alone)

    # -- state -----------------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """Return all that training depends on but the data: what a checkpoint holds."""
        return self._state(None)

    def _state(self, ranks: Any) -> dict[str, Any]:
        """Return the state; in a job of ranks what is sharded is this rank's pieces."""
        scaler, parts = getattr(self.step, "scaler", None), self._parts()
        whole = None if ranks else {name: part.state_dict() for name, part in parts.items()}
        return {
            "optimizer": None, **(whole or ranks.state_in_pieces(parts)),
            "scaler": None if scaler is None else scaler.state_dict(),
            "callbacks": [[type(c).__name__, c.state_dict()] for c in self._having("state_dict")],
            "metrics": self.metrics.state_dict(), "random": random_state(),
            "epoch": self.epoch, "steps": self.steps, "history": self.history.rows,
            "stopped": self.history.stopped, "running": self.running.as_dict(),
        }  # fmt: skip

    def _parts(self) -> dict[str, Any]:
        """Return what is trained, by its name in a state: of a loss only what has parameters or buffers."""
        loss = self.loss if isinstance(self.loss, Module) and self.loss.state_dict() else None
        found = {"net": self.net, "loss": loss, "optimizer": self.optimizer}
        return {name: part for name, part in found.items() if part is not None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state. Raises: AttributeValueError where callbacks or metrics are others."""
        self._load(state, None)

    def _load(self, state: Mapping[str, Any], ranks: Any) -> None:
        if _STATE - {*state}:
            raise AttributeValueError(
                "Trainer: takes what its state_dict returned", got=", ".join(map(str, state)) or "nothing",
                hint='state["trainer"] of a checkpoint' if "trainer" in state else "trainer.state_dict()",
            )  # fmt: skip
        callbacks = self._having("state_dict")
        saved = [(name, found) for name, found in state["callbacks"] if found is not None]
        here, there = [type(c).__name__ for c in callbacks], [name for name, _ in saved]
        if here != there:
            raise AttributeValueError(
                "Trainer: resumes with the callbacks with a state that it was saved with",
                got=f"{', '.join(here) or 'none'} for {', '.join(there) or 'none'}",
                hint="callbacks without state_dict may come and go",
            )
        parts = self._parts()
        if "loss" in parts and "loss" not in state and any(True for _ in parts["loss"].parameters()):
            raise AttributeValueError(
                "Trainer: resumes with the loss that it was saved with",
                got=f"a {type(self.loss).__name__} with parameters, of which the state has none",
            )
        parts = {name: part for name, part in parts.items() if state.get(name) is not None}
        if ranks is not None:
            ranks.load_whole(parts, state)
        else:
            for name, part in parts.items():
                part.load_state_dict(state[name])
        if state["scaler"] and hasattr(self.step, "scaler"):
            self.step.scaler.load_state_dict(state["scaler"])
        for callback, (_, found) in zip(callbacks, saved, strict=True):
            callback.load_state_dict(found)
        self.metrics.load_state_dict(state["metrics"])
        self.epoch, self.steps = int(state["epoch"]), int(state["steps"])
        self.history = History(state["history"], state["stopped"])
        self.running = Running(**state["running"])
        set_random_state(state["random"])

    def _everything(self, feeds: Mapping[str, Batches], checkpoints: Checkpoints) -> dict[str, Any]:
        trainer = self._state(getattr(checkpoints, "ranks", None))
        made_by = {} if self._provenance is None else {"provenance": self._provenance.state_dict()}
        return {"trainer": trainer, "feeds": {k: v.state_dict() for k, v in feeds.items()}, **made_by}

    def __repr__(self) -> str:
        parts = [type(part).__name__ for part in (self.net, self.optimizer) if part is not None]
        return f"<Trainer of {', '.join(parts)}: {self.epoch} epochs, {self.steps} steps>"


_STATE: Final = {"net", "optimizer", "scaler", "callbacks", "metrics", "random", "epoch", "steps", "history"}


def _joined(*parts: Any) -> Any:
    """Return outputs of batches as one. Raises: ShapeError."""
    other = next((p for p in parts if p.shape[1:] != parts[0].shape[1:]), None)
    if other is not None:
        raise ShapeError(
            "predict: joins outputs along their rows, which have one shape",
            got=f"{list(parts[0].shape)} and {list(other.shape)}",
            hint="batches that are padded to one length; or net(x) for each batch, in evaluation mode",
        )  # fmt: skip
    return concat(parts)


def _pending(step: Any) -> int:
    return int(getattr(step, "pending", 0))


def _refuse(loss: float, batch: tuple[Any, ...]) -> None:
    raise non_finite_loss(loss, batch)
