"""Multi-head attention."""

from __future__ import annotations

from typing import Any

from stratal.base.errors import AttributeValueError, ShapeError
from stratal.nn import functional as F
from stratal.nn import init
from stratal.nn.linear import Linear
from stratal.nn.module import Module
from stratal.nn.parameter import empty_parameter
from stratal.tensor.functions.creation import arange
from stratal.tensor.functions.shapes import broadcast_to, concat, pad_constant
from stratal.tensor.tensor import Tensor


class MultiheadAttention(Module):
    """softmax(q k^T / sqrt(d)) v in several heads, between input and output projections.

    Shapes: query [L, N, E], key [S, N, kdim], value [S, N, vdim] (batch first with `batch_first`; without N
    where unbatched). A boolean mask says True where attention is forbidden; a float mask is added to the
    scores. `add_bias_kv` adds one learned key and value, `add_zero_attn` a key and value of zeros, which no
    mask forbids. See: Vaswani et al. 2017.
    """

    def __init__(
        self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True,
        add_bias_kv: bool = False, add_zero_attn: bool = False, kdim: int | None = None,
        vdim: int | None = None, batch_first: bool = False, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__()
        if embed_dim < 1 or num_heads < 1 or embed_dim % num_heads:
            raise AttributeValueError(
                "MultiheadAttention: num_heads must divide embed_dim", got=f"{num_heads} for {embed_dim}"
            )
        self.embed_dim, self.num_heads, self.dropout = embed_dim, num_heads, dropout
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.batch_first, self.head_dim = batch_first, embed_dim // num_heads
        self._same_dims = self.kdim == embed_dim and self.vdim == embed_dim
        if self._same_dims:
            self.in_proj_weight = empty_parameter((3 * embed_dim, embed_dim), dtype)
            separate = (None, None, None)
        else:
            self.register_parameter("in_proj_weight", None)
            separate = tuple(
                empty_parameter((embed_dim, d), dtype) for d in (embed_dim, self.kdim, self.vdim)
            )
        for name, value in zip(("q_proj_weight", "k_proj_weight", "v_proj_weight"), separate, strict=True):
            self.register_parameter(name, value)
        self.register_parameter("in_proj_bias", empty_parameter((3 * embed_dim,), dtype) if bias else None)
        self.bias_k = empty_parameter((1, 1, embed_dim), dtype) if add_bias_kv else None
        self.bias_v = empty_parameter((1, 1, embed_dim), dtype) if add_bias_kv else None
        self.add_zero_attn = add_zero_attn
        self.out_proj = Linear(embed_dim, embed_dim, bias=bias, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the projections by Glorot's rule, biases zero."""
        for name in ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"):
            weight = getattr(self, name)
            if weight is not None:
                init.xavier_uniform_(weight)
        if self.in_proj_bias is not None:
            init.zeros_(self.in_proj_bias)
            init.zeros_(self.out_proj.bias)
        for bias in (self.bias_k, self.bias_v):
            if bias is not None:
                init.xavier_normal_(bias)

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        e = self.embed_dim
        bias = self.in_proj_bias
        if self._same_dims and query is key and key is value:
            packed = F.linear(query, self.in_proj_weight, bias)
            return [packed[..., k * e : (k + 1) * e] for k in range(3)]
        if self._same_dims:
            weights = [self.in_proj_weight[k * e : (k + 1) * e] for k in range(3)]
        else:
            weights = [self.q_proj_weight, self.k_proj_weight, self.v_proj_weight]
        biases = [None if bias is None else bias[k * e : (k + 1) * e] for k in range(3)]
        return [F.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True)]

    def _heads(self, x: Tensor) -> Tensor:
        n, length, _ = x.shape
        return x.reshape((n, length, self.num_heads, self.head_dim)).permute(0, 2, 1, 3)

    def _more_keys(self, k: Tensor, v: Tensor) -> list[Tensor]:
        """Return keys and values in heads, the learned ones and those of zeros behind."""
        n = k.shape[0]
        if self.bias_k is not None and self.bias_v is not None:
            k = concat([k, broadcast_to(self.bias_k, (n, 1, self.embed_dim))], axis=1)
            v = concat([v, broadcast_to(self.bias_v, (n, 1, self.embed_dim))], axis=1)
        heads = [self._heads(k), self._heads(v)]
        if self.add_zero_attn:
            heads = [pad_constant(x, [(0, 0), (0, 0), (0, 1), (0, 0)]) for x in heads]
        return heads

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None,
        need_weights: bool = True, attn_mask: Tensor | None = None, average_attn_weights: bool = True,
        is_causal: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        batched = query.ndim == 3
        if query.ndim not in (2, 3):
            raise ShapeError("MultiheadAttention: query takes 2 or 3 axes", got=f"shape {list(query.shape)}")
        same = query is key and key is value
        arranged = [self._batch_first(x, batched) for x in ((query,) if same else (query, key, value))]
        q, k, v = self._project(*(arranged * 3 if same else arranged))
        n, length = q.shape[:2]
        mask = self._mask(attn_mask, key_padding_mask, n, q)
        causal = is_causal and attn_mask is None
        heads = [self._heads(q), *self._more_keys(k, v)]
        extra = heads[1].shape[2] - k.shape[1]  # an int, whatever the sizes
        if extra:
            if causal:
                mask, causal = _causal(q, k) if mask is None else mask + _causal(q, k), False
            mask = None if mask is None else pad_constant(mask, [(0, 0)] * (mask.ndim - 1) + [(0, extra)])
        dropped = self.dropout if self.training else 0.0
        if need_weights or (causal and mask is not None):
            out, weights = F.attention_with_weights(*heads, mask, dropped, causal)
        else:
            out = F.scaled_dot_product_attention(*heads, mask, dropped, causal)
        out = self.out_proj(out.permute(0, 2, 1, 3).reshape((n, length, self.embed_dim)))
        out = self._caller_layout(out, batched)
        if not need_weights:
            return out, None
        weights = weights.mean(axis=1) if average_attn_weights else weights
        return out, weights if batched else weights.reshape(weights.shape[1:])

    def _batch_first(self, x: Tensor, batched: bool) -> Tensor:
        if not batched:
            return x.reshape((1, *x.shape))
        return x if self.batch_first else x.permute(1, 0, 2)

    def _caller_layout(self, x: Tensor, batched: bool) -> Tensor:
        if not batched:
            return x.reshape(x.shape[1:])
        return x if self.batch_first else x.permute(1, 0, 2)

    def _mask(self, attn_mask: Any, key_padding_mask: Any, n: Any, like: Tensor) -> Tensor | None:
        """Return one additive mask that broadcasts to [N, heads, L, S], or None."""
        total: Tensor | None = None
        if attn_mask is not None:
            total = F.additive_mask(attn_mask, like)
            if total.ndim == 3:
                total = total.reshape((n, self.num_heads, *total.shape[1:]))
        if key_padding_mask is not None:
            padding = F.additive_mask(key_padding_mask, like)
            padding = padding.reshape((n, 1, 1, padding.shape[-1]))
            total = padding if total is None else total + padding
        return total


def _causal(q: Tensor, k: Tensor) -> Tensor:
    """Return the additive mask [L, S] that forbids key j for query i where j > i."""
    rows, columns = (arange(int(x.shape[1])) for x in (q, k))
    return F.additive_mask(columns > rows.reshape((-1, 1)), q)
