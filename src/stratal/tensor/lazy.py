"""Flushing: compute what is needed now, with what is worth computing in the same run.

A flush of some values also computes every live tensor that shares intermediate results with them, and every
live tensor that depends on the old value of a cell the run overwrites. Cells are written where they stand,
unless NumPy or another tensor still looks at that memory; then the cell moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

import numpy as np

from stratal.base.errors import CaptureError, DonatedBufferError, StratalError, VerifyError
from stratal.base.interrupts import InterruptsHeld
from stratal.base.source import merge
from stratal.graph.graph import Graph
from stratal.graph.interpret import interpret
from stratal.graph.node import Const, Input, Node, topological
from stratal.runtime.storage import Storage
from stratal.tensor import programs, values
from stratal.tensor.alive import LIVE, enlist, share, shared
from stratal.tensor.handles import CONSTANT, TRACKED, USED_UP
from stratal.tensor.state import LOCK, MODE, tracing
from stratal.tensor.tensor import Tensor


def flush(tensors: Iterable[Tensor]) -> None:
    """Give each tensor its value."""
    _flush_apart(lambda: tensors)


def compute(tensor: Tensor) -> None:
    """Give one tensor its value."""
    flush([tensor])


def flush_all() -> None:
    """Compute every live tensor that has no value yet."""
    _flush_apart(waiting)


def _flush_apart(tensors: Callable[[], Iterable[Tensor]]) -> None:
    """Flush outside any trace of this thread."""
    with LOCK:
        trace, MODE.trace = MODE.trace, None  # no `with`: Ctrl-C can prevent the call of its exit
        try:
            _flush(list(tensors()))
        finally:
            MODE.trace = trace


def end_step() -> None:
    """Write every cell that in-place operators gave a new value; an optimizer calls this when its step is
    complete.

    If that fails, every cell keeps the value it had. Inside a compiled function the writes are part of the
    program instead.
    """
    if MODE.trace is None:
        with LOCK:
            cells = [t for t in waiting() if t._home is not None]
            try:
                _flush(cells)
            except Exception:
                _undo(cells)
                raise


def settle(nodes: Iterable[Node]) -> None:
    """Compute what depends on leaves that are about to be overwritten from outside, and end histories through
    them.
    """
    gone = [n for n in nodes if values.finished(n) is not None]
    if gone:
        _flush(_depending(set(gone), waiting()))
        _end_histories(set(gone))
        for node in gone:
            values.give_away(node, "a compiled function overwrote it")


def waiting() -> list[Tensor]:
    """Return every live tensor that has no value yet, in the order they were made."""
    found = []
    for handle in list(LIVE.values()):
        tensor = handle()
        if tensor is not None and tensor._storage is None and tensor._trace is None:
            found.append(tensor)
    return found


def _wanted(tensor: Tensor) -> Node:
    """Return the node whose value a waiting tensor needs."""
    assert tensor._node is not None
    return values.pending(tensor._node) or tensor._node


def _flush(wanted: Sequence[Node | Tensor]) -> None:
    """Compute tensors and pending leaves, in as many runs as values that must be finished first ask for."""
    goals: list[list[Node | Tensor]] = [list(wanted)]
    while goals:
        goal = [g for g in goals[-1] if _unfinished(g)]
        if not goal:
            goals.pop()
            continue
        roots = [_wanted(g) if isinstance(g, Tensor) else values.pending(g) or g for g in goal]
        first = _blockers(roots)
        if not first:
            first = _run(goal)
        if first:
            holders = {t._node: t for t in waiting() if t._leaf}
            before: list[Node | Tensor] = [*(holders.get(n, n) for n in first), *_starters(first)]
            if set(map(id, before)) == set(map(id, goal)):
                got, where = f"{len(before)} values", roots[0].where
                raise VerifyError("flush: values wait for each other", got=got, where=where)
            goals.append(before)


def _unfinished(goal: Node | Tensor) -> bool:
    if isinstance(goal, Tensor):
        return goal._storage is None
    return values.finished(goal) is None


def _is_leaf(node: Node) -> bool:
    return isinstance(node.op, Input) or values.finished(node) is not None


def _blockers(roots: Iterable[Node]) -> list[Node]:
    """Return the leaves that wait for a value of their own. Raises: for leaves that have none."""
    _, leaves = programs.walk(roots, _is_leaf)
    waiting = []
    for node in leaves:
        if values.finished(node) is None:
            if values.pending(node) is None:
                raise no_value(node)
            waiting.append(node)
    return waiting


def no_value(node: Node) -> Exception:
    """Return the error for a leaf that has no value."""
    why = values.gone(node) or "it belongs to another graph"
    if why.startswith("trace "):
        return CaptureError(
            f"capture: a value made while {why[6:]} was being captured is used outside it",
            got=str(node.type),
            hint="return it from the compiled function",
        )  # fmt: skip
    return DonatedBufferError(
        "flush: a value this computation needs has been overwritten", got=f"{node.type}: {why}",
        hint="call backward() before the step, or keep a copy with clone()",
    )  # fmt: skip


def _starters(first: Sequence[Node]) -> list[Tensor]:
    """Return live tensors never computed before that derivatives end at, such as fresh parameters: one run
    makes all.
    """
    known = set(first)
    found = []
    for tensor in waiting():
        node = tensor._node
        if tensor._leaf and tensor._home is None and node not in known:
            _, leaves = programs.walk([_wanted(tensor)], _is_leaf)
            if all(values.finished(n) is not None for n in leaves):
                found.append(tensor)
    return found


# -- one run -------------------------------------------------------------------------------------------------
class _Run:
    """The tensors of one run and what they need, chosen among everything that waits.

    A run apart takes in only those that could not be computed after it.
    """

    def __init__(self, goal: Sequence[Node | Tensor], apart: bool = False) -> None:
        self.apart = apart
        self.tensors = [g for g in goal if isinstance(g, Tensor)]
        self.orphans = [g for g in goal if isinstance(g, Node)]  # pending leaves; a tensor may hold them
        taken = set(map(id, self.tensors))
        self.others = [t for t in waiting() if id(t) not in taken]
        roots = self.roots() + [_wanted(t) for t in self.others]
        self.scope, leaves = programs.walk(roots, _is_leaf)  # all that waits
        self.leaves = set(leaves)
        self.late = self.reach({n for n in leaves if values.finished(n) is None})

    def roots(self) -> list[Node]:
        return [_wanted(t) for t in self.tensors] + [values.pending(n) or n for n in self.orphans]

    def reach(self, start: set[Node]) -> set[Node]:
        """Return the nodes in scope that are, or depend on, some nodes."""
        found = set(start)
        if found:
            leaves = self.leaves
            for node in self.scope:
                if node not in leaves and not found.isdisjoint(node.inputs):
                    found.add(node)
        return found

    def needed(self) -> set[Node]:
        """Return the nodes this run computes or reads."""
        return self.behind(self.roots())

    def behind(self, roots: Iterable[Node]) -> set[Node]:
        """Return the nodes in scope that some nodes are, or depend on."""
        found = set(roots)
        leaves = self.leaves
        for node in reversed(self.scope):
            if node in found and node not in leaves:
                found.update(node.inputs)
        return found

    def spoiling(self, chosen: Sequence[Tensor], written: set[Node]) -> set[int]:
        """Return those, by id, that would overwrite what a tensor waiting for this run still reads.

        One that depends on what this run overwrites has to be in it all the same.
        """
        waiting_for_this = [_wanted(t) for t in self.others if _wanted(t) in self.late]
        if not waiting_for_this:
            return set()
        read, lost = self.behind(waiting_for_this), self.reach(written)
        return {
            id(t) for t in chosen if t._home is not None and t._home[1] in read and _wanted(t) not in lost
        }

    def written(self) -> set[Node]:
        """Return the leaves whose storage this run overwrites."""
        return {t._home[1] for t in self.tensors if t._home is not None and t._home[1] is not None}

    def touching(self, needed: set[Node], written: set[Node]) -> list[Tensor]:
        """Return the others that share work with this run, or depend on what it overwrites."""
        if self.apart:
            lost = self.reach(written)
            return [t for t in self.others if _wanted(t) in lost]
        shares = self.reach({n for n in needed if n not in self.leaves and not _trivial(n)} | written)
        return [
            t for t in self.others if _wanted(t) in shares or (t._home is not None and t._home[1] in needed)
        ]

    def grow(self) -> list[Tensor]:
        """Take in every tensor to be computed in this run; return those that must be but wait for another run
        first.
        """
        while self.others:
            needed, written = self.needed(), self.written()
            chosen = self.touching(needed, written)
            late = [t for t in chosen if _wanted(t) in self.late]
            if late and (overwritten := self.reach(written)):
                must = [t for t in late if _wanted(t) in overwritten]
                if must:
                    return must
            postponed = set(map(id, late)) | self.spoiling(chosen, written)
            chosen = [t for t in chosen if id(t) not in postponed]
            if not chosen:
                break
            taken = set(map(id, chosen))
            self.tensors += chosen
            self.others = [t for t in self.others if id(t) not in taken]
        return []


def _trivial(node: Node) -> bool:
    """Return whether a node is a constant or the broadcast of one: nothing to share."""
    return isinstance(node.op, Const) or (
        node.op.name == "broadcast" and isinstance(node.inputs[0].op, Const)
    )


def _run(goal: Sequence[Node | Tensor]) -> list[Node]:
    """Compute a goal and its companions; or return leaves that must be computed before."""
    work = _Run(goal)
    must = work.grow()
    if must:
        return _blockers([_wanted(t) for t in must])
    try:
        _execute(work)
    except Exception:
        asked = set(map(id, goal))
        companions = [t for t in work.tensors if id(t) not in asked]
        if not companions or any(n.op.effects for n in work.needed()):
            _give_up(work.tensors)
            raise
        return _run_apart(goal, companions)
    return []


def _run_apart(goal: Sequence[Node | Tensor], companions: Sequence[Tensor]) -> list[Node]:
    """Compute a goal whose run with companions failed, then each of these: one of them is at fault."""
    work = _Run(goal, apart=True)
    must = work.grow()
    if must:
        return _blockers([_wanted(t) for t in must])
    try:
        _execute(work)
    except Exception:
        _give_up(work.tensors)
        raise
    for tensor in companions:
        if tensor._storage is None:
            with suppress(Exception):  # it is raised again when somebody asks for this tensor
                _flush([tensor])
    return []


def _give_up(tensors: Iterable[Tensor]) -> None:
    """Undo what cannot be computed, and let no later run compute it unless somebody asks for it."""
    _undo(tensors)
    for tensor in tensors:
        if tensor._storage is None:
            LIVE.pop(id(tensor), None)


def _depending(leaves: set[Node], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the waiting tensors that depend on some leaves."""
    reached: set[Node] = set()
    order, _ = programs.walk([_wanted(t) for t in tensors], _is_leaf)
    for node in order:
        if node in leaves or not reached.isdisjoint(node.inputs):
            reached.add(node)
    return [t for t in tensors if _wanted(t) in reached]


