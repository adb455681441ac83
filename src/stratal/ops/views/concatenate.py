"""Concatenate: tensors one after another along an axis."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from stratal.base.dims import Dim
from stratal.base.dtypes import bool_, float32, float64, int64
from stratal.base.errors import AttributeValueError, DTypeError, ShapeError
from stratal.base.lowered import Lowered
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Reject, Sample, record
from stratal.loops.compute import Compute, arguments
from stratal.loops.compute import axes as fresh_axes
from stratal.loops.expr import Expr, Var, const, guard
from stratal.loops.index import less, sub
from stratal.ops.families import Movement, over_rows, refuse_host_only


@record
class Concatenate(Movement):
    """Join one or more tensors along `axis`; the other sizes agree."""

    axis: int

    def infer(self, *types: TensorType) -> TensorType:
        if not types:
            raise ShapeError("concatenate: takes at least one operand", got="none")
        first = types[0]
        if not 0 <= self.axis < first.ndim:
            raise AttributeValueError("concatenate: axis out of range", got=f"axis {self.axis} of {first}")
        total: Dim = 0
        for x in types:
            if x.dtype is not first.dtype:
                raise DTypeError("concatenate: operands differ in dtype", got=", ".join(map(str, types)))
            if self.others(x) != self.others(first):
                raise ShapeError(
                    f"concatenate: sizes differ off axis {self.axis}", got=", ".join(map(str, types))
                )
            total = total + x.shape[self.axis]
        return first.with_shape((*first.shape[: self.axis], total, *first.shape[self.axis + 1 :]))

    def others(self, x: TensorType) -> tuple[Dim, ...]:
        """Return the sizes that must agree."""
        return x.shape[: self.axis] + x.shape[self.axis + 1 :]

    def ref(self, *arrays: Array) -> Array:
        return np.concatenate(arrays, axis=self.axis)

    def lower(self, *types: TensorType) -> Lowered:
        refuse_host_only(self, types)
        args = arguments(*types)
        out = fresh_axes(self.infer(*types).ints)
        pieces: list[tuple[int, Expr]] = []
        start = 0
        for x in args:
            if x.shape[self.axis]:
                where = [sub(v, start) if k == self.axis else v for k, v in enumerate(out)]
                pieces.append((start, x[tuple(where)]))
                start += x.shape[self.axis]
        body = _choose(pieces, out[self.axis]) if pieces else args[0][tuple(out)]
        return Compute(args, out, args[0].dtype, body)

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        cotangents: list[Node | None] = []
        step = (1,) * ct.aval.ndim
        at: Dim = 0
        for k, x in enumerate(inputs):
            start: list[Dim] = [0] * ct.aval.ndim
            stop = list(ct.shape)
            start[self.axis], at = at, at + x.shape[self.axis]
            stop[self.axis] = at
            piece = b.slice(ct, start=tuple(start), stop=tuple(stop), step=step) if b.needed(k) else None
            cotangents.append(piece)
        return cotangents

    def batch(self, b: Builder, size: Dim, mapped: Sequence[bool], *inputs: Node) -> Node:
        return over_rows(self, b, size, mapped, inputs, axis=self.axis + 1)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        cases: tuple[tuple[int, tuple[tuple[int, ...], ...]], ...] = (
            (0, ((2,), (3,))), (1, ((2, 3), (2, 1), (2, 2))), (0, ((2, 3),)), (0, ((0, 3), (2, 3))),
            (1, ((2, 0), (2, 0))), (1, ((1, 2, 1), (1, 3, 1))), (1, ((0, 2), (0, 3))),
            (0, ((1,),) * 7), (1, ((5, 17), (5, 16))),
        )  # fmt: skip
        for dtype in (float32, float64, bool_, int64):
            for axis, shapes in cases:
                yield Sample(cls(axis), tuple(TensorType(dtype, s) for s in shapes))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        x = TensorType(float32, (2, 3))
        yield Reject(cls(0), (), "at least one")
        yield Reject(cls(2), (x, x), "range")
        yield Reject(cls(0), (x, TensorType(float32, (2, 4))), "differ off axis")
        yield Reject(cls(0), (x, TensorType(float64, (2, 3))), "dtype")
        yield Reject(cls(0), (x, TensorType(float32, (2,))), "differ off axis")


def _choose(pieces: Sequence[tuple[int, Expr]], position: Var) -> Expr:
    """Return the piece that holds `position`, by a balanced tree of guards.

    What stands after `otherwise` is evaluated everywhere, so each piece guards its own start.
    """
    if len(pieces) == 1:
        start, piece = pieces[0]
        return guard(less(start - 1, position), piece, const(0, piece.dtype))
    half = len(pieces) // 2
    return guard(
        less(position, pieces[half][0]), _choose(pieces[:half], position), _choose(pieces[half:], position)
    )
