"""Tensors made of nothing: positions, random bits, sizes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from stratal.base.dims import Dim, Shape, as_int, product
from stratal.base.dtypes import DType, bool_, float16, float32, int8, int32, int64, uint8, uint32, uint64
from stratal.base.errors import AttributeValueError, DTypeError, ShapeError
from stratal.base.lowered import Lowered
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Draw, Op, Reject, Sample, record
from stratal.loops.compute import Compute, arguments, fresh_axes
from stratal.loops.expr import cast, const
from stratal.loops.index import flatten
from stratal.loops.philox import philox_bits, random_bits
from stratal.ops.families import RowWise, check_axis, with_axis


@record
class Iota(Op):
    """0, 1, 2, ... along `axis` of `shape`, the same along the others; integers wrap, floats round."""

    shape: Shape
    axis: int
    dtype: DType
    arity = 0
    exact = "uif"
    dim_attributes = ("shape",)
    not_differentiable = "it depends on no input"
    not_batched = "it depends on no input"

    def infer(self, *types: TensorType) -> TensorType:
        if not 0 <= self.axis < len(self.shape):
            raise AttributeValueError(
                "iota: axis out of range", got=f"axis {self.axis} of {len(self.shape)} dimensions"
            )
        if any(isinstance(n, int) and n < 0 for n in self.shape):
            raise ShapeError("iota: a size is negative", got=str(self.shape))
        if self.dtype.is_bool or self.dtype.is_complex:
            raise DTypeError("iota: takes unsigned, signed, float", got=str(self.dtype))
        return TensorType(self.dtype, self.shape)

    def ref(self, *arrays: Array) -> Array:
        shape = tuple(int(n) for n in self.shape)
        count = np.arange(shape[self.axis], dtype=np.int64).astype(self.dtype.np)
        column = count.reshape([-1 if k == self.axis else 1 for k in range(len(shape))])
        return np.broadcast_to(column, shape)

    def lower(self, *types: TensorType) -> Lowered:
        out = fresh_axes(self.infer().ints)
        return Compute((), out, self.dtype, cast(out[self.axis], self.dtype))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in (int64, int32, float32, float16, uint8, int8):
            for shape, axis in (
                ((5,), 0), ((2, 3), 0), ((2, 3), 1), ((0, 4), 1), ((1, 3, 1), 1), ((300,), 0),
            ):  # fmt: skip
                yield Sample(cls(shape, axis, dtype), (), smooth=False)

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls((2,), 1, int64), (), "axis")
        yield Reject(cls((-2,), 0, int64), (), "negative")
        yield Reject(cls((2,), 0, bool_), (), "takes")


@record
class RandomBits(Op):
    """Random uint32 or uint64 of `shape` from a uint64 key: Philox4x32-10 at each element's row-major index.

    Of keys [k...] it gives [k..., *shape]: what each of them gives alone. A second operand, int64[*shape],
    has other indices for the elements. The same key and index give the same bits on every machine, for every
    tiling and number of threads.
    See: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011).
    """

    shape: Shape
    dtype: DType = uint32
    name = "random_bits"
    dim_attributes = ("shape",)
    not_differentiable = "random bits do not depend smoothly on their key"

    def check_arity(self, count: int) -> None:
        if count not in (1, 2):
            raise ShapeError("random_bits: takes keys and perhaps indices", got=f"{count} operands")

    def infer(self, *types: TensorType) -> TensorType:
        if types[0].dtype is not uint64:
            raise DTypeError("random_bits: a key is uint64", got=str(types[0]))
        if len(types) > 1 and types[1] != TensorType(int64, self.shape):
            raise ShapeError("random_bits: takes one int64 index per element", got=str(types[1]))
        if self.dtype not in (uint32, uint64):
            raise DTypeError("random_bits: gives uint32 or uint64", got=str(self.dtype))
        if any(isinstance(n, int) and n < 0 for n in self.shape):
            raise ShapeError("random_bits: a size is negative", got=str(self.shape))
        return TensorType(self.dtype, (*types[0].shape, *self.shape))

    def ref(self, *arrays: Array) -> Array:
        shape = tuple(map(as_int, self.shape))
        indices = arrays[1].ravel() if len(arrays) > 1 else np.arange(as_int(product(shape)), dtype=np.int64)
        bits = [philox_bits(int(key), indices, self.dtype) for key in arrays[0].ravel()]
        return np.asarray(bits, self.dtype.np).reshape((*arrays[0].shape, *shape))

    def lower(self, *types: TensorType) -> Lowered:
        keys, *indices = arguments(*types)
        out = fresh_axes(self.infer(*types).ints)
        which, place = tuple(out[: len(keys.shape)]), tuple(out[len(keys.shape) :])
        element = indices[0][place] if indices else flatten(place, tuple(v.extent for v in place))
        return Compute((keys, *indices), out, self.dtype, random_bits(keys[which], element, self.dtype))

    def batch(self, b: Builder, size: Dim, mapped: Sequence[bool], *inputs: Node) -> Node | None:
        if any(mapped[1:]):
            return None
        return b.op(self.name, *with_axis(b, size, mapped[:1], inputs[:1]), *inputs[1:], **self.attributes)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        def drawn(*keys: int) -> Draw:
            return lambda rng: [rng.integers(0, 1 << 64, keys, np.uint64)]

        for dtype in (uint32, uint64):
            for shape in ((), (5,), (3, 4), (0, 2), (1, 1, 7)):
                yield Sample(cls(shape, dtype), (TensorType(uint64),), draw=drawn(), smooth=False)
            for keys in ((3,), (2, 4), (0,)):
                types = (TensorType(uint64, keys),)
                yield Sample(cls((5, 2), dtype), types, draw=drawn(*keys), smooth=False)
            indexed = (TensorType(uint64, (2,)), TensorType(int64, (3, 4)))
            yield Sample(cls((3, 4), dtype), indexed, draw=_anywhere, smooth=False)

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls((2,)), (TensorType(int64),), "key")
        yield Reject(cls((2,), float32), (TensorType(uint64),), "uint32 or uint64")
        yield Reject(cls((-2,)), (TensorType(uint64),), "negative")
        yield Reject(cls((2,)), (TensorType(uint64), TensorType(int64, (3,))), "one int64 index")


def _anywhere(rng: np.random.Generator) -> list[Array]:
    """Return two keys, and indices beyond 32 bits."""
    return [rng.integers(0, 1 << 64, 2, np.uint64), rng.integers(0, 1 << 40, (3, 4))]


@record
class Size(RowWise):
    """The size of one axis as an int64 scalar: what a graph reads where sizes are known only at run time."""

    axis: int
    arity = 1
    not_differentiable = "a size does not depend on the elements"

    def infer(self, *types: TensorType) -> TensorType:
        check_axis(self.name, types[0], self.axis)
        return TensorType(int64)

    def ref(self, *arrays: Array) -> Array:
        return np.asarray(arrays[0].shape[self.axis], np.int64)

    def lower(self, *types: TensorType) -> Lowered:
        return Compute(arguments(*types), (), int64, const(types[0].ints[self.axis], int64))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in (float32, bool_):
            for shape, axis in (((5,), 0), ((2, 3), 1), ((0, 4), 0)):
                yield Sample(cls(axis), (TensorType(dtype, shape),), smooth=False)

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls(1), (TensorType(float32, (2,)),), "axis")
