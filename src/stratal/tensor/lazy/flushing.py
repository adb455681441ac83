"""Flush: compute what is read now, with what is worth computing in the same run.

`run_cache` looks a run up by its pending calls; else `work_set` selects its tensors, `execution` runs it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import suppress

from stratal.base.errors import CaptureError, DonatedBufferError, StratalError
from stratal.base.interrupts import UNINTERRUPTIBLE, block
from stratal.graph.graph import Graph
from stratal.graph.interpret import interpret
from stratal.graph.node import Node
from stratal.runtime.storage import Storage
from stratal.tensor.lazy import program_cache, run_cache
from stratal.tensor.lazy.execution import end_histories, execute, restore, store_result, undo
from stratal.tensor.lazy.program_cache import refuse_at_exit
from stratal.tensor.lazy.run_cache import PendingWork
from stratal.tensor.lazy.work_set import (
    WorkSet,
    dependents_of,
    goal_of,
    is_leaf,
    pending_or_failed,
    pending_tensors,
    still_read,
)
from stratal.tensor.values import node_values
from stratal.tensor.values.backlog import FOR_GRADIENTS, HERE, Backlog, Origin
from stratal.tensor.values.binding import refuse_traced
from stratal.tensor.values.handle import TRACKED, Handle
from stratal.tensor.values.live import SEVERAL, mark_failed, register_live, take_ownership
from stratal.tensor.values.state import LOCK, MODE, ModeBlock, tracing


def flush(tensors: Iterable[Handle]) -> None:
    """Give each tensor its value."""
    refuse_at_exit()
    with LOCK:
        wanted = list(tensors)
        for tensor in wanted if SEVERAL else ():
            take_ownership(tensor)
        if MODE.trace is None:
            _flush(wanted)
        else:
            with tracing(None):
                _flush(wanted)


def compute(tensor: Handle) -> None:
    """Give one tensor its value."""
    flush([tensor])


def value_of(handle: Handle, asked: str) -> Storage:
    """Return the finished storage of a tensor, computing it now if needed."""
    if MODE.trace is not None or handle._trace is not None:
        refuse_traced(handle, asked)
    if handle._storage is None:
        compute(handle)
    assert handle._storage is not None
    return handle._storage


def flush_all() -> None:
    """Compute every live tensor that has no value yet."""
    with LOCK:
        flush(pending_tensors())


def _limit_backlog(newest: Handle, made: Origin) -> None:
    """Compute all that waits if that is too much; correct the counts in any case.

    Only what the newest tensor needs may fail here: the errors of others are theirs.
    """
    with LOCK:
        tensors, leaves, ops = _all_waiting([newest])
        backlog = HERE.backlog
        operands_alive = [t for handle in list(backlog.operands.values()) if (t := handle()) is not None]
        counted = set(map(id, (t._storage for t in operands_alive)))
        operands = {id(s): s for leaf in leaves if (s := node_values.finished(leaf)) is not None}
        backlog.ops = ops
        backlog.nbytes = sum(s.type.nbytes for key, s in operands.items() if key not in counted)
        tracked = any(t._track == TRACKED for t in tensors)
        backlog.most_ops = backlog.piece_ops * (FOR_GRADIENTS if tracked else 1)
        if not backlog.full:
            return
        backlog.begin_piece(made)
        compiled = program_cache.COMPILED[0]
        compute(newest)
        _compute_all(tensors)
        backlog.clear()
        backlog.note_program(program_cache.COMPILED[0] != compiled)


def _all_waiting(newest: Sequence[Handle]) -> tuple[list[Handle], list[Node], int]:
    """Return the tensors that wait, the leaves they stand on, and how many ops they need."""
    found = run_cache.pending_work(newest, at_once=False)
    if found is not None:
        return found.tensors, found.leaves, found.ops()
    tensors = pending_tensors()
    order, leaves = program_cache.walk([goal_of(t) for t in tensors], is_leaf)
    return tensors, leaves, len(order) - len(leaves)


def _compute_all(tensors: Iterable[Handle]) -> None:
    """Compute tensors that wait; what fails raises its error when it is read."""
    with LOCK:
        for tensor in tensors:
            if tensor._storage is None and tensor._destination is None:
                with suppress(Exception):  # of a host call it is the user's
                    compute(tensor)


def _end_turn() -> None:
    _compute_all(pending_tensors())
    HERE.backlog.clear()


Backlog.flush_some = staticmethod(_limit_backlog)
Backlog.compute_all = staticmethod(_end_turn)


def end_step() -> None:
    """Write every cell that in-place operators gave a new value, all in one run; an optimizer calls this when
    its step is complete.

    If that fails, every cell keeps the value it had. Inside a compiled function the writes are part of the
    program instead.
    """
    if MODE.trace is None:
        with LOCK:
            _flush([t for t in pending_tensors() if t._destination is not None], at_once=True)
            # Such as a sum over all steps: every later step would walk over it. Not what calls back: that
            # raises where it is read.
            left = [t for t in pending_tensors() if t._track != TRACKED]
            if left and not _has_effects(left):
                _compute_all(left)


def _has_effects(tensors: Sequence[Handle]) -> bool:
    if run_cache.pending_work((), at_once=False) is not None:  # calls, which have none
        return False
    order, _ = program_cache.walk([goal_of(t) for t in tensors], is_leaf)
    return any(node.op.effects for node in order)


def undo_step() -> None:
    """Give the cells that were changed since `MODE.step` was set what they held then, unless they were
    written.
    """
    with UNINTERRUPTIBLE:
        restore((MODE.step or {}).values())


def compute_dependents(nodes: Iterable[Node]) -> None:
    """Compute what depends on leaves that are about to be overwritten from outside."""
    gone = {n for n in nodes if node_values.finished(n) is not None}
    if gone:
        _try_flush(dependents_of(gone, pending_or_failed()))


def overwrite(nodes: Iterable[Node]) -> None:
    """End histories through leaves whose dependents are computed. Leaves that are still needed, by what
    cannot be computed, keep their value: use other memory.
    """
    gone = {n for n in nodes if node_values.finished(n) is not None}
    if gone:
        end_histories(gone)
        for node in gone.difference(still_read(pending_or_failed())):
            node_values.mark_overwritten(node, "a compiled function overwrote it")


def _flush(wanted: Sequence[Node | Handle], at_once: bool = False) -> None:
    """Compute tensors and pending leaves."""
    found = run_cache.pending_work(wanted, at_once)
    if found is not None and run_cache.run_cached(found):
        return
    error = _try_flush(wanted, at_once, found)
    if error is not None:
        raise error


def _try_flush(
    wanted: Sequence[Node | Handle], at_once: bool = False, found: PendingWork | None = None
) -> Exception | None:
    """Compute tensors and pending leaves, or return the error of the program that could not be run.

    Values that must be finished first get a run before: they are made of fewer leaves, so this ends. With
    `at_once` these runs write no cell: the last run writes all. Where the first run is all there is to do,
    its plan is remembered for all that is `found` waiting.
    """
    goals: list[list[Node | Handle]] = [list(wanted)]
    while goals:
        goal = [g for g in goals[-1] if _unfinished(g)]
        if not goal:
            goals.pop()
            continue
        work = WorkSet(goal, isolated=at_once and len(goals) > 1, step=at_once)
        first = work.blockers()
        lost = [n for n in first if node_values.pending(n) is None]
        if first and not lost:
            found = None
            goals.append(list(first) if at_once else _prerequisites(first))
            continue
        error = missing_value_error(lost[0]) if lost else _run(work, goal, at_once)
        if error is not None:
            for goal in goals:
                _give_up([g for g in goal if isinstance(g, Handle)])
            return error
        if found is not None:
            run_cache.cache_run(found, work)
        found = None
    return None


def _unfinished(goal: Node | Handle) -> bool:
    if isinstance(goal, Handle):
        return goal._storage is None
    return node_values.finished(goal) is None


def missing_value_error(node: Node) -> StratalError:
    """Return the error for a leaf that has no value."""
    why = node_values.why_missing(node) or "it belongs to another graph, or Python's collector has freed it"
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


def _prerequisites(first: Sequence[Node]) -> list[Node | Handle]:
    """Return what to compute before what needs some leaves: their tensors, and other leaves of derivatives
    that were never computed, such as fresh parameters: one run makes all.
    """
    holders = {t._node: t for t in pending_or_failed() if t._leaf}
    found: list[Node | Handle] = [holders.get(n, n) for n in first]
    for holder in found:
        if isinstance(holder, Handle):
            take_ownership(holder)
    known = set(first)
    for tensor in pending_tensors():
        node = tensor._node
        if tensor._leaf and tensor._destination is None and node not in known:
            _, leaves = program_cache.walk([goal_of(tensor)], is_leaf)
            if all(node_values.finished(n) is not None for n in leaves):
                found.append(tensor)
    return found


def _run(work: WorkSet, goal: Sequence[Node | Handle], at_once: bool) -> Exception | None:
    """Compute a goal and what is co-scheduled with it; should one of these fail, the goal by itself.

    Not so for a step, `at_once`: a loss that cannot be computed, whose label is out of range for instance,
    came before it, and would have ended the program there.
    """
    work.add_co_scheduled()
    error = execute(work)
    asked = set(map(id, goal))
    co_scheduled = [t for t in work.tensors if id(t) not in asked]
    if error is None or not co_scheduled:
        return error
    once = at_once or any(n.op.effects for n in work.needed())
    work.plan = None
    for tensor in co_scheduled:
        mark_failed(tensor)
    return error if once else execute(WorkSet(goal, isolated=True))


def _give_up(tensors: Iterable[Handle]) -> None:
    """Undo what cannot be computed; later runs compute it only if it is read."""
    undo(tensors)
    for tensor in tensors:
        if tensor._storage is None:
            mark_failed(tensor)


@block
def lazily() -> Generator[None]:
    """Compute nothing at once in a block, so that the graph of its calls is complete."""
    before = HERE.at_once
    try:
        HERE.at_once = False
        yield
    finally:
        HERE.at_once = before


# -- eager ---------------------------------------------------------------------------------------------------
def run_eagerly(tensor: Handle) -> None:
    """Compute one tensor now with the reference interpreter."""
    with LOCK, tracing(None):
        node = goal_of(tensor)
        _flush(WorkSet([tensor], isolated=True).blockers())
        order, leaves = program_cache.walk([node], is_leaf)
        graph = program_cache.Work(leaves, [node], [], order).graph("eager")
        inputs = [node_values.finished(n).array for n in leaves]  # type: ignore[union-attr]
        try:
            (array,), _ = interpret(Graph(graph.inputs, graph.outputs), inputs)
        except BaseException:
            _give_up([tensor])
            raise
        storage = Storage.copy_of(array, node.aval)
        store_result(tensor, storage, {})
        if tensor._track == TRACKED:
            register_live(tensor)


def eager() -> ModeBlock:
    """Run each op at once on the reference interpreter: for debuggers, and for finding the op that made the
    first NaN.
    """
    return ModeBlock("eager", run_eagerly)
