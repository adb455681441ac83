"""Activation functions put together of lines, with PyTorch's values and gradients also where they meet."""

from __future__ import annotations

from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.ops.composite.family import cast_to, check_float, named, shifted, wide


@named
def hardtanh(b: Builder, x: Node, *, low: float = -1.0, high: float = 1.0) -> Node:
    """Return x clipped to [low, high]; no gradient at the ends."""
    check_float("hardtanh", x)
    bottom, top = b.like(x, low), b.like(x, high)
    return b.op("select", b.le(x, bottom), bottom, b.select(b.ge(x, top), top, x))


@named
def hardsigmoid(b: Builder, x: Node) -> Node:
    """Return x / 6 + 1 / 2 clipped to [0, 1]; no gradient at the ends (Courbariaux et al., 2015)."""
    check_float("hardsigmoid", x)
    y = b.hardtanh(wide(b, x), low=-3.0, high=3.0)
    return cast_to(b, b.div(shifted(b, y, 3.0), b.like(y, 6)), x.dtype)


@named
def hardswish(b: Builder, x: Node) -> Node:
    """Return x * hardsigmoid(x): 0 up to -3, x from 3 on (Howard et al., 2019)."""
    check_float("hardswish", x)
    y = wide(b, x)
    middle = b.div(b.mul(y, shifted(b, y, 3.0)), b.like(y, 6))
    low, high = b.like(y, -3), b.like(y, 3)
    curve = b.select(b.ge(y, high), y, middle)
    return cast_to(b, b.select(b.le(y, low), b.like(y, 0), curve), x.dtype)


@named
def threshold(b: Builder, x: Node, *, threshold: float, value: float) -> Node:
    """Return x where it exceeds the threshold, else a value."""
    return b.op("select", b.le(x, b.like(x, threshold)), b.like(x, value), x)


@named
def hardshrink(b: Builder, x: Node, *, lambd: float = 0.5) -> Node:
    """Return 0 within `lambd` of 0, else x."""
    check_float("hardshrink", x)
    near = b.le(b.abs(x), b.like(x, lambd))
    return b.op("select", near, b.like(x, 0), x)


@named
def softshrink(b: Builder, x: Node, *, lambd: float = 0.5) -> Node:
    """Return x moved towards 0 by `lambd`, and 0 within `lambd` of it."""
    check_float("softshrink", x)
    moved = b.select(b.gt(x, b.like(x, 0)), shifted(b, x, -lambd), shifted(b, x, lambd))
    return b.op("select", b.le(b.abs(x), b.like(x, lambd)), b.like(x, 0), moved)


@named
def prelu(b: Builder, x: Node, slope: Node) -> Node:
    """Return x where it is positive, else slope * x; both have one shape (He et al., 2015)."""
    check_float("prelu", x, slope)
    return b.op("select", b.gt(x, b.like(x, 0)), x, b.mul(slope, x))
