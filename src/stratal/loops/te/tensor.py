"""Tensors of an algorithm: placeholders, and tensors computed from others.

A, B = placeholder((p, m)), placeholder((p, n))
k = reduce_axis(p)
C = compute((m, n), lambda y, x: sum(A[k, y] * B[k, x], axis=k))
"""

from __future__ import annotations

import inspect
import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Union

from stratal.base.dtypes import DType, as_dtype, float32, int64
from stratal.base.errors import AttributeValueError, DTypeError, IndexOutOfRangeError, ShapeError
from stratal.base.types import TensorType
from stratal.loops.compute import Compute
from stratal.loops.expr import Buffer, Var
from stratal.loops.index import bounds
from stratal.loops.te.term import Access, Apply, Axis, Number, Reduction, Term, Value, lower_term, term, walk

Size = Union[int, tuple[int, int]]
_SERIAL = itertools.count()


class Tensor:
    """A named array of an algorithm; `name` is empty until an algorithm gives it one."""

    def __init__(self, shape: Sequence[int], dtype: DType, name: str) -> None:
        self.shape: Final = _sizes(shape)
        self.dtype: Final = dtype
        self.name: Final = _identifier(name) if name else ""
        self.serial: Final = next(_SERIAL)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def type(self) -> TensorType:
        return TensorType(self.dtype, self.shape)

    def __getitem__(self, where: Any) -> Term:
        indices = where if isinstance(where, tuple) else (where,)
        if len(indices) != self.ndim:
            raise ShapeError(
                f"te: {self._label} has {self.ndim} axes",
                got=f"{len(indices)} indices",
                hint="index every axis: there are no slices in a scalar term",
            )
        found = tuple(_index(self, i) for i in indices)
        return Access(self, found)

    def __iter__(self) -> Any:
        raise AttributeValueError(
            "te: a tensor is read element by element, by axes", got=self._label, hint="A[i, j]"
        )

    @property
    def _label(self) -> str:
        return f"{self.name or 'the tensor'}: {self.type}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__.lower()} {self._label}>"


class Placeholder(Tensor):
    """An input."""


class Computed(Tensor):
    """A tensor given by a term over its axes, or by a reduction of one."""

    def __init__(
        self, shape: Sequence[int], axes: Sequence[Axis], body: Term, dtype: DType, name: str
    ) -> None:
        super().__init__(shape, dtype, name)
        self.axes: Final = tuple(axes)
        self.body: Final = body

    @property
    def reduced(self) -> tuple[Axis, ...]:
        """Axes the term is reduced over."""
        return self.body.axes if isinstance(self.body, Reduction) else ()

    @property
    def term(self) -> Term:
        """The term, without the reduction around it."""
        return self.body.term if isinstance(self.body, Reduction) else self.body

    @property
    def reads(self) -> tuple[Tensor, ...]:
        """Tensors the term reads, in the order of their making."""
        found = {t.tensor for t in walk(self.term) if isinstance(t, Access)}
        return tuple(sorted(found, key=lambda t: t.serial))


def _sizes(shape: object) -> tuple[int, ...]:
    given = shape if isinstance(shape, (tuple, list)) else (shape,)
    try:
        sizes = tuple(operator.index(n) for n in given)
    except TypeError:
        raise ShapeError("te: sizes are integers", got=repr(shape)) from None
    if any(n < 0 for n in sizes):
        raise ShapeError("te: sizes are not negative", got=repr(sizes))
    return sizes


def _identifier(name: str) -> str:
    if not (isinstance(name, str) and name.isidentifier() and name.isascii()):
        raise AttributeValueError("te: a name is an identifier", got=repr(name))
    return name


def _index(tensor: Tensor, value: object) -> Term:
    if isinstance(value, bool) or not isinstance(value, (int, Term)):
        raise DTypeError("te: an index is made of axes and integers", got=repr(value))
    found = term(value)
    if found.dtype is not int64:
        raise DTypeError("te: an index is an int64", got=f"{found}: {found.dtype.name}")
    if any(isinstance(t, Access) for t in walk(found)):
        raise AttributeValueError(
            "te: an index is made of axes, not of data",
            got=str(found),
            hint="gather with st.take or x[indices] on tensors",
        )
    return found


