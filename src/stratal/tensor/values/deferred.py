"""Deferred values: results of calls whose graph is cached. Nodes are made when one is read.

Operands of calls may be deferred themselves. Where the same calls come again, their cached program runs on
the operands, and no node is ever made (`lazy/run_cache`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, final

from stratal.base.source import SourceLine
from stratal.base.types import Type
from stratal.graph.node import Input, Node, make, topological
from stratal.graph.op import Op
from stratal.tensor.values import node_values


class Row(NamedTuple):
    """One op of a template over values by their numbers; `scope` names the composites it stands in.

    `where` are lines that are not those of the call.
    """

    op: Op
    operands: tuple[int, ...]
    type: Type
    scope: tuple[str, ...]
    where: tuple[SourceLine, ...] | None = None


class Relation(NamedTuple):
    """Of which operand a result is a view, by which ops; of none, where it only lies in memory as a view."""

    operand: int
    ops: tuple[Op, ...]
    detached: bool
    layout: Any


class Result(NamedTuple):
    """One result of a template: its node there, its number, and what it is to gradients."""

    node: Node
    number: int
    track: int


@final
class CallTemplate:
    """The graph of one call. Values are numbered: first the operands, then the constants, then a row each."""

    __slots__ = (
        "constants", "container", "direct", "draws", "layouts", "numbers", "operands", "program", "results",
        "rows", "shown", "used", "views",
    )  # fmt: skip

    def __init__(
        self, operands: Sequence[Node], constants: Sequence[Node], rows: Sequence[Row],
        results: Sequence[Result], container: Any, draws: bool,
    ) -> None:  # fmt: skip
        self.operands: Final = tuple(operands)
        self.constants: Final = tuple(constants)
        self.rows: Final = tuple(rows)
        self.results: Final = tuple(results)
        self.shown: Final = self.results[:-1] if draws else self.results
        self.container: Final = container
        self.draws: Final = draws
        self.views: list[Relation | None] = []  # of results, if there are any
        self.layouts: list[Any] | None = None  # of operands, where they decide what is a view and what a copy
        self.numbers: list[Any] = []  # operands made of the floats of a call, after the tensors
        self.direct: Any = None  # what computes such a call at once, on small values that are there
        self.program: tuple[Any, Any, list[int]] | None = None  # that computed this call and nothing else
        self.used = True  # since room was made for others

    def gives_like(self, other: CallTemplate) -> bool:
        """Return whether both give results of the same kinds."""
        mine, theirs = ([(r.node.type, r.track) for r in t.results] for t in (self, other))
        same = (self.container, self.draws, self.views) == (other.container, other.draws, other.views)
        return same and mine == theirs

    def nodes(self, operands: Sequence[Node], line: SourceLine | None) -> list[Node]:
        """Return the results over some operands, as if the call had built them at a line."""
        known = [*operands, *self.constants]
        plain = () if line is None else (line,)
        for op, numbers, type_, scope, where in self.rows:
            if where is None:
                where = (line.under(scope),) if scope and line is not None else plain
            known.append(make(op, *[known[k] for k in numbers], where=where, type_=type_))
        return [known[result.number] for result in self.results]


def only(results: Sequence[Any]) -> Any:
    """Return the result of a call that has one: the `container` of its template."""
    return results[0]


def template_of(
    operands: Sequence[Node], roots: Sequence[Node], tracks: Sequence[int], container: Any, *,
    lines: bool = False, draws: bool = False,
) -> CallTemplate | None:  # fmt: skip
    """Return the template of some values over some inputs; None where they need others, or have effects.

    With `lines` each op keeps the lines it has, else it is one of the call's. `draws` says that the last
    operand and the last value are the state of the generator of random keys.
    """
    order = topological(roots)
    leaves = {node for node in order if isinstance(node.op, Input)}
    if not leaves <= set(operands) or any(node.op.effects for node in order):
        return None
    numbers = {node: k for k, node in reversed(list(enumerate(operands)))}
    inner = [node for node in order if node not in numbers]
    constants = [node for node in inner if not node.inputs]
    made = [node for node in inner if node.inputs]
    numbers |= {node: k for k, node in enumerate([*constants, *made], len(operands))}
    rows = []
    for n in made:
        scope, where = n.where[0].scope if n.where else (), n.where if lines else None
        rows.append(Row(n.op, tuple([numbers[i] for i in n.inputs]), n.type, scope, where))
    results = [Result(n, numbers[n], track) for n, track in zip(roots, tracks, strict=True)]
    return CallTemplate(operands, constants, rows, results, container, draws)


@final
class PendingCall:
    """A template applied to operands, at a line of the user's. An operand is a node, or deferred itself."""

    __slots__ = ("_nodes", "line", "operands", "template")

    def __init__(
        self, template: CallTemplate, operands: Sequence[Node | Deferred], line: SourceLine | None
    ) -> None:
        self.template: Final = template
        self.operands: Final = operands
        self.line: Final = line
        self._nodes: list[Node] | None = None

    def nodes(self) -> list[Node]:
        """Return the nodes of the results; those of the calls before are made first, however many."""
        if self._nodes is None:
            with node_values.NAMING:
                self._make()
        assert self._nodes is not None
        return self._nodes

    def _make(self) -> None:
        stack = [self]
        while stack:
            call = stack[-1]
            if call._nodes is None:
                before = [o.call for o in call.operands if isinstance(o, Deferred) and o.call._nodes is None]
                if before:
                    stack += before
                    continue
                operands = [o.node() if isinstance(o, Deferred) else o for o in call.operands]
                call._nodes = call.template.nodes(operands, call.line)
            stack.pop()


@final
class Deferred:
    """One result of a call, where a handle would hold its node."""

    __slots__ = ("call", "index")

    def __init__(self, call: PendingCall, index: int) -> None:
        self.call: Final = call
        self.index: Final = index

    def node(self) -> Node:
        return self.call.nodes()[self.index]


@final
class DeferredLeaf:
    """A parameter whose update is deferred: an input of its own, where derivatives end."""

    __slots__ = ("known", "value")

    def __init__(self, value: Deferred) -> None:
        self.value: Final = value
        self.known: Node | None = None

    def node(self) -> Node:
        with node_values.NAMING:
            if self.known is None:
                self.known = node_values.pending_leaf(self.value.node())
            return self.known
