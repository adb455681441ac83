"""Where values go into sorted rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from stratal.base.cost import Cost
from stratal.base.dims import as_int, known_equal, product, upper_bound
from stratal.base.dtypes import complex64, float32, float64, int64, uint8
from stratal.base.errors import ShapeError
from stratal.base.lowered import Lowered
from stratal.base.types import TensorType
from stratal.graph.op import Array, Draw, Reject, Sample, record
from stratal.loops import math
from stratal.loops.compute import LoopBody
from stratal.loops.expr import Buffer, Expr, Var, call, cast, index_const
from stratal.loops.index import unflatten
from stratal.loops.stmt import For, Seq, Stmt, Store
from stratal.ops.families import RowWise, check_kind, widened


@record
class SearchSorted(RowWise):
    """How many elements of a sorted row lie before each value: those less, with `right` also equal ones.

    Shapes: edges [b..., n] sorted along n, x [b..., m] -> int64 [b..., m]. NaN comes after all numbers.
    """

    right: bool = False
    name = "search_sorted"
    arity = 2
    not_differentiable = "a count changes in steps"

    def infer(self, *types: TensorType) -> TensorType:
        edges, x = types
        for t in types:
            check_kind(self.name, t.dtype, "buif")
            if t.ndim == 0:
                raise ShapeError(f"{self.name}: takes rows", got=f"{edges}, {x}")
        if edges.dtype is not x.dtype:
            check_kind(self.name, edges.dtype, x.dtype.kind)
        if edges.ndim != x.ndim or not all(map(known_equal, edges.shape[:-1], x.shape[:-1])):
            raise ShapeError(f"{self.name}: needs as many rows of both, in one shape", got=f"{edges}, {x}")
        return x.with_dtype(int64)

    def ref(self, *arrays: Array) -> Array:
        edges, x = map(widened, arrays)
        out = np.empty(x.shape, np.int64)
        for row in np.ndindex(x.shape[:-1]):
            out[row] = np.searchsorted(edges[row], x[row], "right" if self.right else "left")
        return out

    def lower(self, *types: TensorType) -> Lowered:
        """Halve the range that may hold the place, as often as its size asks, for every value on its own."""
        edges_type, x_type = types
        length, outer = edges_type.ints[-1], x_type.ints[:-1]
        compute = x_type.dtype.compute

        def build(args: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
            edges, x = args
            row, lane = Var("row", as_int(product(outer))), Var("lane", x_type.ints[-1])
            at = unflatten(row, outer)
            value = cast(x[(*at, lane)], compute)
            place: Expr = index_const(0)
            for step in _halves(length):
                moved = place + step
                last = call("min", moved, index_const(length)) - 1
                before = self._before(cast(edges[(*at, last)], compute), value)
                fits = moved <= length
                place = call("select", fits & before, moved, place)
            return For(row, Seq((For(lane, Store(outs[0], (*at, lane), place), "parallel"),)), "parallel")

        return LoopBody(build)

    def _before(self, edge: Expr, value: Expr) -> Expr:
        found = call("le" if self.right else "lt", edge, value)
        if not value.dtype.is_float:
            return found
        after_numbers = math.isnan(value)
        if not self.right:
            after_numbers = after_numbers & call("eq", edge, edge)
        return found | after_numbers

    def cost(self, *types: TensorType) -> Cost:
        one = super().cost(*types)
        return one._replace(flops=one.flops * 4 * max(upper_bound(types[0].shape[-1]), 2).bit_length())

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in (float32, float64, int64, uint8):
            for edges, x in (
                ((5,), (7,)), ((1,), (3,)), ((0,), (4,)), ((8,), (0,)), ((2, 9), (2, 4)), ((33,), (65,)),
            ):  # fmt: skip
                types = (TensorType(dtype, edges), TensorType(dtype, x))
                for right in (False, True):
                    yield Sample(cls(right), types, draw=_draw(types), smooth=False)

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        row = TensorType(float32, (3,))
        yield Reject(cls(), (row, TensorType(float32, ())), "rows")
        yield Reject(cls(), (row, TensorType(float32, (2, 3))), "rows")
        yield Reject(cls(), (row.with_dtype(complex64), row.with_dtype(complex64)), "takes")


def _halves(length: int) -> list[int]:
    """Return steps, each half of the one before, that add up to every place from 0 to `length`."""
    return [1 << k for k in reversed(range(length.bit_length()))]


def _draw(types: Sequence[TensorType]) -> Draw:
    """Return sorted edges, some of them equal, and values of which some are edges."""

    def draw(rng: np.random.Generator) -> Sequence[Array]:
        edges, x = (rng.integers(0, 9, t.ints).astype(t.dtype.np) for t in types)
        return [np.sort(edges, axis=-1), x]

    return draw
