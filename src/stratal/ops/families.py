"""What the records of one family share: element-wise ops and linear ops.

Complex convention: the tangent of `f` at `z` is `f'(z) * t`; the cotangent is `conj(f'(z)) * ct`, so that
gradients of a real loss point in the direction of steepest ascent, as in PyTorch, and
Re<ct, jvp(t)> = Re<vjp(ct), t>.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, reduce
from typing import Any, ClassVar, TypeVar

import numpy as np

from stratal.base.cost import Cost
from stratal.base.dims import Dim
from stratal.base.dtypes import ALL, DType, bool_, complex64, complex128, float32, float64, int64
from stratal.base.errors import AttributeValueError, DTypeError, ShapeError
from stratal.base.lowered import Lowered
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Op, Reject, Sample, record
from stratal.loops.compute import Compute, pointwise
from stratal.loops.expr import Call, Expr, call, cast, walk

REAL_OF = {complex64: float32, complex128: float64}
COMPLEX_OF = {real: whole for whole, real in REAL_OF.items()}
Slope = Callable[[Builder, Node, Node], Node]
_Unary = TypeVar("_Unary", bound="Unary")
_Family = TypeVar("_Family", bound=Op)
SAMPLE_SHAPES = ((2, 5), (), (37,), (0, 4), (1, 3, 1))


def same_types(name: str, types: Sequence[TensorType]) -> TensorType:
    """Return the one type all operands have. Raises: ShapeError, DTypeError."""
    first = types[0]
    for other in types[1:]:
        if other.dtype is not first.dtype:
            raise DTypeError(
                f"{name}: operands differ in dtype", got=", ".join(map(str, types)),
                hint="x.float(), x.double() or x.astype(dtype) converts one side; net.to(dtype) a module",
            )  # fmt: skip
        if other.shape != first.shape:
            raise ShapeError(f"{name}: operands differ in shape", got=", ".join(map(str, types)))
    return first


def check_axis(name: str, type_: TensorType, axis: int) -> None:
    """Axes of a record lie in [0, ndim): negative ones are the user interface's affair."""
    if not 0 <= axis < type_.ndim:
        raise AttributeValueError(f"{name}: axis out of range", got=f"axis {axis} of {type_}")


def check_kind(name: str, dtype: DType, kinds: str) -> None:
    """Refuse a dtype whose kind (`b u i f c`) is not among `kinds`."""
    if dtype.kind not in kinds:
        words = {"b": "bool", "u": "unsigned", "i": "signed", "f": "float", "c": "complex"}
        raise DTypeError(f"{name}: takes {', '.join(words[k] for k in kinds)}", got=str(dtype))


def widened(x: Array) -> Array:
    """Return 16-bit floats as float32, which their arithmetic computes in; other arrays as they are."""
    return x.astype(np.float32) if x.dtype.itemsize == 2 and x.dtype.kind not in "iu" else x


class RowWise(Op):
    """Is for many rows at once itself, on operands with an axis more, which `axis` and `axes` count, too.

    Each record, or family whose records are all so, says it. It is not so where another axis is meant by its
    place, such as the first.
    """

    def batch(self, b: Builder, size: Dim, mapped: Sequence[bool], *inputs: Node) -> Any:
        return over_rows(self, b, size, mapped, inputs)


class Linear(Op):
    """Is linear in all its inputs together: its tangent is itself on the tangents."""

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Node | None:
        return linear_jvp(self, b, tangents, *inputs)


