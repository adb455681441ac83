"""Runs whose calls came before in the same order: the program they ended in, without a node.

Tensors that wait hold promises of calls over promises. Which calls these are, on what they and the cells to
be written stand, and what is asked for decides what a run computes; so its plan is looked up by that. The
first time, and where anything else waits, `companions` and `execution` decide.
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
from stratal.tensor.lazy import programs
from stratal.tensor.lazy.companions import Run, read_elsewhere
from stratal.tensor.lazy.execution import seen_elsewhere, settle_in
from stratal.tensor.values import values
from stratal.tensor.values.alive import FAILED, LIVE, SEVERAL
from stratal.tensor.values.backlog import HERE
from stratal.tensor.values.handle import USED_UP, Handle, spend
from stratal.tensor.values.promises import Call, Promise, PromisedLeaf

_CAPACITY: Final = 1024
_PLANS: Final = SESSION.cache(dict[Any, "_Known"]())


class Calls:
    """The calls that promises need, operands before users, and the nodes they stand on, numbered."""

    def __init__(self, roots: Sequence[Promise]) -> None:
        self.numbers: Final[dict[Call, int]] = {}
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
                if operand.__class__ is Promise:
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


class Waiting(NamedTuple):
    """All that waits, where that is promises of calls on finished leaves; equal work has an equal key."""

    key: Any
    tensors: list[Handle]
    leaves: list[Node]
    calls: Calls

    def ops(self) -> int:
        return sum(len(call.template.rows) for call in self.calls.numbers)


class _Known(NamedTuple):
    """What a run computes: the plan of one that came before, by numbers of tensors and leaves."""

    program: Any
    inputs: list[tuple[bool, int]]  # a leaf, or the home of a tensor
    updates: list[tuple[int, int, bool]]  # the tensor, its input, and whether the old value is read later
    outputs: list[tuple[int, int, bool]]  # the tensor, its output, and whether its history ends in this run


def waiting(wanted: Sequence[Node | Handle], at_once: bool) -> Waiting | None:
    """Return all that waits; None where a plan would not follow from it."""
    if FAILED:
        return None
    tensors: list[Handle] = []
    roots: list[Promise] = []
    finished = False
    me = get_ident()
    for handle in list(LIVE.values()):
        tensor = handle()
        if handle.fact != me or tensor is None or tensor._trace is not None:
            continue
        if tensor._storage is not None:
            finished = True  # and tracked: an update may end its history
            continue
        held = tensor._held
        if held.__class__ is PromisedLeaf and held.known is None:
            roots.append(held.value)
        elif held.__class__ is Promise:
            roots.append(held)
        else:
            return None
        tensors.append(tensor)
    calls = Calls(roots)
    numbers = calls.numbers
    goal = set(map(id, wanted))
    asked_for = 0
    homes: dict[int, int] = {}
    rows = []
    for tensor, root in zip(tensors, roots, strict=True):
        asked = id(tensor) in goal
        asked_for += asked
        home = tensor._home
        where: tuple[int, int] | None = None
        if home is not None:
            if finished:
                return None
            leaf = -1 if home[1] is None else calls.leaves.setdefault(home[1], len(calls.leaves))
            where = homes.setdefault(id(home[0]), len(homes)), leaf
        rows.append((numbers[root.call], root.index, asked, where, tensor._leaf, tensor._track))
    if asked_for < len(goal):
        return None
    for node in calls.leaves:
        if node.op.__class__ is not Input or values.finished(node) is None:
            return None
    key = tuple(calls.rows), tuple(rows), at_once, programs.choices()
    return Waiting(key, tensors, list(calls.leaves), calls)


def run(found: Waiting) -> bool:
    """Compute what a run of the same calls computed; return whether there was one, and it went well.

    An error is the business of who decides anew: it has changed nothing.
    """
    known: _Known | None = _PLANS.get(found.key)
    if known is None:
        return False
    tensors = found.tensors
    inputs: list[Any] = [
        values.finished(found.leaves[k]) if leaf else _home(tensors[k])[0] for leaf, k in known.inputs
    ]
    if not known.updates:  # whatever is raised halfway has changed nothing
        try:
            made = programs.run(known.program, inputs)
        except StratalError:
            return False
        _settle(known, tensors, made)
    else:
        with ATOMIC:  # between the writing of cells and their handles knowing of it
            _make_room(known, tensors, inputs)
            try:
                made = programs.run(known.program, inputs)
            except Exception:
                return False
            _move_in(known, tensors, inputs)
            _settle(known, tensors, made)
    if len(known.updates) + len(known.outputs) == len(tensors):
        HERE.backlog.nothing_waits()
    if len(found.calls.numbers) == 1 and not known.updates:
        _note_alone(found, known)
    return True


def _note_alone(found: Waiting, known: _Known) -> None:
    """Remember the program that gave all results of one call, and nothing else."""
    (call,) = found.calls.numbers
    inputs = [found.leaves[k] for leaf, k in known.inputs if leaf]
    results = [(found.key[1][k][1], place) for k, place, _ in sorted(known.outputs)]
    once = len(call.operands) == len(set(call.operands)) == len(inputs) == len(known.inputs)
    if once and results == [(k, k) for k in range(len(call.template.results))]:
        order = [call.operands.index(node) for node in inputs]
        call.template.program = known.program, found.key[-1], order


def _make_room(known: _Known, tensors: Sequence[Handle], inputs: list[Any]) -> None:
    """Let cells whose old value is seen elsewhere, or read later, be written in copies."""
    seen = {
        k for k, place, late in known.updates
        if late or seen_elsewhere(tensors[k], inputs[place], _home(tensors[k])[1] is not None)
    }  # fmt: skip
    others = read_elsewhere() if SEVERAL else ()  # last, as in `execution`
    for k, place, _ in known.updates:
        if k in seen or _home(tensors[k])[1] in others:
            inputs[place] = Storage.copy_of(inputs[place].array, inputs[place].type)


def _move_in(known: _Known, tensors: Sequence[Handle], inputs: Sequence[Any]) -> None:
    """Let cells know that they were written."""
    for k, place, _ in known.updates:
        node = _home(tensors[k])[1]
        if node is not None and values.finished(node) is inputs[place]:
            values.give_away(node, "an in-place update overwrote it")
    for k, place, _ in known.updates:
        settle_in(tensors[k], inputs[place], {})


def _settle(known: _Known, tensors: Sequence[Handle], made: Sequence[Any]) -> None:
    """Give new values to the tensors that waited for them."""
    holders: dict[int, Handle] = {}
    for k, place, ended in known.outputs:
        if ended:
            spend(tensors[k])
        settle_in(tensors[k], made[place], holders)


def _home(tensor: Handle) -> tuple[Any, Node | None]:
    assert tensor._home is not None
    return tensor._home


def remember(found: Waiting, work: Run) -> None:
    """Remember the plan by which a run computed what waits, if it follows from the calls."""
    plan = work.plan
    if plan is None or plan.program is None or work.orphans:
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
        outputs.append((k, plan.outputs.index(value), tensor._track == USED_UP))
    _PLANS[found.key] = _Known(plan.program, inputs, updates, outputs)
    if len(_PLANS) > _CAPACITY:
        del _PLANS[next(iter(_PLANS))]
