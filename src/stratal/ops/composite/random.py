"""Random tensors from keys. A key is a uint64 scalar; equal keys give equal tensors, so use each key once."""

from __future__ import annotations

import math

from stratal.base.dims import Shape
from stratal.base.dtypes import (
    DType,
    as_element,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int64,
    uint32,
    uint64,
)
from stratal.base.errors import AttributeValueError, DTypeError, ShapeError
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.ops.composite.family import cast_to, check_float, named, scaled

# Keys made from keys have their own Philox keys: they never repeat the bits of a tensor drawn with the key.
_SPLIT = 0x9E3779B97F4A7C15
_FOLD = 0xD1B54A32D192ED03
_SECOND = 0x8CB92BA72F3D8DD7


def _other_key(b: Builder, key: Node, salt: int) -> Node:
    return b.op("xor", key, b.const(salt, uint64))


@named
def random_split(b: Builder, key: Node, *, count: int = 2) -> Node:
    """Return `count` keys, independent of each other and of `key`."""
    return b.op("random_bits", _other_key(b, key, _SPLIT), shape=(count,), dtype=uint64)


@named
def random_fold_in(b: Builder, key: Node, number: Node) -> Node:
    """Return a key that depends on `key` and on an integer scalar, such as the number of a step or layer."""
    hashed = b.random_bits(_other_key(b, key, _FOLD), shape=(), dtype=uint64)
    return b.op("random_bits", b.xor(hashed, cast_to(b, number, uint64)), shape=(), dtype=uint64)


def _unit(b: Builder, bits: Node, dtype: DType, odd: bool = False) -> Node:
    """Return the upper bits as multiples of 2**-digits in [0, 1), or in (0, 1] with `odd`."""
    digits = {float64: 53, float32: 24, float16: 11, bfloat16: 8}[dtype]
    width = bits.dtype.bits
    whole = b.shr(bits, b.like(bits, width - digits))
    if odd:
        whole = b.add(whole, b.like(whole, 1))
    return scaled(b, b.cast(whole, dtype=dtype), 2.0**-digits)


@named
def random_uniform(b: Builder, key: Node, *, shape: Shape, dtype: DType = float32) -> Node:
    """Return floats uniform in [0, 1): multiples of 2**-24 in float32, of 2**-53 in float64."""
    _check("random_uniform", dtype)
    return _unit(b, b.random_bits(key, shape=shape, dtype=uint64 if dtype is float64 else uint32), dtype)


@named
def random_normal(b: Builder, key: Node, *, shape: Shape, dtype: DType = float32) -> Node:
    """Return floats of the standard normal distribution, of two uniform ones each (Box, Muller, 1958)."""
    _check("random_normal", dtype)
    if dtype is float64:
        first = b.random_bits(key, shape=shape, dtype=uint64)
        second = b.random_bits(_other_key(b, key, _SECOND), shape=shape, dtype=uint64)
    else:
        both = b.random_bits(key, shape=shape, dtype=uint64)
        first, second = b.cast(both, dtype=uint32), b.cast(b.shr(both, b.like(both, 32)), dtype=uint32)
    radius = b.sqrt(scaled(b, b.log(_unit(b, first, dtype.compute, odd=True)), -2.0))
    angle = scaled(b, _unit(b, second, dtype.compute), 2 * math.pi)
    return cast_to(b, b.mul(radius, b.cos(angle)), dtype)


@named
def random_bernoulli(b: Builder, key: Node, part: Node | None = None, *, p: float, shape: Shape) -> Node:
    """Return bools that hold with probability `p`, to 2**-32.

    `part`, int64[]: the number of this tensor among tensors of its shape that are drawn as one, along axis 0.
    """
    if not 0 <= p <= 1:
        raise AttributeValueError("random_bernoulli: p lies in [0, 1]", got=str(p))
    threshold = round(p * 2**32)
    if threshold >= 2**32:
        return b.full(TensorType(bool_, shape), True)
    indices = [] if part is None else [_indices(b, part, shape)]
    bits = b.random_bits(key, *indices, shape=shape, dtype=uint32)
    return b.op("lt", bits, b.like(bits, threshold))


def _indices(b: Builder, part: Node, shape: Shape) -> Node:
    """Return the row-major indices of elements of part number `part`, in all parts one after another."""
    sizes = [n for n in shape if isinstance(n, int)]
    if len(sizes) < len(shape):
        raise ShapeError("random_bernoulli: a part of a larger tensor has known sizes", got=str(shape))
    count = math.prod(sizes)
    own = b.op("reshape", b.op("iota", shape=(count,), axis=0, dtype=int64), shape=shape)
    first = b.mul(part, b.const(count, int64))
    return b.add(own, b.op("broadcast", first, shape=shape, axes=()) if shape else first)


@named
def random_integers(
    b: Builder, key: Node, *, low: int, high: int, shape: Shape, dtype: DType = int64
) -> Node:
    """Return integers in [low, high), uniform up to 2**-64 * (high - low)."""
    if low >= high or not dtype.is_integer:
        raise AttributeValueError("random_integers: takes low < high and an integer dtype",
                                  got=f"[{low}, {high}) of {dtype}")  # fmt: skip
    bits = b.random_bits(key, shape=shape, dtype=uint64)
    for bound in (low, high - 1):
        as_element("random_integers", bound, dtype)
    picked = bits if high - low == 1 << 64 else b.rem(bits, b.like(bits, high - low))
    return cast_to(b, b.add(picked, b.like(picked, low % (1 << 64))), dtype)


@named
def random_permutation(b: Builder, key: Node, *, size: int) -> Node:
    """Return 0 .. size-1 in random order, int64: the order that sorts random numbers."""
    bits = b.random_bits(key, shape=(size,), dtype=uint64)
    return b.item(b.sort(bits, axis=0, descending=False), 1)


@named
def dropout(b: Builder, x: Node, key: Node, part: Node | None = None, *, p: float) -> Node:
    """Return x / (1 - p) with each element zeroed with probability `p` (Srivastava et al., 2014).

    `part`: as of `random_bernoulli`; x is that part of a batch.
    """
    check_float("dropout", x)
    if not 0 <= p <= 1:
        raise AttributeValueError("dropout: p lies in [0, 1]", got=str(p))
    if p == 0:
        return x
    if p == 1:  # a function of x still: its gradient is zeros, not missing
        return b.op("select", b.full(TensorType(bool_, x.shape), False), x, b.like(x, 0))
    rest = [] if part is None else [part]
    keep = b.random_bernoulli(key, *rest, p=1 - p, shape=x.shape)
    return b.op("select", keep, scaled(b, x, 1 / (1 - p)), b.like(x, 0))


def _check(name: str, dtype: DType) -> None:
    if not dtype.is_float:
        raise DTypeError(f"{name}: gives floats", got=str(dtype))
