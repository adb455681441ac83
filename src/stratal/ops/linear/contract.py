"""Contraction of two tensors: every matrix product, batched or not, in either layout."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from string import ascii_letters
from typing import NamedTuple

import numpy as np

from stratal.base.cost import Cost
from stratal.base.dims import Dim, as_int, known_equal, upper_bound
from stratal.base.dtypes import (
    DType,
    as_dtype,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int32,
    int64,
    uint8,
)
from stratal.base.errors import AttributeValueError, ShapeError
from stratal.base.lowered import Lowered
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Reject, Sample, record
from stratal.loops.compute import Compute, arguments
from stratal.loops.expr import Var, cast
from stratal.ops.families import cast_to
from stratal.ops.linear import family


class Spec(NamedTuple):
    """An einsum spec taken apart: letters of operands and result, and their roles."""

    left: str
    right: str
    out: str
    batch: str  # in both operands and the result
    contracted: str  # in both operands only
    rows: str  # in the left operand and the result
    columns: str  # in the right operand and the result


@lru_cache(maxsize=4096)
def parse_spec(spec: str) -> Spec:
    """Take a spec such as "bmk,bkn->bmn" apart. Raises: AttributeValueError."""
    head, arrow, out = spec.partition("->")
    left, comma, right = head.partition(",")
    if not arrow or not comma or any(not c.isalpha() for c in left + right + out):
        raise AttributeValueError("contract: the spec must read like bmk,bkn->bmn", got=repr(spec))
    for letters in (left, right, out):
        if len(set(letters)) != len(letters):
            raise AttributeValueError(
                "contract: a letter is repeated in one term", got=repr(spec), hint="take the diagonal first"
            )
    for letter in out:
        if letter not in left and letter not in right:
            raise AttributeValueError("contract: the result has a letter of neither operand", got=repr(spec))
    for letter in left + right:
        if letter not in out and not (letter in left and letter in right):
            raise AttributeValueError(
                "contract: a letter of one operand only must be in the result",
                got=f"{letter!r} in {spec!r}",
                hint="sum over that axis first",
            )
    both = [c for c in left if c in right]
    return Spec(
        left, right, out,
        "".join(c for c in both if c in out), "".join(c for c in both if c not in out),
        "".join(c for c in left if c not in right), "".join(c for c in right if c not in left),
    )  # fmt: skip


@record
class Contract(family.Bilinear):
    """Sum of products over the letters of an einsum `spec` that the result lacks (Einstein's convention).

    A letter in both operands and the result is a batch axis. `dtype` widens the result and its accumulator,
    as int32 for int8; 16-bit floats accumulate in float32 and round once; integers wrap.
    """

    spec: str
    dtype: DType | None = None

    def sizes(self, *types: TensorType) -> dict[str, Dim]:
        """Return the size of every letter. Raises: ShapeError where the operands disagree."""
        s = parse_spec(self.spec)
        sizes: dict[str, Dim] = {}
        for letters, t, side in ((s.left, types[0], "first"), (s.right, types[1], "second")):
            if len(letters) != t.ndim:
                raise ShapeError(
                    f"contract: {self.spec} gives the {side} operand {len(letters)} axes", got=str(t)
                )
            for letter, n in zip(letters, t.shape, strict=True):
                if letter in sizes and not known_equal(sizes[letter], n):
                    raise ShapeError(
                        f"contract: sizes of {letter!r} differ in {self.spec}",
                        got=f"{types[0]} and {types[1]}",
                        hint=f"axis {letters.index(letter)} of the {side} operand should be {sizes[letter]}",
                    )
                sizes.setdefault(letter, n)
        return sizes

    def infer(self, *types: TensorType) -> TensorType:
        dtype = family.result_dtype(self.name, types, self.dtype)
        sizes = self.sizes(*types)
        return TensorType(dtype, (sizes[c] for c in parse_spec(self.spec).out))

    def ref(self, *arrays: Array) -> Array:
        """Multiply [batch, rows, contracted] by [batch, contracted, columns]."""
        s = parse_spec(self.spec)
        out = self.infer(*[TensorType(as_dtype(a.dtype), a.shape) for a in arrays])
        x, y = (family.accumulating(a, out.dtype) for a in arrays)
        size = dict(zip(s.left + s.right, x.shape + y.shape, strict=True))
        x = x.transpose([s.left.index(c) for c in s.batch + s.rows + s.contracted])
        y = y.transpose([s.right.index(c) for c in s.batch + s.contracted + s.columns])
        batch, m, k, n = (int(np.prod([size[c] for c in part], dtype=np.int64))
                          for part in (s.batch, s.rows, s.contracted, s.columns))  # fmt: skip
        product = np.matmul(x.reshape(batch, m, k), y.reshape(batch, k, n))
        letters = s.batch + s.rows + s.columns
        product = product.reshape([size[c] for c in letters]).transpose([letters.index(c) for c in s.out])
        return np.ascontiguousarray(product.astype(out.dtype.np, copy=False)).reshape(out.ints)

    def in_reals(self, b: Builder, *inputs: Node) -> Node | None:
        """Four products; in three the imaginary part would lose digits (Higham, 1992)."""
        dtype = None if self.dtype is None else self.dtype.real
        if not all(x.dtype.is_complex for x in inputs):
            return None

        def product(x: Node, y: Node) -> Node:
            return b.contract(x, y, spec=self.spec, dtype=dtype)

        (a, c), (p, q) = ((b.real(x), b.imag(x)) for x in inputs)
        return b.complex(b.sub(product(a, p), product(c, q)), b.add(product(a, q), product(c, p)))

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        s = parse_spec(self.spec)
        x, y = (cast_to(b, i, ct.dtype) for i in inputs)
        if ct.dtype.is_complex:
            x, y = b.conj(x), b.conj(y)
        result: list[Node | None] = [None, None]
        if b.needed(0):
            result[0] = cast_to(b, b.contract(ct, y, spec=f"{s.out},{s.right}->{s.left}"), inputs[0].dtype)
        if b.needed(1):
            result[1] = cast_to(b, b.contract(ct, x, spec=f"{s.out},{s.left}->{s.right}"), inputs[1].dtype)
        return result

    def lower(self, *types: TensorType) -> Lowered:
        s = parse_spec(self.spec)
        out = self.infer(*types)
        compute = out.dtype.compute
        variables = {c: Var(c, as_int(n)) for c, n in self.sizes(*types).items()}
        args = arguments(*types)
        terms = [
            cast(a[tuple(variables[c] for c in letters)], compute)
            for a, letters in zip(args, (s.left, s.right), strict=True)
        ]
        return Compute(
            args, [variables[c] for c in s.out], out.dtype, terms,
            reduce=[variables[c] for c in s.contracted], combiner="dot",
        )  # fmt: skip

    def cost(self, *types: TensorType) -> Cost:
        """Two operations per product."""
        work = 2.0
        for n in self.sizes(*types).values():
            work *= upper_bound(n)
        return Cost(work, float(types[0].nbytes + types[1].nbytes), float(self.infer(*types).nbytes))

    def batch(self, b: Builder, size: Dim, mapped: Sequence[bool], *inputs: Node) -> Node:
        s = parse_spec(self.spec)
        row = next(c for c in ascii_letters if c not in self.spec)
        left, right = (row + t if has else t for t, has in zip((s.left, s.right), mapped, strict=True))
        return b.op("contract", *inputs, spec=f"{left},{right}->{row}{s.out}", dtype=self.dtype)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for spec, x, y in (
            ("mk,kn->mn", (3, 4), (4, 5)), ("mk,nk->mn", (3, 4), (5, 4)), ("km,kn->mn", (4, 3), (4, 5)),
            ("bmk,bkn->bmn", (2, 3, 4), (2, 4, 5)), ("k,k->", (6,), (6,)), ("m,n->nm", (3,), (4,)),
            ("mk,k->m", (3, 4), (4,)), ("bhqd,bkhd->bhqk", (2, 2, 3, 4), (2, 5, 2, 4)),
            ("b,b->b", (4,), (4,)),
            ("mk,kn->mn", (3, 0), (0, 2)), ("mk,kn->mn", (0, 4), (4, 2)), ("mk,kn->mn", (1, 1), (1, 1)),
            ("abk,kcd->dbac", (2, 3, 4), (4, 2, 3)), ("m,->m", (3,), ()), ("mk,kn->mn", (35, 70), (70, 41)),
        ):  # fmt: skip
            for dtype in (float32, float64):
                yield Sample(cls(spec), (TensorType(dtype, x), TensorType(dtype, y)))
        for dtype, wide in (
            (float16, None), (bfloat16, None), (bfloat16, float32), (int64, None), (int8, int32),
            (int8, None),
        ):  # fmt: skip
            yield Sample(cls("mk,kn->mn", wide), (TensorType(dtype, (7, 33)), TensorType(dtype, (33, 9))))
        for left, right in ((int8, int8), (uint8, uint8), (uint8, int8), (int8, uint8)):
            yield Sample(cls("mk,nk->mn", int32), (TensorType(left, (6, 40)), TensorType(right, (20, 40))))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        x, y = TensorType(float32, (3, 4)), TensorType(float32, (4, 5))
        yield Reject(cls("mk,kn->mn"), (x, TensorType(float32, (5, 5))), "sizes of 'k' differ")
        yield Reject(cls("mk,kn->mn"), (x, TensorType(float64, (4, 5))), "dtype")
        yield Reject(cls("mk,kn->mn"), (TensorType(bool_, (3, 4)), TensorType(bool_, (4, 5))), "bool")
        yield Reject(cls("mk,kn->mn", int32), (x, y), "accumulate")
        yield Reject(cls("mk,kn->n"), (x, y), "one operand only")
        yield Reject(cls("mk,kn->mz"), (x, y), "neither")
        yield Reject(cls("mm,kn->mn"), (x, y), "repeated")
        yield Reject(cls("mk,kn"), (x, y), "spec")
        yield Reject(cls("mk,kn->mn"), (x, TensorType(float32, (4,))), "axes")
