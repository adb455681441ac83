"""Reductions of scores as passes over blocks: which run together, and what each reads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from stratal.base.dtypes import bool_, int32, int64
from stratal.base.log import decide
from stratal.base.source import SourceLine, merge
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph, substitute
from stratal.graph.node import Const, Node, graph_input, items, make, topological
from stratal.graph.pattern import uniform_scalar
from stratal.ops.control.blockwise import VIEWS, Blockwise, finite_peak, shifted, sink_of, tiles
from stratal.optimize.online.identities import Factors
from stratal.optimize.online.scores import Scores, follows
from stratal.optimize.rewrite import with_roots

POSITIONS: Final = (int32, int64, bool_)


class Pass(NamedTuple):
    """Reductions that read each other's results nowhere, but for a maximum that runs along.

    `power` is what falls as that `peak` grows; `shift` what the graph has in the place of the peak, if it is
    another number.
    """

    sinks: list[Node]
    peak: Node | None = None
    power: Node | None = None
    shift: Node | None = None


def in_blocks(graph: Graph, before: Graph, found: Sequence[Scores]) -> Graph:
    """Put passes in the place of reductions, those first that others depend on."""
    level = _levels(graph, found)
    planned: list[tuple[int, Scores, Pass]] = []
    for scores in found:
        planned += [(at, scores, made) for at, made in _passes(scores, level)]
    planned.sort(key=lambda p: (p[0], p[2].shift is not None))
    repl: dict[Node, Node] = {}
    for _, scores, one in planned:
        region = _region(scores, one)
        if isinstance(tiles(region.body), str):
            decide("online", f"scores {list(scores.shape)}", "stored", str(tiles(region.body)))
            return before
        made = make(Blockwise(region.body), *substitute(region.operands, repl), where=_lines(one))
        for sink, result in zip(region.sinks, items(made), strict=True):
            repl[sink] = result
        if one.shift is not None:
            _rescale(one, repl)
    for scores in found:
        passes = [one for _, which, one in planned if which is scores]
        running = sum(one.peak is not None for one in passes)
        decide(
            "online", f"scores {list(scores.shape)}",
            f"{len(passes)} passes over blocks, {running} with a running maximum",
            "nothing needs them as a whole; sums round in another order, as real arithmetic",
        )  # fmt: skip
    return with_roots(graph, substitute(graph.roots, repl)) if planned else before


def _rescale(one: Pass, repl: dict[Node, Node]) -> None:
    """Shift the results of a pass as the graph does, rather than by the maximum."""
    assert one.peak is not None and one.shift is not None
    b = Builder(one.peak.where)
    (shift,) = substitute([one.shift], repl)
    factor = b.exp(b.sub(finite_peak(b, repl[one.peak]), shift))
    for sink in one.sinks:
        if sink is not one.peak:
            axes = tuple(range(factor.aval.ndim))
            repl[sink] = b.mul(repl[sink], b.broadcast(factor, shape=sink.shape, axes=axes))


def _lines(one: Pass) -> tuple[SourceLine, ...]:
    where: tuple[SourceLine, ...] = ()
    for sink in one.sinks:
        where = merge(where, sink.where)
    return where


def _levels(graph: Graph, found: Sequence[Scores]) -> dict[Node, int]:
    """Return how many reductions of tiles every value comes after, one after another."""
    sinks = {sink for scores in found for sink in scores.sinks}
    level: dict[Node, int] = {}
    for node in graph.nodes:
        level[node] = max((level[i] + (i in sinks) for i in node.inputs), default=0)
    return level


def _passes(scores: Scores, level: dict[Node, int]) -> list[tuple[int, Pass]]:
    """Group reductions by what they come after; those that a maximum shifts join it where that is all."""
    left = dict.fromkeys(scores.sinks)
    found: list[tuple[int, Pass]] = []
    for peak in scores.sinks:
        if peak.op.name != "reduce_max" or peak not in left:
            continue
        for power in scores.tiles:
            shift = shifted(power)
            if shift is None or shift[0] is not peak.inputs[0]:
                continue
            joined = [s for s in left if s is not peak and _falls_with(s, power, level[peak], level)]
            if joined and level[shift[1]] == level[peak] + (shift[1] is not peak):
                other = None if shift[1] is peak or _is_guarded(shift[1], peak) else shift[1]
                found.append((level[peak], Pass([peak, *joined], peak, power, other)))
                for sink in (peak, *joined):
                    del left[sink]
                break
    groups: dict[tuple[int, object], list[Node]] = {}
    for sink in left:
        how = sink_of(sink)
        over_tiles = sink.op.attributes["axes"] if how is not None and not how.along else None
        groups.setdefault((level[sink], over_tiles), []).append(sink)
    return [*found, *((at, Pass(group)) for (at, _), group in groups.items())]


def _is_guarded(node: Node, peak: Node) -> bool:
    """Return whether a value is select(peak == -inf, 0, peak), or select(isfinite(peak), peak, 0)."""
    if node.op.name != "select":
        return False
    test, yes, no = node.inputs
    if test.op.name == "eq" and no is peak:
        others = [uniform_scalar(i) for i in test.inputs if i is not peak]
        infinite = len(others) == 1 and _is(others[0], -math.inf)
        return infinite and _is(uniform_scalar(yes), 0.0)
    finite = test.op.name == "isfinite" and test.inputs[0] is peak
    return finite and yes is peak and _is(uniform_scalar(no), 0.0)


def _is(scalar: Node | None, value: float) -> bool:
    return scalar is not None and isinstance(scalar.op, Const) and scalar.op.value.array.item() == value


def _falls_with(sink: Node, power: Node, at: int, level: dict[Node, int]) -> bool:
    """Return whether a sum of rows is one of `power` times what does not depend on its maximum."""
    how = sink_of(sink)
    if how is None or how.how != "sum" or how.along != -1:
        return False
    factors = Factors(sink.inputs[0].aval.ndim, -1)
    factors.take(sink.inputs[0])
    if factors.same or factors.negative or factors.wide.count(power) != 1:
        return False
    others = [w for w in factors.wide if w is not power]
    if how.operand is not None:
        others.append(how.operand.node)
    return all(level[w] <= at for w in others)


class Region(NamedTuple):
    """A pass as a graph, the values it reads and the reductions its outputs are."""

    body: Graph
    operands: list[Node]
    sinks: list[Node]


def _region(scores: Scores, one: Pass) -> Region:
    roots = list(one.sinks)
    if one.power is not None and one.peak is not None:
        b, s = Builder(one.power.where), one.peak.inputs[0]
        axes = tuple(range(s.aval.ndim - 1))
        spread = b.broadcast(finite_peak(b, one.peak), shape=s.shape, axes=axes)
        roots = substitute(roots, {one.power: b.op("exp_within", b.sub(s, spread), high=65.0)})
    operands = _operands(roots, scores, one.peak)
    given = {n: graph_input(f"x{k}", n.aval) for k, n in enumerate(operands)}
    return Region(Graph(given.values(), substitute(roots, given), name="blocks"), operands, one.sinks)


def _operands(roots: Sequence[Node], scores: Scores, peak: Node | None) -> list[Node]:
    """Return what a pass reads from memory: all but tiles and what is made again with them."""
    factors = {i for n in scores.tiles if n.op.name == "contract" for i in n.inputs}
    factors |= {n.inputs[1] for n in roots if n.op.name == "contract"}

    def is_operand(node: Node) -> bool:
        if node in factors:
            return True
        if node in scores.tiles or node in roots or node.op.name == "iota" or node in running:
            return False
        if isinstance(node.op, Const) or uniform_scalar(node) is not None:
            return isinstance(node.op, Const) and node.shape != ()
        if _of_positions(node):
            return False
        again = node.op.name in VIEWS or follows(node)
        return not again or node.shape[-2:] != scores.shape[-2:]

    running: set[Node] = set()  # what depends on the maximum of the pass itself
    if peak is not None:
        running.add(peak)
        for node in topological(roots, stop=lambda n: n in factors or n is peak):
            if any(i in running for i in node.inputs):
                running.add(node)
    return [n for n in topological(roots, stop=is_operand) if is_operand(n)]


def _of_positions(node: Node, steps: int = 8) -> bool:
    """Return whether a value is arithmetic of positions: known per block, so that hidden ones are found."""
    if node.op.name == "iota" or uniform_scalar(node) is not None:
        return True
    if not steps or not (node.op.name in VIEWS or follows(node)) or node.dtype not in POSITIONS:
        return False
    return all(_of_positions(i, steps - 1) for i in node.inputs)
