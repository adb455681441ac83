"""Simplification: rules, folding, common sub-expressions and control flow, to a fixpoint, regions included.

Every rule is exact: the simplified graph gives the same bits.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from functools import lru_cache

import numpy as np

from stratal.base.dims import known_equal
from stratal.base.fallback import skippable, unchanged
from stratal.base.log import decide
from stratal.base.types import TensorType, TupleType
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph
from stratal.graph.interpret import apply
from stratal.graph.node import Const, Item, Node, constant, make
from stratal.graph.op import REGISTRY, Array, Op
from stratal.graph.pattern import Rules, uniform_scalar
from stratal.ops.control.cond import Cond
from stratal.ops.control.scan import Scan
from stratal.ops.control.while_ import While
from stratal.ops.linear.family import Bilinear
from stratal.ops.reduce.reductions import Sum
from stratal.optimize.control import inline_calls, merge_twins, resolve_item, trim_control
from stratal.optimize.rewrite import rewrite_graph
from stratal.optimize.rules_arithmetic import ARITHMETIC
from stratal.optimize.rules_reduce import REDUCE, WINDOWED
from stratal.optimize.rules_views import MARKS, VIEWS

RULES = (*ARITHMETIC, *VIEWS, *REDUCE, *WINDOWED, *MARKS)
_ROUNDS = 4  # of everything together; in practice the second changes nothing


@lru_cache(maxsize=1)
def _rules() -> Rules:
    return Rules(RULES)


@skippable(unchanged)
def simplify(graph: Graph) -> Graph:
    """Return a graph of the same meaning with less to do.

    `stop_gradient` and calls have done their work once derivatives are taken and are removed; `barrier` and
    `constrain` bind later passes and stay.
    """
    counts: Counter[str] = Counter()
    found = _Simplifier(_rules(), counts).run(graph)
    _report(graph, found, counts)
    return found


class _Simplifier:
    """One run: shares the work on regions that occur several times."""

    def __init__(self, rules: Rules, counts: Counter[str]) -> None:
        self.rules, self.counts = rules, counts
        self.builder = Builder()
        self.regions: dict[Graph, Graph] = {}

    def run(self, graph: Graph) -> Graph:
        graph = self.restructure(inline_calls(graph))
        for _ in range(_ROUNDS):
            graph = rewrite_graph(graph, self.step, self.counts)
            moved = self.restructure(cse(graph, self.counts))
            if moved is graph:
                break
            graph = moved
        return graph

    def restructure(self, graph: Graph) -> Graph:
        """Merge and trim control flow, which a local rewrite cannot: it depends on readers."""
        if not any(_has_region(n.op) for n in graph.nodes):
            return graph
        return trim_control(merge_twins(graph, self.counts), self.counts)

    def step(self, node: Node) -> tuple[str, Node] | None:
        """Return what one node becomes by itself, by folding, by a rule or by simplifying its regions."""
        if not node.inputs and not isinstance(node.op, Const):
            return None
        found = fold(node)
        if found is not None:
            return found
        by_rule = self.rules.apply(self.builder, node)
        if by_rule is not None:
            return by_rule[0].name, by_rule[1]
        if isinstance(node.op, Item):
            return resolve_item(node)
        return self.inside(node) if _has_region(node.op) else None

    def inside(self, node: Node) -> tuple[str, Node] | None:
        """Simplify the regions of a control-flow node."""
        values = node.op.attributes
        new = {k: self.region(v) for k, v in values.items() if isinstance(v, Graph)}
        if all(values[k] is v for k, v in new.items()):
            return None
        op = dataclasses.replace(node.op, **new)  # type: ignore[type-var]
        return "regions", make(op, *node.inputs, where=node.where)

    def region(self, graph: Graph) -> Graph:
        known = self.regions.get(graph)
        if known is None:
            known = self.run(graph)
            self.regions[graph] = known
            self.regions[known] = known
        # an equal region simplified before has input nodes of its own, which is all the same to its readers
        return graph if known == graph else known


def _has_region(op: Op) -> bool:
    return isinstance(op, (Scan, Cond, While))


def cse(graph: Graph, counts: Counter[str] | None = None) -> Graph:
    """Make one node of equal ones. Hash-consing has done most of it; what is left is x + y next to y + x."""
    number = {node: k for k, node in enumerate(graph.inputs)}
    for node in graph.nodes:
        number.setdefault(node, len(number))

    def step(node: Node) -> tuple[str, Node] | None:
        if not node.op.commutative or len(node.inputs) != 2:
            return None
        x, y = node.inputs
        if number.setdefault(x, len(number)) <= number.setdefault(y, len(number)):
            return None
        return "cse_order", make(node.op, y, x, where=node.where)

    if not _has_swapped(graph):
        return graph
    return rewrite_graph(graph, step, counts)


def _has_swapped(graph: Graph) -> bool:
    """Return whether some commutative op occurs with its operands in both orders."""
    pairs = {(n.op.name, *n.inputs) for n in graph.nodes if n.op.commutative and len(n.inputs) == 2}
    return any((name, y, x) in pairs for name, x, y in pairs if x is not y)


def _report(before: Graph, after: Graph, counts: Counter[str]) -> None:
    for name, times in sorted(counts.items(), key=lambda c: (-c[1], c[0])):
        decide("simplify", name, f"applied {times} times", "exact")
    if after is not before:
        decide("simplify", before.name, f"{len(after.nodes)} nodes", f"of {len(before.nodes)} before")


# -- constant folding ----------------------------------------------------------------------------------------
MAX_ELEMENTS = 4096  # a folded result is stored in the program; this many float32 are 16 KiB
MAX_OPERAND_ELEMENTS = 1 << 16  # work at compile time stays in the microseconds


def fold(node: Node) -> tuple[str, Node] | None:
    """Return the constant a node computes, or None where it is unknown, not allowed or too large.

    Large results are not stored: what is a broadcast of a scalar, or could be made again for nothing, stays
    an op. What has no elements, or adds up none, is such a broadcast.
    """
    if isinstance(node.op, Const):
        return _uniform(node)
    if not node.inputs or isinstance(node.type, TupleType) or isinstance(node.op, Item) or node.op.effects:
        return None
    if not node.op.foldable:
        return None
    if _adds_nothing(node):
        return "empty", _repeated(constant(np.zeros((), node.dtype.np), node.where), node)
    scalars = [uniform_scalar(i) for i in node.inputs]
    if any(s is None and not isinstance(i.op, Const) for i, s in zip(node.inputs, scalars, strict=True)):
        return None
    if all(s is not None for s in scalars) and node.op.pointwise:
        one = apply(node.op, *(s.op.value.array for s in scalars))  # type: ignore[union-attr]
        return "fold", _repeated(constant(np.asarray(one), node.where), node)
    arrays = [_known(i) for i in node.inputs]
    if _elements(node.type) <= MAX_ELEMENTS and all(a is not None for a in arrays):
        return "fold", constant(np.asarray(apply(node.op, *(a for a in arrays if a is not None))), node.where)
    return None


def _known(node: Node) -> Array | None:
    """Return the array of a constant, repeated where it is a broadcast scalar, unless it is large."""
    if isinstance(node.op, Const):
        return node.op.value.array
    scalar = uniform_scalar(node)
    if scalar is None or _elements(node.aval) > MAX_OPERAND_ELEMENTS:
        return None
    return np.broadcast_to(scalar.op.value.array, node.aval.ints)  # type: ignore[attr-defined]


def _adds_nothing(node: Node) -> bool:
    """Return whether a value has no elements, or is a sum of none."""
    if isinstance(node.op, (Bilinear, Sum)):
        return any(known_equal(i.aval.size, 0) for i in node.inputs)
    return node.op.pointwise and known_equal(node.aval.size, 0)


def _repeated(scalar: Node, like: Node) -> Node:
    if like.aval.ndim == 0:
        return scalar
    return make(REGISTRY["broadcast"](shape=like.shape, axes=()), scalar, where=like.where)  # type: ignore[call-arg]


def _uniform(node: Node) -> tuple[str, Node] | None:
    """A stored array of equal elements becomes a broadcast scalar, which kernels read as an immediate."""
    array = node.op.value.array  # type: ignore[attr-defined]
    if array.ndim == 0 or array.size == 0:
        return None
    flat = array.reshape(-1)
    first = flat[:1].tobytes()
    if flat[-1:].tobytes() != first or array.tobytes() != first * array.size:
        return None
    return "uniform", _repeated(constant(flat[0].reshape(()), node.where), node)


def _elements(type_: TensorType) -> int:
    return int(type_.size) if isinstance(type_.size, int) else MAX_ELEMENTS + 1
