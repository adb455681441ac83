"""Cascaded reductions over scores, and the products behind them, as passes over blocks: no N x N value.

    s = q k^T;  p = f(s);  max p, sum p, p v, p^T q      ->   blockwise(q, k, v, ...)

A *tile* is a value of the shape of a product of two smaller ones, or what follows on it element by element.
Where every reader of the tiles reduces them, none needs to be stored: each reduction computes them again, in
blocks, from what is small. Reductions that depend on each other run one after another, with three identities
of real arithmetic that spare passes:

    sum_j r_i x_ij            =  r_i sum_j x_ij            factors of rows are taken out of sums and products
    sum_j y_ij (c v^T)_ij     =  sum_e c_ie (y v)_ie       where y v is there: the row sums of a gradient
    sum_j e^(s_ij - m_i) x_ij    with m running along      (Milakov and Gimelshein, 2018)

So softmax(f(q k^T)) v is one pass whatever f is, and its gradient, which autodiff has written, another.
What is left, such as the logits of a large vocabulary, is computed some rows at a time (`row_blocks`).
"""

from __future__ import annotations

import dataclasses
from typing import Final

from stratal.base import settings
from stratal.base.fallback import skippable, unchanged
from stratal.graph.graph import Graph, substitute
from stratal.graph.node import Node, make
from stratal.ops.control.cond import Cond
from stratal.ops.control.scan import Scan
from stratal.ops.control.while_ import While
from stratal.optimize.online.identities import factored, reassociated, without_logarithms, without_shifts
from stratal.optimize.online.passes import in_blocks
from stratal.optimize.online.row_blocks import in_row_blocks
from stratal.optimize.online.scores import scores_of
from stratal.optimize.online.views import squeezed, unfolded
from stratal.optimize.ranges import use_ranges
from stratal.optimize.rewrite import rewrite_graph, with_roots

LEAST_BYTES: Final = 16 << 20  # smaller scores are stored at little cost


def _least_bytes() -> int | None:
    """Return the bytes from which on scores are not stored, or None where all are."""
    chosen = settings.online.value
    if isinstance(chosen, str):
        return None if settings.math.value == "exact" else LEAST_BYTES
    return chosen


@skippable(unchanged)
def use_online_forms(graph: Graph) -> Graph:
    """Compute scores in blocks wherever nothing needs them as a whole; elsewhere leave them as they are."""
    least = _least_bytes()
    return graph if least is None else _online(graph, least)


def _online(graph: Graph, least: int) -> Graph:
    graph = _within_regions(graph, least)
    if not any(n.op.name == "contract" and n.aval.nbytes >= least for n in graph.nodes):
        return graph
    return in_row_blocks(_in_passes(graph, least), least)


def _within_regions(graph: Graph, least: int) -> Graph:
    """Do the same within loops and branches."""
    repl: dict[Node, Node] = {}
    for node in graph.nodes:
        if isinstance(node.op, (Scan, Cond, While)):
            regions = {k: v for k, v in node.op.attributes.items() if isinstance(v, Graph)}
            new = {k: _online(v, least) for k, v in regions.items()}
            if any(new[k] is not v for k, v in regions.items()):
                op = dataclasses.replace(node.op, **new)  # type: ignore[arg-type]
                repl[node] = make(op, *substitute(node.inputs, repl), where=node.where)
    return with_roots(graph, substitute(graph.roots, repl)) if repl else graph


def _in_passes(graph: Graph, least: int) -> Graph:
    """Compute scores whose blocks of columns can be added up."""
    simple = rewrite_graph(
        graph, lambda node: squeezed(node) or unfolded(node, least) or without_logarithms(node, least)
    )
    if not scores_of(simple, least):
        return graph
    simple = use_ranges(simple)
    for rewrite in (factored, reassociated, without_shifts):
        simple = rewrite(simple, scores_of(simple, least))
    return in_blocks(simple, graph, scores_of(simple, least))
