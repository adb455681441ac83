"""What proved rules make of an expression, one step at a time, and where a rule must not be applied.

    site      a node of the graph whose value is to be computed in another way
    region    the nodes that nothing but the site needs: they die with it
    term      what stands for the site so far: new nodes over nodes of the graph

A rule may replace what lies between its root and its variables only where that dies: a value that is an
output, becomes a state, or is read elsewhere would be computed twice. What only moves elements may stay: it
costs nothing to make again.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from stratal.base.types import TensorType, TupleType
from stratal.discover.matching import Bound, matches, proof_of
from stratal.discover.prove import Proof
from stratal.discover.rules import FoundRule, Side, ops_of, variables
from stratal.graph.graph import Graph
from stratal.graph.node import Const, Input, Item, Node, rebuild, topological
from stratal.graph.op import REGISTRY
from stratal.loops.compute import Compute
from stratal.loops.lowering import is_view
from stratal.optimize.prologue import decided_alone
from stratal.search.found import Step

REACH: Final = 12  # nodes of a term that steps are tried at


class Directed(NamedTuple):
    """A rule read in one direction."""

    rule: FoundRule
    forward: bool

    @property
    def side(self) -> Side:
        return self.rule.lhs if self.forward else self.rule.rhs

    @property
    def name(self) -> str:
        return (self.rule.given or self.rule.name) + ("" if self.forward else " backwards")


class RuleSet:
    """Rules by the op at their root, in both directions, those that a search can gain from.

    Rules of element-wise ops alone are left out: what is fused costs nothing to speak of.
    """

    def __init__(self, rules: Sequence[FoundRule], *, real: bool) -> None:
        self.real: Final = real
        self.of: Final[dict[str, list[Directed]]] = {}
        self.joins: Final[dict[str, list[Directed]]] = {}  # by the op whose results lie side by side
        for rule in rules:
            if not (real or rule.exact) or not _is_weighty(rule):
                continue
            renames = ops_of(rule.lhs) == ops_of(rule.rhs) and len(ops_of(rule.lhs)) == 1  # attributes alone
            for forward in (True,) if renames else (True, False):
                directed = Directed(rule, forward)
                other = rule.rhs if forward else rule.lhs
                if isinstance(directed.side, str) or set(variables(other)) - set(variables(directed.side)):
                    continue
                self.of.setdefault(directed.side.op, []).append(directed)
                joined = _joined(directed)
                if joined:
                    self.joins.setdefault(joined, []).append(directed)
        self._proofs: dict[object, Proof] = {}
        self._steps: dict[Node, list[tuple[Bound, Node, Step]]] = {}  # expressions share most of their nodes

    def steps(
        self, node: Node, rules: Iterable[Directed] | None = None
    ) -> Iterator[tuple[Bound, Node, Step]]:
        """Yield what one rule makes of a node, proved for this node."""
        if rules is not None:
            yield from self._found(node, rules)
            return
        if node not in self._steps:
            self._steps[node] = list(self._found(node, self.of.get(node.op.name, ())))
        yield from self._steps[node]

    def _found(self, node: Node, rules: Iterable[Directed]) -> Iterator[tuple[Bound, Node, Step]]:
        for directed in rules:
            for bound, made in matches(directed.rule, node, forward=directed.forward):
                if made.type != node.type or made is node:
                    continue
                proof = self._proved(directed, node, made, bound)
                if proof.proved and (proof.exact or self.real):
                    name, text = directed.name, str(directed.rule)
                    yield bound, made, Step(name, text, proof.exact, proof.certificate)

    def _proved(self, directed: Directed, node: Node, made: Node, bound: Bound) -> Proof:
        """Return the proof of a match; what decides it is looked up where it was proved before."""
        nodes = list(dict.fromkeys(bound.nodes.values()))
        number = {x: k for k, x in enumerate(nodes)}
        rows = []
        for n in topological([node, made], stop=number.__contains__):
            if n in number and n in bound.nodes.values():
                rows.append((n.type, number[n]))
            else:
                rows.append((n.op, *(number[i] for i in n.inputs)))  # type: ignore[arg-type]
                number[n] = len(number)
        key = tuple(rows), number[node], number[made]
        found = self._proofs.get(key)
        if found is None:
            found = self._proofs[key] = proof_of([(node, made)], nodes)
        return found


def _is_weighty(rule: FoundRule) -> bool:
    return any(not REGISTRY[name].pointwise for name in (*ops_of(rule.lhs), *ops_of(rule.rhs)))


def _joined(directed: Directed) -> str:
    """Return the op whose results a rule makes one of, side by side, that read a common value."""
    side = directed.side
    if isinstance(side, str) or side.op != "concatenate" or len(side.arguments) != 2:
        return ""
    first, second = side.arguments
    if isinstance(first, str) or isinstance(second, str) or first.op != second.op:
        return ""
    common = set(variables(first)) & set(variables(second))
    return first.op if common and len(variables(side)) == 3 else ""


class Context:
    """A graph with what a search asks of it: readers, roots, what is free, what frozen inputs decide."""

    def __init__(self, graph: Graph) -> None:
        self.graph: Final = graph
        self.nodes: Final = frozenset(graph.nodes)
        self.roots: Final = frozenset(graph.roots)
        self.frozen: Final = decided_alone(graph)
        self._moves: dict[object, bool] = {}
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

    def region(self, site: Node) -> frozenset[Node]:
        """Return the nodes near a site that are needed by it alone."""
        found = {site}
        stack = list(site.inputs)
        while stack and len(found) < 2 * REACH:
            node = stack.pop(0)
            if node in found or node in self.roots or isinstance(node.op, (Input, Const)):
                continue
            if all(reader in found for reader in self.readers[node]):
                found.add(node)
                stack += node.inputs
        return frozenset(found)


def next_terms(
    term: Node, region: Container[Node], context: Context, rules: RuleSet
) -> Iterator[tuple[Node, Step]]:
    """Yield the terms that are one step away."""
    cone = _cone(term, region, context)
    readers: dict[Node, set[Node]] = {}
    for node in cone:
        for operand in node.inputs:
            readers.setdefault(operand, set()).add(node)
    for node in cone:
        if node is not term and _decided(node, context):
            continue  # it is computed once, before all runs
        for bound, made, step in rules.steps(node):
            if _is_private(node, bound, readers, region, context):
                yield _with(term, node, made, cone), step


class Effort(NamedTuple):
    """What a term computes in each run: operations, ops that start a kernel of their own, and all ops."""

    flops: float
    kernels: int
    nodes: int


def effort(term: Node, region: Container[Node], context: Context) -> Effort:
    """Return what a term computes beside what is there for others anyway."""
    flops, kernels, nodes = 0.0, 0, 0
    for node in topological([term], stop=lambda n: _ends(n, region, context)):
        if _ends(node, region, context) or _decided(node, context):
            continue
        if isinstance(node.op, Item) or isinstance(node.type, TupleType):
            continue  # no rule makes several results: they stay what they are
        nodes += 1
        if not context.moves(node):
            flops += node.op.cost(*(i.aval for i in node.inputs)).flops
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


def _decided(node: Node, context: Context) -> bool:
    """Return whether frozen inputs decide a value, which may be new."""
    if node in context.nodes or isinstance(node.op, Const):
        return node in context.frozen or isinstance(node.op, Const)
    return bool(node.inputs) and all(_decided(i, context) for i in node.inputs)


def _is_private(
    root: Node, bound: Bound, readers: Mapping[Node, set[Node]], region: Container[Node], context: Context
) -> bool:
    """Return whether what a match replaces between its root and its variables is needed by nothing else."""
    variables_ = set(bound.nodes.values())
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
