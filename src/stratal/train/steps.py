"""The training step as a function of a batch: forward, backward, update, compiled as one program.

    forward     outputs = net(x), loss(outputs, y), under autocast where a precision is given
    backward    gradients, scaled in float16
    update      of all `accumulate` batches: mean gradient, clipped, one step of the optimizer
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final

import numpy as np

from stratal.base.counts import as_count
from stratal.base.dtypes import as_dtype, float16
from stratal.base.errors import AttributeValueError, CallOrderError, DTypeError, StratalError
from stratal.nn.module import Module
from stratal.nn.utils import clip_grad_norm_, clip_grad_value_
from stratal.optim import Optimizer
from stratal.optim.grad_scaler import GradScaler
from stratal.tensor.autocast import autocast
from stratal.tensor.capture import compile as compile_function
from stratal.tensor.tensor import Tensor
from stratal.tensor.values.state import no_grad
from stratal.train.finite import called, finite_gradients, non_finite_step, step_where
from stratal.train.misuse import OF_TRAINER, unknown_option

Loss = Callable[[Any, Any], Tensor]
_OPTIONS: Final = ("loss", "optimizer", "metrics", "callbacks", "step", "compiled")  # of a Trainer, beside
CHECKS: Final = ("loss", "gradients", None)


@dataclass(frozen=True)
class StepOptions:
    """What a step does beside forward, backward and update.

    Raises: AttributeValueError for a value out of its range, and for checks of gradients in float16, whose
    overflows are part of the method.
    """

    precision: Any = None  # the dtype of products, see `st.autocast`
    clip_norm: float | None = None
    clip_value: float | None = None
    accumulate: int = 1  # batches for one update
    check_finite: str | None = "loss"

    def __post_init__(self) -> None:
        for name in ("clip_norm", "clip_value"):
            bound = getattr(self, name)
            if bound is not None and not bound > 0:
                raise AttributeValueError(f"Trainer: {name} must be positive", got=str(bound))
        accumulate = as_count("Trainer: accumulate counts batches, from 1", self.accumulate)
        object.__setattr__(self, "accumulate", accumulate)  # NumPy's would be part of the program
        if self.check_finite not in CHECKS:
            raise AttributeValueError(
                'Trainer: check_finite is "loss", "gradients" or None', got=repr(self.check_finite)
            )
        if self.scales and self.check_finite == "gradients":
            raise AttributeValueError(
                'Trainer: float16 has overflows that the scaler undoes; check_finite="loss" goes with it',
                got='check_finite="gradients"', hint='precision="bfloat16" has none',
            )  # fmt: skip

    @property
    def scales(self) -> bool:
        """Whether losses are scaled against the small range of float16."""
        return self.precision is not None and as_dtype(self.precision) is float16

    def cast(self) -> Any:
        """Return the context in which the net and the loss run."""
        return nullcontext() if self.precision is None else autocast(dtype=self.precision)


class TrainingStep:
    """`step(x, y)` trains on a batch and returns (loss, outputs); fit and hand-written loops call it alike.

    With `accumulate` above 1 the optimizer steps in every so many calls, with the mean of the batches'
    gradients; `finish` makes the step that an incomplete window still owes. `skipped` says whether the last
    update was left out, as it overflowed in float16.
    Raises: NonFiniteError, before anything is updated, with `check_finite="gradients"`; CallOrderError where
    the loss depends on no parameter of the optimizer.
    """

    def __init__(
        self, net: Module, loss: Loss, optimizer: Optimizer, options: StepOptions, compiled: bool = True
    ) -> None:
        self.net, self.loss, self.optimizer, self.options = net, loss, optimizer, options
        self._parts = {"": net, **({"loss.": loss} if isinstance(loss, Module) else {})}  # by prefix of names
        self.scaler = GradScaler(enabled=options.scales)
        self.pending = 0  # batches whose gradients no update has used
        self.skipped = False
        made = compile_function if compiled else _as_it_is
        self._whole: Any = made(self._train)
        self._gather: Any = made(self._add_gradients)
        self._update: Any = made(self._update_with)
        parts = {"step": self._whole}
        if options.accumulate > 1:
            parts = {"gradients": self._gather, "update": self._update}
        self.programs: dict[str, Any] = parts if compiled else {}  # compiled functions by what they do

    @property
    def captures(self) -> int:
        """How many programs were captured so far."""
        found = 0
        for program in self.programs.values():  # asked for at each step: plainer forms take longer
            found += program.captures
        return found

    @property
    def plan(self) -> Any:
        """The plan of the program of a batch. Raises: CallOrderError where the step is not compiled."""
        return self._of_a_batch("plan").plan

    def explain(self, *args: Any, **kwargs: Any) -> Any:
        """Return the decisions behind the program of a batch, as of a compiled function."""
        return self._of_a_batch("explain").explain(*args, **kwargs)

    def view(self, path: Any = None, **options: Any) -> Any:
        """Return the explorer's page of the program of a batch, as of a compiled function."""
        return self._of_a_batch("view").view(path, **options)

    def _of_a_batch(self, asked: str) -> Any:
        if not self.programs:
            raise CallOrderError(f"{asked}: of a compiled step", got="compiled=False")
        return next(iter(self.programs.values()))

    def __call__(self, x: Any, y: Any) -> tuple[Tensor, Any]:
        if self.options.accumulate == 1:
            loss, outputs, flags = self._whole(x, y)
            self._check((x, y), loss, flags)
            return loss, outputs
        if not self.pending:
            self.optimizer.zero_grad()
        loss, outputs = self._gather(x, y)
        if self.options.check_finite == "gradients" and not isfinite(value := loss.item()):
            self.discard()
            raise non_finite_step(self.net, self._forward, (x, y), value, {})
        self.pending += 1
        if self.pending == self.options.accumulate:
            self._finish_with((x, y), loss)
        return loss, outputs

    def finish(self, batch: Any, loss: Tensor) -> None:
        """Update with the gradients there are, where a window of accumulation is incomplete."""
        if self.pending:
            self._finish_with(batch, loss)

    def discard(self) -> None:
        """Forget the gradients of an incomplete window."""
        self.pending = 0
        self.optimizer.zero_grad()

    def _finish_with(self, batch: Any, loss: Tensor) -> None:
        flags = self._update(loss, self.pending)
        self.pending = 0
        self._check(batch, loss, flags)

    def _check(self, batch: Any, loss: Tensor, flags: Any) -> None:
        if self.options.scales:
            self.skipped = bool(flags)
        elif flags is not None and not bool(flags[0]):
            each = {name: bool(flag) for name, flag in flags[1].items()}
            raise non_finite_step(self.net, self._forward, batch, loss.item(), each)

    # -- what is compiled ------------------------------------------------------------------------------------
    def _train(self, x: Any, y: Any) -> tuple[Tensor, Any, Any]:
        loss, outputs = self._forward(x, y)
        self.optimizer.zero_grad()
        self._backward(loss)
        return loss.detach(), outputs, self._update_with(loss, 1)

    def _add_gradients(self, x: Any, y: Any) -> tuple[Tensor, Any]:
        loss, outputs = self._forward(x, y)
        self._backward(loss)
        return loss.detach(), outputs

    def _backward(self, loss: Tensor) -> None:
        """Add to the gradients of the optimizer's parameters. Those of others are dropped: nothing would ever
        clear them, and a compiled step does not compute them.
        """
        self.scaler.scale(loss).backward()
        self._refuse_other_parameters()
        given = {id(p) for p in self._given()}
        for part in self._parts.values():
            for p in part.parameters():
                if id(p) not in given:
                    p.grad = None

    def _given(self) -> list[Tensor]:
        """Return the optimizer's parameters."""
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def _trained(self) -> dict[str, Tensor]:
        """Return the optimizer's parameters that have a gradient, by name, in the order of the net's, the
        loss's and others.
        """
        names: dict[int, str] = {}
        for prefix, part in self._parts.items():
            for name, p in part.named_parameters():
                names.setdefault(id(p), prefix + name)
        order = {key: k for k, key in enumerate(names)}
        given = [(p, f"parameter {k} of the optimizer") for k, p in enumerate(self._given())]
        given.sort(key=lambda pair: order.get(id(pair[0]), len(order)))
        return {names.get(id(p), other): p for p, other in given if p.grad is not None}

    def _forward(self, x: Any, y: Any) -> tuple[Tensor, Any]:
        with self.options.cast():
            outputs = called(self.net, x)
            loss = self.loss(outputs, y)
        if not isinstance(loss, Tensor) or loss.shape != ():
            raise AttributeValueError(
                "Trainer: loss(outputs, targets) returns one number, a tensor of no axes",
                got=f"shape {loss.shape}" if isinstance(loss, Tensor) else type(loss).__name__,
                hint="loss.mean()",
            )
        return loss, outputs

    def _update_with(self, loss: Tensor, batches: int) -> Any:
        """Update with the gradients of some batches. Returns whether they are finite, where that is asked; in
        float16 whether they overflow.
        """
        options, given = self.options, self._given()
        if options.scales:
            self.scaler.unscale_(self.optimizer)
        if batches > 1:
            with no_grad():
                for p in given:
                    if p.grad is not None:
                        p.grad.copy_(p.grad / batches)
        flags: Any = None
        if options.check_finite == "gradients":
            flags = finite_gradients(self._trained(), loss)
        if options.clip_value is not None:
            clip_grad_value_(given, options.clip_value)
        if options.clip_norm is not None:
            clip_grad_norm_(given, options.clip_norm)
        if flags is not None:
            step_where(flags[0], self.optimizer)
        elif options.scales:
            flags = self.scaler.overflow(self.optimizer)
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        return flags

    def _refuse_other_parameters(self) -> None:
        """Raises: CallOrderError where no parameter of the optimizer has a gradient, or some are of a part
        that the net has no more, and those of the part in its place would not be trained.
        """
        given = self._given()
        nets = {id(p) for p in self.net.parameters()}
        if any(p.grad is not None for p in given):
            stale = any(p.grad is None and id(p) not in nets for p in given)
            known = {id(p) for p in given}
            missing = [n for n, p in self.net.named_parameters() if p.grad is not None and id(p) not in known]
            if stale and missing:
                raise CallOrderError(
                    "fit: the optimizer lacks parameters of the net, and has some that are not the net's",
                    got=", ".join(missing[:4]) + ", .." * (len(missing) > 4),
                    hint="make the optimizer when the net has all its parts",
                )
            return
        own = sum(id(p) in nets for p in given)
        raise CallOrderError(
            "fit: no parameter of the optimizer has a gradient, so nothing would be trained",
            got=f"{len(given)} parameter{'s' * (len(given) > 1)}, "
            f"{'none' if not own else 'all' if own == len(given) else own} of the net's",
            hint="the loss takes them in, and they have requires_grad" if own
            else "optimizer=optim.Adam(net.parameters()), of the net that is trained",
        )  # fmt: skip


