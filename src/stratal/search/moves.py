"""What proved rules make of an expression, one step at a time, and where a rule must not be applied.

    site      a node of the graph whose value is to be computed in another way
    region    the nodes that nothing but the site needs: they die with it
    term      what stands for the site so far: new nodes over nodes of the graph

A rule may replace what lies between its root and its variables only where that dies: a value that is an
output, becomes a state, or is read elsewhere would be computed twice. What only moves elements may stay: it
costs nothing to make again.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from stratal.base.types import TensorType, TupleType
from stratal.graph.graph import Graph
from stratal.graph.node import Const, Input, Item, Node, rebuild, topological
from stratal.loops.compute import Compute
from stratal.loops.lowering import is_view
from stratal.optimize.prologue import decided_alone
from stratal.search.rule_set import Match, RuleSet

REACH: Final = 12  # nodes of a term that steps are tried at


class Region(NamedTuple):
    """The nodes that a site alone needs, nearest first; whether they are all or those within reach."""

    ordered: tuple[Node, ...]
    nodes: frozenset[Node]
    whole: bool


class Context:
    """A graph with what a search asks of it: readers, roots, what is free, what frozen inputs decide."""

    def __init__(self, graph: Graph) -> None:
        self.graph: Final = graph
        self.nodes: Final = frozenset(graph.nodes)
        self.roots: Final = frozenset(graph.roots)
        self.frozen: Final = decided_alone(graph)
        self._moves: dict[object, bool] = {}
        self._costs: dict[object, float] = {}
        self._decided: dict[Node, bool] = {}
        self.number: Final = {node: k for k, node in enumerate(graph.nodes)}
        self.readers: Final[dict[Node, list[Node]]] = {}
        for node in graph.nodes:
            for operand in dict.fromkeys(node.inputs):
                self.readers.setdefault(operand, []).append(node)

    def moves(self, node: Node) -> bool:
        """Return whether an op only moves elements, which kernels that read it do on the way."""
        key = node.op, *(i.type for i in node.inputs)
        found = self._moves.get(key)
        if found is None:
            found = self._moves[key] = _moves(node)
        return found

    def is_decided(self, node: Node) -> bool:
        """Return whether frozen inputs and constants decide a value, which may be new."""
        known = self._decided.get(node)
        if known is None:
            fixed = node in self.frozen or isinstance(node.op, Const)
            pure = bool(node.inputs) and not node.op.effects and not node.op.pinned
            known = self._decided[node] = fixed or (pure and all(map(self.is_decided, node.inputs)))
        return known

    def flops(self, node: Node) -> float:
        """Return the operations of an op that its record estimates."""
        key = node.op, *(i.type for i in node.inputs)
        found = self._costs.get(key)
        if found is None:
            found = self._costs[key] = node.op.cost(*(i.aval for i in node.inputs)).flops
        return found

    def region(self, site: Node) -> Region:
        """Return the nodes near a site that are needed by it alone, nearest first.

        It ends at element-wise ops below one that starts a kernel: those belong to the kernel before.
        """
        found, counted = {site: None}, 1
        pending = [(i, self.starts_kernel(site)) for i in site.inputs]
        while pending and counted < REACH:
            node, below = pending.pop(0)
            if node in found or node in self.roots or isinstance(node.op, (Input, Const)):
                continue
            if any(reader not in found for reader in self.readers[node]):
                continue
            found[node] = None
            counted += node not in self.frozen
            if not (below and node.op.pointwise and node not in self.frozen):
                pending += [(i, below or self.starts_kernel(node)) for i in node.inputs]
        return Region(tuple(found), frozenset(found), not pending)

    def starts_kernel(self, node: Node) -> bool:
        """Return whether a run computes an op that is not made on the way by those that read it."""
        return not node.op.pointwise and node not in self.frozen and not self.moves(node)


def next_terms(
    term: Node, region: Container[Node], context: Context, rules: RuleSet
) -> Iterator[tuple[Node, Match]]:
    """Yield the terms that are one step away, if that is proved."""
    cone = _cone(term, region, context)
    readers: dict[Node, set[Node]] = {}
    for node in cone:
        for operand in node.inputs:
            readers.setdefault(operand, set()).add(node)
    for node in cone:
        if node is not term and context.is_decided(node):
            continue  # it is computed once, before all runs
        for match in rules.matches(node):
            if _is_private(match, readers, region, context):
                yield _with(term, node, match.made, cone), match


class Effort(NamedTuple):
    """What a term computes in each run: operations, ops that start a kernel of their own, and all ops."""

    flops: float
    kernels: int
    nodes: int


def effort(term: Node, region: Container[Node], context: Context) -> Effort:
    """Return what a term computes beside what is there for others anyway."""
    flops, kernels, nodes = 0.0, 0, 0
    for node in topological([term], stop=lambda n: _ends(n, region, context)):
        if _ends(node, region, context) or context.is_decided(node):
            continue
        if isinstance(node.op, Item) or isinstance(node.type, TupleType):
            continue  # no rule makes several results: they stay what they are
        nodes += 1
        if not context.moves(node):
            flops += context.flops(node)
            kernels += not node.op.pointwise
    return Effort(flops, kernels, nodes)


def _ends(node: Node, region: Container[Node], context: Context) -> bool:
    return isinstance(node.op, (Input, Const)) or (node in context.nodes and node not in region)


def _cone(term: Node, region: Container[Node], context: Context) -> list[Node]:
    """Return the nodes of a term that steps may replace, operands first, nearest to its root."""
    found = {term: None}
    pending = [term]
    while pending and len(found) < REACH:
        for operand in pending.pop(0).inputs:
            if operand in found or isinstance(operand.op, (Input, Const, Item)):
                continue
            if operand in region or operand not in context.nodes:
                found[operand] = None
                pending.append(operand)
    return [n for n in topological([term], stop=lambda n: n not in found) if n in found]


def _is_private(
    match: Match, readers: Mapping[Node, set[Node]], region: Container[Node], context: Context
) -> bool:
    """Return whether what a match replaces between its root and its variables is needed by nothing else."""
    root, variables_ = match.node, set(match.leaves)
    inside = {n for n in topological([root], stop=variables_.__contains__) if n not in variables_}
    for node in inside - {root}:
        if isinstance(node.op, Const) or context.moves(node):
            continue
        kept = node in context.roots or (node in context.nodes and node not in region)
        if kept or not readers.get(node, set()) <= inside:
            return False
    return True


def _moves(node: Node) -> bool:
    types = [i.type for i in node.inputs if isinstance(i.type, TensorType)]
    if not types or len(types) < len(node.inputs) or node.op.host_reason(*types):
        return False
    lowered = node.op.lower(*types)
    return isinstance(lowered, Compute) and is_view(lowered)


def _with(term: Node, old: Node, new: Node, cone: Sequence[Node]) -> Node:
    """Return a term with one of its nodes replaced."""
    made = {old: new}
    for node in cone:
        if node not in made and any(i in made for i in node.inputs):
            made[node] = rebuild(node, [made.get(i, i) for i in node.inputs])
    return made[term]
