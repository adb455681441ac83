"""`st.estimate`: bytes of a training step by purpose, per rank, and on which devices they fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from stratal.base.byte_sizes import parse_bytes
from stratal.base.errors import AttributeValueError, CallOrderError
from stratal.distributed.zero import Memory, zero_memory
from stratal.forecast.planned_step import Step, StepBytes
from stratal.forecast.subject import StateBytes, precision_of, subject_of
from stratal.memory.render import format_bytes
from stratal.tensor.values.state import MODE

STAGES: Final = ("data", "zero 1", "zero 2", "zero 3")
MOST_BATCH: Final = 1 << 31
NOTHING: Final = StepBytes(0, 0, 0)


class Device(NamedTuple):
    """A device and its memory; GB are 10^9 bytes, as everywhere here."""

    name: str
    memory_bytes: int

    def __str__(self) -> str:
        return f"{self.name} ({self.memory_bytes // 10**9} GB)"


DEVICES: Final = tuple(
    Device(name, gigabytes * 10**9)
    for name, gigabytes in (
        ("Titan X", 12), ("V100", 16), ("RTX 4090", 24), ("V100", 32), ("A100", 40), ("L40S", 48),
        ("A100", 80), ("H100", 80), ("H200", 141),
    )
)  # fmt: skip


class Offloaded(NamedTuple):
    """What stays on the device, and what lies in the host's memory."""

    device_bytes: int
    host_bytes: int