def number_of(loss: Any) -> float:
    """Return the loss of a step as a number. Raises: DTypeError for what is none."""
    if isinstance(loss, Tensor):
        try:
            return float(loss.item())
        except StratalError:
            if loss.numel() == 1:
                raise
    if isinstance(loss, int | float | np.number | np.ndarray) and np.size(loss) == 1:
        return float(np.asarray(loss).item())
    if isinstance(loss, Tensor):
        got, hint = f"a loss of shape {list(loss.shape)}", "loss.mean()"
    elif isinstance(loss, Mapping):
        got, hint = f"a dict of {', '.join(map(str, loss))}", 'return found["loss"]'
    else:
        got, hint = "nothing" if loss is None else type(loss).__name__, "return loss"
    raise DTypeError(
        "fit: a step of your own returns the loss, one number, or the loss and outputs", got=got, hint=hint
    )


def _as_it_is(function: Any) -> Any:
    return function


def step_options(options: Mapping[str, Any], step: Any) -> StepOptions:
    """Return the options of a Trainer's step. Raises: AttributeValueError."""
    known = StepOptions.__dataclass_fields__
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise unknown_option("Trainer", unknown[0], [*_OPTIONS, *known], OF_TRAINER)
    others = sorted(set(options) - {"precision", "check_finite"})
    if step is not None and (others or options.get("check_finite") == "gradients"):
        raise AttributeValueError(
            "Trainer: a step of your own clips, accumulates and checks gradients itself",
            got=", ".join(others) or 'check_finite="gradients"',
        )
    return StepOptions(**options)


def missing_parts() -> CallOrderError:
    """Return the error for a trainer that is to fit without what a step takes."""
    return CallOrderError(
        "fit: needs a loss and an optimizer, or a step of your own", got="a Trainer without",
        hint="Trainer(net, loss=nn.functional.cross_entropy, optimizer=optim.Adam(net.parameters()))",
    )  # fmt: skip
