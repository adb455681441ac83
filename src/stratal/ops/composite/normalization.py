"""Normalisation over features, channel groups and batches; 16-bit floats compute in float32 throughout."""

from __future__ import annotations

from collections.abc import Sequence

from stratal.base.dims import as_int
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.ops.composite.family import cast_to, check_float, in_floats, named, wide
from stratal.ops.composite.statistics import variance_of
from stratal.ops.reduce.family import spread


@in_floats
def layer_norm(
    b: Builder, x: Node, weight: Node | None = None, bias: Node | None = None, *, ndim: int = 1,
    eps: float = 1e-5,
) -> Node:  # fmt: skip
    """Normalise the last `ndim` axes to mean 0 and variance 1, scale and shift (Ba, Kiros, Hinton, 2016)."""
    over = tuple(range(x.aval.ndim - ndim, x.aval.ndim))
    return _affine(b, _normalised(b, x, over, eps), weight, bias, over)


@in_floats
def group_norm(
    b: Builder, x: Node, weight: Node | None = None, bias: Node | None = None, *, groups: int,
    eps: float = 1e-5,
) -> Node:  # fmt: skip
    """Normalise each of `groups` groups of channels of every sample, x [N,C,...] (Wu and He, 2018)."""
    batch, channels, *rest = x.shape
    grouped = b.reshape(x, shape=(batch, groups, as_int(channels) // groups, *rest))
    grouped = _normalised(b, grouped, tuple(range(2, grouped.aval.ndim)), eps)
    return _affine(b, b.reshape(grouped, shape=x.shape), weight, bias, (1,))


def _normalised(b: Builder, x: Node, over: tuple[int, ...], eps: float) -> Node:
    _, spreading, centered = variance_of(b, x, over)
    return b.mul(centered, spread(b, _inverse_deviation(b, spreading, eps), x, over))


@in_floats
def rms_norm(b: Builder, x: Node, weight: Node | None = None, *, ndim: int = 1, eps: float = 1e-5) -> Node:
    """Divide the last `ndim` axes by the root of their mean square, and scale (Zhang and Sennrich, 2019)."""
    over = tuple(range(x.aval.ndim - ndim, x.aval.ndim))
    square = b.mean(b.mul(x, x), axes=over)
    return _affine(b, b.mul(x, spread(b, _inverse_deviation(b, square, eps), x, over)), weight, None, over)


@named
def batch_norm(
    b: Builder, x: Node, weight: Node | None = None, bias: Node | None = None, *, eps: float = 1e-5
) -> tuple[Node, Node, Node]:
    """Normalise each channel of x [N,C,...] by its batch; return also its mean and its biased variance.

    See: Ioffe and Szegedy, 2015.
    """
    check_float("batch_norm", x)
    y, over = wide(b, x), tuple(a for a in range(x.aval.ndim) if a != 1)
    mean, spreading, centered = variance_of(b, y, over)
    y = b.mul(centered, spread(b, _inverse_deviation(b, spreading, eps), y, over))
    y = cast_to(b, _affine(b, y, weight, bias, (1,)), x.dtype)
    return y, mean, spreading


@in_floats
def batch_norm_inference(
    b: Builder, x: Node, mean: Node, variance: Node, weight: Node | None = None, bias: Node | None = None,
    *, eps: float = 1e-5,
) -> Node:  # fmt: skip
    """Normalise each channel of x [N,C,...] by given statistics, which are in x's compute dtype."""
    over = tuple(a for a in range(x.aval.ndim) if a != 1)
    scale = _inverse_deviation(b, wide(b, variance), eps)
    y = b.mul(b.sub(x, spread(b, wide(b, mean), x, over)), spread(b, scale, x, over))
    return _affine(b, y, weight, bias, (1,))


def _inverse_deviation(b: Builder, variance: Node, eps: float) -> Node:
    return b.op("rsqrt", b.add(variance, b.like(variance, eps)))


def _affine(b: Builder, y: Node, weight: Node | None, bias: Node | None, axes: Sequence[int]) -> Node:
    """Return y * weight + bias, both of which lie along `axes`."""
    if weight is not None:
        y = b.mul(y, b.broadcast(wide(b, weight), shape=y.shape, axes=tuple(axes)))
    if bias is not None:
        y = b.add(y, b.broadcast(wide(b, bias), shape=y.shape, axes=tuple(axes)))
    return y