def placeholder(shape: Sequence[int] | int, dtype: object = float32, name: str = "") -> Placeholder:
    """Return an input of an algorithm."""
    wanted = as_dtype(dtype)
    if wanted.is_complex:
        raise DTypeError("te: terms are real", got=wanted.name)
    return Placeholder(_sizes(shape), wanted, name)


def reduce_axis(extent: Size, name: str = "k") -> Axis:
    """Return an axis to reduce over: `n`, or `(0, n)`."""
    if isinstance(extent, (tuple, list)):
        if len(extent) != 2 or extent[0] != 0:
            raise ShapeError("te.reduce_axis: a range starts at 0", got=repr(extent), hint="shift the index")
        extent = extent[1]
    return Axis(_identifier(name), _sizes((extent,))[0], reduce=True)


def axes(*extents: int, names: Sequence[str] = ()) -> tuple[Axis, ...]:
    """Return axes of a result, for `compute` without a lambda."""
    labels = names or [f"i{k}" for k in range(len(extents))]
    sizes = _sizes(extents)
    return tuple(Axis(_identifier(n), e) for n, e in zip(labels, sizes, strict=True))


def compute(
    shape: Sequence[int] | int, body: Callable[..., Value] | Value, name: str = "", dtype: object = None
) -> Computed:
    """Return the tensor of `shape` whose element at each index is `body`.

    `body` is a function of one index per axis, whose parameters name the axes, or a term over axes made by
    `axes`, which then are the result's in the order they were made. `dtype` is that of the term unless given.
    Raises: ShapeError, DTypeError, IndexOutOfRangeError for an index that leaves its tensor.
    """
    sizes = _sizes(shape)
    own = _axes_of(sizes, body)
    value = body(*own) if not isinstance(body, (Term, bool, int, float)) else body
    found = term(value)
    wanted = found.dtype if dtype is None else as_dtype(dtype)
    if wanted.is_complex:
        raise DTypeError("te: terms are real", got=wanted.name)
    made = Computed(sizes, own, found, wanted, name)
    _check_axes(made)
    _check_bounds(made)
    return made


def with_names(body: Callable[..., Value], names: Sequence[str]) -> Callable[..., Value]:
    """Return `body` with parameters of these names, for `compute` to read."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    body.__signature__ = inspect.Signature([inspect.Parameter(n, kind) for n in names])  # type: ignore[attr-defined]
    return body


def _axes_of(sizes: tuple[int, ...], body: object) -> tuple[Axis, ...]:
    if isinstance(body, (Term, bool, int, float)):
        t = term(body)
        free = [a for a in walk(t) if isinstance(a, Axis) and not a.reduce]
        own = tuple(sorted(free, key=lambda a: a.serial))
        if tuple(a.extent for a in own) != sizes:
            raise ShapeError(
                "te.compute: the axes of the term do not give this shape",
                got=f"{sizes}, but axes " + ", ".join(f"{a.name}<{a.extent}" for a in own),
                hint="y, x = te.axes(m, n)",
            )
        return own
    if not callable(body):
        raise DTypeError("te.compute: takes a function of indices or a term", got=repr(body))
    names = list(inspect.signature(body).parameters)
    if any(p.kind is p.VAR_POSITIONAL for p in inspect.signature(body).parameters.values()):
        names = [f"i{k}" for k in range(len(sizes))]
    if len(names) != len(sizes):
        raise ShapeError("te.compute: one index per axis", got=f"({', '.join(names)}) for shape {sizes}")
    return tuple(Axis(n, e) for n, e in zip(names, sizes, strict=True))


def _check_axes(made: Computed) -> None:
    """Every axis a term mentions is the result's or reduced over."""
    known = {*made.axes, *made.reduced}
    for t in walk(made.term):
        if isinstance(t, Axis) and t not in known:
            hint = f"te.sum(..., axis={t.name})" if t.reduce else "use the parameters of the function"
            raise ShapeError(
                "te.compute: an axis that is neither the result's nor reduced over", got=t.name, hint=hint
            )


def _check_bounds(made: Computed) -> None:
    """Reads that nothing guards stay inside their tensors."""
    variables = {a: Var(a.name, a.extent) for a in (*made.axes, *made.reduced)}
    if any(a.extent == 0 for a in variables):
        return
    for access in _unguarded(made.term):
        for i, n in zip(access.indices, access.tensor.shape, strict=True):
            low, high = bounds(lower_term(i, variables))
            if low < 0 or high >= n:
                raise IndexOutOfRangeError(
                    "te.compute: an index leaves its tensor",
                    got=f"{i} in [{low}, {high}] of {access.tensor!r}",
                    hint="te.where(condition, read, other) does not read where the condition fails",
                )


