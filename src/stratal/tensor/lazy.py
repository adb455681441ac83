"""Flushing: compute what is needed now, with what is worth computing in the same run.

`companions` says what one run takes in, `execution` runs it; `alone` is the short way for one value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from stratal.base.errors import CaptureError, DonatedBufferError, VerifyError
from stratal.graph.graph import Graph
from stratal.graph.interpret import interpret
from stratal.graph.node import Node
from stratal.runtime.storage import Storage
from stratal.tensor import programs, values
from stratal.tensor.alive import LIVE, enlist
from stratal.tensor.alone import compute_alone
from stratal.tensor.companions import Run, depending, goal_of, is_leaf, waiting
from stratal.tensor.execution import end_histories, execute, settle_in, undo
from stratal.tensor.handles import TRACKED
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
                undo(cells)
                raise


def settle(nodes: Iterable[Node]) -> None:
    """Compute what depends on leaves that are about to be overwritten from outside, and end histories through
    them.
    """
    gone = [n for n in nodes if values.finished(n) is not None]
    if gone:
        _flush(depending(set(gone), waiting()))
        end_histories(set(gone))
        for node in gone:
            values.give_away(node, "a compiled function overwrote it")


def _flush(wanted: Sequence[Node | Tensor]) -> None:
    """Compute tensors and pending leaves, in as many runs as values that must be finished first ask for."""
    if len(wanted) == 1 and isinstance(wanted[0], Tensor) and compute_alone(wanted[0], _give_up):
        return
    goals: list[list[Node | Tensor]] = [list(wanted)]
    while goals:
        goal = [g for g in goals[-1] if _unfinished(g)]
        if not goal:
            goals.pop()
            continue
        roots = [goal_of(g) if isinstance(g, Tensor) else values.pending(g) or g for g in goal]
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


def _blockers(roots: Iterable[Node]) -> list[Node]:
    """Return the leaves that wait for a value of their own. Raises: for leaves that have none."""
    _, leaves = programs.walk(roots, is_leaf)
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
            _, leaves = programs.walk([goal_of(tensor)], is_leaf)
            if all(values.finished(n) is not None for n in leaves):
                found.append(tensor)
    return found


def _run(goal: Sequence[Node | Tensor]) -> list[Node]:
    """Compute a goal and its companions; or return leaves that must be computed before."""
    work = Run(goal)
    must = work.grow()
    if must:
        return _blockers([goal_of(t) for t in must])
    try:
        execute(work)
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
    work = Run(goal, apart=True)
    must = work.grow()
    if must:
        return _blockers([goal_of(t) for t in must])
    try:
        execute(work)
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
    undo(tensors)
    for tensor in tensors:
        if tensor._storage is None:
            LIVE.pop(id(tensor), None)


# -- eager ---------------------------------------------------------------------------------------------------
def run_eagerly(tensor: Tensor) -> None:
    """Compute one tensor now with the reference interpreter."""
    with LOCK, tracing(None):
        node = goal_of(tensor)
        first = _blockers([node])
        if first:
            _flush(first)
        order, leaves = programs.walk([node], is_leaf)
        graph = programs.Work(leaves, [node], [], order).graph("eager")
        inputs = [values.finished(n).array for n in leaves]  # type: ignore[union-attr]
        try:
            (array,), _ = interpret(Graph(graph.inputs, graph.outputs), inputs)
        except Exception:
            _give_up([tensor])
            raise
        storage = Storage.copy_of(array, node.aval)
        settle_in(tensor, storage, set())
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
