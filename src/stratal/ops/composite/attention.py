"""Scaled dot-product attention."""

from __future__ import annotations

import math

from stratal.base.dims import Shape, as_int, known_equal, upper_bound
from stratal.base.dtypes import float32
from stratal.base.errors import DTypeError, ShapeError
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.ops.composite.family import cast_to, check_float, named, scaled, wide
from stratal.ops.composite.statistics import greatest
from stratal.ops.linear.attention import hidden, lower_triangle
from stratal.ops.reduce.family import spread

FEWEST = 16  # queries and keys below which a block of scores is mostly empty


@named
def scaled_dot_product_attention(
    b: Builder, query: Node, key: Node, value: Node, mask: Node | None = None, *, causal: bool = False,
    scale: float | None = None,
) -> Node:  # fmt: skip
    """Return softmax(query @ key.T * scale + mask) @ value (Vaswani et al., 2017).

    A bool mask keeps where it holds, a float mask is added; its shape stretches to [..., L, S]. A query whose
    keys are all hidden gives 0. `causal` keeps key j for query i where j <= i. `scale` is 1/sqrt(D) unless
    given. Scores of 16-bit operands stay float32 up to the product with value.

    With several queries and keys the scores are never held as a whole (`ops/linear/attention.py`); 16-bit
    operands are float32 there, and the result is rounded once.

    Shapes: query [..., L, D], key [..., S, D], value [..., S, E] -> [..., L, E].
    """
    if _by_blocks(query, key, value, mask):
        factor = 1 / math.sqrt(as_int(query.shape[-1])) if scale is None else scale
        masks = () if mask is None else (_spread(b, mask, (*query.shape[:-1], key.shape[-2])),)
        q, k, v = (wide(b, x) for x in (query, key, value))
        made = b.op("attention", q, k, v, *masks, causal=causal, scale=float(factor))
        return cast_to(b, b.item(made, 0), value.dtype)
    weights = b.attention_weights(query, key, mask, causal=causal, scale=scale)
    return b.matmul(cast_to(b, weights, value.dtype), value)


@named
def attention_weights(
    b: Builder, query: Node, key: Node, mask: Node | None = None, *, causal: bool = False,
    scale: float | None = None,
) -> Node:  # fmt: skip
    """Return softmax(query @ key.T * scale + mask) in the compute dtype of query, [..., L, S].

    A row that a mask hides as a whole, scores of -inf, is 0, and so are its gradients.
    """
    check_float("attention", query, key)
    if query.aval.ndim < 2 or query.aval.ndim != key.aval.ndim:
        raise ShapeError(
            "attention: takes query [...,L,D] and key [...,S,D]", got=f"{query.aval}, {key.aval}"
        )
    if not known_equal(query.shape[-1], key.shape[-1]):
        raise ShapeError(
            "attention: query and key differ in their last size", got=f"{query.aval}, {key.aval}"
        )
    last = query.aval.ndim - 1
    swapped = b.permute(key, perm=(*range(last - 1), last, last - 1))
    factor = 1 / math.sqrt(as_int(query.shape[-1])) if scale is None else scale
    widened = None if query.dtype.compute is query.dtype else query.dtype.compute
    scores = scaled(b, b.matmul(query, swapped, dtype=widened), factor)
    if causal:
        scores = hidden(b, scores, lower_triangle(b, scores))
    if mask is None:
        return b.softmax(scores, axis=-1)
    scores = _masked(b, scores, mask)
    top = greatest(b, scores, (last,))
    shift = b.select(b.eq(top, b.like(top, -math.inf)), b.like(top, 0), top)
    power = b.exp(b.sub(scores, spread(b, shift, scores, (last,))))
    total = b.sum(power, axes=(last,))
    one = b.like(total, 1)
    share = b.div(one, b.select(b.eq(total, b.like(total, 0)), one, total))  # of a hidden row: 0 in all
    return b.mul(power, spread(b, share, scores, (last,)))


def _by_blocks(query: Node, key: Node, value: Node, mask: Node | None) -> bool:
    """Return whether attention runs block by block: in float32, enough queries and keys to fill blocks."""
    types = (query.aval, key.aval, value.aval)
    if len({t.dtype for t in types}) > 1 or query.dtype.compute is not float32:
        return False
    if any(t.ndim != query.aval.ndim or t.ndim < 2 for t in types):
        return False
    if not isinstance(query.shape[-1], int) or not isinstance(value.shape[-1], int) or 0 in value.shape:
        return False
    heads = query.shape[:-2]
    return (
        key.shape[:-2] == heads
        and value.shape[:-2] == heads
        and query.shape[-1] == key.shape[-1]
        and key.shape[-2] == value.shape[-2]
        and min(upper_bound(query.shape[-2]), upper_bound(key.shape[-2])) >= FEWEST
        and (mask is None or (mask.dtype.is_bool and mask.aval.ndim <= query.aval.ndim))
    )


def _masked(b: Builder, scores: Node, mask: Node) -> Node:
    """Apply a mask whose axes align with the last ones of the scores; sizes of 1 stretch."""
    if mask.aval.ndim > scores.aval.ndim:
        raise ShapeError(
            "attention: the mask has more axes than the scores", got=f"{mask.aval}, {scores.aval}"
        )
    spread = _spread(b, mask, scores.shape)
    if mask.dtype.is_bool:
        return hidden(b, scores, spread)
    if not mask.dtype.is_float:
        raise DTypeError("attention: the mask is bool or float", got=str(mask.aval))
    return b.op("add", scores, cast_to(b, spread, scores.dtype))


def _spread(b: Builder, mask: Node, shape: Shape) -> Node:
    """Stretch a mask whose axes align with the last ones of the scores."""
    first = len(shape) - mask.aval.ndim
    return b.broadcast(mask, shape=shape, axes=tuple(range(first, len(shape))))
