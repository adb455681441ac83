"""From a group to a kernel: pick the tactic of its kind, collect the kernel's parameters, give it a name by
its content.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import partial
from typing import NamedTuple

from stratal.base import fallback, tuning
from stratal.base.errors import VerifyError
from stratal.base.log import Alternative, decide
from stratal.base.lowered import Lowered
from stratal.base.source import during
from stratal.base.target import Target
from stratal.graph.graph import op_text
from stratal.graph.node import Const, Input, Item, Node, items, topological
from stratal.graph.op import Op
from stratal.graph.partition import Group
from stratal.loops.compute import LoopBody
from stratal.loops.expr import Buffer, Call, Expr, Guard, Load, guard, index_const, load
from stratal.loops.stmt import Prefetch, Seq, Stmt, Store, loaded, stored
from stratal.schedule.expressions import GroupExpressions
from stratal.schedule.primitives import rewrite, rewrite_expressions
from stratal.schedule.result import Candidate, Operand, Scheduled, Tactic, named_by_content
from stratal.schedule.scalar import scalar_loops, serial_body
from stratal.schedule.tactics import candidate_of, candidates, variants
from stratal.schedule.tactics.bodies import schedule_body


class Memory:
    """The kernel-side view of values: one Buffer per value, with the strides its storage has."""

    def __init__(self, strides_of: Callable[[Node], tuple[int, ...]]) -> None:
        self.strides_of = strides_of
        self.buffers: dict[Node, Buffer] = {}
        self.reshaped: dict[Buffer, Node] = {}

    def __call__(self, node: Node) -> Buffer:
        found = self.buffers.get(node)
        if found is None:
            found = Buffer(f"v{len(self.buffers)}", node.dtype, node.aval.ints, self.strides_of(node))
            self.buffers[node] = found
        return found

    def seen_as(self, view: Node, source: Node) -> Buffer:
        """Return a stored value as a buffer of the shape of a view, which moves no element."""
        made = Buffer(f"w{len(self.reshaped)}", view.dtype, view.aval.ints)
        self.reshaped[made] = source
        return made


class KernelMemo:
    """Schedules each distinct group once: groups of equal structure differ only in which values they read and
    write.

    A group's structure is its nodes numbered in the order a walk from its members meets them, views included;
    what it reads from outside counts by type and strides.
    """

    def __init__(self) -> None:
        self._found: dict[object, tuple[Scheduled, dict[Node, int]]] = {}

    def __call__(self, problem: Problem) -> Scheduled:
        """Return the kernel of a group, with the group's own values as operands."""
        rows, nodes = problem.structure()
        key = rows, fallback.scalar(problem.group.members)
        found = self._found.get(key)
        if found is None:
            made = schedule_group(problem)
            self._found[key] = (made, {n: k for k, n in enumerate(nodes)})
            return made
        template, place = found
        return _with_operands(template, lambda o: nodes[place[o]] if isinstance(o, Node) else o)


def _is_outside(node: Node, is_stored: Callable[[Node], bool]) -> bool:
    return isinstance(node.op, (Input, Const, Item)) or is_stored(node)


def _with_operands(scheduled: Scheduled, change: Callable[[Operand], Operand]) -> Scheduled:
    pairs = tuple((change(r), change(w)) for r, w in scheduled.in_place)
    return scheduled._replace(
        reads=tuple(map(change, scheduled.reads)),
        writes=tuple(map(change, scheduled.writes)),
        in_place=tuple((r, w) for r, w in pairs if isinstance(r, Node) and isinstance(w, Node)),
        before=tuple(_with_operands(b, change) for b in scheduled.before),
    )


def schedule_group(problem: Problem) -> Scheduled:
    """Return the kernel of a group that has one (not `host`, `region` or `alias`)."""
    members = problem.group.members
    if problem.group.kind == "body":
        return _body(members[0], problem)
    if fallback.scalar(members):
        memory = Memory(problem.strides_of)
        return finish(memory, scalar_loops(problem.expressions(memory)))
    found = choose(problem)
    watching = _WATCHING.get()
    if watching is not None:
        watching.append((problem, found))
    return fallback.optional(
        f"schedule {found.algorithm}", partial(problem.schedule, found), partial(_next_best, problem, found),
        where=fallback.lines(members),
    )  # fmt: skip


def _next_best(problem: Problem, failed: Candidate) -> Scheduled:
    """Return the kernel of the best candidate that makes one, where the chosen one failed."""
    for other in problem.candidates():
        if str(other) != str(failed):
            make = partial(problem.schedule, other)
            made = fallback.optional(f"schedule {other.algorithm}", make, lambda: None)
            if made is not None:
                anchor = problem.group.members[0]
                why = f"{failed} would take less time, but failed"
                decide("tactic", f"{anchor.op.name} {anchor.type}", str(other), why, where=anchor.where)
                return made
    raise _without_way(problem)


