"""Programs for every size up to a bound: a graph with symbolic sizes as one with fixed sizes.

`bounded` gives each symbolic size the largest value it can take and lets the graph read the true sizes of a
run as inputs. Means divide by true counts, sums and extremes leave out what is not valid, so results are
those of a program made for the sizes of the run; only time and memory are those of the bound.
"""

from __future__ import annotations

from typing import NamedTuple

from stratal.base.dims import atoms_of
from stratal.base.dtypes import int64
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph
from stratal.graph.node import Node, graph_input, is_frozen, items, label_of
from stratal.optimize.sized import control, indexing, linear, numeric, views  # noqa: F401  fill the table
from stratal.optimize.sized.translate import translate
from stratal.optimize.sized.values import Sized, Sizes, capacities, plain


class Bounded(NamedTuple):
    """A graph of fixed sizes; its inputs are the sizes named in `symbols`, then those of the first graph."""

    graph: Graph
    symbols: tuple[str, ...]


def bounded(graph: Graph) -> Bounded:
    """Return a graph with symbolic sizes as one of fixed sizes. Outputs have room for the largest sizes.

    Raises: ShapeError where an op needs a size that is not known.
    """
    types = [r.aval for node in (*graph.inputs, *graph.nodes) for r in items(node)]
    names = tuple(sorted({name for type_ in types for n in type_.shape for name in atoms_of(n)}))
    sizes = [graph_input(name, TensorType(int64)) for name in names]
    inputs = []
    for old in graph.inputs:
        type_ = old.aval.with_shape(capacities(old.aval.shape))
        new = graph_input(label_of(old), type_, old.where, frozen=is_frozen(old))
        inputs.append(old if type_ == old.aval else new)
    s = Sizes(Builder(), dict(zip(names, sizes, strict=True)))
    values = {old: Sized(new, plain(old.aval)) for old, new in zip(graph.inputs, inputs, strict=True)}
    translate(s, graph.nodes, values)

    def whole(node: Node) -> Node:
        return s.factored(values[node], plain(node.aval)).node

    outputs = [whole(o) for o in graph.outputs]
    updates = [(values[state].node, whole(value)) for state, value in graph.updates]
    return Bounded(Graph([*sizes, *inputs], outputs, updates, graph.name), names)
