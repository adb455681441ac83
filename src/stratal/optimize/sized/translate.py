"""Walk a graph and apply the rule of each op."""

from __future__ import annotations

from collections.abc import Iterable

from stratal.base.dims import Sym, known_equal, product, same_shape
from stratal.base.errors import ShapeError, VerifyError
from stratal.base.types import TensorType
from stratal.graph.graph import Graph
from stratal.graph.node import Const, Input, Item, Node, items, make
from stratal.graph.op import Op
from stratal.optimize.sized.values import NEEDS_KNOWN_SIZES, RULES, Sized, Sizes, capacities, plain


def translate(s: Sizes, nodes: Iterable[Node], values: dict[Node, Sized]) -> None:
    """Add to `values` what each node is.

    Raises: ShapeError for an op that needs its sizes, UndecidedError where a size may be 0.
    """
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
        for size in (n for r in results for n in r.aval.shape if isinstance(n, Sym)):
            if not size > 0:  # asks, where the bounds do not say: an op may do with nothing what no rule does
                raise ShapeError(f"{node.op.name}: a size below 1", got=str(node.type), where=node.where)
        if not _mentions(node.op) and all(map(_known, operands)) and all(_fixed(r.aval) for r in results):
            made = make(node.op, *(x.node for x in operands), where=node.where)
            found = [Sized(m, plain(r.aval)) for m, r in zip(items(made), results, strict=True)]
        elif all(any(known_equal(n, 0) for n in r.aval.shape) for r in results):  # nothing to compute
            rooms = [r.aval.with_shape(capacities(r.aval.shape)) for r in results]
            found = [Sized(here.b.full(t, 0), plain(r.aval)) for t, r in zip(rooms, results, strict=True)]
        else:
            found = _by_rule(here, node, operands)
        for result, value in zip(results, found, strict=True):
            values[result] = _checked(result, value)


def _by_rule(s: Sizes, node: Node, operands: list[Sized]) -> list[Sized]:
    rule = RULES.get(node.op.name)
    if rule is None:
        why = NEEDS_KNOWN_SIZES.get(node.op.name, "it has no rule for others")
        got = f"{node.type}: {why}"
        raise ShapeError(f"{node.op.name}: needs sizes that are known", got=got, where=node.where)
    made = rule(s, node, *operands)
    return made if isinstance(made, list) else [made]


def _checked(node: Node, value: Sized) -> Sized:
    """Return what a rule gave. Raises: VerifyError where its axes are not the node's, or have other room."""
    sizes = tuple(map(product, value.axes))
    if not same_shape(sizes, node.aval.shape) or value.node.shape != capacities(value.flat):
        got = f"{value.node.type} factored as {value.axes} for {node.aval}"
        raise VerifyError(f"{node.op.name}: its rule for symbolic sizes gives another shape", got=got)
    return value


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
