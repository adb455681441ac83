"""The run cache: runs of the same pending calls reuse the program of the first, without making nodes.

Pending tensors are deferred results of calls over deferred operands. The key is which calls these are, their
leaves, the cells they overwrite, and what is read: it decides what a run computes. On a miss, and where
anything else is pending, `work_set` and `execution` decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import get_ident
from typing import Any, Final, NamedTuple

from stratal.base.errors import StratalError
from stratal.base.interrupts import ATOMIC
from stratal.base.session import SESSION
from stratal.graph.node import Input, Node
from stratal.runtime.storage import Storage
from stratal.tensor.lazy import program_cache
from stratal.tensor.lazy.execution import is_observed, store_result
from stratal.tensor.lazy.work_set import WorkSet, read_by_other_threads
from stratal.tensor.values import node_values
from stratal.tensor.values.backlog import HERE
from stratal.tensor.values.deferred import Deferred, DeferredLeaf, PendingCall
from stratal.tensor.values.handle import CONSUMED, Destination, Handle, drop_history
from stratal.tensor.values.live import FAILED, LIVE, SEVERAL

_CAPACITY: Final = 1024
_PLANS: Final = SESSION.cache(dict[Any, "CachedRun"]())


class CallGraph:
    """The pending calls below some deferred values, in topological order, and their leaves, numbered."""

    def __init__(self, roots: Sequence[Deferred]) -> None:
        self.numbers: Final[dict[PendingCall, int]] = {}
        self.leaves: Final[dict[Node, int]] = {}
        self.rows: Final[list[Any]] = []  # equal for equal calls on other leaves
        numbers, leaves = self.numbers, self.leaves
        stack = [root.call for root in reversed(roots)]
        while stack:
            call = stack[-1]
            if call in numbers:
                stack.pop()
                continue
            row: list[Any] = [call.template]
            before = []
            for operand in call.operands:
                if operand.__class__ is Deferred:
                    number = numbers.get(operand.call)
                    if number is None:
                        before.append(operand.call)
                    row += (number, operand.index)
                elif not before:
                    row.append(-1 - leaves.setdefault(operand, len(leaves)))  # type: ignore[arg-type]
            if before:
                stack += reversed(before)
                continue
            numbers[call] = len(numbers)
            self.rows.append(tuple(row))
            stack.pop()

    def lines(self) -> tuple[Any, ...]:
        """Return the user's lines, which errors name."""
        return tuple([call.line for call in self.numbers])


class PendingWork(NamedTuple):
    """All pending work, where that is calls on finished leaves; equal work has an equal key."""

    key: Any
    tensors: list[Handle]
    leaves: list[Node]
    calls: CallGraph

    def ops(self) -> int:
        return sum(len(call.template.rows) for call in self.calls.numbers)


class CachedRun(NamedTuple):
    """What a run computes: the plan of one that came before, by numbers of tensors and leaves."""

    program: Any
    inputs: list[tuple[bool, int]]  # a leaf, or the destination of a tensor
    updates: list[tuple[int, int, bool]]  # the tensor, its input, and whether the old value is read later
    outputs: list[tuple[int, int, bool]]  # the tensor, its output, and whether its history ends in this run


def pending_work(wanted: Sequence[Node | Handle], at_once: bool) -> PendingWork | None:
    """Return all that waits; None where a plan would not follow from it."""
    if FAILED:
        return None
    tensors: list[Handle] = []
    roots: list[Deferred] = []
    finished = False
    me = get_ident()
    for handle in list(LIVE.values()):
        tensor = handle()
        if handle.fact != me or tensor is None or tensor._trace is not None:
            continue
        if tensor._storage is not None:
            finished = True  # and tracked: an update may end its history
            continue
        ir = tensor._ir
        if ir.__class__ is DeferredLeaf and ir.known is None:
            roots.append(ir.value)
        elif ir.__class__ is Deferred:
            roots.append(ir)
        else:
            return None
        tensors.append(tensor)
    calls = CallGraph(roots)
    numbers = calls.numbers
    goal = set(map(id, wanted))
    asked_for = 0
    destinations: dict[int, int] = {}
    rows = []
    for tensor, root in zip(tensors, roots, strict=True):
        asked = id(tensor) in goal
        asked_for += asked
        old = tensor._destination
        where: tuple[int, int] | None = None
        if old is not None:
            if finished:
                return None
            leaf = -1 if old.node is None else calls.leaves.setdefault(old.node, len(calls.leaves))
            where = destinations.setdefault(id(old.storage), len(destinations)), leaf
        rows.append((numbers[root.call], root.index, asked, where, tensor._leaf, tensor._track))
    if asked_for < len(goal):
        return None
    for node in calls.leaves:
        if node.op.__class__ is not Input or node_values.finished(node) is None:
            return None
    key = tuple(calls.rows), tuple(rows), at_once, program_cache.choices()
    return PendingWork(key, tensors, list(calls.leaves), calls)


