"""What reductions share: their type rule, their tensor expression, their samples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from stratal.base.cost import Cost
from stratal.base.dims import upper_bound
from stratal.base.dtypes import DType, bool_, float32
from stratal.base.errors import AttributeValueError
from stratal.base.lowered import Lowered
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Reject, Sample
from stratal.loops.compute import Compute, arguments, fresh_axes
from stratal.loops.expr import cast
from stratal.ops.families import RowWise, check_kind

CASES: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((4,), (0,)), ((2, 3), (0,)), ((2, 3), (1,)), ((2, 3, 4), (0, 2)), ((2, 3, 4), (1,)), ((2, 3), (0, 1)),
    ((2, 3), ()), ((3, 0), (0,)), ((1, 5, 1), (0, 2)), ((40, 33), (1,)), ((33, 40), (0,)),
)  # fmt: skip
"""Shapes and axes: leading, trailing, middle, all and no axes, with zero-size and size-1 axes."""


def check_axes(name: str, axes: Sequence[int], ndim: int) -> None:
    """Axes of a record are distinct and in [0, ndim): negative ones are the user interface's affair."""
    for axis in axes:
        if not 0 <= axis < ndim:
            raise AttributeValueError(f"{name}: axis out of range", got=f"axis {axis} of {ndim} dimensions")
    if len(set(axes)) != len(axes):
        raise AttributeValueError(f"{name}: an axis is named twice", got=str(tuple(axes)))


def kept(type_: TensorType, axes: Sequence[int]) -> tuple[int, ...]:
    """Return the axes that remain."""
    return tuple(a for a in range(type_.ndim) if a not in axes)


def reduced_type(name: str, type_: TensorType, axes: Sequence[int], dtype: DType | None = None) -> TensorType:
    check_axes(name, axes, type_.ndim)
    return TensorType(dtype or type_.dtype, (type_.shape[a] for a in kept(type_, axes)))


@dataclass(frozen=True, repr=False)
class Reduction(RowWise):
    """Combines the elements along `axes`, which vanish, in the compute dtype.

    A record names its `combiner` (`loops/compute.py`), the kinds of dtypes it takes and those of its samples.
    """

    axes: tuple[int, ...]
    arity = 1
    kinds: ClassVar[str]
    combiner: ClassVar[str]
    dtypes: ClassVar[tuple[DType, ...]]

    def infer(self, *types: TensorType) -> TensorType:
        check_kind(self.name, types[0].dtype, self.kinds)
        return reduced_type(self.name, types[0], self.axes)

    def cost(self, *types: TensorType) -> Cost:
        """One operation per element that is reduced."""
        return super().cost(*types)._replace(flops=float(upper_bound(types[0].size)))

    def lower(self, *types: TensorType) -> Lowered:
        """Return `out[kept] = combine over axes of x`."""
        (type_,) = types
        (x,) = arguments(type_)
        variables = fresh_axes(type_.ints)
        term = cast(x[tuple(variables)], type_.dtype.compute)
        remaining, reduced = ([variables[a] for a in some] for some in (kept(type_, self.axes), self.axes))
        return Compute((x,), remaining, type_.dtype, term, reduce=reduced, combiner=self.combiner)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in cls.dtypes:
            for shape, axes in CASES:
                yield Sample(cls(axes), (TensorType(dtype, shape),), smooth=not cls.not_differentiable)

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        x, refused = TensorType(cls.dtypes[0], (2, 3)), float32 if cls.kinds == "b" else bool_
        yield Reject(cls((2,)), (x,), "axis")
        yield Reject(cls((0, 0)), (x,), "twice")
        yield Reject(cls((0,)), (x.with_dtype(refused),), "takes")


def spread(b: Builder, x: Node, like: Node, axes: Sequence[int]) -> Node:
    """Broadcast a reduction over `axes` back to the shape it was reduced from."""
    return b.broadcast(x, shape=like.shape, axes=kept(like.aval, axes))


def shifted(b: Builder, x: Node, axis: int, fill: float, *, later: bool) -> Node:
    """Return `x` moved by one place along an axis, to later places or to earlier ones; `fill` comes in."""
    ndim, n = x.aval.ndim, x.shape[axis]
    start, stop, low, high = [0] * ndim, list(x.shape), [0] * ndim, [0] * ndim
    if later:
        stop[axis], low[axis] = n - 1, 1
    else:
        start[axis], high[axis] = 1, 1
    cut = b.slice(x, start=tuple(start), stop=tuple(stop), step=(1,) * ndim)
    value = b.const(fill, x.dtype)
    return b.pad(cut, value, low=tuple(low), high=tuple(high), interior=(0,) * ndim)
