"""Walk a graph and apply the rule of each op."""

from __future__ import annotations

from collections.abc import Iterable

from stratal.base.dims import Sym
from stratal.base.errors import ShapeError
from stratal.base.types import TensorType
from stratal.graph.graph import Graph
from stratal.graph.node import Const, Input, Item, Node, items, make
from stratal.graph.op import Op
from stratal.optimize.sized.table import RULES
from stratal.optimize.sized.values import Sized, Sizes, plain


def translate(s: Sizes, nodes: Iterable[Node], values: dict[Node, Sized]) -> None:
    """Add to `values` what each node is. Raises: ShapeError for an op that needs its sizes."""
    for node in nodes:
        if node in values or isinstance(node.op, Item):
            continue
        here = Sizes(s.b.at(node.where), s.symbols)
        if isinstance(node.op, Const):
            values[node] = Sized(node, plain(node.aval))
            continue
        if isinstance(node.op, Input):
            raise ShapeError("sizes: an input is not listed", got=node.op.label)
        operands = [values[i] for i in node.inputs]
        results = items(node)
        if not _mentions(node.op) and all(map(_known, operands)) and all(_fixed(r.aval) for r in results):
            made = make(node.op, *(x.node for x in operands), where=node.where)
            found = [Sized(m, plain(r.aval)) for m, r in zip(items(made), results, strict=True)]
        else:
            rule = RULES.get(node.op.name)
            if rule is None:
                got = str(node.type)
                raise ShapeError(f"{node.op.name}: needs sizes that are known", got=got, where=node.where)
            given = rule(here, node, *operands)
            found = given if isinstance(given, list) else [given]
        for result, value in zip(results, found, strict=True):
            values[result] = value


def _known(x: Sized) -> bool:
    return not any(isinstance(n, Sym) for n in x.flat) and all(len(f) == 1 for f in x.axes)


def _fixed(type_: TensorType) -> bool:
    return not any(isinstance(n, Sym) for n in type_.shape)


def _mentions(op: Op) -> bool:
    """Return whether an attribute holds a symbol, inside of regions too."""
    for value in op.attributes.values():
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, Sym):
                return True
            if isinstance(part, Graph) and any(map(_sized, (*part.inputs, *part.nodes))):
                return True
    return False


def _sized(node: Node) -> bool:
    return _mentions(node.op) or not all(_fixed(r.aval) for r in items(node))
