"""Scaled dot-product attention, with masks given as booleans, as numbers to add, or as causality."""

from __future__ import annotations

import math

from stratal.base.errors import AttributeValueError, ShapeError
from stratal.nn.functional.noise import dropout
from stratal.tensor.build import call
from stratal.tensor.functions.elementwise import cast, where
from stratal.tensor.functions.shapes import repeat_interleave
from stratal.tensor.tensor import Tensor


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False
) -> Tensor:
    """Return softmax(q k^T * scale + mask) v; scale is 1 / sqrt(E) unless given.

    A boolean mask says True where attention is allowed; a float mask is added. With `enable_gqa`, each head
    of key and value serves as many heads of the query, axis -3, as there are more of these.
    Shapes: query [..., L, E], key [..., S, E], value [..., S, V] -> [..., L, V].
    """
    if enable_gqa:
        key, value = (_for_heads(query, t) for t in (key, value))
    if attn_mask is not None and is_causal:
        raise AttributeValueError("attention: give a mask or is_causal, not both")
    if dropout_p:
        return attention_with_weights(query, key, value, attn_mask, dropout_p, is_causal, scale)[0]
    _check_width(query)
    masks = () if attn_mask is None else (attn_mask,)
    return call("scaled_dot_product_attention", query, key, value, *masks, causal=is_causal, scale=scale)


def _for_heads(query: Tensor, t: Tensor) -> Tensor:
    """Return keys or values, each head as often as heads of the query share it."""
    if query.ndim < 3 or t.ndim < 3 or query.shape[-3] % t.shape[-3]:
        raise ShapeError(
            "attention: with enable_gqa the query's heads, axis -3, are a multiple of those of key and value",
            got=f"{query.type} and {t.type}",
        )
    return repeat_interleave(t, query.shape[-3] // t.shape[-3], axis=-3)


def attention_with_weights(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """Return attention and its weights [..., L, S], dropout included."""
    _check_width(query)
    masks = () if attn_mask is None else (attn_mask,)
    weights: Tensor = call("attention_weights", query, key, *masks, causal=is_causal, scale=scale)
    weights = cast(dropout(weights, dropout_p), value.dtype)
    return weights @ value, weights


def _check_width(query: Tensor) -> None:
    if query.ndim < 1 or query.shape[-1] == 0:
        raise ShapeError("attention: vectors have at least one element", got=f"query {list(query.shape)}")


def additive_mask(mask: Tensor, like: Tensor) -> Tensor:
    """Return a mask of numbers for one that says True where attention is forbidden; numbers stay."""
    if not mask.dtype.is_bool:
        return cast(mask, like.dtype)
    return cast(where(mask, -math.inf, 0.0), like.dtype)
