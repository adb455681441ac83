"""One run: the program that computes what was chosen, the memory it writes, what its tensors get.

Cells are written where they stand, unless NumPy, another tensor or a later run still looks at that memory;
then the cell moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from stratal.base.errors import StratalError
from stratal.base.interrupts import ATOMIC, descend
from stratal.base.source import merge
from stratal.graph.node import Const, Node, topological
from stratal.runtime.storage import Storage
from stratal.tensor.lazy import program_cache
from stratal.tensor.lazy.work_set import WorkSet, goal_of, is_constant, is_leaf
from stratal.tensor.values import node_values
from stratal.tensor.values.binding import track_of_value
from stratal.tensor.values.deferred import DeferredLeaf
from stratal.tensor.values.handle import CONSTANT, TRACKED, Handle, drop_history, overwritten_node, set_state
from stratal.tensor.values.live import FAILED, LIVE, register_live, share, shared
from stratal.tensor.values.state import MODE

_ROOM: Final = 200  # frames: what compiling takes


@dataclass(slots=True)
class RunPlan:
    """What one run computes: new values of cells, by leaves of their old ones, and values for new memory."""

    updates: dict[Node, tuple[Node, Handle]] = field(default_factory=dict)
    outputs: list[Node] = field(default_factory=list)
    values: list[Node] = field(default_factory=list)  # of each tensor
    destinations: dict[Node, Storage] = field(default_factory=dict)  # where the new values go, by leaf
    results: dict[Node, Storage] = field(default_factory=dict)  # of other values: those that are known
    program: program_cache.Program = None  # None where all are known
    leaves: list[Node] = field(default_factory=list)  # its inputs
    read_later: set[Node] = field(default_factory=set)  # what stays as it is for later runs


def execute(work: WorkSet) -> Exception | None:
    """Compute the tensors of a run and hand them their values, or return the error of its program.

    A program that fails has written nothing (`memory/alias.py`). The end of the caller's stack is never
    taken for an error of the program.
    """
    plan = work.plan = _planned(work)
    inputs: list[Storage] = []
    try:
        if plan.outputs or plan.updates:
            inputs = _prepared(work, plan)
    except Exception as error:
        return _checked_recursion(error)
    with ATOMIC:  # between the writing of cells and their handles knowing of it
        try:
            if plan.program is not None:
                made = run_program(plan.program, inputs, lambda: _roots(plan))
                plan.results.update(zip(plan.outputs, made, strict=True))
        except Exception as error:
            return _checked_recursion(error)
        _distribute(work, plan)
    return None


def _checked_recursion(error: Exception) -> Exception:
    """Return an error of a program; raise that the stack had no room for compiling it."""
    if isinstance(error, RecursionError):
        descend(_ROOM)
    return error


def _planned(work: WorkSet) -> RunPlan:
    """Choose which values go where the old ones stood; values that are known need no computing."""
    plan = RunPlan()
    destinations: set[int] = set()
    wanted: dict[Node, None] = {}
    needed = _needed_by_histories(work)
    for tensor in work.tensors:
        value = goal_of(tensor)
        plan.values.append(value)
        old = tensor._destination
        in_place = old is not None and _overwrites_in_place(tensor, value, needed)
        if old is not None and in_place and id(old.storage) not in destinations:
            destinations.add(id(old.storage))
            plan.updates[old.node or node_values.leaf(old.storage)] = (value, tensor)
        else:
            wanted[value] = None
    for node in work.pending_leaves:
        wanted[node_values.pending(node) or node] = None
    for value in wanted:
        known = node_values.finished(value) or _constant_storage(value)
        if known is None or value in plan.updates:  # an old value that is overwritten here
            plan.outputs.append(value)
        else:
            plan.results[value] = known
    return plan


def _roots(plan: RunPlan) -> list[Node]:
    return [*plan.outputs, *(value for value, _ in plan.updates.values())]


def run_program(
    program: program_cache.Program, inputs: list[Storage], roots: Callable[[], Sequence[Node]]
) -> list[Storage]:
    """Run a program made for some nodes, or for others of the same structure."""
    try:
        return program_cache.run(program, inputs)
    except StratalError as error:
        _add_source_lines(error, roots())
        raise


def _add_source_lines(error: StratalError, roots: Sequence[Node]) -> None:
    """Let an error name lines of these nodes: a program made earlier, for equal work, knows other ones."""
    order, _ = program_cache.walk(roots, is_leaf)
    name = error.rule.partition(":")[0]
    lines = merge(*[node.where for node in order if node.op.name == name])
    if lines and set(lines).isdisjoint(error.where):
        error.where = lines


def undo(cells: Iterable[Handle]) -> None:
    """Put waiting cells back to what they were before they were given a value that cannot be had."""
    for tensor in cells:
        if tensor._storage is not None:
            continue
        if tensor._destination is not None:
            storage, node = tensor._destination
            set_state(tensor, storage, node, TRACKED if tensor._leaf else CONSTANT)
            LIVE.pop(id(tensor), None)
        elif tensor._previous is not None:
            ir, track = tensor._previous
            register_live(tensor)
            set_state(tensor, node_values.finished(ir) if isinstance(ir, Node) else None, ir, track)


def restore(cells: Iterable[tuple[Handle, Sequence[Any]]]) -> None:
    """Give cells back what they held, stored or waiting; none of them was written since."""
    for tensor, state in cells:
        if state[0] is None:
            register_live(tensor)
        set_state(tensor, *state)


def _overwrites_in_place(tensor: Handle, value: Node, needed: set[Node]) -> bool:
    """Return whether a value goes where the tensor's old one stood: always for parameters, else unless a
    history needs it.
    """
    if tensor._destination is None or is_leaf(value):
        return False
    node = tensor._destination.node
    return tensor._leaf or node is None or node not in needed


def _needed_by_histories(work: WorkSet) -> set[Node]:
    """Return the old leaves of plain tensors that some tracked tensor's gradient may still need."""
    old = {node for t in work.tensors if not t._leaf and (node := overwritten_node(t)) is not None}
    if not old:
        return set()
    tracked = [
        t
        for h in list(LIVE.values())
        if (t := h()) is not None and t._track == TRACKED and t._node is not None
    ]
    return old.intersection(topological([t._node for t in tracked if t._node is not None]))


