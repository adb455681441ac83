"""Scaled dot-product attention, with masks given as booleans, as numbers to add, or as causality."""

from __future__ import annotations

import math
from typing import Any

from stratal.base.errors import AttributeValueError, ShapeError
from stratal.nn.functional.activation import dropout, softmax
from stratal.tensor.build import call
from stratal.tensor.creation import arange
from stratal.tensor.elementwise import cast, where
from stratal.tensor.tensor import Tensor


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Return softmax(q k^T * scale + mask) v; scale is 1 / sqrt(E) unless given.

    A boolean mask says True where attention is allowed; a float mask is added.
    Shapes: query [..., L, E], key [..., S, E], value [..., S, V] -> [..., L, V].
    """
    if attn_mask is not None and is_causal:
        raise AttributeValueError("attention: give a mask or is_causal, not both")
    allowed = attn_mask if attn_mask is not None and attn_mask.dtype.is_bool else None
    added = None if allowed is not None else attn_mask
    weights = _weights(query, key, allowed, added, is_causal, scale)
    return _sum_values(dropout(weights, dropout_p) if dropout_p else weights, value)


def attention_with_weights(
    query: Tensor, key: Tensor, value: Tensor, added: Tensor | None, dropout_p: float, is_causal: bool,
    need_weights: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Return attention and, where needed, its weights; `added` is a mask of numbers."""
    weights = _weights(query, key, None, added, is_causal, None)
    weights = dropout(weights, dropout_p) if dropout_p else weights
    return _sum_values(weights, value), weights if need_weights else None


def additive_mask(mask: Any, like: Tensor) -> Tensor:
    """Return a mask of numbers for one that says True where attention is forbidden; numbers stay."""
    if not mask.dtype.is_bool:
        return cast(mask, like.dtype)
    result: Tensor = cast(where(mask, -math.inf, 0.0), like.dtype)
    return result


def _weights(
    query: Tensor, key: Tensor, allowed: Tensor | None, added: Tensor | None, is_causal: bool, scale: float | None
) -> Tensor:
    if query.ndim < 2 or query.shape[-1] != key.shape[-1]:
        raise ShapeError("attention: query and key differ in their last axis",
                         got=f"{list(query.shape)} and {list(key.shape)}")  # fmt: skip
    scale = 1.0 / math.sqrt(int(query.shape[-1])) if scale is None else scale
    batch = "abcdefgh"[: query.ndim - 2]
    scores: Tensor = call("contract", query * scale, key, spec=f"{batch}lx,{batch}sx->{batch}ls")
    if is_causal:
        rows, columns = int(query.shape[-2]), int(key.shape[-2])
        allowed = arange(rows).reshape((rows, 1)) >= arange(columns).reshape((1, columns))
    if allowed is not None:
        scores = where(allowed, scores, -math.inf)
    if added is not None:
        scores = scores + added
    return softmax(scores, -1)


def _sum_values(weights: Tensor, value: Tensor) -> Tensor:
    batch = "abcdefgh"[: weights.ndim - 2]
    result: Tensor = call("contract", weights, value, spec=f"{batch}ls,{batch}sv->{batch}lv")
    return result
