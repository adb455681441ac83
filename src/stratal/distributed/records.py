"""Records of the collectives that shard: reduce_scatter and all_gather of vectors, each begun and waited for.

    t0 = reduce_scatter_start(x0)     f32[n] on every rank
    s0 = reduce_scatter_wait(t0, x0)  f32[n / ranks], this rank's part of the sum
    t1 = all_gather_start(s1)         f32[n / ranks]
    y1 = all_gather_wait(t1, s1)      f32[n], the parts of all ranks

Tokens are those of `ops/collective.py`. Over one rank each is the identity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, cast

import numpy as np

from stratal.base.dims import Dim
from stratal.base.dtypes import float32, float64
from stratal.base.errors import AttributeValueError, ShapeError
from stratal.base.types import TensorType
from stratal.graph.op import Array, Op, Reject, Sample, record
from stratal.ops.collective import TOKEN, Collective, Communicator


class ShardingCommunicator(Communicator, Protocol):
    """A communicator that also scatters and gathers; `finish` waits for these, too."""

    def start_reduce_scatter(self, array: Array, op: str, algorithm: str, program: str) -> int:
        """Begin to reduce a copy of a vector, of which this rank gets its part; return the token at once."""

    def start_all_gather(self, array: Array, algorithm: str) -> int:
        """Begin to put the vectors of all ranks end to end; return the token at once."""


class _Start(Collective):
    """Begin a collective of a vector, after the one whose token stands before it."""

    not_differentiable = "a token has no derivative"

    def infer(self, *types: TensorType) -> TensorType:
        if not 1 <= len(types) <= 2:
            raise AttributeValueError(f"{self.name}: takes x and at most one token", got=str(len(types)))
        self.check(types[-1], types[:-1])
        self.result(types[-1])
        return TOKEN

    def ref(self, *arrays: Array) -> Array:
        token = 0
        if self.ranks > 1:
            token = self.begin(cast(ShardingCommunicator, self.communicator()), arrays[-1])
        return np.array(token, np.int64)

    def begin(self, axis: ShardingCommunicator, array: Array) -> int:
        """Return the token of the collective, which has begun."""
        raise NotImplementedError

    def result(self, x: TensorType) -> TensorType:
        """Return the type of what is waited for. Raises: ShapeError."""
        raise NotImplementedError

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in (float32, float64):
            yield Sample(_over_one(cls), (TensorType(dtype, (3,)),), smooth=False)
            yield Sample(_over_one(cls), (TOKEN, TensorType(dtype, (3,))), smooth=False)

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        row = TensorType(float32, (3,))
        yield Reject(_over_one(cls), (row, row), "int64")
        yield Reject(_over_one(cls), (), "at most one token")
        yield Reject(_over_one(cls), (TensorType(float32, (3, 2)),), "vector")


class _Wait(Collective):
    """The result of the collective whose token stands before x; more tokens put it behind them."""

    not_differentiable = "what start began has no derivative"

    def infer(self, *types: TensorType) -> TensorType:
        if len(types) < 2:
            raise AttributeValueError(f"{self.name}: takes its token and x", got=str(len(types)))
        self.check(types[-1], types[:-1])
        return self.result(types[-1])

    def ref(self, *arrays: Array) -> Array:
        return np.array(arrays[-1]) if self.ranks == 1 else self.communicator().finish(int(arrays[-2]))

    def result(self, x: TensorType) -> TensorType:
        """Return the type of the result. Raises: ShapeError."""
        raise NotImplementedError

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in (float32, float64):
            yield Sample(_over_one(cls), (TOKEN, TOKEN, TensorType(dtype, (3,))), smooth=False)

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        row = TensorType(float32, (3,))
        yield Reject(_over_one(cls), (row,), "its token")
        yield Reject(_over_one(cls), (row, row), "int64")
        yield Reject(_over_one(cls), (TOKEN, TensorType(float32, ())), "vector")


def _over_one(cls: Callable[..., Op]) -> Op:
    return cls("data", 1)


def _length(name: str, x: TensorType) -> Dim:
    if len(x.shape) != 1:
        raise ShapeError(f"{name}: takes a vector", got=str(x))
    return x.shape[0]


def _part(name: str, x: TensorType, ranks: int) -> TensorType:
    """Return the type of one rank's part of x. Raises: ShapeError."""
    count = _length(name, x)
    if not isinstance(count, int) or count % ranks:
        raise ShapeError(f"{name}: the length is divisible by the number of ranks", got=f"{x} over {ranks}")
    return TensorType(x.dtype, (count // ranks,))


@record
class ReduceScatterStart(_Start):
    """Begin to reduce x over an axis, of which each rank gets its part."""

    mesh_axis: str
    ranks: int
    op: str = "sum"
    algorithm: str = ""
    program: str = ""  # a digest of the program it is part of, alike on all ranks
    name = "reduce_scatter_start"

    def begin(self, axis: ShardingCommunicator, array: Array) -> int:
        return axis.start_reduce_scatter(array, self.op, self.algorithm, self.program)

    def result(self, x: TensorType) -> TensorType:
        return _part(self.name, x, self.ranks)


@record
class ReduceScatterWait(_Wait):
    """This rank's part of the reduction of x that the token before it began."""

    mesh_axis: str
    ranks: int
    op: str = "sum"
    algorithm: str = ""
    name = "reduce_scatter_wait"

    def result(self, x: TensorType) -> TensorType:
        return _part(self.name, x, self.ranks)


@record
class AllGatherStart(_Start):
    """Begin to put the x of all ranks of an axis end to end."""

    mesh_axis: str
    ranks: int
    algorithm: str = ""
    op = "sum"  # of no meaning here
    name = "all_gather_start"

    def begin(self, axis: ShardingCommunicator, array: Array) -> int:
        return axis.start_all_gather(array, self.algorithm)

    def result(self, x: TensorType) -> TensorType:
        return TensorType(x.dtype, (_length(self.name, x) * self.ranks,))


@record
class AllGatherWait(_Wait):
    """The x of all ranks of an axis, end to end, that the token before it began to gather."""

    mesh_axis: str
    ranks: int
    algorithm: str = ""
    op = "sum"  # of no meaning here
    name = "all_gather_wait"

    def result(self, x: TensorType) -> TensorType:
        return TensorType(x.dtype, (_length(self.name, x) * self.ranks,))
