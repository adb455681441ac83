"""Losses, one value per sample or element; what sums or averages them is the caller's."""

from __future__ import annotations

from stratal.base.errors import DTypeError, ShapeError
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.ops.composite.family import axis_of, cast_to, check_float, named, wide


@named
def nll(b: Builder, log_probabilities: Node, target: Node, *, axis: int = 1) -> Node:
    """Return -log_probabilities at the classes `target`: integers in [0, n), in a shape without `axis`."""
    at = axis_of("nll", log_probabilities, axis)
    shape = log_probabilities.shape
    if not target.dtype.is_integer:
        raise DTypeError("nll: classes are integers", got=str(target.aval))
    if target.shape != shape[:at] + shape[at + 1 :]:
        raise ShapeError("nll: takes one class per sample", got=f"{target.aval} for {log_probabilities.aval}")
    index = b.reshape(target, shape=(*shape[:at], 1, *shape[at + 1 :]))
    picked = b.gather_along(log_probabilities, index, axis=at)
    return b.op("neg", b.reshape(picked, shape=target.shape))


@named
def bce_with_logits(b: Builder, logits: Node, target: Node, weight: Node | None = None) -> Node:
    """Return the binary cross-entropy of sigmoid(logits) of each element, without overflow.

    `weight` multiplies the positive term: -weight * t * log(p) - (1 - t) * log(1 - p).
    """
    check_float("bce_with_logits", logits, target)
    x, t = wide(b, logits), wide(b, target)
    if weight is None:  # softplus(x) - t*x
        return cast_to(b, b.sub(b.softplus(x), b.mul(t, x)), logits.dtype)
    negative = b.mul(b.sub(b.like(t, 1), t), x)  # softplus(-x) * (1 + (weight-1) * t) + (1-t) * x
    share = b.add(b.mul(b.sub(wide(b, weight), b.like(t, 1)), t), b.like(t, 1))
    return cast_to(b, b.add(negative, b.mul(share, b.softplus(b.neg(x)))), logits.dtype)
