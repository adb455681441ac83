"""Calls whose graph is known: their results are promises, and nodes are made when somebody asks for one.

Most calls outside of compiled functions are asked for their value at once. Then the program of the call's
template runs on its operands, and no node is ever made (`lazy`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, final

from stratal.base.source import SourceLine
from stratal.base.types import Type
from stratal.graph.node import Node, make
from stratal.graph.op import Op


class Row(NamedTuple):
    """One op of a template over values by their numbers; `scope` names the composites it stands in."""

    op: Op
    operands: tuple[int, ...]
    type: Type
    scope: tuple[str, ...]


class Result(NamedTuple):
    """One result of a template: its node there, its number, and what it is to gradients."""

    node: Node
    number: int
    track: int


@final
class Template:
    """The graph of one call. Values are numbered: first the operands, then the constants, then a row each.

    `programs` are known by the results that somebody waits for and the settings that shape code; each comes
    with the order in which it takes the operands.
    """

    __slots__ = ("constants", "container", "operands", "programs", "results", "rows", "used")

    def __init__(
        self, operands: Sequence[Node], constants: Sequence[Node], rows: Sequence[Row],
        results: Sequence[Result], container: Any,
    ) -> None:  # fmt: skip
        self.operands: Final = tuple(operands)
        self.constants: Final = tuple(constants)
        self.rows: Final = tuple(rows)
        self.results: Final = tuple(results)
        self.container: Final = container
        self.programs: Final[dict[Any, tuple[Any, list[int]]]] = {}
        self.used = True  # since room was made for others

    def nodes(self, operands: Sequence[Node], line: SourceLine | None) -> list[Node]:
        """Return the results over some operands, as if the call had built them at a line."""
        values = [*operands, *self.constants]
        plain = () if line is None else (line,)
        for op, numbers, type_, scope in self.rows:
            where = (line.under(scope),) if scope and line is not None else plain
            values.append(make(op, *[values[k] for k in numbers], where=where, type_=type_))
        return [values[result.number] for result in self.results]


@final
class Call:
    """A template applied to operands, at a line of the user's."""

    __slots__ = ("_nodes", "line", "operands", "template")

    def __init__(self, template: Template, operands: Sequence[Node], line: SourceLine | None) -> None:
        self.template: Final = template
        self.operands: Final = operands
        self.line: Final = line
        self._nodes: list[Node] | None = None

    def node(self, index: int) -> Node:
        """Return the node of a result."""
        if self._nodes is None:
            self._nodes = self.template.nodes(self.operands, self.line)
        return self._nodes[index]


@final
class Promise:
    """One result of a call, where a handle would hold its node."""

    __slots__ = ("call", "index")

    def __init__(self, call: Call, index: int) -> None:
        self.call: Final = call
        self.index: Final = index

    def node(self) -> Node:
        return self.call.node(self.index)
