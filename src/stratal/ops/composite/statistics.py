"""Means, variances, stable log-sum-exp and softmax; 16-bit floats compute in float32 throughout."""

from __future__ import annotations

from collections.abc import Sequence

from stratal.base.dims import as_int, product
from stratal.base.dtypes import int64
from stratal.graph.builder import Builder, composite
from stratal.graph.node import Node
from stratal.ops.composite.family import all_axes, axis_of, cast_to, check_float, named, wide
from stratal.ops.reduce.family import spread


@composite
def count(b: Builder, x: Node, *, axes: Sequence[int]) -> Node:
    """Return how many elements lie along axes, as an int64 scalar: a constant where their sizes are known."""
    known = b.const(as_int(product(n for k in axes if isinstance(n := x.shape[k], int))), int64)
    for k in axes:
        if not isinstance(x.shape[k], int):
            known = b.op("mul", known, b.size(x, axis=k))
    return known


def _divided(b: Builder, total: Node, x: Node, axes: Sequence[int], less: float = 0) -> Node:
    """Return a sum over axes divided by the number of elements it adds up, less some."""
    number = product(x.shape[a] for a in axes)
    if isinstance(number, int):
        return b.op("div", total, b.like(total, max(number - less, 0)))
    counted = b.cast(b.count(x, axes=axes), dtype=total.dtype)
    if less:
        counted = b.op("max", b.op("sub", counted, b.like(counted, less)), b.like(counted, 0))
    return b.op("div", total, b.broadcast(counted, shape=total.shape, axes=()))


def mean_of(b: Builder, x: Node, axes: Sequence[int]) -> Node:
    """Return the mean over `axes` of a tensor already in its compute dtype; of nothing, NaN."""
    total = b.op("sum", x, axes=tuple(axes))
    return _divided(b, total, x, axes)


def variance_of(b: Builder, x: Node, axes: Sequence[int], correction: float = 0) -> tuple[Node, Node, Node]:
    """Return mean, variance and x - mean of a tensor already in its compute dtype."""
    mean = mean_of(b, x, axes)
    centered = b.op("sub", x, spread(b, mean, x, axes))
    total = b.op("sum", b.mul(centered, centered), axes=tuple(axes))
    return mean, _divided(b, total, x, axes, correction), centered


@named
def mean(b: Builder, x: Node, *, axes: Sequence[int] | None = None) -> Node:
    """Return the arithmetic mean over `axes`, which vanish; all for None."""
    check_float("mean", x)
    return cast_to(b, mean_of(b, wide(b, x), all_axes("mean", x, axes)), x.dtype)


@named
def variance(b: Builder, x: Node, *, axes: Sequence[int] | None = None, correction: float = 0) -> Node:
    """Return the mean of squared deviations, the divisor lessened by `correction` (1: Bessel's)."""
    check_float("variance", x)
    return cast_to(b, variance_of(b, wide(b, x), all_axes("variance", x, axes), correction)[1], x.dtype)


def greatest(b: Builder, x: Node, axes: Sequence[int]) -> Node:
    """Return the maximum over `axes`, 0 of nothing: it cancels out, so no gradient flows."""
    empty = any(isinstance(x.shape[a], int) and x.shape[a] == 0 for a in axes)
    return b.stop_gradient(b.op("sum" if empty else "reduce_max", x, axes=tuple(axes)))


def _shift(b: Builder, x: Node, axes: Sequence[int]) -> Node:
    """Return that maximum, 0 where it is infinite."""
    top = greatest(b, x, axes)
    return b.op("select", b.isfinite(top), top, b.like(top, 0))


@named
def logsumexp(b: Builder, x: Node, *, axes: Sequence[int] | None = None) -> Node:
    """Return log(sum(exp(x))) over `axes` without overflow; of nothing, -inf."""
    check_float("logsumexp", x)
    over, y = all_axes("logsumexp", x, axes), wide(b, x)
    top = _shift(b, y, over)
    total = b.sum(b.exp(b.sub(y, spread(b, top, y, over))), axes=over)
    return cast_to(b, b.add(b.log(total), top), x.dtype)


@named
def softmax(b: Builder, x: Node, *, axis: int = -1) -> Node:
    """Return exp(x) / sum(exp(x)) along `axis`; NaN where every element is -inf, as in PyTorch.

    A row is divided by multiplying with 1 / sum, which lies between 1 / n and 1: one division a row where one
    an element would take as long as the exponentials, for half a unit in the last place.
    """
    check_float("softmax", x)
    over, y = (axis_of("softmax", x, axis),), wide(b, x)
    power = b.exp(b.sub(y, spread(b, greatest(b, y, over), y, over)))
    total = b.sum(power, axes=over)
    share = b.div(b.like(total, 1), total)
    return cast_to(b, b.mul(power, spread(b, share, y, over)), x.dtype)


@named
def log_softmax(b: Builder, x: Node, *, axis: int = -1) -> Node:
    """Return the logarithm of softmax without cancellation."""
    check_float("log_softmax", x)
    over, y = (axis_of("log_softmax", x, axis),), wide(b, x)
    centered = b.sub(y, spread(b, greatest(b, y, over), y, over))
    total = b.log(b.sum(b.exp(centered), axes=over))
    return cast_to(b, b.sub(centered, spread(b, total, y, over)), x.dtype)
