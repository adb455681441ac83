"""Unsigned integers in the order of elements: what sorting and selecting compare.

NaN is the greatest. Where places go along, -0 and 0 have one key, since they are equal and keep their order;
where values alone are sorted every key gives its element back, so -0 lies below 0.
"""

from __future__ import annotations

import numpy as np

from stratal.base.dtypes import DType, uint8, uint16, uint32, uint64
from stratal.graph.op import Array
from stratal.loops.expr import Expr, call, cast, const

BY_BITS = {8: uint8, 16: uint16, 32: uint32, 64: uint64}


def key_dtype(dtype: DType) -> DType:
    """Return the unsigned integers as wide as elements are; a byte for bool."""
    return BY_BITS[max(dtype.bits, 8)]


def key_of(x: Expr, descending: bool, exact: bool) -> Expr:
    """Return the key of an element. `exact` keys tell -0 from 0."""
    dtype = key_dtype(x.dtype)
    if x.dtype.is_float:
        key = _float_key(x, dtype, exact)
    elif x.dtype.kind == "i":
        key = call("xor", call("bitcast", x, dtype=dtype), _top(dtype))
    else:
        key = cast(x, dtype)
    return call("not", key) if descending else key


def _float_key(x: Expr, dtype: DType, exact: bool) -> Expr:
    """Return the bits of a float: all of them turned over if it is negative, else the sign alone."""
    bits, wide = call("bitcast", x, dtype=dtype), cast(x, x.dtype.compute)
    if not exact:
        bits = call("select", call("eq", wide, const(0, wide.dtype)), const(0, dtype), bits)
    turned = call("select", call("ge", bits, _top(dtype)), call("not", bits), call("xor", bits, _top(dtype)))
    return call("select", call("ne", wide, wide), _ones(dtype), turned)


def element_of(key: Expr, dtype: DType, descending: bool) -> Expr:
    """Return the element an exact key was made of; NaN for that of NaN."""
    key = call("not", key) if descending else key
    if dtype.is_float:
        turned = call("xor", key, _top(key.dtype))
        bits = call("select", call("ge", key, _top(key.dtype)), turned, call("not", key))
        return call("bitcast", bits, dtype=dtype)
    if dtype.kind == "i":
        return call("bitcast", call("xor", key, _top(key.dtype)), dtype=dtype)
    return cast(key, dtype)


def _top(dtype: DType) -> Expr:
    return const(1 << (dtype.bits - 1), dtype)


def _ones(dtype: DType) -> Expr:
    return const((1 << dtype.bits) - 1, dtype)


def keys_of(x: Array, descending: bool) -> Array:
    """Return the keys of an array's elements, -0 equal to 0: the same with NumPy."""
    if x.dtype.kind not in "iub":
        x = x.astype(np.float32) if x.dtype.itemsize == 2 else x  # floats NumPy may know no order of
        unsigned = np.dtype(f"u{x.dtype.itemsize}")
        top, ones = unsigned.type(1 << (8 * unsigned.itemsize - 1)), unsigned.type(~unsigned.type(0))
        bits = (x + x.dtype.type(0)).view(unsigned)  # -0 becomes 0
        key = np.where(x != x, ones, np.where(bits >= top, ~bits, bits ^ top))
    elif x.dtype.kind == "i":
        unsigned = np.dtype(f"u{x.dtype.itemsize}")
        key = x.view(unsigned) ^ unsigned.type(1 << (8 * unsigned.itemsize - 1))
    else:
        key = x.astype(np.uint8) if x.dtype.kind == "b" else x
    return np.asarray(~key if descending else key)