def _unguarded(root: Term) -> list[Access]:
    """Return the accesses outside of every `where`."""
    found: list[Access] = []
    stack, seen = [root], set()
    while stack:
        t = stack.pop()
        if id(t) in seen:
            continue
        seen.add(id(t))
        if isinstance(t, Access):
            found.append(t)
        stack += t.args[:1] if isinstance(t, Apply) and t.fn == "where" else t.parts
    return found


# -- lowering ------------------------------------------------------------------------------------------------
def lower_tensor(
    tensor: Computed, buffers: Mapping[Tensor, Buffer], names: Mapping[Axis, str] | None = None
) -> Compute:
    """Return what a tensor computes, over buffers for the tensors it reads.

    16-bit floats compute in float32 and are rounded once, at the end. A sum of products of two elements is
    a `dot`.
    """
    labels = names or {}
    reduce = tensor.reduced
    variables = {a: Var(labels.get(a, a.name), a.extent) for a in (*tensor.axes, *reduce)}
    roots = [tensor.term]
    combiner = tensor.body.combiner if isinstance(tensor.body, Reduction) else None
    if combiner == "sum" and _is_product(tensor.term):
        roots, combiner = list(tensor.term.parts), "dot"
    terms = [lower_term(r, variables, buffers) for r in roots]
    return Compute(
        [buffers[t] for t in tensor.reads],
        [variables[a] for a in tensor.axes],
        tensor.dtype,
        terms,
        reduce=[variables[a] for a in reduce],
        combiner=combiner,
    )


def _is_product(term: Term) -> bool:
    """Return whether a term is the product of two elements, converted or not."""
    return isinstance(term, Apply) and term.fn == "mul" and all(_is_element(a) for a in term.args)


def _is_element(t: Term) -> bool:
    while isinstance(t, Apply) and t.fn == "cast":
        t = t.args[0]
    return isinstance(t, Access)


# -- substitution --------------------------------------------------------------------------------------------
def substituted(
    root: Term,
    values: Mapping[Axis, Term],
    tensors: Mapping[Tensor, Tensor] | None = None,
    front: tuple[Axis, ...] = (),
) -> Term:
    """Return a term with axes replaced by other indices, and tensors by others of the same type.

    These may have further axes in front, at which they are read.
    """
    others = tensors or {}
    made: dict[int, Term] = {}
    for t in walk(root):
        parts = tuple(made[id(p)] for p in t.parts)
        if isinstance(t, Axis):
            made[id(t)] = values.get(t, t)
        elif isinstance(t, Access):
            made[id(t)] = (
                Access(others[t.tensor], (*front, *parts)) if t.tensor in others else Access(t.tensor, parts)
            )
        elif isinstance(t, Apply):
            made[id(t)] = _rebuilt(t, parts)
        else:
            made[id(t)] = t
    return made[id(root)]


def _rebuilt(t: Apply, parts: tuple[Term, ...]) -> Term:
    """Return a function of other terms; adding or taking away nothing vanishes."""
    if (
        t.fn in ("add", "sub")
        and isinstance(parts[1], Number)
        and parts[1].value == 0
        and not t.dtype.is_float
    ):
        return parts[0]
    return t if parts == t.args else Apply(t.fn, parts, t.dtype)


def reading(tensor: Computed, tensors: Mapping[Tensor, Tensor]) -> Computed:
    """Return a computed tensor that reads other tensors."""
    body = _reading(tensor, tensors, ())
    return Computed(tensor.shape, tensor.axes, body, tensor.dtype, "")


def over_rows(tensor: Computed, tensors: Mapping[Tensor, Tensor], size: int) -> Computed:
    """Return a computed tensor with an axis of `size` in front, at which it reads those that have it, too."""
    row = Axis("row", size)
    body = _reading(tensor, tensors, (row,))
    return Computed((size, *tensor.shape), (row, *tensor.axes), body, tensor.dtype, "")


def _reading(tensor: Computed, tensors: Mapping[Tensor, Tensor], front: tuple[Axis, ...]) -> Term:
    found, body = substituted(tensor.term, {}, tensors, front), tensor.body
    return Reduction(body.combiner, found, body.axes) if isinstance(body, Reduction) else found
