"""Philox4x32-10, the counter-based generator behind random bits: as loop-IR expressions and in NumPy.

Element e of a tensor uses the counter (lo32(e), hi32(e), 0, 0), so its bits depend on the key and on its
logical index alone, never on tiles, threads or the order of evaluation.

See: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from stratal.base.dtypes import DType, uint32, uint64
from stratal.base.errors import VerifyError
from stratal.loops.expr import Expr, call, cast, const

Array = np.ndarray[Any, Any]

_MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
_WEYL: Final = (0x9E3779B9, 0xBB67AE85)
_ROUNDS: Final = 10


def _halves(x: Expr) -> tuple[Expr, Expr]:
    """Return the lower and upper 32 bits of a uint64."""
    return cast(x, uint32), cast(call("shr", x, const(32, uint64)), uint32)


def philox4x32(counter: Sequence[Expr], key: tuple[Expr, Expr]) -> tuple[Expr, Expr, Expr, Expr]:
    """Return the four output words for a counter of four uint32 words and a key of two."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    m0, m1 = (const(m, uint32) for m in _MULTIPLIERS)
    for i in range(_ROUNDS):
        if i:
            k0, k1 = call("add", k0, const(_WEYL[0], uint32)), call("add", k1, const(_WEYL[1], uint32))
        high0, low0 = call("mulhi", m0, c0), call("mul", m0, c0)
        high1, low1 = call("mulhi", m1, c2), call("mul", m1, c2)
        c0, c1 = call("xor", call("xor", high1, c1), k0), low1
        c2, c3 = call("xor", call("xor", high0, c3), k1), low0
    return c0, c1, c2, c3


def random_words(key: Expr, element: Expr) -> tuple[Expr, Expr, Expr, Expr]:
    """Return the four uint32 words of logical element `element` (int64) under `key` (uint64)."""
    zero = const(0, uint32)
    low, high = _halves(call("bitcast", element, dtype=uint64))
    return philox4x32((low, high, zero, zero), _halves(key))


def random_bits(key: Expr, element: Expr, dtype: DType) -> Expr:
    """Return an element's random bits: its first word; for uint64 the second is the upper half."""
    words = random_words(key, element)
    if dtype is uint32:
        return words[0]
    if dtype is not uint64:
        raise VerifyError("random bits: are uint32 or uint64", got=str(dtype))
    return call("or", cast(words[0], uint64), call("shl", cast(words[1], uint64), const(32, uint64)))


def philox_words(counter: Array, key: Array) -> Array:
    """Return the output words for counters of shape [..., 4] and keys of shape [..., 2], both uint32."""
    mask, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    c = [counter[..., j].astype(np.uint64) for j in range(4)]
    k = [key[..., j].astype(np.uint64) for j in range(2)]
    m = [np.uint64(x) for x in _MULTIPLIERS]
    for _ in range(_ROUNDS):
        p0, p1 = m[0] * c[0], m[1] * c[2]
        c = [(p1 >> shift) ^ c[1] ^ k[0], p1 & mask, (p0 >> shift) ^ c[3] ^ k[1], p0 & mask]
        k = [(k[j] + np.uint64(_WEYL[j])) & mask for j in range(2)]
    return np.stack(np.broadcast_arrays(*c), axis=-1).astype(np.uint32)


def philox_bits(key: int, indices: Array, dtype: DType) -> Array:
    """Return the random bits of logical elements `indices` under a 64-bit key: the record's reference."""
    if dtype not in (uint32, uint64):
        raise VerifyError("random bits: are uint32 or uint64", got=str(dtype))
    element = np.asarray(indices, np.int64).astype(np.uint64)
    low, high = element & np.uint64(0xFFFFFFFF), element >> np.uint64(32)
    zero = np.zeros_like(low)
    counter = np.stack([low, high, zero, zero], axis=-1).astype(np.uint32)
    words = philox_words(counter, np.asarray([key & 0xFFFFFFFF, (key >> 32) & 0xFFFFFFFF], np.uint32))
    if dtype is uint32:
        return np.ascontiguousarray(words[..., 0])
    return words[..., 0].astype(np.uint64) | words[..., 1].astype(np.uint64) << np.uint64(32)
