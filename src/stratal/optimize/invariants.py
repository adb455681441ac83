"""What a loop reads in every turn, laid out once before it in the order its readers want.

    scan(h' = contract("nk,mk->nm", h, w); w)   ->   scan(h' = contract("nk,km->nm", h, v); v = permute(w))

A product reads one operand in vectors along an axis of the result. Where that axis lies across memory, one
turn would not repay a copy; all turns together do.
"""

from __future__ import annotations

import dataclasses

from stratal.base.log import decide
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph, substitute
from stratal.graph.node import Node, graph_input, make
from stratal.ops.control.scan import Scan
from stratal.ops.linear.contract import parse_spec
from stratal.optimize.rewrite import rewrite_graph

FEW_TURNS = 4  # that do not repay a transposing copy


def lay_out_constants(graph: Graph) -> Graph:
    """Transpose constants of loops that products of their bodies read across memory."""
    return rewrite_graph(graph, _lay_out)


def _lay_out(node: Node) -> tuple[str, Node] | None:
    op = node.op
    if not isinstance(op, Scan) or op.length < FEW_TURNS:
        return None
    body, first = op.body, op.num_carries + op.num_xs
    inputs, operands = list(body.inputs), list(node.inputs)
    replaced: dict[Node, Node] = {}
    for k in range(first, len(inputs) - 1):
        product = _only_reader(body, inputs[k])
        order = None if product is None else _wanted_order(product, inputs[k])
        if product is None or order is None:
            continue
        b = Builder(product.where)
        operands[k] = Builder(node.where).permute(operands[k], perm=order)
        inputs[k] = graph_input(f"laid_out{k}", operands[k].aval)
        replaced[product] = _product_of(b, product, body.inputs[k], inputs[k], order)
        decide("layout", f"{operands[k].aval} read in every turn", f"axes in order {order} before the loop",
               f"{product.op.name} reads vectors along the last", where=product.where)  # fmt: skip
    if not replaced:
        return None
    outputs = substitute(body.outputs, replaced)
    laid_out = dataclasses.replace(op, body=Graph(inputs, outputs, name=body.name))
    return "lay-out-constants", make(laid_out, *operands, where=node.where)


def _only_reader(body: Graph, constant: Node) -> Node | None:
    """Return the product that alone reads a constant, once."""
    readers = [n for n in body.nodes for i in n.inputs if i is constant]
    known = len(readers) == 1 and readers[0].op.name == "contract" and constant not in body.outputs
    return readers[0] if known else None


def _wanted_order(product: Node, constant: Node) -> tuple[int, ...] | None:
    """Return the order of axes that ends with one of the result, where the last is now summed over."""
    s = parse_spec(product.op.attributes["spec"])
    on_left = product.inputs[0] is constant
    letters, own = (s.left, s.rows) if on_left else (s.right, s.columns)
    if not own or letters[-1] not in s.contracted:
        return None
    wanted = [c for c in letters if c not in own] + [c for c in letters if c in own]
    return tuple(letters.index(c) for c in wanted)


def _product_of(b: Builder, product: Node, old: Node, new: Node, order: tuple[int, ...]) -> Node:
    """Return the product with one operand in another order of axes."""
    s = parse_spec(product.op.attributes["spec"])
    left, right = s.left, s.right
    x, y = (new if i is old else i for i in product.inputs)
    if product.inputs[0] is old:
        left = "".join(left[axis] for axis in order)
    else:
        right = "".join(right[axis] for axis in order)
    made: Node = b.contract(x, y, spec=f"{left},{right}->{s.out}", dtype=product.op.attributes["dtype"])
    return made
