"""What the rules that ship come from: groups of ops that are searched, and pairs of graphs that are given.

A search reaches graphs of three ops; what takes more, or sizes that no sample has, is given as two graphs,
which the prover judges like any other pair. Rules say which they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from stratal.base.dtypes import float32
from stratal.base.types import TensorType
from stratal.discover.discovery import Discovery, Progress, discover, independent
from stratal.discover.enumerate import Types, records, signatures
from stratal.discover.generalise import generalised
from stratal.graph.builder import Builder
from stratal.graph.node import Node, graph_input


class Family(NamedTuple):
    """Ops that are searched together, up to `size` of them in a graph."""

    ops: tuple[str, ...]
    size: int
    once: tuple[str, ...] = ()

    @property
    def types(self) -> list[Types] | None:
        """Types of inputs: images and filters for convolutions, else what the samples give."""
        if "conv" not in self.ops:
            return None
        found = signatures(records(self.ops))
        return [t for t in found if [x.ndim for x in t] in ([4, 4, 4], [4, 4, 1])]


FAMILIES: Final = (
    Family(("add", "sub", "neg", "mul", "max", "min"), 2),
    Family(("add", "mul", "contract"), 2),
    Family(("add", "contract"), 3, ("contract",)),
    Family(("concatenate", "contract"), 3, ("contract", "concatenate")),
    Family(("permute", "contract"), 2),
    Family(("permute", "add", "mul", "neg", "exp", "max"), 3, ("permute", "add", "mul", "max")),
    Family(("concatenate", "slice", "permute", "neg", "exp"), 2),
    Family(("concatenate", "add", "neg", "exp"), 3, ("concatenate",)),
    Family(("slice", "contract", "add"), 2),
    Family(("broadcast", "add", "mul", "neg", "exp"), 2),
    Family(("sum", "reduce_max", "add", "neg", "permute", "broadcast"), 2),
    Family(("sum", "contract"), 2),
    Family(("flip", "permute", "neg", "sum"), 2),
    Family(("reshape", "neg", "exp", "sum"), 2),
    Family(("add", "conv"), 3, ("conv",)),
    Family(("concatenate", "conv"), 3, ("conv", "concatenate")),
)


def found_and_given(seconds: float = math.inf, progress: Progress | None = None) -> Discovery:
    """Return the rules of all families, without those that follow, and of the pairs that are given.

    A given rule stays where it follows from others, too: it saves a search
    of graphs their steps. `seconds` are shared by the families.
    """
    total = Discovery()
    for family in FAMILIES:
        found = discover(
            records(family.ops), family.size, seconds=seconds / len(FAMILIES), once=family.once,
            known=total.rules, types=family.types, progress=progress,
        )  # fmt: skip
        total.add(found)
    for name, lhs, rhs, inputs in given():
        rule = generalised(lhs, rhs, inputs, name, FIXED.get(name, ()))
        total.pairs += 1
        if rule is None:
            total.local += 1
        else:
            total.proved += 1
            total.rules.append(rule)
    kept = independent(total.rules)
    total.rules = [rule for rule in total.rules if rule.given or rule in kept]
    return total


# -- given pairs ---------------------------------------------------------------------------------------------
FIXED: Final = {"conv-enlarge-sum": (3,)}  # the window, whose padding is a number, too
Given = tuple[str, Node, Node, tuple[Node, ...]]


def given() -> Iterator[Given]:
    """Yield pairs of graphs with more ops than a search reaches, and where each comes from."""
    b = Builder()
    for make in (_scaled_filters, _shifted_filters, _enlarged, _enlarged_sum, _three_products, _as_product):
        yield make(b)
    yield from _channels(b)
    for make in (_parallel_filters, _parallel_rows):
        yield make(b)


def _tensor(*shape: int) -> Node:
    return graph_input("x", TensorType(float32, shape))


def _conv(b: Builder, x: Node, w: Node, pad: int = 0) -> Node:
    plain = {"strides": (1, 1), "lhs_dilation": (1, 1), "rhs_dilation": (1, 1), "groups": 1}
    return b.op("conv", x, w, padding=((pad, pad),) * 2, **plain)


def _along(b: Builder, v: Node, like: Node, axis: int) -> Node:
    return b.op("broadcast", v, shape=like.shape, axes=(axis,))


def _scaled_filters(b: Builder) -> Given:
    """Return conv(x, w) * s per channel, and conv(x, w * s per filter)."""
    x, w, s = _tensor(2, 3, 31, 47), _tensor(5, 3, 11, 13), _tensor(5)
    y = _conv(b, x, w)
    lhs = b.mul(y, _along(b, s, y, 1))
    return "conv-scale", lhs, _conv(b, x, b.mul(w, _along(b, s, w, 0))), (x, w, s)


def _shifted_filters(b: Builder) -> Given:
    """Return (conv(x, w) + c) * s + t per channel, and conv(x, w * s) + (c * s + t).

    That is batch normalisation in inference: s = gamma / sqrt(var + eps), t = beta - mean * s.
    """
    x, w, s, c, t = _tensor(2, 3, 31, 47), _tensor(5, 3, 11, 13), _tensor(5), _tensor(5), _tensor(5)
    y = _conv(b, x, w)
    spread: Callable[[Node], Node] = lambda v: _along(b, v, y, 1)  # noqa: E731
    lhs = b.add(b.mul(b.add(y, spread(c)), spread(s)), spread(t))
    rhs = b.add(_conv(b, x, b.mul(w, _along(b, s, w, 0))), spread(b.add(b.mul(c, s), t)))
    return "conv-batch-norm", lhs, rhs, (x, w, s, c, t)


def _filled(b: Builder, w: Node) -> Node:
    ring = (0, 0, 1, 1)
    return b.op("pad", w, b.const(0.0, float32), low=ring, high=ring, interior=(0, 0, 0, 0))


def _enlarged(b: Builder) -> Given:
    """Return a convolution 1x1, and one 3x3 with a ring of zeros around the filters."""
    x, w = _tensor(2, 3, 23, 29), _tensor(5, 3, 1, 1)
    return "conv-enlarge", _conv(b, x, w), _conv(b, x, _filled(b, w), 1), (x, w)


def _enlarged_sum(b: Builder) -> Given:
    """Return the sum of convolutions 3x3 and 1x1, and one 3x3."""
    x, w, v = _tensor(2, 4, 23, 29), _tensor(5, 4, 3, 3), _tensor(5, 4, 1, 1)
    lhs = b.add(_conv(b, x, w, 1), _conv(b, x, v))
    return "conv-enlarge-sum", lhs, _conv(b, x, b.add(w, _filled(b, v)), 1), (x, w, v)


def _three_products(b: Builder) -> Given:
    """Return three products of one input side by side, and one product."""
    x, *w = (_tensor(*shape) for shape in ((2, 3), (3, 7), (3, 11), (3, 17)))
    product: Callable[[Node], Node] = lambda y: b.op("contract", x, y, spec="mk,kn->mn")  # noqa: E731
    lhs = b.op("concatenate", *map(product, w), axis=1)
    return "three-products", lhs, product(b.op("concatenate", *w, axis=1)), (x, *w)


def _as_product(b: Builder) -> Given:
    """Return a convolution 1x1, and a contraction of its channels."""
    x, w = _tensor(2, 3, 23, 29), _tensor(5, 3, 1, 1)
    rhs = b.op("contract", x, b.op("reshape", w, shape=(5, 3)), spec="ncyx,oc->noyx")
    return "conv-as-product", _conv(b, x, w), rhs, (x, w)


def _channels(b: Builder) -> Iterator[Given]:
    """Yield what scales and shifts of channels one after another are: one of each, the scale first."""
    y, s, t = _tensor(2, 5, 23, 29), _tensor(5), _tensor(5)
    spread: Callable[[Node], Node] = lambda v: _along(b, v, y, 1)  # noqa: E731
    inputs = (y, s, t)
    yield "channel-scales", b.mul(b.mul(y, spread(s)), spread(t)), b.mul(y, spread(b.mul(s, t))), inputs
    for op in ("add", "sub"):
        lhs = b.mul(b.op(op, y, spread(s)), spread(t))
        rhs = b.op(op, b.mul(y, spread(t)), spread(b.mul(s, t)))
        yield f"channel-{op}-scale", lhs, rhs, inputs
    lhs = b.add(b.sub(y, spread(s)), spread(t))
    yield "channel-sub-add", lhs, b.add(y, spread(b.sub(t, s))), inputs
    lhs = b.add(b.add(y, spread(s)), spread(t))
    yield "channel-adds", lhs, b.add(y, spread(b.add(s, t))), inputs


def _parallel_filters(b: Builder) -> Given:
    """Return convolutions of one image with different numbers of filters side by side, and one with all."""
    x, w, v = _tensor(2, 3, 31, 47), _tensor(5, 3, 11, 13), _tensor(7, 3, 11, 13)
    lhs = b.concatenate(_conv(b, x, w), _conv(b, x, v), axis=1)
    return "parallel-convolutions", lhs, _conv(b, x, b.concatenate(w, v, axis=0)), (x, w, v)


def _parallel_rows(b: Builder) -> Given:
    """Return two linear maps of one sequence side by side, and one with the rows of both."""
    x, w, v = _tensor(2, 3, 5), _tensor(7, 5), _tensor(11, 5)
    product: Callable[[Node], Node] = lambda y: b.op("contract", x, y, spec="abk,nk->abn")  # noqa: E731
    lhs = b.concatenate(product(w), product(v), axis=2)
    return "parallel-rows", lhs, product(b.concatenate(w, v, axis=0)), (x, w, v)
