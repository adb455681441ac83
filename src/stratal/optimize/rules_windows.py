"""Rules of gradients of pooling: what depends on a window's winner alone is decided per window.

Of relu, then max pooling, the gradient scatters cotangents to winners, and is 0 where relu's operand was not
positive. A winner is positive where the window's maximum is: no mask of all elements need be kept.
"""

from __future__ import annotations

from typing import Final

from stratal.base.dtypes import float32
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.pattern import Attr, Full, Match, P, Rule, Var
from stratal.optimize.rules_reduce import GEOMETRY

x, ct = Var("x"), Var("ct")
WINDOWS: Final = {name: Attr(name) for name in GEOMETRY}


def _gated_before(b: Builder, m: Match) -> Node:
    """Gate the cotangents by the maxima, then scatter: a winner that is no positive number takes 0."""
    index = m.root.inputs[2].inputs[1]
    geometry = {name: m.values[name] for name in GEOMETRY}
    best = b.window_reduce(index.inputs[0], kind="max", **geometry)
    zero = b.like(m.ct, 0)
    gated = b.op("select", b.le(best, b.like(best, 0)), zero, m.ct)
    return b.window_scatter(gated, index, shape=m.shape, **geometry)  # type: ignore[no-any-return]


_OFF = P.le(x, Full(0.0))
_CASES = (
    {"window": (1, 2, 2), "strides": (1, 2, 2), "dilation": (1, 1, 1), "padding": ((0, 0),) * 3},
    {"window": (1, 3, 3), "strides": (1, 2, 1), "dilation": (1, 1, 1), "padding": ((0, 0), (1, 1), (1, 0))},
)
_COUNTS = ((2, 2, 3), (2, 2, 5))

WINDOWED = (
    Rule(
        "relu_gate_of_maxima",
        P.select(
            _OFF,
            Full(0.0),
            P.window_scatter(
                ct,
                P.window_argmax(P.select(_OFF, Full(0.0), x), **WINDOWS),
                shape=Attr("shape"),
                **WINDOWS,
            ),
        ),
        _gated_before,
        examples=tuple(
            {
                "x": TensorType(float32, (2, 4, 6)),
                "ct": TensorType(float32, count),
                "shape": (2, 4, 6),
                **case,
            }
            for case, count in zip(_CASES, _COUNTS, strict=True)
        ),
    ),
)
