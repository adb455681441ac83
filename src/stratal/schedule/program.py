"""From a partition to commands: values with homes, launches in order, control flow as nested lists.

No code is generated here.

State updates and loop carries are copies onto the old value; `memory.alias` removes the copies that are not
needed. Groups that only feed updates run last, so that a failing index check leaves states untouched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np

from stratal.base import fallback
from stratal.base.artifact import Branch, Command, Copy, Host, Launch, Loop, While
from stratal.base.dtypes import int64
from stratal.base.errors import VerifyError
from stratal.base.lowered import Lowered
from stratal.base.target import Target
from stratal.base.types import TensorType
from stratal.graph.graph import Graph
from stratal.graph.interpret import Value as HostResult
from stratal.graph.interpret import apply
from stratal.graph.node import Const, Input, Item, Node, is_frozen, items, owner
from stratal.graph.op import Array, Op
from stratal.graph.partition import Group, Partition
from stratal.loops.expr import Buffer, row_major
from stratal.loops.stmt import Kernel
from stratal.schedule.checks import IndexCheck, index_checks
from stratal.schedule.draft import Draft
from stratal.schedule.invariants import FEW_TURNS, hoisted, made_of, once
from stratal.schedule.moves import lies_in_order
from stratal.schedule.order import in_order
from stratal.schedule.result import Operand, Scheduled
from stratal.schedule.row_copies import LANES, fill_kernel, row_kernel
from stratal.schedule.select import KernelMemo, Problem

PACK_FOR = "pack for "


class Planned(NamedTuple):
    """A graph, fused and laid out: what `lower` of a graph needs besides the graph."""

    graph: Graph
    partition: Partition
    strides: Callable[[Node], tuple[int, ...]]


@dataclass(eq=False)
class ProgramLowering:
    """Lowers one program; nested regions share its values.

    `scheduled` is told of each kernel at once, `foreseen` about how many bytes a part of it will need.
    """

    plan: Callable[[Graph], Planned]
    lower_of: Callable[[Node], Lowered | None]
    target: Target
    scheduled: Callable[[Kernel], None]
    foreseen: Callable[[int], None]
    draft: Draft = field(default_factory=Draft)
    kernel_of: KernelMemo = field(default_factory=KernelMemo)
    constants: dict[Const, int] = field(default_factory=dict)

    # -- values ----------------------------------------------------------------------------------------------
    def constant(self, op: Const) -> int:
        """Return the value of a constant array, one for equal arrays."""
        found = self.constants.get(op)
        if found is None:
            found = self.draft.value(op.value.type, home="const", index=len(self.draft.constants))
            self.draft.constants.append(op.value.array.tobytes())
            self.constants[op] = found
        return found

    def kernel(self, scheduled: Scheduled, nodes: Iterable[Node]) -> Kernel:
        """Add a kernel that some nodes need, once, and return it."""
        kernel = scheduled.kernel
        self.draft.made_for.setdefault(kernel.name, set()).update(nodes)
        if kernel.name not in self.draft.kernels:
            self.draft.kernels[kernel.name] = scheduled
            self.scheduled(kernel)
        return kernel

    # -- whole programs --------------------------------------------------------------------------------------
    def program(self, graph: Graph, prologue: Graph | None = None) -> Draft:
        """Lower a whole graph: inputs and outputs get homes of their own.

        The last inputs of `graph` are what `prologue` makes of some of the others.
        """
        count = len(graph.inputs) - (len(prologue.outputs) if prologue else 0)
        inputs = [self._input(k, node) for k, node in enumerate(graph.inputs[:count])]
        first, prepared = self._prologue(prologue, dict(zip(graph.inputs, inputs, strict=False)))
        planned = self.plan(graph)
        bound = dict(zip(planned.graph.inputs, [*inputs, *prepared], strict=True))
        states = {s: bound[s] for s, _ in planned.graph.updates}
        updated = {v for _, v in planned.graph.updates}
        outputs: list[int] = []
        for k, node in enumerate(planned.graph.outputs):
            made = self.draft.value(node.aval, home="output", index=k, label=f"output {k}", where=node.where)
            outputs.append(made)
        result_of = {n: v for n, v in _first(planned, outputs).items() if n not in updated}
        frozen = frozenset(n for n in planned.graph.inputs if is_frozen(n) and n not in states)
        body = GraphLowering(self, planned, bound, result_of, frozen)
        commands = body.run()
        commands += _result_copies(planned, body, outputs)
        commands += self._updates(planned, body, states)
        varying = [bound[n] for n in planned.graph.inputs if n not in frozen]
        more, commands = hoisted(commands, [*varying, *outputs], self.rows_of())
        self.draft.commands = (*once([*first, *more], commands, self.draft.values, self.rows_of()), *commands)
        self.draft.inputs, self.draft.outputs = tuple(inputs), tuple(outputs)
        self.draft.states = tuple(k for k, n in enumerate(planned.graph.inputs) if n in states)
        return self.draft

    def _input(self, k: int, node: Node) -> int:
        label = node.op.label if isinstance(node.op, Input) else ""
        return self.draft.value(node.aval, home="input", index=k, label=label, where=node.where)

    def _prologue(self, graph: Graph | None, inputs: Mapping[Node, int]) -> tuple[list[Command], list[int]]:
        """Lower what is computed once; return its commands and its results."""
        if graph is None:
            return [], []
        planned = self.plan(graph)
        bound = {new: inputs[old] for new, old in zip(planned.graph.inputs, graph.inputs, strict=True)}
        made = [
            self.draft.value(n.aval, label=owner(n).op.name, where=n.where) for n in planned.graph.outputs
        ]
        body = GraphLowering(self, planned, bound, _first(planned, made))
        commands = body.run()
        return [*commands, *_result_copies(planned, body, made)], made

    def rows_of(self) -> dict[int, int]:
        """Return, for each value that is a row of another, the value whose memory that is."""
        values = self.draft.values
        owner = {v.id: v.alias for v in values if v.row is not None and v.alias is not None}
        return {row: _end(owner, row) for row in owner}

    def _updates(self, planned: Planned, body: GraphLowering, states: dict[Node, int]) -> list[Command]:
        """Copy new states over old ones; where possible the copies later vanish (memory.alias)."""
        pairs = [(body.at(new), states[state]) for state, new in planned.graph.updates]
        pairs = [(s, t) for s, t in pairs if s != t]
        targets = {t for _, t in pairs}
        kept: dict[int, int] = {}
        for source, _ in pairs:
            if source in targets and source not in kept:  # an update reads the old value of another state
                kept[source] = self.draft.value(self.draft.values[source].type, label="old state")
        first: list[Command] = [Copy(s, k, "old state") for s, k in kept.items()]
        return first + [Copy(kept.get(s, s), t, "update") for s, t in pairs]


@dataclass(eq=False)
class GraphLowering:
    """Lowers the groups of one graph (a program or a region) to commands.

    `bound` maps known nodes to values; `frozen` are those of them that stay the same from run to run.
    """

    owner: ProgramLowering
    planned: Planned
    bound: dict[Node, int]
    results: dict[Node, int]  # values some nodes must be computed into
    frozen: frozenset[Node] = frozenset()
    packed: dict[tuple[str, tuple[int, ...]], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.frozen = made_of(self.frozen, self.planned.graph, self.planned.partition)
        for node in list(self.results):
            self._make_there(node)

    def _make_there(self, node: Node) -> None:
        """Let a kernel write the bytes of a result that is another value's under another type."""
        group_of, target = self.planned.partition.group_of, self.results[node]
        while (group := group_of.get(node)) is not None and group.kind == "bytes":
            (node,) = node.inputs
            maker = group_of.get(owner(node))
            if node in self.results or maker is None or maker.kind in ("host", "region", "alias"):
                return
            self.results[node] = target

    def at(self, node: Node) -> int:
        """Return the value that holds a node."""
        found = self.bound.get(node)
        if found is None:
            if isinstance(node.op, Const):
                found = self.owner.constant(node.op)
            elif node in self.results:
                found = self.results[node]
            else:
                strides = self.planned.strides(node)
                found = self.owner.draft.value(node.aval, strides, label=node.op.name, where=node.where)
            self.bound[node] = found
        return found

    def strides(self, node: Node) -> tuple[int, ...]:
        if node in self.bound or node in self.results:
            value = self.owner.draft.values[self.at(node)]
            same_axes = value.type.shape == node.aval.shape
            return value.strides if same_axes else row_major(node.aval.ints)  # else: of another type
        return self.planned.strides(node)

    def run(self) -> list[Command]:
        checks = self._index_checks()
        checked = [n for check in checks for n in check.scheduled.reads if isinstance(n, Node)]
        groups, waiting_bytes = in_order(self.planned.graph, self.planned.partition, checked)
        self.owner.foreseen(waiting_bytes)
        due = self._due(checks, groups)
        commands: list[Command] = []
        for group in groups:  # inputs returned as they came: the old value is free to be replaced then
            commands += self._group(group) if group.kind == "alias" else ()
        for k, group in enumerate(groups):
            commands += due.get(k, ())
            with fallback.part("schedule", group.members):
                commands += self._group(group) if group.kind != "alias" else ()
        return commands

    def _index_checks(self) -> list[IndexCheck]:
        """Return the index checks of all groups, each different one once."""
        found: dict[object, IndexCheck] = {}
        for group in self.planned.partition.groups:
            with fallback.part("index check", group.members):
                for check in index_checks(self._problem(group)):
                    found.setdefault((check.scheduled.kernel.name, check.scheduled.reads), check)
        return list(found.values())

    def _due(self, checks: Sequence[IndexCheck], groups: Sequence[Group]) -> dict[int, list[Command]]:
        """Return the launches of checks, as early as can be, by the position of the group they precede."""
        group_of = self.planned.partition.group_of
        position = {id(group): k for k, group in enumerate(groups)}
        due: dict[int, list[Command]] = {}
        for check in checks:
            reads = [r for r in check.scheduled.reads if isinstance(r, Node)]
            owners = [group_of.get(owner(r)) for r in reads]
            made = [position[id(g)] + 1 for g in owners if g is not None and g.kind != "alias"]
            kernel = self.owner.kernel(check.scheduled, [check.node])
            launch = Launch(
                kernel.name, tuple(map(self.at, reads)), (), kernel.num_chunks,
                label=f"index of {check.node.op.name}", where=check.node.where[:8], may_fail=check.message,
            )  # fmt: skip
            due.setdefault(max(made, default=0), []).append(launch)
        return due

    def _group(self, group: Group) -> list[Command]:
        node = group.members[0]
        if group.kind == "alias":
            if node not in self.results:
                return []
            return [Copy(self.at(node), self.results[node], "result")]
        if group.kind == "bytes":
            return self._retyped(node)
        if group.kind == "host":
            return [self._host(group, node)]
        if group.kind == "region":
            return RegionLowering(self, node).run()
        partition = self.planned.partition
        moved = lies_in_order(group, self.planned.graph, partition, self.owner.lower_of, self.strides)
        if moved is not None:
            return [Copy(self.at(moved), self.at(node), "result")]
        scheduled = self.owner.kernel_of(self._problem(group))
        workspaces: dict[Buffer, int] = {}
        number = self.owner.draft.number(group)
        launches = []
        for part in scheduled.before:
            launch = self._launch(part, number, workspaces)
            if not self._known_pack(launch, workspaces):
                launches.append(launch)
        launches.append(self._launch(scheduled, number, workspaces))
        return list(launches)

    def _problem(self, group: Group) -> Problem:
        stored, whole = self.planned.partition.stored.__contains__, self.owner
        return Problem(group, whole.lower_of, self.strides, stored, whole.target, self.frozen)

    def _known_pack(self, launch: Launch, workspaces: dict[Buffer, int]) -> bool:
        """Return whether an earlier kernel packed the same operand in the same way; use its copy then."""
        if not launch.label.startswith(PACK_FOR):
            return False
        key = launch.kernel, launch.reads
        (made,) = launch.writes
        known = self.packed.setdefault(key, made)
        workspaces.update({buffer: known for buffer, id_ in workspaces.items() if id_ == made})
        return known != made

    def _launch(self, scheduled: Scheduled, number: int, workspaces: dict[Buffer, int]) -> Launch:
        group = self.owner.draft.groups[number]

        def value(operand: Operand) -> int:
            if isinstance(operand, Node):
                return self.at(operand)
            if operand not in workspaces:
                workspaces[operand] = self.owner.draft.value(
                    TensorType(operand.dtype, operand.shape), label="packed", where=group.members[0].where
                )
            return workspaces[operand]

        kernel = self.owner.kernel(scheduled, group.members)
        names = "+".join(m.op.name for m in group.members[:6])
        pairs = [(scheduled.reads.index(r), scheduled.writes.index(w)) for r, w in scheduled.in_place]
        return Launch(
            kernel.name,
            tuple(map(value, scheduled.reads)),
            tuple(map(value, scheduled.writes)),
            kernel.num_chunks,
            scratch_bytes=kernel.scratch_bytes,
            label=f"{PACK_FOR}{names}" if scheduled.tactic == "pack" else names,
            where=tuple(dict.fromkeys(line for m in group.members for line in m.where))[:8],
            group=number,
            in_place=tuple(pairs),
        )

    def _retyped(self, node: Node) -> list[Command]:
        """Give a node the value of its operand, whose bytes are its own."""
        source, result = self.at(node.inputs[0]), self.results.get(node)
        if result is not None and result != source:
            return [Copy(source, result, "result")]
        self.bound[node] = source
        return []

    def _host(self, group: Group, node: Node) -> Host:
        draft = self.owner.draft
        types = tuple(i.aval for i in node.inputs)
        given = tuple(draft.values[self.at(i)].type for i in node.inputs)
        draft.calls.append(partial(apply, node.op) if types == given else partial(_apply_as, node.op, types))
        reads, writes = (tuple(map(self.at, nodes)) for nodes in (node.inputs, items(node)))
        return Host(len(draft.calls) - 1, reads, writes, node.op.name, node.where, draft.number(group))


