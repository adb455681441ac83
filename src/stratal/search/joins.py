"""Several results of one kind that read one value, computed as one: products, branches of convolutions.

    y0 = conv(x, w0)                      y  = conv(x, concatenate(w0, w1))
    y1 = conv(x, w1)          ->          y0 = slice(y), y1 = slice(y)

A rule for the concatenation of both says what the one op is; that each slice has the value of what it
replaces is proved. Results may be replaced by what one step makes of them first: a convolution 1x1 enlarged
to 3x3 joins others that are 3x3.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from stratal.base.types import TensorType
from stratal.discover.matching import proof_of
from stratal.graph.builder import Builder
from stratal.graph.node import Node, topological
from stratal.optimize.rewrite import cut
from stratal.search.found import Replaced, Step
from stratal.search.moves import Context, RuleSet

MOST_JOINED: Final = 8  # results that become one op
MOST_PAIRS: Final = 12  # of one value, tried by themselves where joining all of them does not pay


class Member(NamedTuple):
    """A result as it joins: the node it replaces, itself or what steps made of it."""

    node: Node
    made: Node
    steps: tuple[Step, ...]


class Joined(NamedTuple):
    """Results as one op, and which part along an axis each of them is."""

    whole: Node
    axis: int
    parts: tuple[tuple[Node, int, int], ...]
    steps: tuple[Step, ...]


def joins(context: Context, rules: RuleSet) -> Iterator[list[tuple[Replaced, tuple[Step, ...]]]]:
    """Yield, for each value with several readers of a kind, the ways to join them, the largest first."""
    for value in [*context.graph.inputs, *context.graph.nodes]:
        readers = [r for r in context.readers.get(value, ()) if isinstance(r.type, TensorType)]
        for name in dict.fromkeys(r.op.name for r in readers):
            alike = [r for r in readers if r.op.name == name and r not in context.frozen]
            if name not in rules.joins or len(alike) < 2:
                continue
            ways = []
            pairs = list(itertools.islice(itertools.combinations(alike, 2), MOST_PAIRS))
            for chosen in [alike[:MOST_JOINED], *(pairs if len(alike) > 2 else ())]:
                way = _replaced(chosen, context, rules)
                if way is not None:
                    ways.append(way)
            if ways:
                yield ways


def _replaced(
    nodes: Sequence[Node], context: Context, rules: RuleSet
) -> tuple[Replaced, tuple[Step, ...]] | None:
    """Return slices of one op in place of as many of the nodes as can be joined, proved; None below two."""
    if any(_depends(b, a) or _depends(a, b) for a, b in itertools.combinations(nodes, 2)):
        return None
    first, *others = nodes
    joined: Joined | None = None
    for member in _members(first, rules):
        joined = None
        for other in others:
            joined = _with(joined or member, other, rules) or joined
        if joined is not None:
            break
    if joined is None:
        return None
    b = Builder(tuple(line for node, _, _ in joined.parts for line in node.where[:1]))
    replaced = {n: cut(b, joined.whole, joined.axis, start, stop) for n, start, stop in joined.parts}
    variables = dict.fromkeys(i for n in replaced for i in n.inputs)
    proof = proof_of(list(replaced.items()), variables)
    return (replaced, joined.steps) if proof.proved and (proof.exact or rules.real) else None


def _members(node: Node, rules: RuleSet) -> Iterator[Member]:
    yield Member(node, node, ())
    for _, made, step in rules.steps(node):
        if made.op.name == node.op.name and node.inputs[0] is made.inputs[0]:
            yield Member(node, made, (step,))


def _with(first: Member | Joined, other: Node, rules: RuleSet) -> Joined | None:
    """Return what has one more result in it."""
    whole = first.made if isinstance(first, Member) else first.whole
    for member in _members(other, rules):
        for directed in rules.joins[other.op.name]:
            (axis,) = (v.value for v in [directed.side.attributes["axis"]])  # type: ignore[union-attr]
            if axis >= whole.aval.ndim or whole.aval.ndim != other.aval.ndim:
                continue
            sizes = enumerate(zip(whole.shape, other.shape, strict=True))
            if any(a != o for k, (a, o) in sizes if k != axis):
                continue
            beside = Builder(other.where).concatenate(whole, member.made, axis=axis)
            for _, made, step in rules.steps(beside, [directed]):
                start, size = whole.shape[axis], other.shape[axis]
                parts = ((first.node, 0, start),) if isinstance(first, Member) else first.parts
                if isinstance(first, Joined) and axis != first.axis:
                    continue
                steps = (*first.steps, *member.steps, step)
                return Joined(made, axis, (*parts, (other, start, start + size)), steps)
    return None


def _depends(node: Node, on: Node) -> bool:
    return on in topological([node])