class Estimate:
    """Bytes that a training step, or a run of inference, holds in each process, by purpose.

    Without a batch: the model's state alone. With one: the plan of the step on this machine, to the byte.
    """

    def __init__(
        self, title: str, num_parameters: int, state: StateBytes, step: Step | None, ranks: int, zero: int
    ) -> None:
        self.title = title
        self.num_parameters = num_parameters
        self.ranks, self.zero = ranks, zero
        self._state = state
        self._step = step
        self._rest = step.bytes() if step is not None else NOTHING

    # -- by purpose ------------------------------------------------------------------------------------------
    @property
    def _own(self) -> Memory:
        return self._by_stage()[STAGES[self.zero]]

    def _by_stage(self) -> dict[str, Memory]:
        parameters, gradients, optimizer = self._state
        return zero_memory(
            1, self.ranks, parameter_bytes=parameters, gradient_bytes=gradients, optimizer_bytes=optimizer
        )

    @property
    def parameter_bytes(self) -> int:
        """Of the parameters, or of this rank's share."""
        return round(self._own.parameters)

    @property
    def gradient_bytes(self) -> int:
        """Of the gradients, which last from `backward` to the next `zero_grad`."""
        return round(self._own.gradients)

    @property
    def optimizer_bytes(self) -> int:
        """Of the optimizer's state, with float32 master copies of the parameters in mixed precision."""
        return round(self._own.optimizer)

    @property
    def input_bytes(self) -> int:
        """Of the batch, of the model's buffers, and of numbers such as the learning rate."""
        return self._rest.inputs

    @property
    def activation_bytes(self) -> int:
        """Of activations and temporaries, which share the arena, and of results."""
        return self._rest.activations

    @property
    def workspace_bytes(self) -> int:
        """Of the kernels' scratch memory, for all threads, and of constants."""
        return self._rest.workspace

    @property
    def total_bytes(self) -> int:
        """Of all that one process holds."""
        return self._with(self._own, self._rest)

    @staticmethod
    def _with(state: Memory, rest: StepBytes) -> int:
        return sum(map(round, state)) + rest.total

    # -- what follows ----------------------------------------------------------------------------------------
    @property
    def per_rank(self) -> dict[str, int]:
        """Bytes of each rank under data parallelism and under ZeRO 1, 2 and 3, each with the batch given.

        See: Rajbhandari et al. 2020, figure 1.
        """
        return {name: self._with(state, self._rest) for name, state in self._by_stage().items()}

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices of `DEVICES` that suffice for one rank, the smallest first."""
        return tuple(d for d in DEVICES if self.total_bytes <= d.memory_bytes)

    @property
    def offloaded(self) -> Offloaded:
        """The split where gradients and the optimizer's state lie in the host's memory.

        See: Ren et al. 2021, ZeRO-Offload.
        """
        host = self.gradient_bytes + self.optimizer_bytes
        return Offloaded(self.total_bytes - host, host)

    def fits(self, budget: Any) -> bool:
        """Return whether all of it fits into a budget, such as "12GB"."""
        return self.total_bytes <= parse_bytes(budget, "estimate.fits")

    def largest_batch(self, budget: Any) -> int:
        """Return the largest batch that fits into a budget, such as "12GB"; 0 where none does.

        Exact at both ends: a step of so many rows is planned and fits, one of a row more is planned and does
        not. In between sizes are tried where a line through the plans at hand meets the budget, or halfway.
        Raises: CallOrderError without a batch, ShapeError where axis 0 is not of one size.
        """
        if self._step is None:
            raise CallOrderError(
                "largest_batch: of an estimate without a batch", got="the state of the model alone",
                hint="st.estimate(.., batch=(x, y)) plans a step",
            )  # fmt: skip
        budget_bytes = parse_bytes(budget, "largest_batch")
        if self._with(self._own, NOTHING) >= budget_bytes:
            return 0  # the model's state alone is too much
        return largest(self._total_of, budget_bytes, self._step.batch_size)

    def _total_of(self, batch_size: int) -> int:
        assert self._step is not None
        return self._with(self._own, self._step.bytes(batch_size))

    def to_json(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        return {
            "title": self.title, "parameters": self.num_parameters, "ranks": self.ranks, "zero": self.zero,
            **{name: number for name, number, _ in self._rows()}, "total_bytes": self.total_bytes,
            "per_rank": self.per_rank, "offloaded": self.offloaded._asdict(),
            "devices": [str(d) for d in self.devices],
        }  # fmt: skip

    def _rows(self) -> list[tuple[str, int, str]]:
        rows = [("parameter_bytes", self.parameter_bytes, "parameters")]
        if self._state.gradients:
            rows += [
                ("gradient_bytes", self.gradient_bytes, "gradients"),
                ("optimizer_bytes", self.optimizer_bytes, "optimizer state"),
            ]
        if self._step is not None:
            rows += [
                ("activation_bytes", self.activation_bytes, "activations"),
                ("workspace_bytes", self.workspace_bytes, "workspace"),
                ("input_bytes", self.input_bytes, "batch, buffers"),
            ]
        return rows

    def __str__(self) -> str:
        lines = [self.title]
        lines += [f"  {text:<16} {format_bytes(number):>10}" for _, number, text in self._rows()]
        lines.append(f"  {'in all':<16} {format_bytes(self.total_bytes):>10}")
        if self._step is None:
            lines.append("  without activations: give a batch")
        if self.ranks > 1:
            rows = ", ".join(f"{name} {format_bytes(number)}" for name, number in self.per_rank.items())
            lines.append(f"  each of {self.ranks} ranks: {rows}")
        found = self.devices
        fits = f"{found[0]} and larger" if len(found) > 1 else str(*found) or f"none up to {DEVICES[-1]}"
        lines.append(f"  fits on: {fits}")
        if self._state.gradients:
            device, host = map(format_bytes, self.offloaded)
            lines.append(f"  or {device} there, gradients and optimizer state, {host}, on the host")
        return "\n".join(lines)

    __repr__ = __str__


def largest(total_of: Callable[[int], int], budget_bytes: int, start: int) -> int:
    """Return the largest size whose total is within a budget, 0 where none is; totals grow with the size.

    Of the two sizes it ends between, both totals were asked for.
    """
    low, high = 0, 0  # the largest known to fit, the smallest known not to
    known: dict[int, int] = {}

    def fits(size: int) -> bool:
        known[size] = total_of(size)
        return known[size] <= budget_bytes

    size = max(start, 1)
    by_line = True
    while high != low + 1:
        before = high - low if high else None
        low, high = (size, high) if fits(size) else (low, size)
        if not high and low >= MOST_BATCH:
            return low
        size = _next(known, low, high, budget_bytes, by_line)
        by_line = before is None or not high or high - low <= before // 2  # else halve
    return low


def _next(known: dict[int, int], low: int, high: int, budget_bytes: int, by_line: bool) -> int:
    """Return the size to try next, between the largest that fits and the smallest that does not."""
    ends = sorted(known)[-2:] if not high else [s for s in (low, high) if s in known]
    guess = 2 * low if not high else (low + high) // 2
    if by_line and len(ends) == 2 and known[ends[1]] > known[ends[0]]:
        slope = (known[ends[1]] - known[ends[0]]) / (ends[1] - ends[0])
        guess = int(ends[0] + (budget_bytes - known[ends[0]]) / slope)
    if not high:
        return min(max(guess, low + 1), 64 * low, MOST_BATCH)
    return min(max(guess, low + 1), high - 1) if high - low > 1 else low


def estimate(
    model: Any, optimizer: Any = None, precision: str | None = None, *, batch: Any = None,
    loss: Callable[..., Any] | None = None, ranks: int = 1, zero: int = 0,
) -> Estimate:  # fmt: skip
    """Return the memory that training takes, in bytes by purpose, without running anything and without it.

    `model`: a module; a function that builds one, which is then built without its parameters' memory, so
    that it may be larger than this machine; or a number of parameters.
    `optimizer`: its name ("adam"), its class, a function of parameters, or an optimizer of the model's.
    Without one: inference, in evaluation mode, without gradients.
    `precision`: "float64", "float32", "bfloat16" or "float16" of parameters and gradients, what the model has
    where left out; "bfloat16-mixed" and "float16-mixed" with float32 master copies in the optimizer's state.
    `batch`: sample inputs, of which only types count. The step is then captured and planned, and adds
    activations and workspace as `step.plan` has them. The model is called with all of them, by name where
    they are a dict; the first tensor it returns is the loss, or stands for one by its mean. With `loss`, that
    is `loss(model(batch[0]), *batch[1:])`, or `loss(model(**batch))`.
    `ranks`, `zero`: of how many ranks with data parallelism, and which stage of ZeRO (0: none); each has the
    batch given.
    Units: bytes; GB are 10^9.
    Raises: AttributeValueError, CallOrderError, DTypeError, and what the call of the model raises.

    >>> print(estimate(1.5e9, "adam", "bfloat16-mixed", ranks=64, zero=2))
    1,500,000,000 parameters, Adam, bfloat16-mixed, zero 2
      parameters          3.00 GB
      gradients          46.88 MB
      optimizer state   281.25 MB
      in all              3.33 GB
      without activations: give a batch
      each of 64 ranks: data 24.00 GB, zero 1 6.28 GB, zero 2 3.33 GB, zero 3 375.00 MB
      fits on: Titan X (12 GB) and larger
      or 3.00 GB there, gradients and optimizer state, 328.12 MB, on the host
    """
    if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
        raise AttributeValueError("estimate: ranks is a whole number from 1 on", got=repr(ranks))
    if isinstance(zero, bool) or zero not in range(4):
        raise AttributeValueError("estimate: a stage of ZeRO is 1, 2 or 3, or 0 for none", got=repr(zero))
    if MODE.trace is not None:
        raise CallOrderError("estimate: is called outside of captured functions", got="a call in one")
    subject = subject_of(model, optimizer, precision_of(precision))
    if batch is not None and subject.model is None:
        raise AttributeValueError(
            "estimate: a batch is of a model", got="a number of parameters",
            hint="a function that builds a model has it built without its memory",
        )  # fmt: skip
    step = None if batch is None else Step(subject, batch, loss)
    count = f"{subject.num_parameters:,} parameters"
    title = [subject.name, *([count] if subject.model is not None else [])]
    title += [subject.optimizer_name or "inference", *([precision] if precision else [])]
    title += [f"zero {zero}"] if zero else []
    return Estimate(", ".join(title), subject.num_parameters, subject.state, step, ranks, zero)
