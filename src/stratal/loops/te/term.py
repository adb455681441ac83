"""Scalar terms over index variables, built by Python's operators: what the body of a `compute` is made of.

term      := number | axis | tensor[index, ...] | term operator term | fn(term, ...)
index     := a term of int64: axes, integers, + - *, and // % by positive integers
reduction := combiner(term, axis=...)            outermost only
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Union, final

from stratal.base.dtypes import DType, as_dtype, bool_, float32, int64
from stratal.base.errors import AttributeValueError, DTypeError, ShapeError
from stratal.loops.expr import Buffer, Expr, Var, const, index_const
from stratal.loops.expr import cast as cast_expr
from stratal.loops.expr import walk as walk_parts
from stratal.loops.operators import Operators

if TYPE_CHECKING:
    from stratal.loops.te.tensor import Tensor

_SERIAL = itertools.count()


class Function(NamedTuple):
    """A scalar function of terms: its lowering to the loop language and its partial derivatives.

    `takes` lists the kinds of dtypes of the operands that count (see `base.dtypes`); `result` says which
    operand gives the dtype, or is `bool`. `partials(args, out)` returns one term per argument, None for zero.
    """

    name: str
    arity: int
    takes: str
    lower: Callable[..., Expr]
    partials: Callable[[Sequence[Term], Term], Sequence[Term | None]] | None = None
    result: DType | int = 0
    infix: str = ""


FUNCTIONS: Final[dict[str, Function]] = {}


class Term(Operators["Term"]):
    """A scalar with a dtype. Operators build bigger terms; comparisons give bool."""

    __slots__ = ("dtype",)
    dtype: DType
    __array_ufunc__ = None  # NumPy scalars leave operators to us

    def astype(self, dtype: object) -> Term:
        """Return this value converted to another dtype."""
        return cast(self, dtype)

    def _apply(self, name: str, *operands: Value) -> Term:
        return apply(name, *operands)

    def __floordiv__(self, other: int) -> Term:
        return apply("floordiv", self, _divisor("//", other))

    def __mod__(self, other: int) -> Term:
        return apply("mod", self, _divisor("%", other))

    def __bool__(self) -> bool:
        raise AttributeValueError(
            "te: a term has no truth value while it is written down",
            got=str(self),
            hint="choose with te.where(condition, a, b); join conditions with & and |",
        )

    def __iter__(self) -> Iterator[Term]:
        raise AttributeValueError(
            "te: a term is one scalar and cannot be iterated over",
            got=str(self),
            hint="sum over an axis with te.sum(term, axis=k), not Python's sum",
        )

    @property
    def parts(self) -> tuple[Term, ...]:
        return ()

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return term_to_text(self)


Value = Union[Term, bool, int, float]


@final
class Number(Term):
    """An immediate."""

    __slots__ = ("value",)

    def __init__(self, value: bool | int | float, dtype: DType) -> None:
        self.value: Final = value
        self.dtype = dtype


@final
class Axis(Term):
    """An index variable in [0, extent): of the result, or summed over where `reduce`."""

    __slots__ = ("extent", "name", "reduce", "serial")

    def __init__(self, name: str, extent: int, reduce: bool = False) -> None:
        self.name: Final = name
        self.extent: Final = extent
        self.reduce: Final = reduce
        self.serial: Final = next(_SERIAL)
        self.dtype = int64


@final
class Access(Term):
    """An element of a tensor."""

    __slots__ = ("indices", "tensor")

    def __init__(self, tensor: Tensor, indices: tuple[Term, ...]) -> None:
        self.tensor: Final = tensor
        self.indices: Final = indices
        self.dtype = tensor.dtype

    @property
    def parts(self) -> tuple[Term, ...]:
        return self.indices


@final
class Apply(Term):
    """A function of `FUNCTIONS` applied to terms; `cast` names its dtype."""

    __slots__ = ("args", "fn")

    def __init__(self, fn: str, args: tuple[Term, ...], dtype: DType) -> None:
        self.fn: Final = fn
        self.args: Final = args
        self.dtype = dtype

    @property
    def parts(self) -> tuple[Term, ...]:
        return self.args


@final
class Reduction(Term):
    """All values of a term over reduce axes, combined: `sum`, `prod`, `max`, `min`, `any`, `all`."""

    __slots__ = ("axes", "combiner", "term")

    def __init__(self, combiner: str, term: Term, axes: tuple[Axis, ...]) -> None:
        self.combiner: Final = combiner
        self.term: Final = term
        self.axes: Final = axes
        self.dtype = term.dtype

    @property
    def parts(self) -> tuple[Term, ...]:
        return (self.term,)


def number(value: object, like: DType | None = None) -> Number:
    """Return an immediate of a dtype, by default that of the Python number."""
    if isinstance(value, bool):
        dtype = like or bool_
    elif isinstance(value, int):
        dtype = like or int64
    elif isinstance(value, float):
        dtype = like or float32
        if dtype.is_integer or dtype.is_bool:
            raise DTypeError(f"te: {value} does not fit {dtype.name}", hint="convert with .astype(...)")
    else:
        raise DTypeError("te: a term is made of tensors, axes and Python numbers", got=repr(value))
    return Number(float(value) if dtype.is_float else value, dtype)


def term(value: Value) -> Term:
    """Return a term as it is, a Python number as an immediate."""
    return value if isinstance(value, Term) else number(value)


def _divisor(sign: str, value: object) -> int:
    if isinstance(value, Number):
        value = value.value
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise AttributeValueError(f"te: {sign} takes a positive integer on its right", got=repr(value))
    return value


def apply(name: str, *values: Value) -> Term:
    """Return `name(*values)`. Python numbers take the dtype of the other operands. Raises: DTypeError."""
    fn = FUNCTIONS[name]
    if len(values) != fn.arity:
        raise AttributeValueError(f"te.{name}: takes {fn.arity} arguments", got=str(len(values)))
    counted = values[1:] if name == "where" else values
    known = [v.dtype for v in counted if isinstance(v, Term) and not isinstance(v, Number)]
    known = known or [v.dtype for v in counted if isinstance(v, Term)]
    like = known[0] if known else None
    args = [
        v
        if isinstance(v, Term) and v.dtype is like
        else number(v.value if isinstance(v, Number) else v, like)
        if not isinstance(v, Term) or isinstance(v, Number)
        else v
        for v in counted
    ]
    if any(a.dtype is not args[0].dtype for a in args) or any(isinstance(a, Reduction) for a in args):
        _refuse(name, args)
    if args[0].dtype.kind not in fn.takes:
        raise DTypeError(f"te.{name}: does not take {args[0].dtype.name}", hint="convert with .astype(...)")
    if name == "where":
        condition = term(values[0])
        if condition.dtype is not bool_:
            raise DTypeError("te.where: the condition must be bool", got=condition.dtype.name)
        args.insert(0, condition)
    dtype = args[fn.result].dtype if isinstance(fn.result, int) else fn.result
    return Apply(name, tuple(args), dtype)


def _refuse(name: str, args: Sequence[Term]) -> None:
    if any(isinstance(a, Reduction) for a in args):
        raise AttributeValueError(
            f"te.{name}: a reduction stands inside another term",
            got=", ".join(map(str, args)),
            hint="give the reduction a compute of its own and read that",
        )
    got = ", ".join(f"{a}: {a.dtype.name}" for a in args)
    raise DTypeError(f"te.{name}: operands differ in dtype", got=got, hint="convert one with .astype(...)")


def cast(value: Value, dtype: object) -> Term:
    """Return a value converted to `dtype`: floats to integers truncate and saturate."""
    wanted, t = as_dtype(dtype), term(value)
    if wanted.is_complex:
        raise DTypeError("te.cast: terms are real", got=wanted.name)
    return t if t.dtype is wanted else Apply("cast", (t,), wanted)


def reduction(name: str, value: Value, axis: object = None) -> Reduction:
    """Combine a term over reduce axes: those of `axis`, by default all that it mentions."""
    t = term(value)
    mentioned = [a for a in walk(t) if isinstance(a, Axis) and a.reduce]
    wanted = tuple(axis) if isinstance(axis, (tuple, list)) else (axis,) if axis is not None else mentioned
    found = tuple(dict.fromkeys(wanted))
    if not found or not all(isinstance(a, Axis) and a.reduce for a in found):
        raise ShapeError(
            f"te.{name}: takes axes made by reduce_axis",
            got=", ".join(map(str, found)) or "none",
            hint="k = te.reduce_axis(n); te.sum(A[i, k], axis=k)",
        )
    if any(isinstance(p, Reduction) for p in walk(t)):
        _refuse(name, [t])
    kinds = {"any": "b", "all": "b", "max": "uif", "min": "uif"}.get(name, "uif")
    if t.dtype.kind not in kinds:
        raise DTypeError(f"te.{name}: does not combine {t.dtype.name}", hint="convert with .astype(...)")
    return Reduction(name, t, tuple(found))


def walk(root: Term) -> list[Term]:
    """Return a term and all below it, operands first, each object once; iterative."""
    return walk_parts([root])


# -- text --------------------------------------------------------------------------------------------------
CALLED: Final = {"eq": "equal", "ne": "not_equal"}  # as text calls them
PREFIX: Final = {"neg": "-", "not": "~"}


def term_to_text(root: Term, names: Mapping[Any, str] | None = None) -> str:
    """Print a term. `names` gives tensors and axes names of their own."""
    texts: dict[int, str] = {}
    for t in walk(root):
        texts[id(t)] = _one(t, texts, names or {})
    return _bare(texts[id(root)])


def _one(t: Term, texts: dict[int, str], names: Mapping[Any, str]) -> str:
    parts = [texts[id(p)] for p in t.parts]
    if isinstance(t, Number):
        return str(t.value)
    if isinstance(t, Axis):
        return names.get(t, t.name)
    if isinstance(t, Access):
        return f"{names.get(t.tensor, t.tensor.name or '?')}[{', '.join(map(_bare, parts)) or '()'}]"
    if isinstance(t, Reduction):
        axes = ", ".join(names.get(a, a.name) for a in t.axes)
        return f"{t.combiner}({_bare(parts[0])}, axis={axes if len(t.axes) == 1 else f'({axes})'})"
    assert isinstance(t, Apply)
    if t.fn == "cast":
        return f'cast({_bare(parts[0])}, "{t.dtype.name}")'
    typed = _typed(t, parts)
    if t.fn in PREFIX:
        return f"({PREFIX[t.fn]}{typed[0]})"
    if FUNCTIONS[t.fn].infix and t.fn not in CALLED:
        return f"({typed[0]} {FUNCTIONS[t.fn].infix} {typed[1]})"
    return f"{CALLED.get(t.fn, t.fn)}({', '.join(map(_bare, typed))})"


def _typed(t: Apply, parts: list[str]) -> list[str]:
    """Give a number its dtype in words where no other operand does."""
    counted = t.args[1:] if t.fn == "where" else t.args
    if any(not isinstance(a, Number) for a in counted):
        return parts
    number = counted[0]
    first = len(t.args) - len(counted)
    typed = f'cast({parts[first]}, "{number.dtype.name}")'
    return [typed if k == first else p for k, p in enumerate(parts)]


def _bare(text: str) -> str:
    """Drop parentheses around a whole text."""
    if not text.startswith("("):
        return text
    depth = 0
    for k, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0:
            return text[1:-1] if k == len(text) - 1 else text
    return text


# -- lowering ------------------------------------------------------------------------------------------------
def lower_term(
    root: Term, variables: Mapping[Axis, Var], buffers: Mapping[Any, Buffer] | None = None
) -> Expr:
    """Return a term over loop variables, and buffers unless it is an index; 16-bit floats become float32."""
    made: dict[int, Expr] = {}
    for t in walk(root):
        made[id(t)] = _lower(t, [made[id(p)] for p in t.parts], variables, buffers or {})
    return made[id(root)]


def _lower(t: Term, parts: list[Expr], variables: Mapping[Axis, Var], buffers: Mapping[Any, Buffer]) -> Expr:
    if isinstance(t, Number):
        return index_const(int(t.value)) if t.dtype is int64 else const(t.value, t.dtype.compute)
    if isinstance(t, Axis):
        return index_const(0) if t.extent == 1 else variables[t]
    if isinstance(t, Access):
        return cast_expr(buffers[t.tensor][tuple(parts)], t.dtype.compute)
    assert isinstance(t, Apply)
    if t.fn == "cast":
        return cast_expr(cast_expr(parts[0], t.dtype), t.dtype.compute)
    return FUNCTIONS[t.fn].lower(*parts)
