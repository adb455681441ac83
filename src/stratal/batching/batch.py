"""vmap on graphs: some values get a new axis in front, and all that depends on them gets it too.

A record's `batch` says how one op is done for all rows at once; where it has no rule, a scan runs the op row
by row. Cost: one rule per node that depends on a value with the axis; others stay the nodes they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stratal.base.dims import Dim
from stratal.base.errors import VerifyError
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph
from stratal.graph.node import Item, Node, graph_input, items, label_of, make, rebuild, topological
from stratal.ops.control.scan import INDEX, Scan
from stratal.ops.families import repeated


def batch(outputs: Sequence[Node], given: Mapping[Node, Node], size: Dim) -> list[Node]:
    """Return the outputs with nodes replaced by values, some of which have an axis of `size` in front.

    An output that depends on one of these has it, too: its rank tells.
    """
    found: dict[Node, list[Node]] = {node: [value] for node, value in given.items()}
    builder = Builder(batch_graph=batch_graph)
    for node in topological(outputs, stop=given.__contains__):
        if node not in found:
            found[node] = _batch_of(builder, node, found, size)
    return [found[o][0] for o in outputs]


def _batch_of(builder: Builder, node: Node, found: Mapping[Node, list[Node]], size: Dim) -> list[Node]:
    """Return the results of one node."""
    if isinstance(node.op, Item):
        return [found[node.inputs[0]][node.op.index]]
    inputs = [found[i][0] for i in node.inputs]
    mapped = [new.aval.ndim > old.aval.ndim for new, old in zip(inputs, node.inputs, strict=True)]
    if not any(mapped):
        return items(rebuild(node, inputs))
    b = builder.at(node.where)
    made: Any = node.op.batch(b, size, mapped, *inputs)
    if made is None:
        return _row_by_row(b, node, size, mapped, inputs)
    results = items(made) if isinstance(made, Node) else list(made)
    for result, before in zip(results, [r.aval for r in items(node)], strict=True):
        if result.aval not in (before, with_rows(before, size)):
            raise VerifyError(
                f"{node.op.name}: its batch rule gave a result of another type",
                got=f"{result.aval} for {size} of {before}",
                where=node.where,
            )
    return results


def _row_by_row(
    b: Builder, node: Node, size: Dim, mapped: Sequence[bool], inputs: Sequence[Node]
) -> list[Node]:
    """Return a scan that runs the op on one row after another."""
    own = [graph_input("row", i.aval) for i in node.inputs]
    by_role = [[k for k, has in enumerate(mapped) if has is role] for role in (True, False)]
    number = graph_input("number", INDEX)
    once = items(make(node.op, *own, where=b.where))
    body = Graph([*(own[k] for role in by_role for k in role), number], once, name=f"{node.op.name}.row")
    scan = Scan(body, size, 0, len(by_role[0]))
    return items(make(scan, *(inputs[k] for role in by_role for k in role), where=b.where))


def batch_graph(graph: Graph, size: Dim, mapped: Sequence[bool], forced: Sequence[bool] = ()) -> Graph:
    """Return the graph over a new axis of `size`, which the inputs in `mapped` have in front.

    Outputs have it where they depend on these inputs, and where `forced`.
    """
    inputs = [
        graph_input(label_of(node), with_rows(node.aval, size)) if has else node
        for node, has in zip(graph.inputs, mapped, strict=True)
    ]
    found = batch(graph.outputs, dict(zip(graph.inputs, inputs, strict=True)), size)
    b = Builder()
    outputs = [
        repeated(b, size, new) if force and new.aval.ndim == old.aval.ndim else new
        for new, old, force in zip(found, graph.outputs, forced or [False] * len(found), strict=True)
    ]
    return Graph(inputs, outputs, name=f"{graph.name}.vmap")


def with_rows(type_: TensorType, size: Dim) -> TensorType:
    """Return the type with an axis of `size` in front."""
    return type_.with_shape((size, *type_.shape))
