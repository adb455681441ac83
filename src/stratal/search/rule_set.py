"""What may be made of a node: by rules, looked up by the op at their root and the ops of its operands, and by
the law of scales.

    mul(f(x, w), spread(s))  =  f(x, mul(w, spread(s)))

where f sums products, and s is spread along an axis that runs along one of w (`axes`): whatever f is, a
convolution in groups or a contraction, that is proved for its match like a rule.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from stratal.discover.matching import WIDE, matches, proof_of
from stratal.discover.prove import Proof
from stratal.discover.rules import Applied, FoundRule, ops_of
from stratal.graph.builder import Builder
from stratal.graph.node import Node, make
from stratal.graph.op import REGISTRY
from stratal.search.axes import MIXED, Axes
from stratal.search.found import Step, structure

Ops = tuple["str | None", ...]


class Directed(NamedTuple):
    """A rule read in one direction, and the ops of its root's operands, None where a variable stands."""

    rule: FoundRule
    forward: bool
    root: str
    below: Ops

    @property
    def name(self) -> str:
        return (self.rule.given or self.rule.name) + ("" if self.forward else " backwards")


class Match(NamedTuple):
    """What a rule would make of a node over some leaves; `RuleSet.proved` says whether it may."""

    rule: Directed | str
    text: FoundRule | str
    exact: bool
    node: Node
    made: Node
    leaves: tuple[Node, ...]


class RuleSet:
    """The rules that a search can gain from, and what they made of nodes so far.

    Rules of element-wise ops alone are left out: what is fused costs nothing to speak of.
    """

    def __init__(self, rules: Sequence[FoundRule], *, real: bool) -> None:
        self.real: Final = real
        self.axes: Final = Axes(real=real)
        self._of: Final[dict[str, dict[Ops, list[Directed]]]] = {}  # by the root, and what is below it
        self._proofs: Final[dict[object, Proof]] = {}
        self._matches: Final[dict[Node, list[Match]]] = {}  # expressions share most of their nodes
        for rule in rules:
            if (real or rule.exact) and _is_weighty(rule):
                for directed in _directions(rule):
                    self._of.setdefault(directed.root, {}).setdefault(directed.below, []).append(directed)

    def matches(self, node: Node) -> Sequence[Match]:
        """Return what each rule would make of a node."""
        found = self._matches.get(node)
        if found is None:
            some = itertools.chain(self._by_rules(node), self._scaled(node) if self.real else ())
            found = self._matches[node] = [m for m in some if m.made.type == node.type and m.made is not node]
        return found

    def _by_rules(self, node: Node) -> Iterator[Match]:
        for below, some in self._of.get(node.op.name, {}).items():
            if not _agree(below, node):
                continue
            for directed in some:
                rule = directed.rule
                for bound, made in matches(rule, node, forward=directed.forward):
                    leaves = tuple(dict.fromkeys(bound.nodes.values()))
                    yield Match(directed, rule, rule.exact, node, made, leaves)

    def _scaled(self, node: Node) -> Iterator[Match]:
        """Yield a sum of products, one of its operands scaled, for what is scaled along an axis."""
        if node.op.name != "mul" or node.dtype not in WIDE:
            return
        b = Builder(node.where)
        for whole, spread in (node.inputs, node.inputs[::-1]):
            if spread.op.name != "broadcast" or len(spread.op.attributes["axes"]) != 1:
                continue
            (axis,) = spread.op.attributes["axes"]
            (scale,) = spread.inputs
            places = self.axes.places(whole, axis) if self.axes.sums_products(whole) else None
            for k, at in enumerate(places or ()):
                if at is not None and at != MIXED and scale.shape == (whole.inputs[k].shape[at],):
                    operands = list(whole.inputs)
                    operands[k] = b.mul(operands[k], b.broadcast(scale, shape=operands[k].shape, axes=(at,)))
                    made = make(whole.op, *operands, where=whole.where)
                    name = f"scale of {whole.op.name}"
                    leaves = tuple(dict.fromkeys((*whole.inputs, scale)))
                    yield Match(name, "mul(f(x, w), s)  =  f(x, mul(w, s))", False, node, made, leaves)

    def proved(self, match: Match) -> Step | None:
        """Return the step that a match is; None where it is not proved for its very node. What decides a
        proof is looked up where it was proved before.
        """
        rule, text, exact, node, made, leaves = match
        key = structure([node, made], leaves), exact
        proof = self._proofs.get(key)
        if proof is None:
            proof = self._proofs[key] = proof_of([(node, made)], leaves, bits=exact)
        if not proof.proved or not (proof.exact or self.real):
            return None
        name = rule if isinstance(rule, str) else rule.name
        return Step(name, str(text), proof.exact, proof.certificate)


def _agree(below: Ops, node: Node) -> bool:
    """Return whether a node's operands have the ops that stand below a rule's root."""
    got = [i.op.name for i in node.inputs]
    orders = (below, below[::-1]) if node.op.commutative else (below,)
    return len(below) == len(got) and any(
        all(a is None or a == b for a, b in zip(order, got, strict=True)) for order in orders
    )


def _directions(rule: FoundRule) -> Iterator[Directed]:
    renames = ops_of(rule.lhs) == ops_of(rule.rhs) and len(ops_of(rule.lhs)) == 1  # attributes alone
    for forward in (True,) if renames else (True, False):
        side = rule.lhs if forward else rule.rhs
        if isinstance(side, Applied) and rule.reads(forward):
            below = tuple(a.op if isinstance(a, Applied) else None for a in side.arguments)
            yield Directed(rule, forward, side.op, below)


def _is_weighty(rule: FoundRule) -> bool:
    return any(not REGISTRY[name].pointwise for name in (*ops_of(rule.lhs), *ops_of(rule.rhs)))
