"""What decoders share: which keys a token may see, attention over earlier and new keys, the next token's
loss.

Earlier keys and values come as one tensor `past` [layers, 2, N, heads, P, D]. A model gives back those of
its new tokens alone, so that whoever keeps them decides where they go (see `generation`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from stratal import nn
from stratal.base.errors import ShapeError
from stratal.tensor.functions.creation import arange
from stratal.tensor.functions.elementwise import cast
from stratal.tensor.functions.shapes import broadcast_to, concat, stack
from stratal.tensor.tensor import Tensor

F = nn.functional


class CausalOutput(NamedTuple):
    """The mean loss of the next tokens where labels are given, logits [N, L, vocab], and, with `use_cache`,
    keys and values of these L tokens [layers, 2, N, heads, L, D].
    """

    loss: Tensor | None
    logits: Tensor
    keys_values: Tensor | None


def past_length(past: Tensor | None) -> Any:
    """Return how many keys there are from earlier calls. Raises: ShapeError unless `past` has six axes."""
    if past is not None and past.ndim != 6:
        raise ShapeError(
            "past: takes keys and values [layers, 2, N, heads, P, D]", got=f"shape {list(past.shape)}"
        )
    return 0 if past is None else past.shape[4]


def checked_tokens(name: str, input_ids: Tensor, most: int | None = None, past: Any = 0) -> Tensor:
    """Return tokens. Raises: ShapeError unless they are integers [N, L], at least one and with those before
    `most` at most.
    """
    if input_ids.ndim != 2 or not input_ids.dtype.is_integer or 0 in input_ids.shape:
        raise ShapeError(f"{name}: takes integers [N, L] with at least one token", got=str(input_ids.type))
    if most is not None and input_ids.shape[1] + past > most:
        raise ShapeError(
            f"{name}: there are positions for {most} tokens", got=f"{past} and {input_ids.shape[1]} new ones"
        )
    return input_ids


def visible_keys(name: str, length: Any, past: Any, attention_mask: Tensor | None) -> Tensor | None:
    """Return which of P + L keys each of L new tokens may see, bool [N or 1, 1, L, P + L].

    None says that causality decides alone. A token always sees itself: without any key, attention is NaN, and
    the NaN of a padded place would reach the others.
    """
    if attention_mask is None and (past == 0 or length == 1):
        return None
    columns, rows = arange(past + length), arange(length).reshape((-1, 1)) + past
    causal = columns <= rows
    if attention_mask is None:
        return causal.reshape((1, 1, length, past + length))
    if attention_mask.ndim != 2 or attention_mask.shape[1] != past + length:
        raise ShapeError(
            f"{name}: attention_mask says for each earlier and each new token whether it counts",
            got=f"shape {list(attention_mask.shape)} for {past} and {length} tokens",
        )
    counts = cast(attention_mask, "bool").reshape((attention_mask.shape[0], 1, 1, past + length))
    return (causal & counts) | (columns == rows)


def run_layers(
    layers: Iterable[nn.Module], x: Tensor, past: Tensor | None, *given: Any
) -> tuple[Tensor, Tensor]:
    """Return what the last layer gives, and the keys and values of all; a layer takes x, what is `given`, and
    its earlier keys and values.
    """
    kept = []
    for k, layer in enumerate(layers):
        x, keys_values = layer(x, *given, None if past is None else past[k])
        kept.append(keys_values)
    return x, stack(kept)


def attend(
    query: Tensor, key: Tensor, value: Tensor, past: Tensor | None, visible: Tensor | None,
    dropout: float = 0.0
) -> Tensor:
    """Return attention of new tokens to earlier ones (`past` [2, N, heads, P, D]) and to themselves.

    Heads of keys and values may be fewer: each then serves a group of neighbouring query heads (Ainslie et
    al. 2023). Shapes: query [N, H, L, D], key and value [N, K, L, D] -> [N, L, H * D].
    """
    n, heads, length, width = query.shape
    causal = visible is None and past is None
    if past is not None:
        key, value = concat([past[0], key], axis=2), concat([past[1], value], axis=2)
    groups = heads // key.shape[1]
    if groups > 1 and causal:
        key, value = _repeated(key, groups), _repeated(value, groups)
    elif groups > 1:  # a group as more queries of one head: no key is copied
        query = query.reshape((n, heads // groups, groups * length, width))
        visible = None if visible is None else _tiled(visible, groups)
    out = F.scaled_dot_product_attention(query, key, value, visible, dropout, causal)
    out = out.reshape((n, heads, length, width)).permute(0, 2, 1, 3)
    return out.reshape((n, length, heads * width))


def _tiled(visible: Tensor, times: int) -> Tensor:
    """Return a mask [N, 1, L, S] for the same queries several times, [N, 1, times * L, S]."""
    n, _, length, keys = visible.shape
    wide = broadcast_to(visible.reshape((n, 1, 1, length, keys)), (n, 1, times, length, keys))
    return wide.reshape((n, 1, times * length, keys))


def _repeated(x: Tensor, times: int) -> Tensor:
    """Return every head `times` times, side by side."""
    n, heads, length, width = x.shape
    wide = broadcast_to(x.reshape((n, heads, 1, length, width)), (n, heads, times, length, width))
    return wide.reshape((n, heads * times, length, width))


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Return [N, heads, L, D] of [N, L, heads * D]. Raises: ShapeError unless heads divide the features."""
    n, length, width = x.shape
    if heads < 1 or int(width) % heads:
        raise ShapeError("attention: the number of heads divides the features", got=f"{heads} for {width}")
    return x.reshape((n, length, heads, width // heads)).permute(0, 2, 1, 3)


def next_token_loss(logits: Tensor, labels: Tensor | None) -> Tensor | None:
    """Return the mean cross-entropy of each label after the tokens before it; labels of -100 do not count."""
    if labels is None:
        return None
    return F.cross_entropy(logits[:, :-1].reshape((-1, logits.shape[-1])), labels[:, 1:].reshape((-1,)))
