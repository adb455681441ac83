"""What depends on frozen inputs alone, apart from the rest: it is computed once, not in every run.

    return x * (g * rsqrt(v + 1e-5))     ->     prologue: return g * rsqrt(v + 1e-5)     rest: return x * s

for g and v that are held. The rest reads what the prologue makes as frozen inputs of its own. Views are never
kept, nor what is larger than the values it is made of element by element: reading that takes longer than
making it.
"""

from __future__ import annotations

from typing import NamedTuple

from stratal.base.fallback import skippable
from stratal.base.log import decide
from stratal.graph.graph import Graph, substitute
from stratal.graph.node import Const, Input, Item, Node, graph_input, is_frozen, owner
from stratal.loops.compute import Compute
from stratal.loops.lowering import is_view
from stratal.optimize.grouping import LowerOf


class Hoisted(NamedTuple):
    """A graph in two: `rest` has the inputs of the whole, then one for each result of `prologue`."""

    prologue: Graph | None
    rest: Graph


@skippable(lambda graph, _: Hoisted(None, graph))
def hoist(graph: Graph, lower_of: LowerOf) -> Hoisted:
    """Return a graph as what its frozen inputs decide and what is left to each run."""
    kept = _kept(graph, lower_of)
    if not kept:
        return Hoisted(None, graph)
    for node in kept:
        decide("prologue", f"{node.op.name} {node.type}", "computed once", "frozen inputs alone decide it",
               where=node.where)  # fmt: skip
    made = {
        node: graph_input(f"prepared {owner(node).op.name}", node.aval, node.where, frozen=True)
        for node in kept
    }
    roots = substitute(graph.roots, made)
    split = len(graph.outputs)
    updates = zip((state for state, _ in graph.updates), roots[split:], strict=True)
    rest = Graph([*graph.inputs, *made.values()], roots[:split], updates, graph.name)
    prologue = Graph((), kept, name=graph.name)
    used = set(prologue.nodes)
    inputs = [node for node in graph.inputs if node in used]
    return Hoisted(Graph(inputs, kept, name=f"{graph.name} prologue"), rest)


def _kept(graph: Graph, lower_of: LowerOf) -> list[Node]:
    """Return the values that are computed once and read in every run, in the order of the graph."""
    alone = decided_alone(graph)
    read = {*graph.roots, *(i for node in graph.nodes if node not in alone for i in node.inputs)}
    kept = []
    for node in reversed(graph.nodes):
        if node not in alone or node not in read or isinstance(node.op, Input):
            continue
        if _cheap(node, lower_of):
            read.update(node.inputs)  # it is made in every run
        else:
            kept.append(node)
    return kept[::-1]


def decided_alone(graph: Graph) -> set[Node]:
    """Return the nodes that frozen inputs, and constants, decide alone."""
    states = {state for state, _ in graph.updates}
    alone: set[Node] = set()
    free: set[Node] = set()  # what no input decides
    for node in graph.nodes:
        if isinstance(node.op, Input):
            if is_frozen(node) and node not in states:
                alone.add(node)
        elif node.op.effects or node.op.pinned:
            continue
        elif all(i in alone or i in free for i in node.inputs):
            (free if all(i in free for i in node.inputs) else alone).add(node)
    return alone


def _cheap(node: Node, lower_of: LowerOf) -> bool:
    """Return whether a value is sooner made again than read."""
    lowered = None if isinstance(node.op, Item) else lower_of(node)
    if not isinstance(lowered, Compute) or lowered.combiner is not None:
        return False
    if is_view(lowered):
        return True
    return node.aval.nbytes > sum(source.aval.nbytes for source in _sources(node, lower_of))


def _sources(node: Node, lower_of: LowerOf) -> set[Node]:
    """Return the values behind views that a node reads."""
    found, pending = set(), list(node.inputs)
    while pending:
        source = pending.pop()
        lowered = None if isinstance(source.op, (Input, Const, Item)) else lower_of(source)
        if isinstance(lowered, Compute) and is_view(lowered):
            pending += source.inputs
        else:
            found.add(source)
    return found