def _execute(work: _Run) -> None:
    results: dict[Node, Storage] = {}
    updates: dict[Node, tuple[Node, Tensor]] = {}
    outputs: dict[Node, None] = {}
    homes: set[int] = set()
    needed = _needed_by_histories(work)
    for tensor in work.tensors:
        value = _wanted(tensor)
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
            program, inputs = prepared
            try:
                made = programs.run(program, inputs)
            except StratalError as error:
                _tell_line(error, [*outputs, *(value for value, _ in updates.values())])
                raise
            results.update(zip(outputs, made, strict=True))
        _distribute(work, results, updates)


def _tell_line(error: StratalError, roots: Sequence[Node]) -> None:
    """Let an error name lines of these nodes: a program made earlier, for equal work, knows other ones."""
    order, _ = programs.walk(roots, _is_leaf)
    name = error.rule.partition(":")[0]
    lines = merge(*[node.where for node in order if node.op.name == name])
    if lines and set(lines).isdisjoint(error.where):
        error.where = lines


def _undo(cells: Iterable[Tensor]) -> None:
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
    if tensor._home is None or _is_leaf(value):
        return False
    return tensor._leaf or tensor._home[1] is None or tensor._home[1] not in needed


def _needed_by_histories(work: _Run) -> set[Node]:
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
    order, leaves = programs.walk(roots, _is_leaf)
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