def _without_way(problem: Problem) -> VerifyError:
    anchor = problem.group.members[0]
    return VerifyError(f"schedule: no tactic makes a kernel of {anchor.op.name}", where=anchor.where)


class Problem(NamedTuple):
    """A group that is to become a kernel, with what its schedule depends on.

    What the kernels before it make of `frozen` values is made once for many runs, so it costs nothing.
    """

    group: Group
    lower_of: Callable[[Node], Lowered | None]
    strides_of: Callable[[Node], tuple[int, ...]]
    is_stored: Callable[[Node], bool]
    target: Target
    frozen: frozenset[Node] = frozenset()

    @property
    def digest(self) -> str:
        """A hash of what is computed, with shapes, strides and dtypes: the same in every process."""
        rows, _ = self.structure()
        return hashlib.sha256(_as_text(rows).encode()).hexdigest()[:32]

    @property
    def nodes(self) -> list[Node]:
        """What the group reads, computes and writes, in an order that no candidate changes."""
        return self.structure()[1]

    def structure(self) -> tuple[object, list[Node]]:
        """Return a hashable description of the group, and its nodes in the order that numbers them."""
        group, members, is_stored = self.group, set(self.group.members), self.is_stored
        number: dict[Node, int] = {}
        rows: list[object] = [group.kind, group.space, group.num_rows, group.reduced]
        for node in topological(group.members, stop=lambda n: n not in members and _is_outside(n, is_stored)):
            number[node] = len(number)
            if node not in members and _is_outside(node, is_stored):
                scalar = node.op if isinstance(node.op, Const) and node.shape == () else None
                frozen = ("frozen",) if node in self.frozen else ()
                rows.append((scalar, node.type, self.strides_of(node), *frozen))
                continue
            kept = node in members and is_stored(node)
            strides = tuple(self.strides_of(r) for r in items(node)) if kept else None
            rows.append((node.op, tuple(number[i] for i in node.inputs), node in members, strides))
        nodes = list(number)
        for member in group.members:
            nodes += [r for r in items(member) if r not in number]
        return tuple(rows), nodes

    def expressions(self, memory: Memory | None = None) -> GroupExpressions:
        """Return the group's members as expressions; fresh ones for each candidate that is made of them."""
        memory = memory or Memory(self.strides_of)
        return GroupExpressions(self.group, self.lower_of, memory, self.is_stored, self.frozen)

    def candidates(self) -> list[Candidate]:
        """Return every way that is priced without measurements, the least estimate first."""
        found = candidates(self.group.kind, self.expressions(), self.target)
        return sorted(found, key=lambda c: c.seconds)

    def variants(self) -> list[Candidate]:
        """Return what measurements choose from beside the candidates."""
        known = {(c.algorithm, c.parameters) for c in self.candidates()}
        found = variants(self.group.kind, self.expressions(), self.target)
        return [c for c in found if (c.algorithm, c.parameters) not in known]

    def named(self, algorithm: str, parameters: tuple[tuple[str, int], ...]) -> Candidate | None:
        """Return the way a tuning record names; None where there is no such way."""
        return candidate_of(self.group.kind, self.expressions(), self.target, algorithm, parameters)

    def schedule(self, candidate: Candidate) -> Scheduled:
        """Return the kernel a candidate makes."""
        memory = Memory(self.strides_of)
        return finish(memory, candidate.make(self.expressions(memory)))


def _as_text(value: object) -> str:
    """Return a description with its ops as text, which a process does not decide."""
    if isinstance(value, tuple | list):
        return f"({','.join(map(_as_text, value))})"
    return op_text(value) if isinstance(value, Op) else str(value)


_WATCHING: ContextVar[list[tuple[Problem, Candidate]] | None] = ContextVar("stratal_problems", default=None)


def watched_problems() -> AbstractContextManager[list[tuple[Problem, Candidate]]]:
    """Collect what is scheduled in a block, each distinct group of a program once, with what was chosen."""
    found: list[tuple[Problem, Candidate]] = []
    return during(_WATCHING, found)


def choose(problem: Problem) -> Candidate:
    """Return the candidate a tuning record names, else the one that should take the least time."""
    found = problem.candidates()
    if not found:
        raise _without_way(problem)
    first, *others = found
    records = tuning.in_force()
    record = records.find(problem.digest) if len(records) else None
    if record is not None:
        tuned = problem.named(record.algorithm, record.parameters)
        if tuned is not None:
            _decide_measured(problem, tuned, record)
            return tuned
    if others:
        anchor = problem.group.members[0]
        decide(
            "tactic", f"{anchor.op.name} {anchor.type}", str(first), "the least estimated time on one core",
            alternatives=tuple(Alternative(str(c), c.seconds) for c in others),
            seconds=first.seconds, basis="estimated", where=anchor.where,
        )  # fmt: skip
    return first


