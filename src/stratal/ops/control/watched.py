"""Watched: values whose cotangents a Python function sees, and may replace, as reverse mode passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from stratal.base.dims import Dim
from stratal.base.dtypes import float32, float64
from stratal.base.errors import NotDifferentiableError, ShapeError
from stratal.base.types import TensorType, TupleType
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph
from stratal.graph.node import Node, graph_input, items, make
from stratal.graph.op import Reject, Sample, record
from stratal.ops.control.call import Call

Cotangents = Sequence[Node | None]


class Watch(str):
    """The name of a watcher, and what it does: from cotangents to those that go on.

    Two of one name are different. A name read from a file does nothing.
    """

    passed: Callable[[Cotangents], Cotangents]

    def __new__(cls, name: str, passed: Callable[[Cotangents], Cotangents]) -> Watch:
        made = super().__new__(cls, name)
        made.passed = passed
        return made

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    def __hash__(self) -> int:
        return id(self)


@record
class Watched(Call):
    """The operands, unchanged; reverse mode hands their cotangents to `watch` and takes what it gives back.

    Nothing of it is left in a program: the body returns its operands.
    """

    body: Graph
    watch: str

    @staticmethod
    def of(watch: str, *operands: Node) -> list[Node]:
        """Return operands as a watch sees them."""
        return items(make(Watched(_same(tuple(x.aval for x in operands)), watch), *operands))

    def bare(self) -> Watched:
        """Return what computes the same values and watches nothing."""
        return Watched(self.body, "")

    def infer(self, *types: TensorType) -> TupleType:
        if self.body.outputs != self.body.inputs:
            raise ShapeError("watched: the body returns its operands", got=self.body.name)
        return super().infer(*types)

    def vjp(self, b: Builder, ct: Cotangents, out: Node, *inputs: Node) -> Cotangents:
        return self.watch.passed(ct) if isinstance(self.watch, Watch) else ct

    def jvp(self, b: Builder, tangents: Cotangents, out: Node, *inputs: Node) -> Cotangents:
        return tangents

    def batch(self, b: Builder, size: Dim, mapped: Sequence[bool], *inputs: Node) -> list[Node]:
        """A watcher is written for one example: it would take the gradient of a batch for that of one."""
        watch = Watch(self.watch, _refuse) if isinstance(self.watch, Watch) else self.watch
        return Watched.of(watch, *inputs)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in (float32, float64):
            row, scalar = TensorType(dtype, (3,)), TensorType(dtype, ())
            yield Sample(cls(_same((row, scalar)), "sample"), (row, scalar))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        row = TensorType(float32, (3,))
        yield Reject(cls(_same((row, row)), "sample"), (row,), "takes 2 values")
        x = graph_input("x", row)
        yield Reject(
            cls(Graph([x], [Builder().neg(x)], name="neg"), "sample"), (row,), "returns its operands"
        )


@lru_cache(maxsize=256)
def _same(types: tuple[TensorType, ...]) -> Graph:
    inputs = [graph_input(f"x{k}", t) for k, t in enumerate(types)]
    return Graph(inputs, inputs, name="same")


def _refuse(cotangents: Cotangents) -> Cotangents:
    raise NotDifferentiableError(
        "watched: a backward hook does not run under vmap", got="a gradient taken of a vmapped function",
        hint="take the gradient inside (vmap of grad), or remove the hook",
    )  # fmt: skip
