"""Rules by where they can match: the op at their root and the ops of its operands, in both directions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from stratal.discover.matching import Bound, matches, proof_of
from stratal.discover.prove import Proof
from stratal.discover.rules import Applied, FoundRule, ops_of, variables
from stratal.graph.node import Node
from stratal.graph.op import REGISTRY
from stratal.search.found import Step, structure


class Directed(NamedTuple):
    """A rule read in one direction, and the ops of its root's operands, None where a variable stands."""

    rule: FoundRule
    forward: bool
    root: str
    below: tuple[str | None, ...]

    @property
    def name(self) -> str:
        return (self.rule.given or self.rule.name) + ("" if self.forward else " backwards")

    def may_match(self, node: Node) -> bool:
        """Return whether the ops agree; most rules are ruled out by that."""
        got = [i.op.name for i in node.inputs]
        orders = (self.below, self.below[::-1]) if node.op.commutative else (self.below,)
        return any(
            len(order) == len(got) and all(a is None or a == b for a, b in zip(order, got, strict=True))
            for order in orders
        )


class Match(NamedTuple):
    """What a rule would make of a node; `RuleSet.proved` says whether it may."""

    directed: Directed
    node: Node
    made: Node
    bound: Bound


class RuleSet:
    """The rules that a search can gain from, and what they made of nodes so far.

    Rules of element-wise ops alone are left out: what is fused costs nothing to speak of.
    """

    def __init__(self, rules: Sequence[FoundRule], *, real: bool) -> None:
        self.real: Final = real
        self._of: Final[dict[str, list[Directed]]] = {}
        self._proofs: Final[dict[object, Proof]] = {}
        self._matches: Final[dict[Node, list[Match]]] = {}  # expressions share most of their nodes
        for rule in rules:
            if (real or rule.exact) and _is_weighty(rule):
                for directed in _directions(rule):
                    self._of.setdefault(directed.root, []).append(directed)

    def matches(self, node: Node) -> Sequence[Match]:
        """Return what each rule would make of a node."""
        found = self._matches.get(node)
        if found is None:
            found = self._matches[node] = [
                Match(directed, node, made, bound)
                for directed in self._of.get(node.op.name, ())
                if directed.may_match(node)
                for bound, made in matches(directed.rule, node, forward=directed.forward)
                if made.type == node.type and made is not node
            ]
        return found

    def proved(self, match: Match) -> Step | None:
        """Return the step that a match is; None where it is not proved for its very node. What decides a
        proof is looked up where it was proved before.
        """
        directed, node, made, bound = match
        exact = directed.rule.exact
        leaves = list(dict.fromkeys(bound.nodes.values()))
        key = structure([node, made], leaves), exact
        proof = self._proofs.get(key)
        if proof is None:
            proof = self._proofs[key] = proof_of([(node, made)], leaves, bits=exact)
        if not proof.proved or not (proof.exact or self.real):
            return None
        return Step(directed.name, str(directed.rule), proof.exact, proof.certificate)


def _directions(rule: FoundRule) -> Iterator[Directed]:
    renames = ops_of(rule.lhs) == ops_of(rule.rhs) and len(ops_of(rule.lhs)) == 1  # attributes alone
    for forward in (True,) if renames else (True, False):
        side, other = (rule.lhs, rule.rhs) if forward else (rule.rhs, rule.lhs)
        if isinstance(side, Applied) and set(variables(other)) <= set(variables(side)):
            below = tuple(a.op if isinstance(a, Applied) else None for a in side.arguments)
            yield Directed(rule, forward, side.op, below)


def _is_weighty(rule: FoundRule) -> bool:
    return any(not REGISTRY[name].pointwise for name in (*ops_of(rule.lhs), *ops_of(rule.rhs)))