def _decide_measured(problem: Problem, tuned: Candidate, record: tuning.Record) -> None:
    anchor = problem.group.members[0]
    found = f"measured {record.when} in {record.trials} trials on {record.threads} threads"
    others = () if record.default == str(tuned) else (Alternative(record.default, record.default_seconds),)
    decide(
        "tactic", f"{anchor.op.name} {anchor.type}", str(tuned), f"{found}, for {record.objective}",
        alternatives=others, seconds=record.seconds, basis="measured", where=anchor.where,
    )  # fmt: skip


def _body(node: Node, problem: Problem) -> Scheduled:
    """Return the kernels of a loop body; it reads reshapes of stored values where these lie."""
    memory = Memory(problem.strides_of)
    x = problem.expressions(memory)
    lowered = x.lower_of(node)
    if not isinstance(lowered, LoopBody):
        raise VerifyError(f"schedule: {node.op.name} has no loop body", where=node.where)
    operands = []
    for operand in node.inputs:
        source = x.behind(operand)
        operands.append(memory(operand) if source is operand else memory.seen_as(operand, source))
    found = lowered.build(operands, [memory(r) for r in items(node)])
    made = serial_body(found) if fallback.scalar([node]) else schedule_body(found, problem.target)
    return finish(memory, made)


def finish(memory: Memory, found: Tactic) -> Scheduled:
    """Return a tactic's result over values.

    Parameters are named by position, so that equal kernels have equal text and one compiled form.
    """
    values: dict[Buffer, Operand] = {b: n for n, b in memory.buffers.items()}
    values.update(memory.reshaped)
    made = (b for p in found.packs for b in (p.workspace, *stored(p.body)))
    values.update({b: b for b in made if b.space == "global" and b not in values})
    before = tuple(_parameters(values, Tactic(p.body, p.local, p.name, p.steps)) for p in found.packs)
    return _parameters(values, found)._replace(before=before)


def pairs_apart(found: Tactic) -> tuple[Tactic, dict[Buffer, Buffer]]:
    """Return a tactic's result with pairs of real numbers in place of complex ones, and the buffer of pairs
    for each of complex numbers.
    """
    parts = {
        b: Buffer(b.name, b.dtype.real, (*b.shape, 2), (*(2 * s for s in b.strides), 1), b.space)
        for b in stored(found.body)
        if b.dtype.is_complex
    }
    if not parts:
        return found, parts

    def part(value: Expr, k: int) -> Expr:
        if isinstance(value, Call) and value.fn == "pair":
            return value.args[k]
        if isinstance(value, Load) and value.buffer in parts:
            return load(parts[value.buffer], (*value.indices, index_const(k)))
        if isinstance(value, Guard):
            return guard(value.condition, part(value.value, k), part(value.otherwise, k))
        raise VerifyError("schedule: a complex number is stored that is no pair", got=str(value))

    def change(s: Stmt) -> Stmt:
        if isinstance(s, Prefetch) and s.buffer in parts:
            return Prefetch(parts[s.buffer], (*s.indices, index_const(0)), 2 * s.ahead)
        if not isinstance(s, Store) or s.buffer not in parts:
            return s
        return Seq(Store(parts[s.buffer], (*s.indices, index_const(k)), part(s.value, k)) for k in range(2))

    local = tuple(parts.get(b, b) for b in found.local)
    return found._replace(body=rewrite(found.body, change), local=local), parts


def _parameters(values: dict[Buffer, Operand], found: Tactic) -> Scheduled:
    found, apart = pairs_apart(found)
    values = values | {new: values[old] for old, new in apart.items() if old in values}
    written = [b for b in stored(found.body) if b in values]
    read = [b for b in loaded(found.body) if b in values and b not in written]
    renamed = {b: Buffer(f"x{k}", b.dtype, b.shape, b.strides) for k, b in enumerate(read)}
    renamed |= {b: Buffer(f"y{k}", b.dtype, b.shape, b.strides) for k, b in enumerate(written)}
    body = rename(found.body, renamed)
    reads, writes = [renamed[b] for b in read], [renamed[b] for b in written]
    pairs = [(values[r], values[w]) for r, w in found.in_place if r in read and w in written]
    return Scheduled(
        named_by_content(reads, writes, body, found.local),
        tuple(values[b] for b in read),
        tuple(values[b] for b in written),
        found.name,
        found.steps,
        tuple((r, w) for r, w in pairs if isinstance(r, Node) and isinstance(w, Node)),
    )


def rename(body: Stmt, buffers: dict[Buffer, Buffer]) -> Stmt:
    """Replace buffers by others of the same shape."""

    def change(e: Expr) -> Load | None:
        return load(buffers[e.buffer], e.indices) if isinstance(e, Load) and e.buffer in buffers else None

    return rewrite_expressions(body, change, {b: (n, lambda i: i) for b, n in buffers.items()})
