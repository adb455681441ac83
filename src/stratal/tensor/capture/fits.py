"""Whether a step fits into a memory budget, answered without running it or generating code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from stratal.base import settings
from stratal.base.budget import Budget, checked_flag
from stratal.base.errors import AttributeValueError, CaptureError
from stratal.compiler import memory_front as compiled_front
from stratal.compiler import planned
from stratal.graph.graph import Graph
from stratal.memory.render import format_bytes
from stratal.plan.front import Front
from stratal.plan.record import Plan
from stratal.tensor.capture.ahead import captured_ahead
from stratal.tensor.capture.compiled import Compiled, CompiledModule
from stratal.tensor.values.state import MODE

MOST_POINTS: Final = 1000  # of a front: each is a plan


@dataclass(frozen=True, repr=False, slots=True)
class Fit:
    """The plan of a step within a budget.

    `slowdown` is the estimated time over that of the step without a budget, `unconstrained_bytes` what that
    one needs. `in_parts` says in how many parts the batch is computed, or why it is not split.
    """

    plan: Plan
    budget_bytes: int
    slowdown: float
    unconstrained_bytes: int
    in_parts: str = ""

    @property
    def planned_peak_bytes(self) -> int:
        return self.plan.planned_peak_bytes

    def __repr__(self) -> str:
        needed, whole = self.plan.planned_peak_bytes, self.unconstrained_bytes
        rest = f"{format_bytes(whole)} without a budget" if needed != whole else "as without a budget"
        return (
            f"{self.plan.name}: fits {format_bytes(self.budget_bytes)} with {format_bytes(needed)} ({rest}), "
            f"estimated at {self.slowdown:.2f} of the time" + (f"; {self.in_parts}" if self.in_parts else "")
        )


def fits(
    step: Callable[..., Any], *args: Any, memory: int | str, micro_batches: bool = False, **kwargs: Any
) -> Fit:
    """Return the plan of a call `step(*args, **kwargs)` within a budget, without running it.

    `memory` is in bytes, or a size such as "512 MB" or "8 GiB", and counts what `planned_peak_bytes` of a
    plan counts: inputs, parameters and states, activations, outputs and workspaces. The function, compiled or
    not, is captured as its first call would be, with the sizes at hand; no code is generated. Nothing is
    changed, but that an optimizer may have its state already, at its start. `micro_batches`: as of `compile`.

    Raises: DoesNotFit with the least budget that is known to work, what is fixed, and the largest values.
    """
    budget = Budget.of("fits", memory, micro_batches)
    graph = _captured("fits", step, args, kwargs)
    with settings.memory(None):
        _, free, _ = planned(graph)
    plan, in_parts = free, ""
    if free.planned_peak_bytes > budget.nbytes:
        with budget.in_force():
            _, plan, log = planned(graph)
        in_parts = next((f"{d.choice} ({d.why})" for d in log if d.subject == "micro-batches"), "")
    slowdown = plan.estimated_seconds / max(free.estimated_seconds, 1e-12)
    return Fit(plan, budget.nbytes, slowdown, free.planned_peak_bytes, in_parts)


def memory_front(
    step: Callable[..., Any], *args: Any, points: int = 8, micro_batches: bool = False, **kwargs: Any
) -> Front:
    """Return what less memory is predicted to cost a call `step(*args, **kwargs)`, without running it.

    The front has at most so many points, from the plan without a budget to the smallest that is known, each
    with its bytes and its estimated time; no other plan that was found is both smaller and quicker. It prints
    as a table. With `settings.offload_dir` plans may let states wait in a file, with `micro_batches` they may
    compute the batch in parts, as those of `compile` may; then it says how many, or why they do not.

    Raises: AttributeValueError for fewer than two points, or more than `MOST_POINTS`.
    """
    if not isinstance(points, int) or not 2 <= points <= MOST_POINTS:
        raise AttributeValueError(f"memory_front: points is a whole number from 2 to {MOST_POINTS}",
                                  got=repr(points))  # fmt: skip
    in_parts = checked_flag("memory_front", micro_batches) or settings.micro_batches.value
    graph = _captured("memory_front", step, args, kwargs)
    with settings.micro_batches(in_parts):
        return compiled_front(graph, points)


def _captured(name: str, step: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Graph:
    """Return the graph of a call as its first run would capture it."""
    if MODE.trace is not None:
        raise CaptureError(f"{name}: cannot be asked inside a function that is being captured")
    if isinstance(step, CompiledModule):
        step = step._compiled
    function = step if isinstance(step, Compiled) else Compiled(step)
    return captured_ahead(function, *args, **kwargs).graph


__all__ = ["Fit", "fits", "memory_front"]