def _prepared(work: WorkSet, plan: RunPlan) -> list[Storage]:
    """Find the program of a plan and return its inputs; note where updates go.

    A cell is written where it stands if nobody sees the old value any more, neither NumPy, nor another
    tensor, nor what is computed later; else in a copy.
    """
    updates = plan.updates
    order, plan.leaves = program_cache.walk(_roots(plan), is_leaf)
    plan.leaves += [s for s in updates if s not in set(plan.leaves)]
    found = program_cache.Work(plan.leaves, plan.outputs, [(s, v) for s, (v, _) in updates.items()], order)
    plan.program = program_cache.program_for(found, "flush")
    seen = {node for node, (_, cell) in updates.items() if is_observed(cell, _stored(node), 1)}
    plan.read_later = work.read_later()  # last: who holds a value may begin to read it, and let go
    inputs = []
    for node in plan.leaves:
        storage = _stored(node)
        if node in updates:
            if node in seen or node in plan.read_later:
                storage = Storage.copy_of(storage.array, storage.type)
            plan.destinations[node] = storage
        inputs.append(storage)
    return inputs


def _stored(node: Node) -> Storage:
    storage = node_values.finished(node)
    assert storage is not None
    return storage


def is_observed(cell: Handle, storage: Storage, nodes: int) -> bool:
    """Return whether NumPy, another tensor, or a node besides so many of its own has the value of a cell."""
    return storage.exported or shared(storage, cell) or node_values.uses(storage) > nodes


def _distribute(work: WorkSet, plan: RunPlan) -> None:
    """Hand each tensor its storage, and end what the overwritten leaves stood for."""
    of_cells = {id(t): plan.destinations[s] for s, (_, t) in plan.updates.items()}
    made = [of_cells.get(id(t)) or plan.results[v] for t, v in zip(work.tensors, plan.values, strict=True)]
    of_leaves = [plan.results[node_values.pending(n) or n] for n in work.pending_leaves]
    holders: dict[int, Handle] = {}
    for tensor, storage in zip(work.tensors, made, strict=True):
        store_result(tensor, storage, holders)
    for node, storage in zip(work.pending_leaves, of_leaves, strict=True):
        node_values.finish(node, storage)
    if plan.updates:
        end_histories(set(plan.updates))
        for node, storage in plan.destinations.items():
            if node_values.finished(node) is storage:  # else the cell moved, and the old memory still holds
                node_values.mark_overwritten(node, "an in-place update overwrote it")


def store_result(tensor: Handle, storage: Storage, holders: dict[int, Handle]) -> None:
    """Give a tensor its value, in memory that others of the same run may hold, too."""
    leaf, tracked = tensor._leaf, tensor._track == TRACKED
    ir = tensor._ir
    node = tensor._node if tracked and not (ir.__class__ is DeferredLeaf and ir.known is None) else None
    if node is not None:
        node_values.finish(node, storage, tensor)
    if MODE.step is not None:
        MODE.step.pop(id(tensor), None)  # what is written cannot be undone
    other = holders.setdefault(id(storage), tensor)
    if other is not tensor or node_values.uses(storage):
        share(other, tensor, storage=storage)
    track = TRACKED if tracked else track_of_value(tensor, tensor._track)
    set_state(tensor, storage, node, track)
    if tracked and not leaf:
        register_live(tensor)
    else:
        LIVE.pop(id(tensor), None)
        FAILED.pop(id(tensor), None)


def end_histories(written: set[Node]) -> None:
    """Cut the history of finished tensors that goes through overwritten leaves: no gradient can follow it any
    more.
    """
    alive = [t for h in list(LIVE.values()) if (t := h()) is not None]
    tracked = [t for t in alive if t._storage is not None and t._track == TRACKED and not t._leaf]
    reached: set[Node] = set()
    for node in topological([t._node for t in tracked if t._node is not None]):
        if node in written or any(i in reached for i in node.inputs):
            reached.add(node)
    for tensor in tracked:
        if tensor._node in reached:
            drop_history(tensor)
            LIVE.pop(id(tensor), None)


def _constant_storage(value: Node) -> Storage | None:
    """Return storage for a constant or the broadcast of one: memory to fill, nothing to compile."""
    if not is_constant(value):
        return None
    source = value if isinstance(value.op, Const) else value.inputs[0]
    assert isinstance(source.op, Const)
    array = source.op.value.array
    if source is not value:
        if array.ndim:
            return None
        array = np.broadcast_to(array, value.aval.ints)
    return Storage.copy_of(array, value.aval)
