"""Expression: a tensor expression written by a user, as one op with derived derivatives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from stratal.base.dims import Dim
from stratal.base.dtypes import float32, float64
from stratal.base.errors import AttributeValueError, ShapeError
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Op, Reject, Sample, record
from stratal.loops.compute import Compute
from stratal.loops.expr import Buffer
from stratal.loops.interpret import evaluate_compute
from stratal.loops.te.algorithm import Algorithm
from stratal.loops.te.derive import cotangents, tangent
from stratal.loops.te.tensor import Computed, Placeholder, Tensor, lower_tensor, over_rows, placeholder
from stratal.loops.te.text import parse_algorithm

_SAMPLES = (
    "A = placeholder((3, 4), {d})\nB = placeholder((3, 5), {d})\nk = reduce_axis(3)\n"
    "C = compute((4, 5), lambda y, x: sum(A[k, y] * B[k, x], axis=k))",
    "A = placeholder((6,), {d})\nw = placeholder((3,), {d})\nu = reduce_axis(3)\n"
    "C = compute((6,), lambda i: sum(where((i + u - 1 >= 0) & (i + u - 1 < 6), A[i + u - 1], 0.0) * w[u], "
    "axis=u))",
    "A = placeholder((2, 3), {d})\nC = compute((3, 2), lambda i, j: tanh(A[j, i]) * A[j, 2 - i] + 0.5)",
    "A = placeholder((7,), {d})\nu = reduce_axis(2)\n"
    "C = compute((3,), lambda i: sum(sigmoid(A[2 * i + u]), axis=u))",
    "A = placeholder((4, 4), {d})\nC = compute((4,), lambda i: A[i, i] * 2.0)",
    "A = placeholder((3,), {d})\nC = compute((6,), lambda i: A[i // 2])",
)


@lru_cache(maxsize=4096)
def algorithm(text: str) -> Algorithm:
    """Return the algorithm of an op's text, each tensor of it an operand or the one result."""
    found = parse_algorithm(text)
    if len(found.stages) != 1:
        raise AttributeValueError(
            "expression: computes one tensor",
            got=text[:200],
            hint="te.function makes one op of every computed tensor",
        )
    return found


@record
class Expression(Op):
    """What `text` computes from its placeholders, which are the operands in the order of its lines.

    The grammar of the text is that of `te` (see docs/schedule.md). Sums and element-wise terms have both
    derivatives, derived as further expressions; other reductions have none.
    """

    text: str

    def infer(self, *types: TensorType) -> TensorType:
        found = algorithm(self.text)
        wanted = [p.type for p in found.placeholders]
        if len(types) != len(wanted) or any(t != w for t, w in zip(types, wanted, strict=False)):
            raise ShapeError(
                "expression: the operands are not what it was written for",
                got=", ".join(map(str, types)),
                hint="expected " + ", ".join(map(str, wanted)),
            )
        return self._result.type

    @property
    def _result(self) -> Computed:
        return algorithm(self.text).results[0]

    def ref(self, *arrays: Array) -> Array:
        return evaluate_compute(self.lower(), arrays)

    def lower(self, *types: TensorType) -> Compute:
        operands = algorithm(self.text).placeholders
        return lower_tensor(
            self._result, {p: Buffer(f"a{k}", p.dtype, p.shape) for k, p in enumerate(operands)}
        )

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Node | None:
        nodes = dict(zip(algorithm(self.text).placeholders, inputs, strict=True))
        moved: dict[Tensor, Placeholder] = {}
        for operand, t in zip(list(nodes), tangents, strict=True):
            if t is not None:
                moved[operand] = placeholder(operand.shape, operand.dtype)
                nodes[moved[operand]] = t
        found = tangent(self._result, moved) if moved else None
        return None if found is None else _apply(b, found, nodes)

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        operands = algorithm(self.text).placeholders
        seed = placeholder(self._result.shape, self._result.dtype)
        nodes = dict(zip((*operands, seed), (*inputs, ct), strict=True))
        result: list[Node | None] = []
        for k, operand in enumerate(operands):
            total: Node | None = None
            if operand.dtype.is_inexact and b.needed(k):
                for part in cotangents(self._result, operand, seed):
                    share = _apply(b, part, nodes)
                    total = share if total is None else b.add(total, share)
            result.append(total)
        return result

    def batch(self, b: Builder, size: Dim, mapped: Sequence[bool], *inputs: Node) -> Node | None:
        if not isinstance(size, int):
            return None
        operands = algorithm(self.text).placeholders
        stacked: dict[Tensor, Placeholder] = {
            p: placeholder((size, *p.shape), p.dtype) for p, has in zip(operands, mapped, strict=True) if has
        }
        nodes = {stacked.get(p, p): x for p, x in zip(operands, inputs, strict=True)}
        return _apply(b, over_rows(self._result, stacked, size), nodes)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in (float32, float64):
            for text in _SAMPLES:
                op = cls(text.format(d=f'"{dtype.name}"'))
                yield Sample(op, tuple(p.type for p in algorithm(op.text).placeholders))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        op = cls(_SAMPLES[4].format(d='"float32"'))
        yield Reject(op, (TensorType(float32, (4, 5)),), "written for")
        yield Reject(op, (TensorType(float64, (4, 4)),), "written for")


def _apply(b: Builder, result: Computed, nodes: dict[Placeholder, Node]) -> Node:
    """Return the op of a tensor on the nodes that stand for what it reads."""
    made = Algorithm(result)
    return b.op("expression", *(nodes[p] for p in made.placeholders), text=str(made))
