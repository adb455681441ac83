"""Collectives between the ranks of a mesh axis: records whose lowering is a call of the communication thread.

    t0 = all_reduce_start(x0)         the messages of x0 leave; kernels go on
    t1 = all_reduce_start(t0, x1)     after that of x0, on every rank
    y0 = all_reduce_wait(t1, t0, x0)  the sum over ranks, once it is there

A token is the number of a collective under way; taking one as an operand is what puts a command behind
another. Tokens stand first: programs compute operands in order, and so start what they can before they
compute more. Over one rank each is the identity, which the references compute without a communicator.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np

from stratal.base.dtypes import float32, float64, int64
from stratal.base.errors import AttributeValueError, CallOrderError, DTypeError
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Op, Reject, Sample, record

TOKEN = TensorType(int64, ())
REDUCTIONS = ("sum", "mean", "prod", "max", "min")
LINEAR = ("sum", "mean")


class Communicator(Protocol):
    """What carries the messages of a mesh axis."""

    @property
    def size(self) -> int:
        """How many ranks the axis has."""

    def start(self, array: Array, op: str, algorithm: str, program: str) -> int:
        """Begin to reduce an array over all ranks; return its token at once.

        The array is read until `finish` returns. Ranks whose `program` differs refuse each other.
        """

    def finish(self, token: int, array: Array) -> Array:
        """Return the reduction that `start` began of this array, once it is there."""


# Records name their axis, they do not hold it: MPI's ranks are one per process, like this table.
COMMUNICATORS: dict[str, Communicator] = {}


class Collective(Op):
    """A reduction over the ranks of an axis."""

    mesh_axis: str
    ranks: int
    op: str
    algorithm: str
    effects = True  # every rank makes each exactly once
    foldable = False
    not_lowered = "the communication thread sends and receives"
    not_batched = "every rank would have to be batched alike: collectives are made in order, one by one"

    def check(self, x: TensorType, tokens: Sequence[TensorType] = ()) -> None:
        if self.ranks < 1:
            raise AttributeValueError(f"{self.name}: an axis has at least one rank", got=str(self.ranks))
        if self.op not in REDUCTIONS:
            raise AttributeValueError(
                f"{self.name}: no such reduction", got=repr(self.op), hint=", ".join(REDUCTIONS)
            )
        if self.op == "mean" and not x.dtype.is_inexact:
            raise DTypeError(f"{self.name}: a mean is of floats", got=str(x))
        if any(t != TOKEN for t in tokens):
            raise DTypeError(f"{self.name}: a token is a scalar of int64", got=", ".join(map(str, tokens)))

    def begun(self, types: Sequence[TensorType]) -> TensorType:
        """Return the type of x, of a record that begins a collective. Raises: AttributeValueError."""
        if not 1 <= len(types) <= 2:
            raise AttributeValueError(f"{self.name}: takes x and at most one token", got=str(len(types)))
        self.check(types[-1], types[:-1])
        return types[-1]

    def awaited(self, types: Sequence[TensorType]) -> TensorType:
        """Return the type of x, of a record that waits for one. Raises: AttributeValueError."""
        if len(types) < 2:
            raise AttributeValueError(f"{self.name}: takes its token and x", got=str(len(types)))
        self.check(types[-1], types[:-1])
        return types[-1]

    def finished(self, arrays: Sequence[Array]) -> Array:
        """Return what the collective gave whose token stands before x."""
        if self.ranks == 1:
            return np.array(arrays[-1])
        return self.communicator().finish(int(arrays[-2]), arrays[-1])

    def communicator(self) -> Communicator:
        found = COMMUNICATORS.get(self.mesh_axis)
        if found is None:
            raise CallOrderError(
                f"{self.name}: no ranks are known as the axis {self.mesh_axis!r}", got=f"ranks={self.ranks}",
                hint="st.distributed.init() joins the ranks of this job",
            )  # fmt: skip
        return found


@record
class AllReduce(Collective):
    """The reduction of every rank's x over an axis, the same bits on each."""

    mesh_axis: str
    ranks: int
    op: str = "sum"
    algorithm: str = ""
    name = "all_reduce"
    arity = 1

    def infer(self, *types: TensorType) -> TensorType:
        self.check(types[0])
        return types[0]

    def ref(self, *arrays: Array) -> Array:
        if self.ranks == 1:
            return np.array(arrays[0])
        axis = self.communicator()
        return axis.finish(axis.start(arrays[0], self.op, self.algorithm, ""), arrays[0])

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        """Every rank's x is in every rank's sum: its cotangent is the sum of theirs."""
        self._check_linear()
        return [b.op(self.name, ct, **self.attributes)]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Node | None:
        self._check_linear()
        return None if tangents[0] is None else b.op(self.name, tangents[0], **self.attributes)

    def _check_linear(self) -> None:
        if self.op not in LINEAR:
            raise self.no_derivative()

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in (float32, float64):
            for op in LINEAR:
                yield Sample(cls("data", 1, op), (TensorType(dtype, (3, 2)),))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        row = (TensorType(float32, (3,)),)
        yield Reject(cls("data", 0), row, "at least one rank")
        yield Reject(cls("data", 1, "median"), row, "no such reduction")
        yield Reject(cls("data", 1, "mean"), (TensorType(int64, (3,)),), "floats")


@record
class AllReduceStart(Collective):
    """Begin to reduce x over an axis, after the collective whose token stands before it."""

    mesh_axis: str
    ranks: int
    op: str = "sum"
    algorithm: str = ""
    program: str = ""  # a digest of the program it is part of, alike on all ranks
    name = "all_reduce_start"
    begins = True
    not_differentiable = "a token has no derivative: all_reduce has one"

    def infer(self, *types: TensorType) -> TensorType:
        self.begun(types)
        return TOKEN

    def ref(self, *arrays: Array) -> Array:
        token = 0
        if self.ranks > 1:
            token = self.communicator().start(arrays[-1], self.op, self.algorithm, self.program)
        return np.array(token, np.int64)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in (float32, float64):
            yield Sample(cls("data", 1), (TensorType(dtype, (3,)),), smooth=False)
            yield Sample(cls("data", 1), (TOKEN, TensorType(dtype, (3,))), smooth=False)

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        row = TensorType(float32, (3,))
        yield Reject(cls("data", 1), (row, row), "int64")
        yield Reject(cls("data", 1), (), "at most one token")


@record
class AllReduceWait(Collective):
    """The reduction of x over an axis that the token before it began; more tokens put it behind them."""

    mesh_axis: str
    ranks: int
    op: str = "sum"
    algorithm: str = ""
    name = "all_reduce_wait"
    not_differentiable = "what start began has no derivative: all_reduce has one"

    def infer(self, *types: TensorType) -> TensorType:
        return self.awaited(types)

    def ref(self, *arrays: Array) -> Array:
        return self.finished(arrays)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in (float32, float64):
            yield Sample(cls("data", 1), (TOKEN, TOKEN, TensorType(dtype, (3,))), smooth=False)

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        row = TensorType(float32, (3,))
        yield Reject(cls("data", 1), (row,), "its token")
        yield Reject(cls("data", 1), (row, row), "int64")
