"""Calls with derivatives of their own: given beside them, or seen by a watcher as reverse mode passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from stratal.base.dims import Dim
from stratal.base.dtypes import DType, float32, float64
from stratal.base.errors import NotDifferentiableError, ShapeError, StratalError
from stratal.base.types import TensorType, TupleType
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph, inline
from stratal.graph.node import Node, graph_input, items, make
from stratal.graph.op import Reject, Sample, record
from stratal.ops.control import regions
from stratal.ops.control.call import Call
from stratal.ops.families import or_zeros


class Custom(Call):
    """What calls with derivatives of their own share: these are for the first `num_arguments` operands."""

    num_arguments: int

    def arguments(self, types: Sequence[TensorType]) -> list[TensorType]:
        """Return the types that derivatives are for. Raises: ShapeError."""
        if not 0 <= self.num_arguments <= len(types):
            raise ShapeError(f"{self.name}: has fewer operands", got=f"{len(types)} of {self.num_arguments}")
        return [t for t in types[: self.num_arguments] if t.dtype.is_inexact]

    def inexact(self) -> list[TensorType]:
        """Return the types of results that have derivatives."""
        return [t for t in self.body.output_types if t.dtype.is_inexact]

    def refuse_others(self, moved: Sequence[bool]) -> None:
        """Refuse derivatives with respect to what the function reads from around it."""
        if any(moved[self.num_arguments :]):
            raise NotDifferentiableError(
                f"{self.name}: a value read from around the function takes a gradient",
                got=self.body.name, hint="hand it in as an argument, or put stop_gradient around it",
            )  # fmt: skip


@record
class CustomVjp(Custom):
    """Run `body`; reverse mode runs `forward` and `backward` in place of its derivative. None: it has none.

    body:     (operand...) -> (result...)
    forward:  (operand...) -> (result..., residual...)
    backward: (residual..., cotangent of each inexact result..., operand beyond num_arguments...) ->
              (cotangent of each inexact operand up to num_arguments...)
    """

    body: Graph
    forward: Graph | None
    backward: Graph | None
    num_arguments: int
    name = "custom_vjp"

    def infer(self, *types: TensorType) -> TupleType:
        wanted = self.arguments(types)
        results = super().infer(*types)
        if self.forward is None or self.backward is None:
            return results
        regions.check_region(self.name, "forward rule", self.forward, types)
        made = self.forward.output_types
        rule = "the forward rule must return the results first"
        regions.check_same(self.name, rule, made[: len(results.elements)], results.elements)
        given = [*made[len(results.elements) :], *self.inexact(), *types[self.num_arguments :]]
        regions.check_region(self.name, "backward rule", self.backward, given)
        rule = "the backward rule must return cotangents of the arguments"
        regions.check_same(self.name, rule, self.backward.output_types, wanted)
        return results

    def vjp(self, b: Builder, ct: Sequence[Node | None], out: Node, *inputs: Node) -> Sequence[Node | None]:
        if self.forward is None or self.backward is None:
            raise self.no_derivative()
        others = inputs[self.num_arguments :]
        self.refuse_others([b.needed(k) and x.dtype.is_inexact for k, x in enumerate(inputs)])
        residuals = inline(self.forward, inputs)[len(items(out)) :]
        seeds = [t for t in or_zeros(b, ct, items(out)) if t.dtype.is_inexact]
        found = inline(self.backward, [*residuals, *seeds, *others])
        own = (x.dtype.is_inexact for x in inputs[: self.num_arguments])
        return [*regions.unpick(found, own), *(None for _ in others)]

    def no_derivative(self) -> StratalError:
        return NotDifferentiableError(
            "custom derivative: a rule that calls its own function is followed to some orders only",
            got=self.body.name, hint="let the rule use the function's result or other functions",
        )  # fmt: skip

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> list[Node | None]:
        if self.forward is None:
            raise self.no_derivative()
        raise NotDifferentiableError(
            "custom_vjp: has a rule for reverse mode alone", got=self.body.name,
            hint="st.custom_jvp takes a rule that serves both modes",
        )  # fmt: skip

    def batch(self, b: Builder, size: Dim, mapped: Sequence[bool], *inputs: Node) -> list[Node]:
        """Give all results rows; a shared argument's cotangent is summed over them."""
        every = [True] * len(self.body.outputs)
        body = b.batch_graph(self.body, size, mapped, every)
        if self.forward is None or self.backward is None:
            return items(make(CustomVjp(body, None, None, self.num_arguments), *inputs, where=b.where))
        num_residuals = len(self.forward.outputs) - len(every)
        forward = b.batch_graph(self.forward, size, mapped, [*every, *[False] * num_residuals])
        residuals = regions.gained(self.forward, forward)[len(every) :]
        active = [*residuals, *(True for _ in self.inexact()), *mapped[self.num_arguments :]]
        back = b.batch_graph(self.backward, size, active, [True] * len(self.backward.outputs))
        own = [
            has for has, x in zip(mapped, inputs[: self.num_arguments], strict=False) if x.dtype.is_inexact
        ]
        cotangents = [y if has else b.sum(y, axes=(0,)) for y, has in zip(back.outputs, own, strict=True)]
        backward = Graph(back.inputs, cotangents, name=back.name)
        return items(make(CustomVjp(body, forward, backward, self.num_arguments), *inputs, where=b.where))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in (float32, float64):
            row = TensorType(dtype, (3,))
            yield Sample(cls(*_product_rules(dtype), 2), (row, row), smooth=False)  # forward mode refuses
            yield Sample(cls(_product_rules(dtype)[0], None, None, 2), (row, row), smooth=False)

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        row = TensorType(float32, (3,))
        body, forward, backward = _product_rules(float32)
        yield Reject(cls(body, forward, backward, 2), (row,), "fewer operands")
        yield Reject(cls(body, body, backward, 2), (row, row), "backward rule")
        yield Reject(cls(body, forward, backward, 1), (row, row), "backward rule")
        yield Reject(cls(body, backward, backward, 2), (row, row), "forward rule")


