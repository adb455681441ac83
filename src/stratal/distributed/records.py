"""Records of the collectives that shard: reduce_scatter, all_gather and exchange of vectors, each begun and
waited for.

    t0 = shard_start(x0) {kind=reduce_scatter}     f32[n] on every rank
    s0 = shard_wait(t0, x0) {kind=reduce_scatter}  f32[n / ranks], this rank's part of the sum
    t1 = shard_start(s1) {kind=all_gather}         f32[n / ranks]
    y1 = shard_wait(t1, s1) {kind=all_gather}      f32[n], the parts of all ranks
    t2 = shard_start(x2) {kind=exchange}           f32[n], sent to a server of parameters
    y2 = shard_wait(t2, x2) {kind=exchange}        f32[n], what it sends back
    t3 = shard_after(t2, z)                        t2, once z is there: what is begun behind t3 waits for z

Tokens are those of `ops/collective.py`. Over one rank each is the identity.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, cast

import numpy as np

from stratal.base.dtypes import float32, float64
from stratal.base.errors import AttributeValueError, ShapeError
from stratal.base.types import TensorType
from stratal.graph.op import Array, Reject, Sample, record
from stratal.ops.collective import TOKEN, Collective, Communicator


class ShardingCommunicator(Communicator, Protocol):
    """A communicator that also scatters and gathers; `finish` waits for these, too."""

    def start_reduce_scatter(self, array: Array, op: str, algorithm: str, program: str) -> int:
        """Begin to reduce a vector, of which this rank gets its part; return the token at once."""

    def start_all_gather(self, array: Array, algorithm: str, program: str) -> int:
        """Begin to put the vectors of all ranks end to end; return the token at once."""

    def start_exchange(self, array: Array, server: int, channel: int, program: str) -> int:
        """Begin to send a copy of a vector to a server; return the token of what comes back at once."""


KINDS = ("reduce_scatter", "all_gather", "exchange")


def result_type(name: str, kind: str, x: TensorType, ranks: int) -> TensorType:
    """Return the type a collective of a vector gives each rank; `name` is the record's.

    Raises: AttributeValueError, ShapeError.
    """
    if kind not in KINDS:
        raise AttributeValueError(f"{name}: no such kind", got=repr(kind), hint=", ".join(KINDS))
    if len(x.shape) != 1:
        raise ShapeError(f"{name}: takes a vector", got=str(x))
    count = x.shape[0]
    if kind == "exchange":
        return x
    if kind == "all_gather":
        return TensorType(x.dtype, (count * ranks,))
    if not isinstance(count, int) or count % ranks:
        raise ShapeError(f"{name}: the length is divisible by the number of ranks", got=f"{x} over {ranks}")
    return TensorType(x.dtype, (count // ranks,))


@record
class ShardStart(Collective):
    """Begin to scatter the reduction of x over an axis, to gather or exchange x, behind its token."""

    mesh_axis: str
    ranks: int
    kind: str
    op: str = "sum"  # of a reduction
    algorithm: str = ""
    program: str = ""  # a digest of the program it is part of, alike on all ranks
    server: int = 0  # the rank an exchange is with
    channel: int = 0  # of its messages
    name = "shard_start"
    begins = True
    not_differentiable = "a token has no derivative"

    def infer(self, *types: TensorType) -> TensorType:
        result_type(self.name, self.kind, self.begun(types), self.ranks)
        return TOKEN

    def ref(self, *arrays: Array) -> Array:
        if self.ranks == 1:
            return np.array(0, np.int64)
        axis = cast(ShardingCommunicator, self.communicator())
        if self.kind == "all_gather":
            return np.array(axis.start_all_gather(arrays[-1], self.algorithm, self.program), np.int64)
        if self.kind == "exchange":
            token = axis.start_exchange(arrays[-1], self.server, self.channel, self.program)
            return np.array(token, np.int64)
        token = axis.start_reduce_scatter(arrays[-1], self.op, self.algorithm, self.program)
        return np.array(token, np.int64)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for kind, dtype in zip(KINDS, (float32, float64, float32), strict=True):
            yield Sample(cls("data", 1, kind), (TensorType(dtype, (3,)),), smooth=False)
            yield Sample(cls("data", 1, kind), (TOKEN, TensorType(dtype, (3,))), smooth=False)

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        row = TensorType(float32, (3,))
        yield Reject(cls("data", 1, "all_gather"), (row, row), "int64")
        yield Reject(cls("data", 1, "all_gather"), (), "at most one token")
        yield Reject(cls("data", 1, "all_gather"), (TensorType(float32, (3, 2)),), "vector")
        yield Reject(cls("data", 2, "reduce_scatter"), (row,), "divisible")
        yield Reject(cls("data", 1, "all"), (row,), "no such kind")


@record
class ShardWait(Collective):
    """What the token before x began to scatter, gather or exchange; more tokens put it behind them."""

    mesh_axis: str
    ranks: int
    kind: str
    op: str = "sum"
    algorithm: str = ""
    name = "shard_wait"
    not_differentiable = "what start began has no derivative"

    def infer(self, *types: TensorType) -> TensorType:
        return result_type(self.name, self.kind, self.awaited(types), self.ranks)

    def ref(self, *arrays: Array) -> Array:
        return self.finished(arrays)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for kind, dtype in zip(KINDS, (float32, float64, float32), strict=True):
            yield Sample(cls("data", 1, kind), (TOKEN, TOKEN, TensorType(dtype, (3,))), smooth=False)

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        row = TensorType(float32, (3,))
        yield Reject(cls("data", 1, "all_gather"), (row,), "its token")
        yield Reject(cls("data", 1, "all_gather"), (row, row), "int64")
        yield Reject(cls("data", 1, "all_gather"), (TOKEN, TensorType(float32, ())), "vector")


@record
class ShardAfter(Collective):
    """A token, once a value is there: keeps what is begun behind it from being begun before that."""

    mesh_axis: str
    ranks: int
    op: str = "sum"  # as of the others; none is made
    algorithm: str = ""
    name = "shard_after"
    arity = 2
    not_differentiable = "a token has no derivative"

    def infer(self, *types: TensorType) -> TensorType:
        self.check(types[1], types[:1])
        return TOKEN

    def ref(self, *arrays: Array) -> Array:
        return np.array(arrays[0])

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls("data", 1), (TOKEN, TensorType(float32, (3, 2))), smooth=False)

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls("data", 1), (TensorType(float32, ()), TOKEN), "int64")
        yield Reject(cls("data", 0), (TOKEN, TOKEN), "at least one rank")
