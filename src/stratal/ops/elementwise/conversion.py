"""Cast and bitcast: the same value, or the same bits, in another dtype; select: one of two values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from stratal.base.dtypes import ALL, DType, as_dtype, bool_, complex64, float32, float64, uint8, uint32
from stratal.base.errors import DTypeError, ShapeError
from stratal.base.lowered import Lowered
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Reject, Sample, record
from stratal.loops.compute import pointwise
from stratal.loops.expr import call, cast
from stratal.ops.families import SAMPLE_SHAPES, RowWise, same_types


@record
class Cast(RowWise):
    """x as `dtype`: floats round to nearest, integers wrap, to bool is `x != 0`.

    Float to integer truncates and saturates; NaN gives 0. Complex to real is refused: `real` says which part.
    """

    dtype: DType
    arity = 1
    pointwise = True
    exact = "buif"

    def infer(self, *types: TensorType) -> TensorType:
        if types[0].dtype.is_complex and not self.dtype.is_complex:
            raise DTypeError("cast: complex does not convert to real", got=f"{types[0]} to {self.dtype}",
                             hint="real(x), imag(x) or abs(x)")  # fmt: skip
        return types[0].with_dtype(self.dtype)

    def ref(self, *arrays: Array) -> Array:
        x = arrays[0]
        if as_dtype(x.dtype).is_float and self.dtype.is_integer:
            return _saturated(x.astype(np.float64), self.dtype)
        if self.dtype.is_bool:
            return np.asarray(x != 0)
        return x.astype(self.dtype.np)

    def lower(self, *types: TensorType) -> Lowered:
        return pointwise(types, self.dtype, lambda x: cast(x, self.dtype))

    def in_reals(self, b: Builder, *inputs: Node) -> Node | None:
        (x,) = inputs
        part = self.dtype.real
        parts = (b.real(x), b.imag(x)) if x.dtype.is_complex else (x, b.like(x, 0))
        return b.complex(*(b.cast(v, dtype=part) for v in parts))

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        x = inputs[0]
        if not x.dtype.is_inexact or not self.dtype.is_inexact:
            return [None]
        if self.dtype.is_complex and not x.dtype.is_complex:
            ct = b.real(ct)
        return [ct if ct.dtype is x.dtype else b.cast(ct, dtype=x.dtype)]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Node | None:
        tangent = tangents[0]
        return None if tangent is None or not self.dtype.is_inexact else b.cast(tangent, dtype=self.dtype)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for source in ALL:
            for target in ALL:
                if not source.is_complex or target.is_complex:
                    yield Sample(
                        cls(target), (TensorType(source, (2, 5)),), (-9.0, 9.0), smooth=target.is_inexact
                    )
        for shape in SAMPLE_SHAPES:
            yield Sample(cls(float64), (TensorType(float32, shape),))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls(float32), (TensorType(complex64, (2,)),), "complex")
        yield Reject(cls(bool_), (TensorType(complex64, (2,)),), "complex")


def _saturated(x: Array, dtype: DType) -> Array:
    """Return float64 values truncated to an integer dtype; out of range, its nearest value."""
    bounds = np.iinfo(dtype.np)
    step = 0 if dtype.bits == 64 else 1  # 2**63 - 1 rounds up already
    low, high = float(bounds.min), float(bounds.max) + step
    inside = (x > low - step) & (x < high)
    whole = np.where(inside, x, 0).astype(dtype.np)
    whole = np.where(x >= high, dtype.np.type(bounds.max), whole)
    return np.asarray(np.where(x <= low, dtype.np.type(bounds.min), whole))


@record
class Bitcast(RowWise):
    """The bits of x read as `dtype`, which has the same width."""

    dtype: DType
    arity = 1
    pointwise = True
    exact = "uif"
    not_differentiable = "the bits of a number are not a smooth function of it"

    def infer(self, *types: TensorType) -> TensorType:
        source = types[0].dtype
        for dtype in (source, self.dtype):
            if dtype.is_bool or dtype.is_complex:
                raise DTypeError("bitcast: takes integers and real floats", got=f"{types[0]} to {self.dtype}")
        if source.bits != self.dtype.bits:
            raise DTypeError("bitcast: dtypes differ in width", got=f"{types[0]} to {self.dtype}",
                             hint="cast converts values")  # fmt: skip
        return types[0].with_dtype(self.dtype)

    def ref(self, *arrays: Array) -> Array:
        x = np.array(arrays[0], order="C", copy=True)
        return x.view(self.dtype.np)

    def lower(self, *types: TensorType) -> Lowered:
        return pointwise(types, self.dtype, lambda x: call("bitcast", x, dtype=self.dtype))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        numbers = [d for d in ALL if not (d.is_bool or d.is_complex)]
        for source in numbers:
            for target in numbers:
                if source.bits == target.bits:
                    yield Sample(cls(target), (TensorType(source, (2, 5)),), smooth=False)
        for shape in SAMPLE_SHAPES:
            yield Sample(cls(uint32), (TensorType(float32, shape),), smooth=False)

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls(uint32), (TensorType(float64, (2,)),), "width")
        yield Reject(cls(uint8), (TensorType(bool_, (2,)),), "takes")


# -- one of two values ---------------------------------------------------------------------------------------
@record
class Select(RowWise):
    """x where `condition` holds, else y. Both are computed, so hide a bad operand before it, not with it."""

    arity = 3
    pointwise = True
    by_parts = True
    exact = "buif"

    def infer(self, *types: TensorType) -> TensorType:
        condition, x, y = types
        if not condition.dtype.is_bool:
            raise DTypeError("select: the condition must be bool", got=str(condition), hint="compare with 0")
        same_types(self.name, (x, y))
        if condition.shape != x.shape:
            raise ShapeError("select: condition and values differ in shape", got=f"{condition}, {x}, {y}")
        return x

    def ref(self, *arrays: Array) -> Array:
        condition, x, y = arrays
        return np.asarray(np.where(condition, x, y)).astype(x.dtype, copy=False)

    def lower(self, *types: TensorType) -> Lowered:
        return pointwise(types, types[1].dtype, lambda c, x, y: call("select", c, x, y))

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        zero = b.like(ct, 0)
        by_x = b.select(inputs[0], ct, zero) if b.needed(1) else None
        by_y = b.select(inputs[0], zero, ct) if b.needed(2) else None
        return [None, by_x, by_y]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Node | None:
        _, x, y = tangents
        if x is None and y is None:
            return None
        zero = b.like(out, 0)
        return b.select(inputs[0], zero if x is None else x, zero if y is None else y)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in ALL:
            for shape in SAMPLE_SHAPES if dtype in (float32, float64) else SAMPLE_SHAPES[:1]:
                yield Sample(cls(), (TensorType(bool_, shape), *(TensorType(dtype, shape),) * 2))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        x = TensorType(float32, (2,))
        yield Reject(cls(), (x, x, x), "bool")
        yield Reject(cls(), (TensorType(bool_, (3,)), x, x), "shape")
        yield Reject(cls(), (TensorType(bool_, (2,)), x, TensorType(float64, (2,))), "dtype")