@record
class CustomJvp(Custom):
    """Run `body`; forward mode runs `tangent` in place of its derivative, reverse mode that one's transpose.

    body:    (operand...) -> (result...)
    tangent: (operand..., tangent of each inexact operand up to num_arguments...) ->
             (tangent of each inexact result...), linear in the tangents
    """

    body: Graph
    tangent: Graph
    num_arguments: int
    name = "custom_jvp"

    def infer(self, *types: TensorType) -> TupleType:
        moved = self.arguments(types)
        results = super().infer(*types)
        regions.check_region(self.name, "tangent rule", self.tangent, [*types, *moved])
        rule = "the tangent rule must return tangents of the results"
        regions.check_same(self.name, rule, self.tangent.output_types, self.inexact())
        return results

    def zeros(self, b: Builder, inputs: Sequence[Node]) -> list[Node]:
        return [b.like(x, 0) for x in inputs[: self.num_arguments] if x.dtype.is_inexact]

    def vjp(self, b: Builder, ct: Sequence[Node | None], out: Node, *inputs: Node) -> Sequence[Node | None]:
        """Differentiate the tangent rule, which is linear, by its tangents: anywhere, so at 0."""
        needs = [b.needed(k) and x.dtype.is_inexact for k, x in enumerate(inputs)]
        self.refuse_others(needs)
        zeros = self.zeros(b, inputs)
        seeds = [t for y, t in zip(items(out), ct, strict=True) if y.dtype.is_inexact]
        read = [o for o, t in zip(self.tangent.outputs, seeds, strict=True) if t is not None]
        rule = Graph(self.tangent.inputs, read, name=self.tangent.name)
        back = b.vjp_graph(rule, [*(False for _ in inputs), *(True for _ in zeros)])
        found = inline(back, [*inputs, *zeros, *(t for t in seeds if t is not None)])
        own = (k < self.num_arguments and x.dtype.is_inexact for k, x in enumerate(inputs))
        return regions.unpick(found, own)

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> list[Node | None]:
        self.refuse_others([t is not None for t in tangents])
        own = zip(tangents[: self.num_arguments], inputs, strict=False)
        moves = [b.like(x, 0) if t is None else t for t, x in own if x.dtype.is_inexact]
        found = inline(self.tangent, [*inputs, *moves])
        return regions.unpick(found, (o.dtype.is_inexact for o in self.body.outputs))

    def batch(self, b: Builder, size: Dim, mapped: Sequence[bool], *inputs: Node) -> list[Node]:
        body = b.batch_graph(self.body, size, mapped, [True] * len(self.body.outputs))
        own = zip(mapped[: self.num_arguments], inputs, strict=False)
        active = [*mapped, *(has for has, x in own if x.dtype.is_inexact)]
        tangent = b.batch_graph(self.tangent, size, active, [True] * len(self.tangent.outputs))
        return items(make(CustomJvp(body, tangent, self.num_arguments), *inputs, where=b.where))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in (float32, float64):
            row = TensorType(dtype, (3,))
            yield Sample(cls(*_product_tangent(dtype), 2), (row, row))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        row = TensorType(float32, (3,))
        body, tangent = _product_tangent(float32)
        yield Reject(cls(body, tangent, 2), (row,), "fewer operands")
        yield Reject(cls(body, body, 2), (row, row), "tangent rule")
        yield Reject(cls(body, tangent, 1), (row, row), "tangent rule")


# -- regions of the samples ----------------------------------------------------------------------------------
def _rows(dtype: DType, names: str) -> list[Node]:
    return [graph_input(name, TensorType(dtype, (3,))) for name in names]


def _product_rules(dtype: DType) -> tuple[Graph, Graph, Graph]:
    """y = x * w, with the operands as residuals"""
    b = Builder()
    (x, w), (u, v), (p, q, ct) = _rows(dtype, "xw"), _rows(dtype, "uv"), _rows(dtype, "pqc")
    return (
        Graph([x, w], [b.mul(x, w)], name="product"),
        Graph([u, v], [b.mul(u, v), u, v], name="product.forward"),
        Graph([p, q, ct], [b.mul(ct, q), b.mul(ct, p)], name="product.backward"),
    )


def _product_tangent(dtype: DType) -> tuple[Graph, Graph]:
    """y = x * w, t = dx * w + x * dw"""
    b, (x, w), (u, v, du, dv) = Builder(), _rows(dtype, "xw"), _rows(dtype, "uvst")
    return (
        Graph([x, w], [b.mul(x, w)], name="product"),
        Graph([u, v, du, dv], [b.add(b.mul(du, v), b.mul(u, dv))], name="product.tangent"),
    )


# -- watched: a Python function sees cotangents, and may replace them ----------------------------------------
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
