"""The driver that applies local rewrites until none applies: operands first, with an explicit stack.

Every node is rewritten once its operands are final, so a rewrite sees only normal forms below it and the cost
is one visit per node plus one per rewrite.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from stratal.base.errors import VerifyError
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph
from stratal.graph.node import Node, rebuild

Step = Callable[[Node], "tuple[str, Node] | None"]
"""Returns the name of the rewrite that changes a node and what it becomes, or None where nothing applies."""

_LIMIT = 64  # rewrites per node before the rules are taken to go on for ever


def rewrite(roots: Sequence[Node], step: Step, counts: Counter[str] | None = None) -> list[Node]:
    """Return the roots in normal form. `counts` learns how often each rewrite applied.

    Raises: VerifyError naming the rewrites when they undo each other.
    """
    driver = _Driver(step, Counter() if counts is None else counts)
    for root in roots:
        driver.visit(root)
    return [driver.final[r] for r in roots]


class _Driver:
    """`final` maps every node seen to its normal form; `becomes` one that was rewritten to its successor."""

    def __init__(self, step: Step, counts: Counter[str]) -> None:
        self.step, self.counts = step, counts
        self.final: dict[Node, Node] = {}
        self.becomes: dict[Node, Node] = {}

    def visit(self, root: Node) -> None:
        final, becomes = self.final, self.becomes
        stack, budget = [root], 0
        while stack:
            node = stack[-1]
            if node in final:
                stack.pop()
                continue
            follow = becomes.get(node)
            if follow is not None:
                if follow in final:
                    final[node] = final[follow]
                else:
                    stack.append(follow)
                continue
            waiting = [i for i in node.inputs if i not in final]
            if waiting:
                stack.extend(reversed(waiting))
                budget += len(waiting) * _LIMIT
                continue
            budget -= self.normalise(node)
            if budget < -_LIMIT:
                raise VerifyError(
                    "rewrite: the rules do not end", got=str(self.counts.most_common(4)), where=node.where
                )

    def normalise(self, node: Node) -> int:
        """Take one step with a node whose operands are final; return 1 if it was rewritten."""
        inputs = [self.final[i] for i in node.inputs]
        moved = rebuild(node, inputs)
        if moved is not node:
            self.becomes[node] = moved
            return 0
        found = self.step(node)
        if found is None:
            self.final[node] = node
            return 0
        name, new = found
        if new in self.becomes and new not in self.final:
            raise VerifyError("rewrite: two rules undo each other", got=name, where=node.where)
        self.counts[name] += 1
        self.becomes[node] = new
        return 1


def rewrite_graph(graph: Graph, step: Step, counts: Counter[str] | None = None) -> Graph:
    """Return the graph with every root in normal form.

    Without `counts` a step is asked about the nodes as they stand first: where it changes none, nothing is
    visited.
    """
    if counts is None and all(step(node) is None for node in graph.nodes):
        return graph
    return with_roots(graph, rewrite(graph.roots, step, counts))


def with_roots(graph: Graph, roots: Sequence[Node]) -> Graph:
    """Return the graph with other outputs and new states, in that order; itself if none differs."""
    if all(a is b for a, b in zip(roots, graph.roots, strict=True)):
        return graph
    count = len(graph.outputs)
    updates = [(state, value) for (state, _), value in zip(graph.updates, roots[count:], strict=True)]
    return Graph(graph.inputs, roots[:count], updates, graph.name)


# -- views that rewrites put in ------------------------------------------------------------------------------
def cut(b: Builder, x: Node, axis: int, start: int, stop: int) -> Node:
    """Return some steps of one axis."""
    shape = x.aval.ints
    if (start, stop) == (0, shape[axis]):
        return x
    starts, stops = [0] * len(shape), list(shape)
    starts[axis], stops[axis] = start, stop
    part: Node = b.slice(x, start=tuple(starts), stop=tuple(stops), step=(1,) * len(shape))
    return part


def reshaped(b: Builder, x: Node, shape: tuple[int, ...]) -> Node:
    """Return the same elements in another shape."""
    found: Node = x if x.shape == shape else b.reshape(x, shape=shape)
    return found
