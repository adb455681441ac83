"""Products over what is put together of pieces: a product of each piece, where it lies.

    contract("mk,nk->mn", x, concatenate(a, b))  ->  concatenate(contract(x, a), contract(x, b))
    contract("mk,kn->mn", x, concatenate(a, b))  ->  contract(x[:, :i], a) + contract(x[:, i:], b)

A token that is decoded multiplies one row by all keys and values so far, old ones and its own: putting them
together would move three times the bytes that the products read. With many rows it does not matter.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import Final

from stratal.base.fallback import skippable, unchanged
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph
from stratal.graph.node import Node, rebuild
from stratal.ops.linear.contract import Contract, parse_spec
from stratal.ops.views.boxes import Concatenate
from stratal.optimize.prologue import decided_alone
from stratal.optimize.rewrite import cut, with_roots

FEW: Final = 8  # products an element may take part in
LARGE: Final = 1 << 15  # bytes a piece must have on average: moving them takes longer than starting a kernel


@skippable(unchanged)
def multiply_pieces(graph: Graph) -> Graph:
    """Multiply the pieces of concatenations that nothing but products of few rows reads."""
    apart = _read_by_few_rows(graph)
    made: dict[Node, Node] = {}
    for node in graph.nodes if apart else ():
        side = next((k for k, operand in enumerate(node.inputs) if operand in apart), None)
        now = rebuild(node, [made[i] for i in node.inputs])
        made[node] = now if side is None else _by_pieces(now, side)
    return with_roots(graph, [made.get(root, root) for root in graph.roots])


def _read_by_few_rows(graph: Graph) -> set[Node]:
    """Return the concatenations that are worth less than their copy."""
    kept = {*graph.roots, *decided_alone(graph)}  # what is computed once may as well be put together
    readers: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        for operand in node.inputs:
            if isinstance(operand.op, Concatenate) and operand not in kept and _is_large(operand):
                readers.setdefault(operand, []).append(node)
    return {whole for whole, users in readers.items() if all(_repeats_little(u, whole) for u in users)}


def _is_large(whole: Node) -> bool:
    return whole.aval.nbytes >= LARGE * len(whole.inputs)


def _repeats_little(product: Node, whole: Node) -> bool:
    """Return whether a node is a product that meets each element of one operand few times.

    Sums of pieces are added up in its own dtype, so that must be the one it accumulates in.
    """
    if not isinstance(product.op, Contract) or product.inputs[0] is product.inputs[1]:
        return False
    spec = parse_spec(product.op.attributes["spec"])
    side = product.inputs.index(whole)
    letters, others = (spec.left, spec.right) if side == 0 else (spec.right, spec.left)
    times = math.prod(
        n for c, n in zip(others, product.inputs[1 - side].aval.ints, strict=True) if c not in letters
    )
    kept = letters[whole.op.attributes["axis"]] in spec.out
    return times <= FEW and (kept or product.dtype.compute is product.dtype)


def _by_pieces(product: Node, side: int) -> Node:
    """Return a product as one of each piece of an operand."""
    spec = parse_spec(product.op.attributes["spec"])
    whole, other = product.inputs[side], product.inputs[1 - side]
    letters, others = (spec.left, spec.right) if side == 0 else (spec.right, spec.left)
    letter = letters[whole.op.attributes["axis"]]
    b, start = Builder(product.where), 0
    parts: list[Node] = []
    for piece in whole.inputs:
        stop = start + piece.aval.ints[letters.index(letter)]
        if start == stop:
            continue
        beside = cut(b, other, others.index(letter), start, stop) if letter in others else other
        operands = (piece, beside) if side == 0 else (beside, piece)
        parts.append(b.contract(*operands, **product.op.attributes))
        start = stop
    if letter in spec.out:
        joined: Node = b.concatenate(*parts, axis=spec.out.index(letter))
        return joined
    return reduce(b.add, parts)