class Elementwise(RowWise):
    """out[i] = f(x[i], ...) for operands of one type. 16-bit floats compute in float32 and round once.

    A record gives `numpy` (its reference on arrays of the compute dtype) or the `ufunc` it is, `scalar` (the
    same on expressions) or the function `fn` of `loops.expr` or `formula` of `loops.math` it is and, where
    differentiable, `partials`.
    """

    pointwise = True
    kinds: ClassVar[str] = "uif"
    ufunc: ClassVar[Callable[..., Any] | None] = None
    fn: ClassVar[str] = ""
    formula: ClassVar[Callable[..., Expr] | None] = None
    result: ClassVar[DType | None] = None  # dtype of the result where it is not the operands'
    domain: ClassVar[tuple[float, float]] = (-2.0, 2.0)

    def infer(self, *types: TensorType) -> TensorType:
        first = same_types(self.name, types)
        check_kind(self.name, first.dtype, self.kinds)
        return first.with_dtype(self.result) if self.result is not None else first

    def numpy(self, *arrays: Array) -> Array:
        ufunc = type(self).ufunc
        if ufunc is None:
            raise NotImplementedError
        return np.asarray(ufunc(*arrays))

    def ref(self, *arrays: Array) -> Array:
        promised = self.result.np if self.result is not None else arrays[0].dtype
        return np.asarray(self.numpy(*map(widened, arrays))).astype(promised, copy=False)

    def scalar(self, *args: Expr) -> Expr:
        formula = type(self).formula
        if formula is None and not self.fn:
            raise NotImplementedError
        return call(self.fn, *args) if formula is None else formula(*args)

    def lower(self, *types: TensorType) -> Lowered:
        out = self.infer(*types).dtype
        compute = types[0].dtype.compute
        return pointwise(types, out, lambda *xs: cast(self.scalar(*[cast(x, compute) for x in xs]), out))

    def cost(self, *types: TensorType) -> Cost:
        one = super().cost(*types)
        return one._replace(flops=one.flops * operations(self, types[0].dtype))

    def partials(self, b: Builder, out: Node, *inputs: Node) -> Sequence[Node | None]:
        """Return d out / d input for each input; None where it is zero everywhere."""
        raise self.no_derivative()

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        cotangents: list[Node | None] = []
        for k, partial in enumerate(self.partials(b, out, *inputs)):
            if partial is None or not b.needed(k):
                cotangents.append(None)
            else:
                cotangents.append(b.mul(ct, b.conj(partial) if ct.dtype.is_complex else partial))
        return cotangents

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Node | None:
        total: Node | None = None
        for partial, tangent in zip(self.partials(b, out, *inputs), tangents, strict=True):
            if partial is not None and tangent is not None:
                term = b.mul(partial, tangent)
                total = term if total is None else b.add(total, term)
        return total

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        count = cls.arity or 1
        for k, dtype in enumerate(sample_dtypes(cls.kinds)):
            for shape in SAMPLE_SHAPES if k < 2 else SAMPLE_SHAPES[:1]:
                yield Sample(
                    cls(), (TensorType(dtype, shape),) * count, cls.domain, smooth=not cls.not_differentiable
                )

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        if cls.arity is not None and cls.arity > 1:
            dtype = next(iter(sample_dtypes(cls.kinds)))
            yield Reject(
                cls(), (TensorType(dtype, (2,)),) + (TensorType(dtype, (3,)),) * (cls.arity - 1), "shape"
            )
        refused = bool_ if "b" not in cls.kinds else float32 if "f" not in cls.kinds else None
        if refused is not None:
            yield Reject(cls(), (TensorType(refused, (2,)),) * (cls.arity or 1), "takes")


class Unary(Elementwise):
    """A function of one float or complex number; `@derivative` says its slope."""

    arity = 1
    kinds = "fc"
    slope: ClassVar[Slope | None] = None

    def partials(self, b: Builder, out: Node, *inputs: Node) -> Sequence[Node | None]:
        slope = type(self).slope
        return super().partials(b, out, *inputs) if slope is None else [slope(b, out, *inputs)]


def derivative(slope: Slope) -> Callable[[type[_Unary]], type[_Unary]]:
    """Give a record the derivative of its function."""

    def given(cls: type[_Unary]) -> type[_Unary]:
        cls.slope = slope
        return cls

    return given


def records(module: str, base: type[_Family]) -> Callable[..., type[_Family]]:
    """Return what makes the records of a module that differ in values only from the others of their family.

    It takes the op's name, what it computes in words, and the record's class variables.
    """

    def member(name: str, text: str, **values: Any) -> type[_Family]:
        return record(type(name.capitalize(), (base,), {"__module__": module, "__doc__": text, **values}))

    return member


