"""Graphs as rows for the explorer: one per node, nested by where the user's program made it.

    graph := {"nodes": [[op, inputs, type, lines, path, note] ...], "paths": [[name ...] ...],
              "kernels": {node: [number of a kernel ...]}}

`inputs` number nodes, inputs before users; `lines` are rows of the source table; `path` numbers a row of
`paths`, the nesting from the outermost function to the innermost composite; `note` is an input's label, a
constant's value or the op's attributes, cut short.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from stratal.base.types import TupleType
from stratal.explorer.source_table import SourceTable
from stratal.graph.graph import Graph
from stratal.graph.literal import show
from stratal.graph.node import Const, Input, Item, Node, topological
from stratal.plan.text import shorten
from stratal.schedule.draft import Draft

JSON = dict[str, Any]
LONG_NOTE: Final = 160
MOST_SHOWN_ELEMENTS: Final = 8  # of a constant


def captured_graph(graph: Graph, sources: SourceTable) -> JSON:
    """Return the graph as it was captured, its outputs and updates with it."""
    nodes = _with_inputs(graph.inputs, graph.nodes)
    number = {node: k for k, node in enumerate(nodes)}
    made = _rows(nodes, number, sources)
    made["outputs"] = [number[o] for o in graph.outputs]
    made["updates"] = [[number[s], number[v]] for s, v in graph.updates]
    return made


def optimised_graph(draft: Draft, numbers_of: Mapping[int, Sequence[int]], sources: SourceTable) -> JSON:
    """Return what the kernels compute, as one graph; `numbers_of` gives the kernels of each group."""
    roots = list(dict.fromkeys(m for group in draft.groups for m in group.members))
    nodes = topological(roots)
    number = {node: k for k, node in enumerate(nodes)}
    made = _rows(nodes, number, sources)
    kernels: dict[int, list[int]] = {}
    for position, group in enumerate(draft.groups):
        for member in group.members:
            kernels.setdefault(number[member], []).extend(numbers_of.get(position, ()))
    made["kernels"] = {k: sorted(set(found)) for k, found in kernels.items() if found}
    return made


def _with_inputs(inputs: Sequence[Node], nodes: Sequence[Node]) -> list[Node]:
    return list(dict.fromkeys((*inputs, *nodes)))


def _rows(nodes: Sequence[Node], number: Mapping[Node, int], sources: SourceTable) -> JSON:
    paths: dict[tuple[str, ...], int] = {}
    rows = []
    for node in nodes:
        path = paths.setdefault(path_of(node), len(paths))
        inputs = [number[i] for i in node.inputs]
        rows.append([node.op.name, inputs, _type(node), sources.numbers(node.where[:3]), path, _note(node)])
    return {"nodes": rows, "paths": [list(path) for path in paths]}


def path_of(node: Node) -> tuple[str, ...]:
    """Return the nesting of a node: the module that made it, or function and line, then composites."""
    if not node.where:
        return ()
    line = node.where[0]
    if line.module:
        return (*line.module.split("."), *line.scope)
    return (f"{_function(line.function)} line {line.line}", *line.scope)


def _function(qualified: str) -> str:
    """Return the last class or function of a qualified name: `make.<locals>.step` is `step`."""
    parts = [p for p in qualified.split(".") if p not in ("<locals>", "forward", "<module>")]
    return parts[-1] if parts else "module"


def _type(node: Node) -> str:
    if isinstance(node.type, TupleType):
        return ", ".join(map(str, node.type.elements))
    return str(node.type)


def _note(node: Node) -> str:
    op = node.op
    if isinstance(op, Input):
        return op.label
    if isinstance(op, Const):
        small = op.value.array.size <= MOST_SHOWN_ELEMENTS
        return shorten(show(op.value), LONG_NOTE) if small else "constant"
    if isinstance(op, Item):
        return f"result {op.index}"
    held = (f"{k}={_attribute(v)}" for k, v in op.attributes.items())
    return shorten(" ".join(held), LONG_NOTE)


def _attribute(value: Any) -> str:
    if isinstance(value, Graph):
        return f"graph of {len(value.nodes)}"
    if isinstance(value, tuple) and any(isinstance(v, Graph) for v in value):
        return f"({', '.join(map(_attribute, value))})"
    try:
        return str(show(value))
    except TypeError:
        return type(value).__name__
