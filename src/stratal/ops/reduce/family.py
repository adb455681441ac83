"""What reductions share: their type rule, their tensor expression, their samples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from stratal.base.cost import Cost
from stratal.base.dims import upper_bound
from stratal.base.dtypes import DType
from stratal.base.errors import AttributeValueError
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Op, Sample
from stratal.loops.compute import Compute, arguments
from stratal.loops.compute import axes as fresh_axes
from stratal.loops.expr import cast


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


def widened(x: Array) -> Array:
    """Return 16-bit floats as float32: reductions round once, at the end."""
    return x.astype(np.float32) if x.dtype.itemsize == 2 and x.dtype.kind not in "iu" else x


def reduction(combiner: str, type_: TensorType, axes: Sequence[int]) -> Compute:
    """Return `out[kept] = combine over axes of x`, in the compute dtype."""
    (x,) = arguments(type_)
    variables = fresh_axes(type_.ints)
    term = cast(x[tuple(variables)], type_.dtype.compute)
    return Compute(
        (x,),
        [variables[a] for a in kept(type_, axes)],
        type_.dtype,
        term,
        reduce=[variables[a] for a in axes],
        combiner=combiner,
    )


def reduction_cost(types: Sequence[TensorType], out: TensorType) -> Cost:
    """Return one operation per element that is reduced."""
    size = float(sum(upper_bound(t.size) for t in types))
    return Cost(size, float(sum(t.nbytes for t in types)), float(out.nbytes))


def reduction_samples(cls: type[Op], dtypes: Iterable[DType]) -> Iterable[Sample]:
    """Yield calls over leading, trailing, middle, all and no axes, with zero-size and size-1 axes."""
    for dtype in dtypes:
        for shape, axes in (
            ((4,), (0,)), ((2, 3), (0,)), ((2, 3), (1,)), ((2, 3, 4), (0, 2)), ((2, 3, 4), (1,)),
            ((2, 3), (0, 1)),
            ((2, 3), ()), ((3, 0), (0,)), ((1, 5, 1), (0, 2)), ((40, 33), (1,)), ((33, 40), (0,)),
        ):  # fmt: skip
            yield Sample(cls(axes), (TensorType(dtype, shape),))  # type: ignore[call-arg]


def spread(b: Builder, x: Node, type_: TensorType, axes: Sequence[int]) -> Node:
    """Broadcast a reduction over `axes` back to the type it was reduced from."""
    result: Node = b.broadcast(x, shape=type_.shape, axes=kept(type_, axes))
    return result