def _distribute(work: _Run, results: dict[Node, Storage], updates: dict[Node, tuple[Node, Tensor]]) -> None:
    """Hand each tensor its storage, and end what the overwritten leaves stood for."""
    state_of = {id(t): s for s, (_, t) in updates.items()}
    values_of = {n: values.pending(n) or n for n in work.orphans}
    taken: set[int] = set()
    wanted = [state_of.get(id(t)) or _wanted(t) for t in work.tensors]  # before leaves end, as they settle
    for tensor, node in zip(work.tensors, wanted, strict=True):
        _settle_in(tensor, results[node], taken)
    for node, value in values_of.items():
        values.finish(node, results[value])
    written = set(updates)
    if written:
        _end_histories(written)
        for node in written:
            if values.finished(node) is results[node]:  # else the cell moved, and the old memory still holds
                values.give_away(node, "an in-place update overwrote it")


def _settle_in(tensor: Tensor, storage: Storage, taken: set[int]) -> None:
    tensor._storage = storage
    tensor._home = tensor._before = None
    if id(storage) in taken or values.uses(storage):
        share(tensor)
    taken.add(id(storage))
    assert tensor._node is not None
    if tensor._track == TRACKED:
        values.finish(tensor._node, storage)
        if tensor._leaf:
            LIVE.pop(id(tensor), None)
    else:
        tensor._node, tensor._track = None, 0
        LIVE.pop(id(tensor), None)


