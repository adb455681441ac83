"""Counter-based random bits: each element a function of the key and of its own logical index."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from stratal.base.dims import Shape, as_int, product
from stratal.base.dtypes import DType, float32, int64, uint32, uint64
from stratal.base.errors import DTypeError, ShapeError
from stratal.base.lowered import Lowered
from stratal.base.types import TensorType
from stratal.graph.op import Array, Op, Reject, Sample, record
from stratal.loops.compute import Compute, arguments
from stratal.loops.compute import axes as fresh_axes
from stratal.loops.index import flatten
from stratal.loops.philox import philox_bits, random_bits


@record
class RandomBits(Op):
    """Random uint32 or uint64 of `shape` from a uint64 key: Philox4x32-10 at each element's row-major index.

    The same key and index give the same bits on every machine, for every tiling and number of threads.
    See: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011).
    """

    shape: Shape
    dtype: DType = uint32
    name = "random_bits"
    arity = 1
    dim_attributes = ("shape",)
    not_differentiable = "random bits do not depend smoothly on their key"

    def infer(self, *types: TensorType) -> TensorType:
        if types[0] != TensorType(uint64):
            raise ShapeError("random_bits: the key is a uint64 scalar", got=str(types[0]))
        if self.dtype not in (uint32, uint64):
            raise DTypeError("random_bits: gives uint32 or uint64", got=str(self.dtype))
        if any(isinstance(n, int) and n < 0 for n in self.shape):
            raise ShapeError("random_bits: a size is negative", got=str(self.shape))
        return TensorType(self.dtype, self.shape)

    def ref(self, *arrays: Array) -> Array:
        shape = tuple(map(as_int, self.shape))
        indices = np.arange(as_int(product(shape)), dtype=np.int64).reshape(shape)
        return np.asarray(philox_bits(int(arrays[0]), indices, self.dtype)).reshape(shape)

    def lower(self, *types: TensorType) -> Lowered:
        (key,) = arguments(*types)
        out = fresh_axes(TensorType(self.dtype, self.shape).ints)
        bits = random_bits(key[()], flatten(tuple(out), tuple(v.extent for v in out)), self.dtype)
        return Compute((key,), out, self.dtype, bits)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        def key(rng: np.random.Generator) -> Sequence[Array]:
            return [rng.integers(0, 1 << 64, (), np.uint64)]

        for dtype in (uint32, uint64):
            for shape in ((), (5,), (3, 4), (0, 2), (1, 1, 7)):
                yield Sample(cls(shape, dtype), (TensorType(uint64),), draw=key, smooth=False)

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls((2,)), (TensorType(int64),), "key")
        yield Reject(cls((2,)), (TensorType(uint64, (2,)),), "key")
        yield Reject(cls((2,), float32), (TensorType(uint64),), "uint32 or uint64")
        yield Reject(cls((-2,)), (TensorType(uint64),), "negative")
