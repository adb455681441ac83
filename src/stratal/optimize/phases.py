"""Transposed convolutions without the zeros between the elements they spread.

    conv(x, w, lhs_dilation=d)  ->  interleave(conv(x, w'))

With y = d*q + p - shift, output y reads x at q + t through tap d*t + (low + shift) - p of its filter: what
differs from phase to phase is the filter alone. One plain convolution with d times the filters computes all
phases, the filters of a phase side by side; a reshape makes places of them. Filters get fewer than d taps
more, which are zero, where d - 1 zeros stood between any two elements. `shift` is such that none of those
taps stands in front. Along an axis whose window is one element, one phase alone is not zero: there the result
is spread, and nothing else is computed.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

from stratal.base.fallback import skippable, unchanged
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph
from stratal.graph.node import Node
from stratal.ops.linear import family
from stratal.ops.linear.conv import Conv
from stratal.optimize.asked import ConvolutionTactics
from stratal.optimize.rewrite import rewrite_graph


class Axis(NamedTuple):
    """One spatial axis of a transposed convolution: `size` results from `given` elements `step` apart."""

    given: int
    window: int
    step: int
    low: int  # padding in front
    size: int

    @property
    def single(self) -> bool:
        """Whether one phase alone reads anything."""
        return self.window == 1

    @property
    def phases(self) -> int:
        return 1 if self.single else self.step

    @property
    def shift(self) -> int:
        """How many results of the first phases stand before the first that counts."""
        return 0 if self.single else (self.step - 1 - self.low) % self.step

    @property
    def taps(self) -> int:
        """The window of a phase."""
        return -(-self.window // self.step)

    @property
    def first(self) -> int:
        """The first result of the only phase."""
        return self.low % self.step if self.single else 0

    @property
    def places(self) -> int:
        """How many results a phase has."""
        return -(-(self.size + self.shift - self.first) // self.step)

    @property
    def padding(self) -> tuple[int, int]:
        front = (self.low + self.shift) // self.step
        return front, self.places + self.taps - 1 - self.given - front


@skippable(unchanged)
def split_phases(graph: Graph, tactics: ConvolutionTactics) -> Graph:
    """Compute the phases of every transposed convolution side by side."""
    return rewrite_graph(graph, partial(_split, tactics=tactics))


def _split(node: Node, tactics: ConvolutionTactics) -> tuple[str, Node] | None:
    if not isinstance(node.op, Conv) or all(d == 1 for d in node.op.attributes["lhs_dilation"]):
        return None
    op, (x, w) = node.op.attributes, node.inputs
    sizes = (x.aval.ints[2:], w.aval.ints[2:], op["lhs_dilation"], op["padding"], node.aval.ints[2:])
    axes = [Axis(n, k, d, low, size) for n, k, d, (low, _), size in zip(*sizes, strict=True)]
    dilated = [k for k, a in enumerate(axes) if a.step > 1]
    if any(op["strides"][k] != 1 or op["rhs_dilation"][k] != 1 or axes[k].places < 1 for k in dilated):
        return None
    if not all((*x.aval.ints, *w.aval.ints)) or _is_faster_spread(node, axes, tactics):
        return None
    b = Builder(node.where)
    padding = tuple(axes[k].padding if k in dilated else op["padding"][k] for k in range(len(axes)))
    ones = (1,) * len(axes)
    x, padding = family.crop_negative(b, x, 2, padding, ones)
    made = b.conv(x, _filters(b, w, op["groups"], axes), **(op | {"padding": padding, "lhs_dilation": ones}))
    return "split-phases", _spread(b, _interleave(b, made, op["groups"], axes), axes)


def _is_faster_spread(node: Node, axes: list[Axis], tactics: ConvolutionTactics) -> bool:
    """Return whether the spread operand is convolved by tiles, in fewer products than all phases take."""
    share = tactics.share_by_tiles(node)
    spread = math.prod(a.step * a.window for a in axes) * share
    return share < 1 and spread < math.prod(a.phases * a.taps for a in axes)


def _filters(b: Builder, w: Node, groups: int, axes: list[Axis]) -> Node:
    """Return the filters of all phases, [groups * phases * filters, channels, taps...]."""
    if all(a.phases == 1 for a in axes):
        return w
    none = (0,) * (2 + len(axes))
    high = (0, 0, *(a.taps * a.phases - a.window if a.phases > 1 else 0 for a in axes))
    w = b.pad(w, b.const(0, w.dtype), low=none, high=high, interior=none)
    numbers, channels, *window = w.aval.ints
    shape = [groups, numbers // groups, channels]
    taps, phases = [], []
    for a, size in zip(axes, window, strict=True):
        taps.append(len(shape))
        shape.append(size // a.phases)
        if a.phases > 1:
            phases.append(len(shape))
            shape.append(a.phases)
    w = b.flip(b.reshape(w, shape=tuple(shape)), axes=tuple(phases))
    w = b.permute(w, perm=(0, *phases, 1, 2, *taps))
    numbers *= math.prod(a.phases for a in axes)
    return b.op("reshape", w, shape=(numbers, channels, *(shape[k] for k in taps)))


def _interleave(b: Builder, made: Node, groups: int, axes: list[Axis]) -> Node:
    """Return the results of all phases at their places:
    [n, groups * phases * filters, q...] -> [n, groups * filters, y...].
    """
    many = [k for k, a in enumerate(axes) if a.phases > 1]
    if not many:
        return made
    phases = [axes[k].phases for k in many]
    batch, numbers, *counts = made.aval.ints
    outputs = numbers // math.prod(phases)
    made = b.reshape(made, shape=(batch, groups, *phases, outputs // groups, *counts))
    first = 3 + len(many)  # of the spatial axes
    perm, shape = [0, 1, first - 1], [batch, outputs]
    for k, count in enumerate(counts):
        perm.append(first + k)
        if k in many:
            perm.append(2 + many.index(k))
        shape.append(count * axes[k].phases)
    made = b.op("reshape", b.permute(made, perm=tuple(perm)), shape=tuple(shape))
    start = (0, 0, *(a.shift for a in axes))
    ends = (a.shift + a.size if a.phases > 1 else n for a, n in zip(axes, counts, strict=True))
    stop = (batch, outputs, *ends)
    if start == (0,) * len(start) and stop == made.shape:
        return made
    return b.op("slice", made, start=start, stop=stop, step=(1,) * len(stop))


def _spread(b: Builder, made: Node, axes: list[Axis]) -> Node:
    """Return the results with zeros between them along axes that have one phase of several."""
    if all(a.phases == a.step for a in axes):
        return made
    around = [_between(a) if a.phases != a.step else (0, 0, 0) for a in axes]
    low, high, interior = ((0, 0, *sizes) for sizes in zip(*around, strict=True))
    return b.op("pad", made, b.const(0, made.dtype), low=low, high=high, interior=interior)


def _between(a: Axis) -> tuple[int, int, int]:
    """Return how many zeros stand before, behind and between the results of an axis's only phase."""
    return a.first, a.size - a.first - (a.places - 1) * a.step - 1, a.step - 1