class Movement(Linear):
    """Moves or marks elements and computes nothing. A record lists the `cases` of its samples."""

    by_parts = True
    exact = "buif"
    cases: ClassVar[Sequence[tuple[Any, ...]]]  # a shape, and the fields of the op
    dtypes: ClassVar[tuple[DType, ...]] = (float32, float64, bool_, int64)
    smooth: ClassVar[bool] = True

    def cost(self, *types: TensorType) -> Cost:
        return super().cost(*types)._replace(flops=0.0)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in cls.dtypes:
            for shape, *fields in cls.cases:
                types = (TensorType(dtype, shape),) * (cls.arity or 1)
                yield Sample(cls(*fields), types, smooth=cls.smooth)


@lru_cache(maxsize=1024)
def operations(op: Elementwise, dtype: DType) -> int:
    """Return how many scalar functions an element of a call on `dtype` takes, conversions aside."""
    types = (TensorType(dtype),) * (op.arity or 1)
    if op.host_reason(*types):
        return 1
    lowered = op.lower(*types)
    terms = lowered.terms if isinstance(lowered, Compute) else ()
    return sum(isinstance(e, Call) and e.fn not in ("cast", "bitcast") for e in walk(terms))


def sample_dtypes(kinds: str) -> Iterable[DType]:
    """Yield every dtype of the given kinds, float32 and float64 first."""
    yield from sorted((d for d in ALL if d.kind in kinds), key=lambda d: d not in (float32, float64))


def linear_jvp(op: Op, b: Builder, tangents: Sequence[Node | None], *inputs: Node) -> Node:
    """Return the tangent of an op linear in all its inputs together: the op itself on the tangents."""
    return b.op(op.name, *or_zeros(b, tangents, inputs), **op.attributes)


def or_zeros(b: Builder, tangents: Sequence[Node | None], inputs: Sequence[Node]) -> list[Node]:
    """Return tangents, or cotangents, of some nodes: zeros for those that are not given."""
    return [b.like(x, 0) if t is None else t for t, x in zip(tangents, inputs, strict=True)]


def cast_to(b: Builder, x: Node, dtype: DType) -> Node:
    """Return `x` in `dtype`, itself where it is already."""
    return x if x.dtype is dtype else b.cast(x, dtype=dtype)


def total(b: Builder, *terms: Node | None) -> Node | None:
    """Return the sum of what there is."""
    found = [t for t in terms if t is not None]
    return reduce(b.add, found) if found else None


def with_axis(b: Builder, size: Dim, mapped: Sequence[bool], inputs: Sequence[Node]) -> list[Node]:
    """Return inputs that all have the axis of `size` in front that those in `mapped` have."""
    return [x if has else repeated(b, size, x) for x, has in zip(inputs, mapped, strict=True)]


def repeated(b: Builder, size: Dim, x: Node) -> Node:
    """Return `x` once per row of a new axis in front."""
    return b.broadcast(x, shape=(size, *x.shape), axes=tuple(range(1, x.aval.ndim + 1)))


def moved_axis(b: Builder, x: Node, source: int, target: int) -> Node:
    """Return `x` with one axis at another place, the others in order."""
    rest = [a for a in range(x.aval.ndim) if a != source]
    perm = (*rest[:target], source, *rest[target:])
    return x if source == target else b.permute(x, perm=perm)


def over_rows(
    op: Op, b: Builder, size: Dim, mapped: Sequence[bool], inputs: Sequence[Node], **changed: object
) -> Node:
    """Return the batch of an op that is itself with an axis more: with some attributes changed.

    Those called `axis` and `axes` count the new axis in front unless `changed` says otherwise.
    """
    given = op.attributes
    if "axis" in given:
        changed = {"axis": given["axis"] + 1} | changed
    if "axes" in given:
        changed = {"axes": tuple(a + 1 for a in given["axes"])} | changed
    return b.op(op.name, *with_axis(b, size, mapped, inputs), **(given | changed))