def _apply_as(op: Op, types: Sequence[TensorType], *arrays: Array) -> HostResult:
    """Apply an op to arrays whose bytes are those of operands of some types."""
    seen = (
        np.ascontiguousarray(a).reshape(-1).view(t.dtype.np).reshape(t.ints)
        for a, t in zip(arrays, types, strict=True)
    )
    return apply(op, *seen)


def _end(following: Mapping[int, int], start: int) -> int:
    """Return where a chain of references ends."""
    while start in following:
        start = following[start]
    return start


def _first(planned: Planned, results: Sequence[int]) -> dict[Node, int]:
    """Return the value that each output of a graph is computed into: the first of its results."""
    found: dict[Node, int] = {}
    for node, id_ in zip(planned.graph.outputs, results, strict=True):
        found.setdefault(node, id_)
    return found


def _result_copies(planned: Planned, body: GraphLowering, results: Sequence[int]) -> list[Command]:
    """Return the copies that fill the results of a graph which are not computed in their place."""
    pairs = zip(planned.graph.outputs, results, strict=True)
    return [Copy(body.at(n), id_, "result") for n, id_ in pairs if body.results.get(n) != id_]


class RegionLowering:
    """Lowers one control-flow node to a loop, while or branch over nested commands."""

    def __init__(self, outer: GraphLowering, node: Node) -> None:
        self.outer = outer
        self.owner = outer.owner
        self.node = node
        self.results = [outer.at(r) for r in items(node)]

    def run(self) -> list[Command]:
        name = self.node.op.name
        way = {"cond": self._cond, "while": self._while, "scan": self._scan}.get(name)
        if way is None:
            raise VerifyError(f"program: no region is called {name!r}", where=self.node.where)
        return way()

    def _inline(
        self, graph: Graph, arguments: Sequence[int], into: Sequence[int], frozen: slice = slice(0)
    ) -> list[Command]:
        """Lower a region with its inputs bound to values and its outputs written to values.

        `frozen` are the inputs that are the same in every turn of a loop.
        """
        planned = self.owner.plan(graph)
        bound = dict(zip(planned.graph.inputs, arguments, strict=True))
        wanted = _first(planned, into)
        body = GraphLowering(self.owner, planned, bound, wanted, frozenset(planned.graph.inputs[frozen]))
        commands = body.run()
        for node, target in zip(planned.graph.outputs, into, strict=True):
            if wanted[node] != target:
                commands.append(Copy(wanted[node], target, "region result"))
        return commands

    def _fresh(self, types: Sequence[TensorType], label: str) -> list[int]:
        return [self.owner.draft.value(t, label=label, where=self.node.where) for t in types]

    def _cond(self) -> list[Command]:
        op = self.node.op
        predicate, *operands = map(self.outer.at, self.node.inputs)
        first, predicate = self._at_rest(predicate)
        arms = [self._inline(g, operands, self.results) for g in (op.then, op.otherwise)]  # type: ignore[attr-defined]
        return [*first, Branch(predicate, tuple(arms[0]), tuple(arms[1]), "cond")]

    def _at_rest(self, value: int) -> tuple[list[Command], int]:
        """Return a value that control flow can read, copied where it is a row of another."""
        found = self.owner.draft.values[value]
        if found.row is None:
            return [], value
        (copied,) = self._fresh([found.type], "read by control flow")
        return [Copy(value, copied, "row")], copied

    def _while(self) -> list[Command]:
        op = self.node.op
        operands = list(map(self.outer.at, self.node.inputs))
        count: int = op.num_carries  # type: ignore[attr-defined]
        carries, constants = self.results, operands[count:]
        start = _copies(operands[:count], carries, "carry")
        (predicate,) = self._fresh(op.condition.output_types, "predicate")  # type: ignore[attr-defined]
        condition = self._inline(op.condition, [*carries, *constants], [predicate])  # type: ignore[attr-defined]
        following = self._fresh(op.body.output_types, "next carry")  # type: ignore[attr-defined]
        same = slice(count, None)
        body = self._inline(op.body, [*carries, *constants], following, same)  # type: ignore[attr-defined]
        first, body = hoisted(body, [*carries, *following], self.owner.rows_of())
        start += first
        body += _copies(following, carries, "carry")
        return [*start, While(tuple(condition), predicate, tuple(body), "while")]

    def _scan(self) -> list[Command]:
        """Carries live in the results. Rows of x and of y are read and written where they stand."""
        op = self.node.op
        operands = list(map(self.outer.at, self.node.inputs))
        start: list[Command] = []
        trips_value = None
        if op.dynamic_length:  # type: ignore[attr-defined]
            start, trips_value = self._at_rest(operands.pop())
        count: int = op.num_carries  # type: ignore[attr-defined]
        carries, ys = self.results[:count], self.results[count:]
        start += _copies(operands[:count], carries, "carry")
        if trips_value is not None:
            start += [self._zero(y) for y in ys]
        counter = self.owner.draft.value(TensorType(int64), label="row number", where=self.node.where)
        body_of: Graph = op.body  # type: ignore[attr-defined]
        xs = operands[count : count + op.num_xs]  # type: ignore[attr-defined]
        constants = operands[count + op.num_xs :]  # type: ignore[attr-defined]
        in_place = not self._calls_host(body_of)
        rows = self._rows(xs, [i.aval for i in body_of.inputs[count : count + len(xs)]], counter, in_place)
        new_rows = self._rows(ys, body_of.output_types[count:], counter, in_place)
        following = self._fresh(body_of.output_types[:count], "next carry")
        body = [self._row_copy(x, row, counter, read=True) for x, row in self._apart(xs, rows)]
        arguments, into = [*carries, *rows, *constants, counter], [*following, *new_rows]
        repaid = op.length >= FEW_TURNS  # type: ignore[attr-defined]
        same = slice(len(carries) + len(rows), -1) if repaid else slice(0)
        body += self._inline(body_of, arguments, into, same)
        body += [self._row_copy(y, row, counter, read=False) for y, row in self._apart(ys, new_rows)]
        varying = [counter, *carries, *rows, *following, *new_rows]
        first, body = hoisted(body, varying, self.owner.rows_of())
        body += _copies(following, carries, "carry")
        loop = Loop(tuple(body), op.length, counter, trips_value, op.reverse, "scan")  # type: ignore[attr-defined]
        return [*start, *first, loop]

    def _rows(
        self, stacked: Sequence[int], types: Sequence[TensorType], counter: int, in_place: bool
    ) -> list[int]:
        """Return one value per stacked one: its row, or memory for a copy where it lies scattered."""
        values = self.owner.draft.values
        found = []
        for whole, type_ in zip(stacked, types, strict=True):
            dense = values[whole].strides == row_major(values[whole].type.ints)
            row = self.owner.draft.value(type_, label="row", where=self.node.where)
            if in_place and dense:
                values[row].alias, values[row].row = whole, counter
            found.append(row)
        return found

    def _apart(self, stacked: Sequence[int], rows: Sequence[int]) -> list[tuple[int, int]]:
        """Return the pairs of a stacked value and a row that has memory of its own."""
        values = self.owner.draft.values
        return [(s, r) for s, r in zip(stacked, rows, strict=True) if values[r].row is None]

    def _calls_host(self, graph: Graph) -> bool:
        """Return whether Python runs somewhere in a region: it looks at values where they are planned."""
        for node in graph.nodes:
            inner = [g for g in node.op.attributes.values() if isinstance(g, Graph)]
            known = isinstance(node.op, (Input, Const, Item))
            if any(map(self._calls_host, inner)) or (not known and self.owner.lower_of(node) is None):
                return True
        return False

    def _zero(self, target: int) -> Command:
        return self._launch(fill_kernel(self.owner.draft.values[target], self._lanes()), (), (target,))

    def _lanes(self) -> int:
        return 1 if fallback.scalar([self.node]) else LANES

    def _row_copy(self, stacked: int, row: int, counter: int, *, read: bool) -> Command:
        values = self.owner.draft.values
        scheduled = row_kernel(values[stacked], values[row], read=read, lanes=self._lanes())
        if read:
            return self._launch(scheduled, (stacked, counter), (row,))
        return self._launch(scheduled, (row, counter), (stacked,))

    def _launch(self, scheduled: Scheduled, reads: tuple[int, ...], writes: tuple[int, ...]) -> Command:
        kernel = self.owner.kernel(scheduled, [self.node])
        return Launch(
            kernel.name, reads, writes, kernel.num_chunks, label=scheduled.tactic, where=self.node.where
        )


def _copies(sources: Sequence[int], targets: Sequence[int], label: str) -> list[Command]:
    return [Copy(s, t, label) for s, t in zip(sources, targets, strict=True)]
