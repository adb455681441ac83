"""Control flow on values whose sizes are known only at run time."""

from __future__ import annotations

from collections.abc import Sequence

from stratal.base.dims import Sym, upper_bound
from stratal.base.errors import ShapeError
from stratal.graph.graph import Graph
from stratal.graph.node import Node, graph_input, items, make
from stratal.ops.control.call import Call
from stratal.ops.control.scan import Scan
from stratal.optimize.sized.translate import translate
from stratal.optimize.sized.values import Sized, Sizes, capacities, no_rule, plain, rule

no_rule("its regions are graphs of known sizes", "cond", "while")
no_rule("derivatives are taken, and it is gone, before sizes are bounded", "watched")
no_rule("Python code on the host is given arrays of the true sizes", "host_call")
no_rule("its text names the sizes it was written for", "expression")


def region(s: Sizes, graph: Graph, extra: Sequence[str]) -> Graph:
    """Return a region over values of fixed sizes; the sizes it needs come as constants behind its operands.

    Its last input, the number of the row, stays last.
    """
    b = s.b
    inputs = [graph_input("", i.aval.with_shape(capacities(i.aval.shape)), i.where) for i in graph.inputs]
    symbols = {name: graph_input(name, s.symbols[name].aval) for name in extra}
    inside = Sizes(b, dict(symbols))
    values = {old: Sized(new, plain(old.aval)) for old, new in zip(graph.inputs, inputs, strict=True)}
    translate(inside, graph.nodes, values)
    outputs = [inside.factored(values[o], plain(o.aval)).node for o in graph.outputs]
    return Graph([*inputs[:-1], *symbols.values(), inputs[-1]], outputs, name=graph.name)


@rule("scan")
def scan(s: Sizes, node: Node, *operands: Sized) -> list[Sized]:
    """Go through the valid rows."""
    op = node.op
    assert isinstance(op, Scan)
    names = sorted(s.symbols)
    length = op.length
    given = list(operands)
    count: Node | None = given.pop().node if op.dynamic_length else None
    if isinstance(length, Sym):
        if count is not None:
            raise ShapeError("scan: a runtime length of an unknown size", got=str(length))
        count = s.count(length)
    factored = [s.factored(x, plain(i.aval)).node for x, i in zip(given, node.inputs, strict=False)]
    body = region(s, op.body, names)
    new = Scan(body, upper_bound(length), op.num_carries, op.num_xs, op.reverse, count is not None)
    tail = [count] if count is not None else []
    made = make(new, *factored, *(s.symbols[n] for n in names), *tail, where=node.where)
    return [Sized(m, plain(old.aval)) for m, old in zip(items(made), items(node), strict=True)]


@rule("checkpoint", "custom_jvp", "custom_vjp")
def call(s: Sizes, node: Node, *operands: Sized) -> list[Sized]:
    """Do what the body does: derivatives have been taken."""
    assert isinstance(node.op, Call)
    body = node.op.body
    values = dict(zip(body.inputs, operands, strict=True))
    translate(s, body.nodes, values)
    return [values[o] for o in body.outputs]
