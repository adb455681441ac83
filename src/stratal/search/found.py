"""What a search is given and what it found: steps with their proofs, rewrites with their prices."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from stratal.base.source import SourceLine
from stratal.base.tuning import Record
from stratal.graph.graph import Graph
from stratal.graph.node import Const, Input, Node, graph_input, rebuild, topological
from stratal.optimize.prologue import decided_alone
from stratal.optimize.rewrite import with_roots

Replaced = Mapping[Node, Node]
WholePrice = Callable[[Graph], float]
"""Seconds of one run of a graph."""
LocalPrice = Callable[[Graph, Replaced], "tuple[float, float]"]
"""Seconds around some nodes of a graph, before and after others replace them."""
Verdicts = Callable[[str], "Record | None"]
"""What was measured of a rewrite, by its key."""

REWRITTEN: Final = "rewritten"  # algorithms of records on rewrites: which of both ways is faster
AS_WRITTEN: Final = "as written"


class Step(NamedTuple):
    """One rule applied once: its name, both sides, its class, and the normal form that proves it here."""

    rule: str
    text: str
    exact: bool
    certificate: str

    @property
    def proof(self) -> str:
        """The class of the proof, in words."""
        return "to the bit" if self.exact else "real arithmetic"


def distinct(steps: Iterable[Step]) -> tuple[Step, ...]:
    """Return the first step of each rule: the same one is taken at many places of a large rewrite."""
    found: dict[str, Step] = {}
    for step in steps:
        found.setdefault(step.rule, step)
    return tuple(found.values())


class Piece(NamedTuple):
    """A rewrite by itself: two graphs over the same inputs, which stand for what both read."""

    before: Graph
    after: Graph

    @property
    def key(self) -> str:
        """What decides a measured verdict on it: structure, types and what is frozen."""
        return hashlib.sha256(f"rewrite {self.before.digest} {self.after.digest}".encode()).hexdigest()[:32]


class Rewrite(NamedTuple):
    """A rewrite that was weighed: nodes and what replaces them, by which steps, and what both ways cost.

    `seconds` are `measured` where a record says so. `refused` says why it was not taken.
    """

    replaced: Replaced
    steps: tuple[Step, ...]
    before_seconds: float
    seconds: float
    where: tuple[SourceLine, ...]
    piece: Piece
    measured: bool = False
    refused: str = ""

    @property
    def exact(self) -> bool:
        """Whether all steps hold to the bit."""
        return all(step.exact for step in self.steps)

    @property
    def subject(self) -> str:
        """The ops that are replaced and what they become."""
        return f"{_ops(self.piece.before)} -> {_ops(self.piece.after)}"

    @property
    def work(self) -> int:
        """Elements that each run computes in the new way; what frozen inputs decide is computed once."""
        graph = self.piece.after
        frozen = decided_alone(graph)
        made = [n for n in graph.nodes if n not in frozen and not isinstance(n.op, (Input, Const))]
        return sum(int(n.aval.size) for n in made)

    def __str__(self) -> str:
        return f"{self.subject}: {' then '.join(s.rule for s in self.steps)}"


class Found(NamedTuple):
    """The result of a search: the graph, the rewrites applied and rejected, and how far it went.

    `complete` is False where a limit ended the search.
    """

    graph: Graph
    applied: tuple[Rewrite, ...]
    rejected: tuple[Rewrite, ...]
    priced: int
    complete: bool


def _ops(graph: Graph) -> str:
    names = [n.op.name for n in graph.nodes if not isinstance(n.op, (Input, Const))]
    return "+".join(names) if len(names) <= 6 else f"{'+'.join(names[:5])}+{len(names) - 5} more"


def boundary(nodes: Container[Node], replaced: Replaced) -> list[Node]:
    """Return the values that both ways of a rewrite read; `nodes` are those of the graph it is applied to."""
    new = topological(replaced.values(), stop=lambda n: n in nodes and n not in replaced)
    read = {i for n in new if n not in nodes for i in n.inputs if i in nodes}
    read.update(n for n in replaced.values() if n in nodes)
    bound = {n for n in read if not isinstance(n.op, Const) and n not in replaced}
    old = topological(replaced, stop=bound.__contains__)
    return [n for n in dict.fromkeys([*old, *new]) if n in bound or isinstance(n.op, Input)]


def piece_of(leaves: Sequence[Node], frozen: Container[Node], replaced: Replaced) -> Piece:
    """Return a rewrite by itself, over inputs for `leaves`, of which frozen inputs decide some alone."""
    fresh = {n: graph_input("x", n.aval, n.where, frozen=n in frozen) for n in leaves}

    def cut(roots: Iterable[Node]) -> list[Node]:
        made = dict(fresh)
        wanted = list(roots)
        for n in topological(wanted, stop=made.__contains__):
            if n not in made:
                made[n] = rebuild(n, [made[i] for i in n.inputs])
        return [made[n] for n in wanted]

    inputs = list(fresh.values())
    before, after = cut(replaced), cut(replaced.values())
    return Piece(Graph(inputs, before, name="before"), Graph(inputs, after, name="after"))


def structure(roots: Sequence[Node], leaves: Sequence[Node]) -> object:
    """Return what expressions over some leaves are but for these: ops, and the types of leaves."""
    number = {x: k for k, x in enumerate(leaves)}
    rows: list[object] = [x.type for x in leaves]
    for node in topological(roots, stop=number.__contains__):
        if node not in number:
            rows.append((node.op, *(number[i] for i in node.inputs)))
            number[node] = len(number)
    return tuple(rows), tuple(number[r] for r in roots)


def rewritten(graph: Graph, chosen: Iterable[Rewrite]) -> tuple[Graph, list[Rewrite]]:
    """Return a graph with rewrites applied, and which they are: of two that touch, or need each other's
    results, the first.
    """
    wanted = list(chosen)
    table: dict[Node, Node] = {}
    for rewrite in wanted:
        table.update(rewrite.replaced)
    roots = _resolved(graph, table) if len(table) == sum(len(r.replaced) for r in wanted) else None
    if roots is not None:
        return with_roots(graph, roots), wanted
    table, applied = {}, []
    for rewrite in wanted:
        more = {**table, **rewrite.replaced}
        if len(more) == len(table) + len(rewrite.replaced):
            found = _resolved(graph, more)
            if found is not None:
                table, roots = more, found
                applied.append(rewrite)
    return with_roots(graph, roots or graph.roots), applied


def _resolved(graph: Graph, table: Replaced) -> list[Node] | None:
    """Return the roots with nodes replaced, within what replaces others, too; None where that would go in a
    circle, or not all are met.
    """
    done: dict[Node, Node] = {}
    opened: set[Node] = set()
    stack = list(graph.roots)
    while stack:
        node = stack[-1]
        if node in done:
            stack.pop()
            continue
        below = (table[node],) if node in table else node.inputs
        waiting = [n for n in below if n not in done]
        if waiting:
            if node in opened:
                return None
            opened.add(node)
            stack += waiting
            continue
        done[node] = done[table[node]] if node in table else rebuild(node, [done[i] for i in node.inputs])
        stack.pop()
    return [done[r] for r in graph.roots] if all(n in done for n in table) else None
