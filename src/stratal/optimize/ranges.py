"""What is known of the values of nodes, and what it saves: ranges, and the largest element along axes.

    exp(x - max(x))              ->  exp_within(x - max(x), high=65)     the difference is never above 0
    exp(p - max(p))              ->  exp_within(..., low=-87, high=88)   for probabilities p, within [0, 1]
    max(e / sum(e)),             ->  1 / sum(e)                          for e = exp(x - max(x)): the largest
        written e * (1 / sum(e))                                         power is exp(0) = 1, to the bit

Softmax of softmax takes all three. Facts hold of an element or it is NaN; rounding may move the ends of a
range by a little, which those of `exp_within` leave room for.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

from stratal.base.dtypes import float32, float64
from stratal.base.fallback import skippable, unchanged
from stratal.base.log import decide
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph
from stratal.graph.node import Const, Node, make, rebuild
from stratal.graph.pattern import uniform_scalar
from stratal.ops.elementwise.powers import Exp, ExpWithin
from stratal.ops.reduce.reductions import Extreme
from stratal.ops.views.shapes import Broadcast
from stratal.optimize.rewrite import with_roots

INF: Final = math.inf
SHORTER: Final = (ExpWithin(-87.0, 88.0), ExpWithin(high=65.0))  # the least work first


class Peak(NamedTuple):
    """The largest element along some axes: a number, or the value of a node without those axes."""

    axes: tuple[int, ...]
    value: float | Node


class Known(NamedTuple):
    """Facts about every element of a node that is not NaN; `peak` is exact."""

    low: float = -INF
    high: float = INF
    peak: Peak | None = None


NOTHING: Final = Known()
STEPS: Final = 8  # what is looked at before an exponential: as far as from one softmax to the next
HUGE: Final = 1e38
Facts = Callable[[Node], Known]


@skippable(unchanged)
def use_ranges(graph: Graph) -> Graph:
    """Shorten exponentials of what is known to be small, and drop maxima that are known."""
    near = _before_exponentials(graph)
    if not near:
        return graph
    made: dict[Node, Node] = {}
    facts: dict[Node, Known] = {}
    counts: Counter[str] = Counter()
    for node in graph.nodes:
        now = rebuild(node, [made[i] for i in node.inputs])
        if node in near:
            better = _better(now, facts)
            if better is not None:
                counts["exp_within" if isinstance(better.op, ExpWithin) else "known maximum"] += 1
                now = better
            if now not in facts:
                facts[now] = _known(now, lambda n: facts.get(n, NOTHING))
        made[node] = now
    for name, count in counts.items():
        decide("ranges", name, f"applied {count} times", "exact")
    return with_roots(graph, [made.get(root, root) for root in graph.roots])


def _before_exponentials(graph: Graph) -> set[Node]:
    """Return what is at most a few steps before an exponential: nothing else is worth a look."""
    last = {node for node in graph.nodes if type(node.op) is Exp}
    near = set(last)
    for _ in range(STEPS):
        last = {i for node in last for i in node.inputs} - near
        near |= last
    return near


def _better(node: Node, facts: dict[Node, Known]) -> Node | None:
    """Return what a node becomes by what is known of its operand, or None."""
    axes = _maximum_over(node)
    if axes is not None:
        peak = facts.get(node.inputs[0], NOTHING).peak
        if peak is None or peak.axes != axes:
            return None
        if not isinstance(peak.value, Node):
            return Builder(node.where).like(node, peak.value)
        return peak.value if peak.value.type == node.type else None  # it may be repeated along other axes too
    if type(node.op) is not Exp or node.dtype.compute is not float32:
        return None
    known = facts.get(node.inputs[0], NOTHING)
    fitting = (op for op in SHORTER if op.low <= known.low and known.high <= op.high)
    return next((make(op, *node.inputs, where=node.where) for op in fitting), None)


def _known(node: Node, facts: Facts) -> Known:
    """Return what follows for a node from what is known of its operands."""
    if getattr(node.type, "dtype", None) not in (float32, float64):
        return NOTHING
    scalar = uniform_scalar(node) if isinstance(node.op, (Const, Broadcast)) else None
    if scalar is not None and isinstance(scalar.op, Const):
        value = float(scalar.op.value.array)
        return NOTHING if math.isnan(value) else Known(value, value)
    rule = _RULES.get(node.op.name)
    return _finite(rule(node, facts)) if rule else NOTHING


def _finite(known: Known) -> Known:
    """Return facts without ends that float32 might not hold."""
    low, high, peak = known
    return Known(low if abs(low) < HUGE else -INF, high if abs(high) < HUGE else INF, peak)


# -- one rule per op -------------------------------------------------------------------------------------


def _view(node: Node, facts: Facts) -> Known:
    low, high, _ = facts(node.inputs[0])
    return Known(low, high)


def _sub(node: Node, facts: Facts) -> Known:
    x, y = node.inputs
    known, other = facts(x), facts(y)
    low, high = _ends(known.low - other.high), _ends(known.high - other.low, INF)
    axes = _below_its_maximum(x, y, known.peak)
    return Known(low, high) if axes is None else Known(low, 0.0, Peak(axes, 0.0))


def _below_its_maximum(x: Node, y: Node, peak: Peak | None) -> tuple[int, ...] | None:
    """Return the axes along which y, repeated, is the largest element of x."""
    if not isinstance(y.op, Broadcast):
        return None
    (top,) = y.inputs
    axes = _stretched(y)
    is_peak = peak is not None and peak.axes == axes and peak.value is top
    is_max = _maximum_over(top) == axes and top.inputs[0] is x
    return axes if axes and (is_peak or is_max) else None


def _maximum_over(node: Node) -> tuple[int, ...] | None:
    """Return the axes along which a node takes the largest element; None for other nodes."""
    is_maximum = isinstance(node.op, Extreme) and node.op.combiner == "max"
    return tuple(node.op.attributes["axes"]) if is_maximum else None


def _stretched(node: Node) -> tuple[int, ...]:
    """Return the axes a broadcast puts in."""
    return tuple(a for a in range(len(node.shape)) if a not in node.op.attributes["axes"])


def _exp(node: Node, facts: Facts) -> Known:
    known = facts(node.inputs[0])
    low, high = (math.exp(min(end, 700.0)) for end in (known.low, known.high))
    top = known.peak is not None and known.peak.value == 0.0
    peak = Peak(known.peak.axes, 1.0) if top and known.peak else None
    return Known(low, INF if known.high > 88 else high, peak)


def _mul(node: Node, facts: Facts) -> Known:
    x, y = node.inputs
    a, b = facts(x), facts(y)
    ends = [p * q for p in a[:2] for q in b[:2]]
    if all(map(math.isfinite, ends)):
        low, high = min(ends), max(ends)
    else:
        low, high = 0.0 if x is y or (a.low >= 0 and b.low >= 0) else -INF, INF
    return Known(low, high, _scaled_peak(a, b, y) or _scaled_peak(b, a, x))


def _scaled_peak(powers: Known, scale: Known, by: Node) -> Peak | None:
    """Return the peak of values from 0 to 1, one of which is 1, times what is not negative: rounding keeps
    their order.
    """
    if powers.peak is None or powers.peak.value != 1.0 or powers.low < 0 or not isinstance(by.op, Broadcast):
        return None
    finite = scale.low >= 0 and scale.high < INF
    return Peak(powers.peak.axes, by.inputs[0]) if finite and _stretched(by) == powers.peak.axes else None


def _div(node: Node, facts: Facts) -> Known:
    a, b = (facts(i) for i in node.inputs)
    if a.low < 0 or b.low < 0:
        return NOTHING
    return Known(0.0, a.high / b.low if b.low > 0 and a.high < INF else INF)


def _sum(node: Node, facts: Facts) -> Known:
    known = facts(node.inputs[0])
    if known.low < 0:
        return NOTHING
    has_one = known.peak is not None and known.peak == Peak(tuple(node.op.attributes["axes"]), 1.0)
    return Known(1.0 if has_one else 0.0)


def _ends(end: float, unknown: float = -INF) -> float:
    return unknown if math.isnan(end) else end


def _of_known(rule: Callable[..., tuple[float, float]], first: int = 0) -> Callable[[Node, Facts], Known]:
    """Return the rule of an op whose range follows from those of its operands, from the first that counts."""
    return lambda node, facts: Known(*rule(*(facts(i) for i in node.inputs[first:])))


_RULES: Final[dict[str, Callable[[Node, Facts], Known]]] = {
    **dict.fromkeys(("broadcast", "reshape", "permute", "slice", "cast", "reduce_max", "reduce_min"), _view),
    **dict.fromkeys(("stop_gradient", "straight_through", "barrier", "constrain"), _view),
    **dict.fromkeys(("exp", "exp_within"), _exp),
    "logistic": lambda node, facts: Known(0.0, 1.0),
    **dict.fromkeys(("tanh", "erf", "sin", "cos"), lambda node, facts: Known(-1.0, 1.0)),
    "sub": _sub, "mul": _mul, "div": _div, "sum": _sum,
    "add": _of_known(lambda a, b: (_ends(a.low + b.low), _ends(a.high + b.high, INF))),
    "neg": _of_known(lambda x: (-x.high, -x.low)),
    "abs": _of_known(lambda x: (0.0, max(abs(x.low), abs(x.high)))),
    "max": _of_known(lambda a, b: (max(a.low, b.low), max(a.high, b.high))),
    "min": _of_known(lambda a, b: (min(a.low, b.low), min(a.high, b.high))),
    "select": _of_known(lambda a, b: (min(a.low, b.low), max(a.high, b.high)), first=1),
}  # fmt: skip
