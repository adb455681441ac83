"""Positions as vectors: waves added to tokens, and rotations of queries and keys."""

from __future__ import annotations

from typing import Any

from stratal.base.dtypes import as_dtype
from stratal.base.errors import AttributeValueError, DTypeError, ShapeError
from stratal.tensor.functions.creation import arange
from stratal.tensor.functions.elementwise import FUNCTIONS, cast
from stratal.tensor.functions.shapes import concat, stack
from stratal.tensor.tensor import Tensor


def _angles(positions: Tensor, dim: int, base: float, dtype: Any) -> Tensor:
    """Return position / base^(2 k / dim) for every pair k of features: [..., dim / 2]."""
    pairs = cast(arange(dim // 2), dtype)
    rates = FUNCTIONS["exp"](pairs * (-2 / dim) * FUNCTIONS["log"](cast(arange(1), dtype) + base))
    return cast(positions, dtype).reshape((*positions.shape, 1)) * rates


def sinusoidal_positions(
    length: int, dim: int, base: float = 10000.0, *, offset: Any = 0, dtype: Any = None
) -> Tensor:
    """Return the sinusoidal vectors of the positions offset, offset + 1, ...: [length, dim].

    Feature 2 k of position p is sin(p / base^(2 k / dim)), feature 2 k + 1 the cosine of the same.
    See: Vaswani et al. 2017, section 3.5.
    """
    _even("sinusoidal_positions", dim)
    target = as_dtype(dtype or float)
    angles = _angles(arange(length) + offset, dim, base, target.compute)
    waves = stack([FUNCTIONS["sin"](angles), FUNCTIONS["cos"](angles)], axis=-1)
    return cast(waves.reshape((length, dim)), target)


def rotary_embedding(
    input: Tensor,
    positions: Any = None,
    dim: int | None = None,
    base: float = 10000.0,
    interleaved: bool = True,
) -> Tensor:
    """Rotate pairs of features of queries or keys by angles in proportion to their position.

    Pair k turns by position / base^(2 k / dim), so that products of a query and a key depend on how far apart
    they are, not on where. Pairs are neighbours (2 k, 2 k + 1), as in the paper, or, without `interleaved`,
    (k, k + dim / 2), as in GPT-NeoX and Llama. Only the first `dim` features turn; unless given, all do.
    Positions are 0, 1, ... along axis -2, or an offset, or integers [..., L] that broadcast.
    Shapes: [..., L, D] -> [..., L, D]. See: Su et al. 2021 (RoFormer), equation 34.
    """
    if input.ndim < 2 or not input.dtype.is_float:
        raise ShapeError("rotary_embedding: takes floats [..., L, D]", got=str(input.type))
    width = int(input.shape[-1])
    size = width if dim is None else dim
    _even("rotary_embedding", size)
    if size > width:
        raise AttributeValueError("rotary_embedding: dim is at most the features", got=f"{size} of {width}")
    length = input.shape[-2]
    where_at = arange(length) if positions is None else positions
    if isinstance(where_at, int) or (isinstance(where_at, Tensor) and where_at.ndim == 0):
        where_at = arange(length) + where_at
    if not isinstance(where_at, Tensor) or not where_at.dtype.is_integer:
        raise DTypeError("rotary_embedding: positions are an int or a tensor of integers", got=str(where_at))
    x = cast(input, input.dtype.compute)
    turned = x[..., :size]
    angles = _angles(where_at, size, base, x.dtype)
    sine, cosine = FUNCTIONS["sin"](angles), FUNCTIONS["cos"](angles)
    if interleaved:
        first, second = turned[..., ::2], turned[..., 1::2]
    else:
        first, second = turned[..., : size // 2], turned[..., size // 2 :]
    parts = [first * cosine - second * sine, second * cosine + first * sine]
    joined = stack(parts, axis=-1).reshape(turned.shape) if interleaved else concat(parts, axis=-1)
    whole = joined if size == width else concat([joined, x[..., size:]], axis=-1)
    return cast(whole, input.dtype)


def _even(name: str, dim: int) -> None:
    if dim < 2 or dim % 2:
        raise AttributeValueError(f"{name}: features come in pairs", got=f"dim {dim}")
