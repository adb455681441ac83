"""The short way to a value: one new tensor, or the results of one call, while nothing else waits.

It is what a run without companions comes to, at a fraction of its cost. Most values of plain calls are
computed here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stratal.base.interrupts import InterruptsHeld
from stratal.tensor import programs, values
from stratal.tensor.companions import goal_of, is_leaf, trivial, waiting
from stratal.tensor.execution import run_program, settle_in
from stratal.tensor.handles import TRACKED
from stratal.tensor.promises import Promise, Template
from stratal.tensor.tensor import Tensor


def compute_alone(tensor: Tensor, give_up: Callable[[Sequence[Tensor]], None]) -> bool:
    """Compute a plain new tensor of values that are there, if nothing else waits; return whether it did.

    `give_up` is called for what could not be computed, before the error goes on.
    """
    if tensor._storage is not None or tensor._home is not None or tensor._before is not None or tensor._leaf:
        return False
    others = waiting()
    if tensor._held.__class__ is Promise:
        return _compute_call(tensor, others, give_up)
    if len(others) > 1 or tensor._track == TRACKED:
        return False
    node = goal_of(tensor)
    if is_leaf(node) or trivial(node):
        return False
    order, leaves = programs.walk([node], is_leaf)
    inputs = [storage for leaf in leaves if (storage := values.finished(leaf)) is not None]
    if len(inputs) < len(leaves):
        return False
    try:
        program = programs.program_for(programs.Work(leaves, [node], [], order), "flush")
        with InterruptsHeld():
            (made,) = run_program(program, inputs, lambda: [node])
            settle_in(tensor, made, set())
    except Exception:
        give_up([tensor])
        raise
    return True


def _compute_call(
    tensor: Tensor, others: Sequence[Tensor], give_up: Callable[[Sequence[Tensor]], None]
) -> bool:
    """Compute the results of a call that somebody still holds, by the program of its template."""
    held = tensor._held
    assert isinstance(held, Promise)
    call = held.call
    results = others or [tensor]
    if not any(other is tensor for other in results):  # it failed before
        return False
    which = []
    for other in results:
        promise = other._held
        if promise.__class__ is not Promise or promise.call is not call or other._home is not None:  # type: ignore[union-attr]
            return False
        which.append(promise.index)  # type: ignore[union-attr]
    inputs = []
    try:
        program, order = _program(call.template, tuple(which))
        for k in order:
            storage = values.finished(call.operands[k])
            if storage is None:
                return False
            inputs.append(storage)
        with InterruptsHeld():
            made = run_program(program, inputs, lambda: [call.node(k) for k in which])
            taken: set[int] = set()
            for other, storage in zip(results, made, strict=True):
                settle_in(other, storage, taken)
    except Exception:
        give_up(results)
        raise
    return True


def _program(template: Template, which: tuple[int, ...]) -> tuple[programs.Program, list[int]]:
    """Return the program of some results of a template, and which operands it takes, in order."""
    key = (which, programs.choices())
    found = template.programs.get(key)
    if found is None:
        outputs = [template.results[k].node for k in which]  # all different, or there would be no template
        order, leaves = programs.walk(outputs, is_leaf)
        program = programs.program_for(programs.Work(leaves, outputs, [], order), "flush")
        found = template.programs[key] = program, [template.operands.index(leaf) for leaf in leaves]
    return found