def run_cached(found: PendingWork) -> bool:
    """Compute what a run of the same calls computed; return whether there was one, and it went well.

    An error is the business of who decides anew: it has changed nothing.
    """
    known: CachedRun | None = _PLANS.get(found.key)
    if known is None:
        return False
    tensors = found.tensors
    inputs: list[Any] = [
        node_values.finished(found.leaves[k]) if leaf else _destination_of(tensors[k]).storage
        for leaf, k in known.inputs
    ]
    if not known.updates:  # whatever is raised halfway has changed nothing
        try:
            made = program_cache.run(known.program, inputs)
        except StratalError:
            return False
        _store_results(known, tensors, made)
    else:
        with ATOMIC:  # between the writing of cells and their handles knowing of it
            _copy_observed_cells(known, tensors, inputs)
            try:
                made = program_cache.run(known.program, inputs)
            except Exception:
                return False
            _mark_written(known, tensors, inputs)
            _store_results(known, tensors, made)
    if len(known.updates) + len(known.outputs) == len(tensors):
        HERE.backlog.nothing_waits()
    if len(found.calls.numbers) == 1 and not known.updates:
        _cache_single_call(found, known)
    return True


def _cache_single_call(found: PendingWork, known: CachedRun) -> None:
    """Remember the program that gave all results of one call, and nothing else."""
    (call,) = found.calls.numbers
    inputs = [found.leaves[k] for leaf, k in known.inputs if leaf]
    results = [(found.key[1][k][1], place) for k, place, _ in sorted(known.outputs)]
    once = len(call.operands) == len(set(call.operands)) == len(inputs) == len(known.inputs)
    if once and results == [(k, k) for k in range(len(call.template.results))]:
        order = [call.operands.index(node) for node in inputs]
        call.template.program = known.program, found.key[-1], order


def _copy_observed_cells(known: CachedRun, tensors: Sequence[Handle], inputs: list[Any]) -> None:
    """Let cells whose old value is seen elsewhere, or read later, be written in copies."""
    seen = {
        k for k, place, late in known.updates
        if late or is_observed(tensors[k], inputs[place], _destination_of(tensors[k]).node is not None)
    }  # fmt: skip
    others = read_by_other_threads() if SEVERAL else ()  # last, as in `execution`
    for k, place, _ in known.updates:
        if k in seen or _destination_of(tensors[k]).node in others:
            inputs[place] = Storage.copy_of(inputs[place].array, inputs[place].type)


def _mark_written(known: CachedRun, tensors: Sequence[Handle], inputs: Sequence[Any]) -> None:
    """Let cells know that they were written."""
    for k, place, _ in known.updates:
        node = _destination_of(tensors[k]).node
        if node is not None and node_values.finished(node) is inputs[place]:
            node_values.mark_overwritten(node, "an in-place update overwrote it")
    for k, place, _ in known.updates:
        store_result(tensors[k], inputs[place], {})


def _store_results(known: CachedRun, tensors: Sequence[Handle], made: Sequence[Any]) -> None:
    """Give new values to the tensors that waited for them."""
    holders: dict[int, Handle] = {}
    for k, place, ended in known.outputs:
        if ended:
            drop_history(tensors[k])
        store_result(tensors[k], made[place], holders)


def _destination_of(tensor: Handle) -> Destination:
    assert tensor._destination is not None
    return tensor._destination


def cache_run(found: PendingWork, work: WorkSet) -> None:
    """Remember the plan by which a run computed what waits, if it follows from the calls."""
    plan = work.plan
    if plan is None or plan.program is None or work.pending_leaves:
        return
    tensors = {id(t): k for k, t in enumerate(found.tensors)}
    leaves = {node: k for k, node in enumerate(found.leaves)}
    if not all(n in leaves or n in plan.updates for n in plan.leaves):
        return
    if not all(id(t) in tensors for t in work.tensors):
        return
    owners = {node: tensors[id(t)] for node, (_, t) in plan.updates.items()}
    inputs = [(n in leaves, leaves[n] if n in leaves else owners[n]) for n in plan.leaves]
    places = {k: plan.leaves.index(node) for node, k in owners.items()}
    late = {k for node, k in owners.items() if node in plan.read_later}
    updates = [(k, place, k in late) for k, place in places.items()]
    outputs = []
    for tensor, value in zip(work.tensors, plan.values, strict=True):
        k = tensors[id(tensor)]
        if k in places:
            continue
        if value not in plan.outputs:  # it was known, for a reason the calls do not tell
            return
        outputs.append((k, plan.outputs.index(value), tensor._track == CONSUMED))
    _PLANS[found.key] = CachedRun(plan.program, inputs, updates, outputs)
    if len(_PLANS) > _CAPACITY:
        del _PLANS[next(iter(_PLANS))]
