"""The short way to a value: one new tensor, while nothing else waits.

It is what a run without companions comes to, at a fraction of its cost.
"""

from __future__ import annotations

from stratal.base.errors import StratalError
from stratal.tensor.lazy import programs
from stratal.tensor.lazy.companions import goal_of, is_leaf, trivial, waiting
from stratal.tensor.lazy.execution import run_program, settle_in, take_slices
from stratal.tensor.values import values
from stratal.tensor.values.alive import set_apart
from stratal.tensor.values.handle import TRACKED, Handle


def compute_alone(tensor: Handle) -> bool:
    """Compute a plain new tensor of values that are there, if nothing else waits; return whether it did.

    No cell is written and no effect happens, so whatever is raised halfway has changed nothing.
    """
    if tensor._storage is not None or tensor._home is not None or tensor._before is not None or tensor._leaf:
        return False
    if len(waiting()) > 1 or tensor._track == TRACKED:
        return False
    node = goal_of(tensor)
    if is_leaf(node) or trivial(node):
        return False
    order, leaves = programs.walk([node], is_leaf)
    inputs = [storage for leaf in leaves if (storage := values.finished(leaf)) is not None]
    if len(inputs) < len(leaves) or any(made.op.effects for made in order):
        return False
    work = programs.Work(leaves, [node], [], order)
    if take_slices(work):
        return compute_alone(tensor)
    try:
        program = programs.program_for(work, "flush")
        (made,) = run_program(program, inputs, lambda: [node])
    except StratalError:
        set_apart(tensor)
        raise
    settle_in(tensor, made, {})
    return True
