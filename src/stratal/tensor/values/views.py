"""Views: tensors that show one memory, and where they begin. A write through any of them gives all others
their new values (`handles`, `rewrites`).

Every tensor holds a value of its own, so that who reads one need not know of the others.
"""

from __future__ import annotations

from collections.abc import Sequence

from stratal.ops.views.in_memory import Layout
from stratal.tensor.values.deferred import Relation
from stratal.tensor.values.handle import AnyHandle, Handle, attach, view_of_itself
from stratal.tensor.values.memory import Ops, View
from stratal.tensor.values.state import MODE


def join(
    made: AnyHandle, base: Handle, ops: Ops = (), detached: bool = False,
    layout: Layout | None = None,
) -> AnyHandle:  # fmt: skip
    """Let a new tensor show the memory of another one, by some ops; return it."""
    parent, group = showing(base, detached)
    return attach(made, View(None, parent, ops, made.type, group, layout))


def showing(base: Handle, detached: bool = False) -> tuple[View, object]:
    """Return how a tensor shows its memory, and the group of new views of it; None for its own."""
    group = object() if detached or (base._track and not MODE.grad) else None
    return base._view or view_of_itself(base), group


def shares_memory(a: Handle, b: Handle) -> bool:
    """Return whether two tensors show one memory."""
    return a is b or (a._view is not None and b._view is not None and a._view.memory is b._view.memory)


# -- views that a cached call returns ------------------------------------------------------------------------
def relation_of(made: Handle, operands: Sequence[Handle]) -> Relation | None:
    """Return of which operand a result is a view."""
    view = made._view
    numbers = {id(t._view): k for k, t in reversed(list(enumerate(operands))) if t._view is not None}
    base = view
    while base is not None and id(base) not in numbers:
        base = base.parent
    if view is None or (base is None and view.is_contiguous):
        return None
    if base is None:
        return Relation(-1, (), False, view.layout)
    return Relation(numbers[id(base)], view.ops[len(base.ops) :], view.group is not base.group, None)


def relate(made: Handle, relation: Relation, operands: Sequence[Handle]) -> None:
    """Make a result of a cached call the view that it was when the call was traced."""
    if relation.operand >= 0:
        join(made, operands[relation.operand], relation.ops, relation.detached)
    else:
        attach(made, View(None, None, (), made.type, layout=relation.layout))
