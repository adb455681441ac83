"""One run: the program that computes what was chosen, the memory it writes, what its tensors get.

Cells are written where they stand, unless NumPy or another tensor still looks at that memory; then the cell
moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from stratal.base.errors import StratalError
from stratal.base.interrupts import InterruptsHeld
from stratal.base.source import merge
from stratal.graph.node import Const, Node, topological
from stratal.runtime.storage import Storage
from stratal.tensor import programs, values
from stratal.tensor.alive import LIVE, share, shared
from stratal.tensor.companions import Run, goal_of, is_leaf, trivial
from stratal.tensor.handles import CONSTANT, TRACKED, USED_UP
from stratal.tensor.tensor import Tensor


def execute(work: Run) -> None:
    """Compute the tensors of a run and hand them their values; cells are written where they stand."""
    results: dict[Node, Storage] = {}
    updates: dict[Node, tuple[Node, Tensor]] = {}
    outputs: dict[Node, None] = {}
    homes: set[int] = set()
    needed = _needed_by_histories(work)
    for tensor in work.tensors:
        value = goal_of(tensor)
        home = tensor._home
        if home is not None and _writes_home(tensor, value, needed) and id(home[0]) not in homes:
            homes.add(id(home[0]))
            updates[home[1] or values.leaf(home[0])] = (value, tensor)
        else:
            outputs[value] = None
    for node in work.orphans:
        outputs[values.pending(node) or node] = None
    for value in list(outputs):
        known = values.finished(value) or _fill(value)
        if known is not None:
            results[value] = known
            del outputs[value]
    prepared = _prepare(list(outputs), updates, results)
    with InterruptsHeld():  # between the writing of cells and their handles knowing of it
        if prepared is not None:
            made = run_program(*prepared, lambda: [*outputs, *(value for value, _ in updates.values())])
            results.update(zip(outputs, made, strict=True))
        _distribute(work, results, updates)


def run_program(
    program: programs.Program, inputs: list[Storage], roots: Callable[[], Sequence[Node]]
) -> list[Storage]:
    """Run a program made for some nodes, or for others of the same structure."""
    try:
        return programs.run(program, inputs)
    except StratalError as error:
        _tell_line(error, roots())
        raise


def _tell_line(error: StratalError, roots: Sequence[Node]) -> None:
    """Let an error name lines of these nodes: a program made earlier, for equal work, knows other ones."""
    order, _ = programs.walk(roots, is_leaf)
    name = error.rule.partition(":")[0]
    lines = merge(*[node.where for node in order if node.op.name == name])
    if lines and set(lines).isdisjoint(error.where):
        error.where = lines


def undo(cells: Iterable[Tensor]) -> None:
    """Put waiting cells back to what they were before they were given a value that cannot be had."""
    for tensor in cells:
        if tensor._storage is not None:
            continue
        if tensor._home is not None:
            (tensor._storage, tensor._node), tensor._home = tensor._home, None
            tensor._track = TRACKED if tensor._leaf else CONSTANT
            LIVE.pop(id(tensor), None)
        elif tensor._before is not None:
            (tensor._node, tensor._track), tensor._before = tensor._before, None


def _writes_home(tensor: Tensor, value: Node, needed: set[Node]) -> bool:
    """Return whether a value goes where the tensor's old one stood: always for parameters, else unless a
    history needs it.
    """
    if tensor._home is None or is_leaf(value):
        return False
    return tensor._leaf or tensor._home[1] is None or tensor._home[1] not in needed


def _needed_by_histories(work: Run) -> set[Node]:
    """Return the old leaves of plain tensors that some tracked tensor's gradient may still need."""
    old = {t._home[1] for t in work.tensors if t._home is not None and t._home[1] is not None and not t._leaf}
    if not old:
        return set()
    tracked = [
        t
        for h in list(LIVE.values())
        if (t := h()) is not None and t._track == TRACKED and t._node is not None
    ]
    return old.intersection(topological([t._node for t in tracked if t._node is not None]))


def _prepare(
    outputs: list[Node], updates: dict[Node, tuple[Node, Tensor]], results: dict[Node, Storage]
) -> tuple[programs.Program, list[Storage]] | None:
    """Return the program that computes some outputs and updates, and its inputs; note where updates go."""
    if not outputs and not updates:
        return None
    roots = [*outputs, *(v for v, _ in updates.values())]
    order, leaves = programs.walk(roots, is_leaf)
    leaves += [s for s in updates if s not in set(leaves)]
    found = programs.Work(leaves, outputs, [(s, v) for s, (v, _) in updates.items()], order)
    program = programs.program_for(found, "flush")
    inputs = []
    for node in leaves:
        storage = values.finished(node)
        assert storage is not None
        if node in updates and _watched(storage, node, updates[node][1]):
            storage = Storage.copy_of(storage.array, storage.type)
        if node in updates:
            results[node] = storage
        inputs.append(storage)
    return program, inputs


def _watched(storage: Storage, node: Node, owner: Tensor) -> bool:
    """Return whether somebody besides the cell itself still looks at its memory."""
    return storage.exported or shared(storage, owner) or values.uses(storage) > 1


def _distribute(work: Run, results: dict[Node, Storage], updates: dict[Node, tuple[Node, Tensor]]) -> None:
    """Hand each tensor its storage, and end what the overwritten leaves stood for."""
    state_of = {id(t): s for s, (_, t) in updates.items()}
    values_of = {n: values.pending(n) or n for n in work.orphans}
    taken: set[int] = set()
    wanted = [state_of.get(id(t)) or goal_of(t) for t in work.tensors]  # before leaves end, as they settle
    for tensor, node in zip(work.tensors, wanted, strict=True):
        settle_in(tensor, results[node], taken)
    for node, value in values_of.items():
        values.finish(node, results[value])
    written = set(updates)
    if written:
        end_histories(written)
        for node in written:
            if values.finished(node) is results[node]:  # else the cell moved, and the old memory still holds
                values.give_away(node, "an in-place update overwrote it")


def settle_in(tensor: Tensor, storage: Storage, taken: set[int]) -> None:
    """Give a tensor its value, in memory that is shared if it is among those `taken`."""
    tensor._storage = storage
    tensor._home = tensor._before = None
    if id(storage) in taken or values.uses(storage):
        share(tensor)
    taken.add(id(storage))
    if tensor._track == TRACKED:
        node = tensor._node
        assert node is not None
        values.finish(node, storage)
        if tensor._leaf:
            LIVE.pop(id(tensor), None)
    else:
        tensor._node, tensor._track = None, 0
        LIVE.pop(id(tensor), None)


def end_histories(written: set[Node]) -> None:
    """Cut the history of finished tensors that goes through overwritten leaves: no gradient can follow it any
    more.
    """
    tracked = [
        t for h in list(LIVE.values()) if (t := h()) is not None and t._storage is not None and not t._leaf
    ]
    reached: set[Node] = set()
    for node in topological([t._node for t in tracked if t._node is not None]):
        if node in written or any(i in reached for i in node.inputs):
            reached.add(node)
    for tensor in tracked:
        if tensor._node in reached:
            tensor._node, tensor._track = None, USED_UP
            LIVE.pop(id(tensor), None)


def _fill(value: Node) -> Storage | None:
    """Return storage for a constant or the broadcast of one: memory to fill, nothing to compile."""
    if not trivial(value):
        return None
    source = value if isinstance(value.op, Const) else value.inputs[0]
    assert isinstance(source.op, Const)
    array = source.op.value.array
    if source is not value:
        if array.ndim:
            return None
        array = np.broadcast_to(array, value.aval.ints)
    return Storage.copy_of(array, value.aval)