def _end_histories(written: set[Node]) -> None:
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
    if not _trivial(value):
        return None
    source = value if isinstance(value.op, Const) else value.inputs[0]
    assert isinstance(source.op, Const)
    array = source.op.value.array
    if source is not value:
        if array.ndim:
            return None
        array = np.broadcast_to(array, value.aval.ints)
    return Storage.copy_of(array, value.aval)


# -- eager ---------------------------------------------------------------------------------------------------
def run_eagerly(tensor: Tensor) -> None:
    """Compute one tensor now with the reference interpreter."""
    with LOCK, tracing(None):
        node = _wanted(tensor)
        first = _blockers([node])
        if first:
            _flush(first)
        order, leaves = programs.walk([node], _is_leaf)
        graph = programs.Work(leaves, [node], [], order).graph("eager")
        inputs = [values.finished(n).array for n in leaves]  # type: ignore[union-attr]
        try:
            (array,), _ = interpret(Graph(graph.inputs, graph.outputs), inputs)
        except Exception:
            _give_up([tensor])
            raise
        storage = Storage.copy_of(array, node.aval)
        _settle_in(tensor, storage, set())
        if tensor._track == TRACKED:
            enlist(tensor)


@contextmanager
def eager() -> Iterator[None]:
    """Run each op at once on the reference interpreter: for debuggers, and for finding the op that made the
    first NaN.
    """
    before = MODE.eager
    MODE.eager = run_eagerly
    try:
        yield
    finally:
        MODE.eager = before
