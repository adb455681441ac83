"""Where a rule matches a graph, and what it makes of it: proved for that graph, or nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from stratal.base.dtypes import DType, bfloat16, float32, float64
from stratal.base.errors import StratalError
from stratal.base.types import TensorType
from stratal.discover.prove import Proof, prove
from stratal.discover.rules import Applied, FoundRule, Free, Like, Side, Sizes, built, value_of
from stratal.graph.graph import substitute
from stratal.graph.node import Node, graph_input


class Bound(NamedTuple):
    """What a match binds: variables, symbols of sizes, attributes."""

    nodes: dict[str, Node]
    sizes: dict[str, int]
    attributes: dict[str, Any]


def matches(rule: FoundRule, node: Node, *, forward: bool = True) -> Iterator[tuple[Bound, Node]]:
    """Yield each way a side of a rule matches a node, and the node the other side makes of it. No proof."""
    side, other = (rule.lhs, rule.rhs) if forward else (rule.rhs, rule.lhs)
    if not rule.reads(forward):
        return
    for bound in _matched(side, node, Bound({}, {}, {}), rule):
        try:
            yield bound, built(other, bound.nodes, bound.sizes, bound.attributes)
        except (StratalError, KeyError):
            continue


def _matched(side: Side, node: Node, bound: Bound, rule: FoundRule) -> Iterator[Bound]:
    if isinstance(side, str):
        found = _bind(side, node, bound, rule)
        if found is not None:
            yield found
        return
    if node.op.name != side.op or len(node.inputs) != len(side.arguments):
        return
    orders = [side.arguments]
    if node.op.commutative and side.arguments[0] != side.arguments[1]:
        orders.append(side.arguments[::-1])
    for arguments in orders:
        for found in _all(arguments, node.inputs, bound, rule):
            agreed = _attributes(side, node, found)
            if agreed is not None:
                yield agreed


def _all(sides: Sequence[Side], nodes: Sequence[Node], bound: Bound, rule: FoundRule) -> Iterator[Bound]:
    if not sides:
        yield bound
        return
    for first in _matched(sides[0], nodes[0], bound, rule):
        yield from _all(sides[1:], nodes[1:], first, rule)


def _bind(variable: str, node: Node, bound: Bound, rule: FoundRule) -> Bound | None:
    known = bound.nodes.get(variable)
    if known is not None:
        return bound if known is node else None
    if not isinstance(node.type, TensorType) or not _is_of(node.dtype, bound, rule):
        return None
    if not all(isinstance(n, int) and n for n in node.shape):
        return None
    nodes = {**bound.nodes, variable: node}
    if rule.pointwise:
        return Bound(nodes, {}, {}) if len({x.shape for x in nodes.values()}) == 1 else None
    if len(rule.inputs[variable]) != node.aval.ndim:
        return None
    sizes = dict(bound.sizes)
    for text, n in zip(rule.inputs[variable], node.aval.ints, strict=True):
        if (int(text) if text.isdigit() else sizes.setdefault(text, n)) != n:
            return None
    return Bound(nodes, sizes, bound.attributes)


WIDE: Final = frozenset((bfloat16, float32, float64))
"""Floats of which a product that is finite in one order seldom overflows in another, as float16's do."""


def _is_of(dtype: DType, bound: Bound, rule: FoundRule) -> bool:
    """Return whether a rule may be tried on a dtype: its own, or one with which it is proved as well."""
    others = {x.dtype for x in bound.nodes.values()}
    return others <= {dtype} and (dtype is rule.dtype or {dtype, rule.dtype} <= WIDE)


def _attributes(side: Applied, node: Node, bound: Bound) -> Bound | None:
    attributes, sizes = dict(bound.attributes), dict(bound.sizes)
    for name, value in side.attributes.items():
        got = getattr(node.op, name)
        if isinstance(value, Sizes) and len(got) == len(value.texts):
            for text, n in zip(value.texts, got, strict=True):
                if text.isalpha():
                    sizes.setdefault(text, n)  # a size that no operand has, such as a broadcast axis
        if isinstance(value, Like):
            continue  # the op that reads it takes operands of one shape only, and the match itself is proved
        if isinstance(value, Free):
            if attributes.setdefault(value.name, got) != got:
                return None
            continue
        try:
            if value_of(value, sizes, attributes) != got:
                return None
        except KeyError:
            return None
    return Bound(bound.nodes, sizes, attributes)


class Rewrite(NamedTuple):
    """What a rule makes of a node, with the proof that both have one value whatever the variables have."""

    made: Node
    bound: Bound
    proof: Proof


def rewrites(
    rule: FoundRule, node: Node, *, forward: bool = True, exact: bool = False
) -> Iterator[Rewrite]:
    """Yield what a rule makes of a node, each proved for this very node; `forward=False` reads it backwards.

    `exact` asks for proofs to the bit.
    """
    for bound, made in matches(rule, node, forward=forward):
        if made.type != node.type or made is node:
            continue
        found = proof_of([(node, made)], dict.fromkeys(bound.nodes.values()))
        if found.proved and (found.exact or not exact):
            yield Rewrite(made, bound, found)


def proof_of(pairs: Sequence[tuple[Node, Node]], variables: Iterable[Node], *, bits: bool = True) -> Proof:
    """Return a proof that both of each pair are equal whatever some values are, which are not looked into.

    Without `bits`, nobody asks whether it holds to the bit.
    """
    fresh = {x: graph_input("x", x.aval) for x in variables}
    cut = substitute([node for pair in pairs for node in pair], fresh)
    inputs = list(fresh.values())
    proofs = [prove(cut[k], cut[k + 1], inputs, bits=bits) for k in range(0, len(cut), 2)]
    for found in proofs:
        if not found.proved:
            return found
    return Proof(True, all(p.exact for p in proofs), proofs[0].certificate)


def apply(rule: FoundRule, node: Node, *, exact: bool = False) -> Node | None:
    """Return what a rule makes of a node, proved for this node; None where it does not match.

    `exact` asks for a proof to the bit.
    """
    return next((found.made for found in rewrites(rule, node, exact=exact)), None)
