"""Scalar expressions: hash-consed, typed, with the closed set of functions that code generation knows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, TypeVar, Union, final

import numpy as np

from stratal.base.dtypes import DType, bool_, complex64, complex128, float32, float64, int32, int64, uint32
from stratal.base.errors import VerifyError
from stratal.base.weak import WeakTable
from stratal.loops.operators import Operators

T = TypeVar("T")

FUNCTIONS: Final[dict[str, tuple[int, str]]] = {
    # name: (number of arguments, what it means). Result dtype is the first argument's unless said otherwise.
    "add": (2, "a + b; integers wrap"),
    "sub": (2, "a - b; integers wrap"),
    "mul": (2, "a * b; integers wrap"),
    "div": (2, "a / b of floats, IEEE"),
    "fma": (3, "a * b + c, rounded once"),
    "ldexp": (2, "a * 2^b, rounded once; |a| is 0, NaN or in [1/4, 4], b whole, infinite or NaN where a is"),
    "neg": (1, "-a"),
    "abs": (1, "|a|"),
    "min": (2, "the smaller; NaN if either is NaN"),
    "max": (2, "the larger; NaN if either is NaN"),
    "sqrt": (1, "correctly rounded square root"),
    "floor": (1, "round towards -inf, float"),
    "ceil": (1, "round towards +inf, float"),
    "trunc": (1, "round towards 0, float"),
    "rint": (1, "round to nearest, ties to even, float"),
    "idiv": (2, "integer division towards 0; a divisor of 0 gives 0"),
    "irem": (2, "integer remainder with the sign of a; a divisor of 0 gives 0"),
    "floordiv": (2, "index division towards -inf by a positive constant"),
    "mod": (2, "index remainder in [0, b) by a positive constant"),
    "mulhi": (2, "upper half of the product of two unsigned integers"),
    "and": (2, "bitwise or logical and"),
    "or": (2, "bitwise or logical or"),
    "xor": (2, "bitwise or logical exclusive or"),
    "not": (1, "bitwise or logical not"),
    "shl": (2, "a << b; 0 where b is not less than the width"),
    "shr": (2, "a >> b, arithmetic for signed; sign or 0 where b is not less than the width"),
    "eq": (2, "bool"),
    "ne": (2, "bool; true if either is NaN"),
    "lt": (2, "bool; false if either is NaN"),
    "le": (2, "bool; false if either is NaN"),
    "gt": (2, "bool; false if either is NaN"),
    "ge": (2, "bool; false if either is NaN"),
    "select": (3, "b where bool a, else c; both are evaluated; dtype of b"),
    "cast": (1, "to the call's dtype; float to integer truncates and saturates, NaN to 0; to bool: a != 0"),
    "bitcast": (1, "the same bits as the call's dtype of equal width"),
    "far_sin": (2, "b, or the sine of a where a is 2^47 or more"),
    "far_cos": (2, "b, or the cosine of a where a is 2^47 or more"),
    "far_tan": (2, "b, or the tangent of a where a is 2^47 or more"),
    "far_mod": (3, "c, or the remainder of a by b, both not negative, where the quotient is 2^50 or more"),
    "pick8": (9, "of eight 32-bit constants the one the lowest three bits of a uint32 count; their dtype"),
    "bytes4": (4, "int32 that has the bits of four 8-bit integers, the first lowest"),
    "dot4": (3, "int32: a + four products of bytes, unsigned ones of b with signed ones of c; wraps"),
    "halves2": (2, "int32 that has the bits of two 16-bit numbers, the first lower"),
    "pair": (2, "the complex number of a real and an imaginary part, which is stored at once"),
    "dot2": (
        3,
        "float32: a + the product of the upper bfloat16 halves of words b and c, then + that of the lower; "
        "each sum is rounded once, and numbers below the least normal one count as 0",
    ),
}
COMPARISONS: Final = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))
_PARTS: Final = {"bytes4": 8, "halves2": 16}  # bits of what a word is made of
_DOTS: Final = {"dot4": int32, "dot2": float32}  # what products of words are added to

_TABLE: WeakTable[Any] = WeakTable()  # by kind, attributes and ids of parts
_NONE: Final[frozenset[Any]] = frozenset()


@final
class Buffer:
    """Memory a kernel touches.

    `strides` count elements; `space` is `global`, `scratch` (per worker) or `register`.
    """

    __slots__ = ("__weakref__", "dtype", "name", "shape", "space", "strides")

    def __init__(
        self, name: str, dtype: DType, shape: Iterable[int], strides: Iterable[int] | None = None,
        space: str = "global"
    ) -> None:
        self.name: Final = name
        self.dtype: Final = dtype
        self.shape: Final = tuple(shape)
        self.strides: Final = tuple(strides) if strides is not None else row_major(self.shape)
        self.space: Final = space

    @property
    def size(self) -> int:
        """Elements from the first to the last, gaps included."""
        if 0 in self.shape:
            return 0
        return 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))

    @property
    def nbytes(self) -> int:
        """Bytes from the first element to the last, gaps included."""
        return self.size * self.dtype.itemsize

    def __getitem__(self, indices: Expr | int | tuple[Expr | int, ...]) -> Load:
        where = indices if isinstance(indices, tuple) else (indices,)
        return load(self, tuple(index_const(i) if isinstance(i, int) else i for i in where))

    def __str__(self) -> str:
        natural = "" if self.strides == row_major(self.shape) else f" strides{list(self.strides)}"
        return f"{self.name}: {self.dtype}{list(self.shape)}{natural}"

    __repr__ = __str__


def row_major(shape: Iterable[int]) -> tuple[int, ...]:
    """Return the element strides of a dense row-major array."""
    strides: list[int] = []
    step = 1
    for n in reversed(tuple(shape)):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


class Scalar(Operators["Expr"]):
    """What all expressions share: their text, and Python's operators, which build calls as they are written.

    Sums of indices are made by `loops.index`, which keeps them in normal form.
    """

    __slots__ = ()

    def _apply(self, name: str, *operands: Any) -> Expr:
        return call(name, *alike(*operands))

    def __xor__(self, other: Expr | int) -> Expr:
        return self._apply("xor", self, other)

    def __lshift__(self, by: Expr | int) -> Expr:
        return self._apply("shl", self, by)

    def __rshift__(self, by: Expr | int) -> Expr:
        return self._apply("shr", self, by)

    def __str__(self) -> str:
        return to_text(self)  # type: ignore[arg-type]  # all subclasses are in `Expr`

    __repr__ = __str__


@final
class Const(Scalar):
    """A scalar immediate."""

    __slots__ = ("__weakref__", "dtype", "value")
    parts: Final[tuple[Expr, ...]] = ()
    free: Final[frozenset[Var]] = _NONE

    def __init__(self, value: Any, dtype: DType) -> None:
        self.value: Final = value
        self.dtype: Final = dtype


@final
class Var(Scalar):
    """A loop variable: an int64 in [0, extent). Two variables are equal only if they are one object."""

    __slots__ = ("__weakref__", "extent", "name")
    parts: Final[tuple[Expr, ...]] = ()

    def __init__(self, name: str, extent: int) -> None:
        self.name: Final = name
        self.extent: Final = extent

    @property
    def dtype(self) -> DType:
        return int64

    @property
    def free(self) -> frozenset[Var]:
        return frozenset((self,))

    def __str__(self) -> str:
        return self.name


@final
class Load(Scalar):
    """An element of a buffer; `indices` are logical, one per axis."""

    __slots__ = ("__weakref__", "buffer", "free", "indices", "parts")

    def __init__(self, buffer: Buffer, indices: tuple[Expr, ...]) -> None:
        self.buffer: Final = buffer
        self.indices: Final = indices
        self.parts: Final = indices
        self.free: Final = _union(indices)

    @property
    def dtype(self) -> DType:
        return self.buffer.dtype


@final
class Call(Scalar):
    """A scalar function of `FUNCTIONS` applied to arguments."""

    __slots__ = ("__weakref__", "args", "dtype", "fn", "free", "parts")

    def __init__(self, fn: str, args: tuple[Expr, ...], dtype: DType) -> None:
        self.fn: Final = fn
        self.args: Final = args
        self.dtype: Final = dtype
        self.parts: Final = args
        self.free: Final = _union(args)


@final
class Guard(Scalar):
    """`value` where `condition` holds, else `otherwise`.

    Loads of `value` do not happen where it does not hold.
    """

    __slots__ = ("__weakref__", "condition", "free", "otherwise", "parts", "value")

    def __init__(self, condition: Expr, value: Expr, otherwise: Expr) -> None:
        self.condition: Final = condition
        self.value: Final = value
        self.otherwise: Final = otherwise
        self.parts: Final[tuple[Expr, ...]] = (condition, value, otherwise)
        self.free: Final = _union(self.parts)

    @property
    def dtype(self) -> DType:
        return self.value.dtype


@final
class Lanes(Scalar):
    """All lanes of a vector combined as a balanced tree: halves, quarters and so on.

    `fn` is a two-argument function.
    """

    __slots__ = ("__weakref__", "fn", "free", "parts", "value", "var")

    def __init__(self, fn: str, value: Expr, var: Var) -> None:
        self.fn: Final = fn
        self.value: Final = value  # mentions the lane variable `var`
        self.var: Final = var
        self.parts: Final[tuple[Expr, ...]] = (value,)
        self.free: Final[frozenset[Var]] = value.free

    @property
    def dtype(self) -> DType:
        return self.value.dtype


Expr = Union[Const, Var, Load, Call, Guard, Lanes]
"""`parts` are the direct sub-expressions, `free` the loop variables an expression mentions anywhere."""


def _union(parts: Iterable[Expr]) -> frozenset[Var]:
    """Return the variables of several expressions; equal sets are one object, for there are many of them."""
    union = _NONE
    for part in parts:
        free = part.free
        if not union:
            union = free
        elif not free <= union:
            union = free if union <= free else union | free
    return union


def _intern(key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
    found = _TABLE.get(key)
    return _TABLE.add(key, make()) if found is None else found


def interned_call(fn: str, args: tuple[Expr, ...], dtype: DType) -> Call:
    """Return the one call of a function, of a dtype the caller knows; nothing is checked."""
    key = ("call", fn, dtype.name, *map(id, args))
    found: Call | None = _TABLE.get(key)
    if found is None:
        _TABLE.add(key, found := Call(fn, args, dtype))
    return found


def const(value: Any, dtype: DType) -> Const:
    """Return the immediate `value` of `dtype` (a Python bool, int or float).

    Floats are rounded to the dtype.
    """
    plain: Any
    if dtype.is_bool:
        plain = bool(value)
    elif dtype.is_integer:
        plain = int(value)
    else:
        plain = float(value) if dtype is float64 else _rounded(float(value), dtype)
    key = plain.hex() if isinstance(plain, float) else plain
    return _intern(("const", key, dtype.name), lambda: Const(plain, dtype))  # type: ignore[no-any-return]


def _rounded(value: float, dtype: DType) -> float:
    with np.errstate(over="ignore"):
        return float(np.asarray(value).astype(dtype.np))


@lru_cache(maxsize=1 << 14)
def index_const(value: int) -> Const:
    return const(value, int64)


def load(buffer: Buffer, indices: tuple[Expr, ...]) -> Load:
    if len(indices) != len(buffer.shape):
        raise VerifyError(f"load: {buffer} takes {len(buffer.shape)} indices", got=str(len(indices)))
    return _intern(("load", id(buffer), *map(id, indices)), lambda: Load(buffer, indices))  # type: ignore[no-any-return]


def call(fn: str, *args: Expr, dtype: DType | None = None) -> Expr:
    """Return `fn(*args)`. The dtype is derived except for `cast` and `bitcast`, which name theirs."""
    if fn not in FUNCTIONS:
        raise VerifyError(f"expr: no scalar function is called {fn!r}")
    if len(args) != FUNCTIONS[fn][0]:
        raise VerifyError(f"expr: {fn} takes {FUNCTIONS[fn][0]} arguments", got=str(len(args)))
    if fn in ("cast", "bitcast"):
        if dtype is None:
            raise VerifyError(f"expr: {fn} needs a dtype")
        if dtype is args[0].dtype:
            return args[0]
    elif fn in ("select", "pick8"):
        dtype = args[1].dtype
        _same(fn, args[1:])
        if fn == "pick8" and not _is_table(args):
            got = ", ".join(str(a.dtype) for a in args)
            raise VerifyError(f"expr: {fn} takes a {uint32} and eight constants of 32 bits", got=got)
    elif fn in COMPARISONS:
        dtype = bool_
        _same(fn, args)
    elif fn in _PARTS:
        dtype = int32
        _same(fn, args)
        if args[0].dtype.bits != _PARTS[fn] or args[0].dtype.is_bool:
            raise VerifyError(f"expr: {fn} takes {_PARTS[fn]}-bit numbers", got=str(args[0].dtype))
    elif fn == "pair":
        dtype = {float32: complex64, float64: complex128}.get(args[0].dtype)
        _same(fn, args)
        if dtype is None:
            raise VerifyError(f"expr: {fn} takes {float32} or {float64}", got=str(args[0].dtype))
    elif fn in _DOTS:
        dtype = _DOTS[fn]
        if [a.dtype for a in args] != [dtype, int32, int32]:
            got = ", ".join(str(a.dtype) for a in args)
            raise VerifyError(f"expr: {fn} takes {dtype} and two words of {int32}", got=got)
    else:
        dtype = args[0].dtype
        _same(fn, args)
    return interned_call(fn, args, dtype)


def _is_table(args: tuple[Expr, ...]) -> bool:
    return args[0].dtype is uint32 and all(isinstance(a, Const) and a.dtype.bits == 32 for a in args[1:])


def _same(fn: str, args: tuple[Expr, ...]) -> None:
    if any(a.dtype is not args[0].dtype for a in args):
        raise VerifyError(f"expr: {fn} of different dtypes", got=", ".join(str(a.dtype) for a in args))


def alike(*operands: Expr | float) -> list[Expr]:
    """Return operands, the numbers among them as constants of the dtype of the first that is none."""
    dtype = next(o.dtype for o in operands if not isinstance(o, (int, float)))
    return [const(o, dtype) if isinstance(o, (int, float)) else o for o in operands]


def cast(value: Expr, dtype: DType) -> Expr:
    return call("cast", value, dtype=dtype)


def guard(condition: Expr, value: Expr, otherwise: Expr) -> Expr:
    if isinstance(condition, Const):
        return value if condition.value else otherwise
    _same("guard", (value, otherwise))
    key = ("guard", id(condition), id(value), id(otherwise))
    return _intern(key, lambda: Guard(condition, value, otherwise))  # type: ignore[no-any-return]


def lanes(fn: str, value: Expr, var: Var) -> Lanes:
    return _intern(("lanes", fn, id(value), id(var)), lambda: Lanes(fn, value, var))  # type: ignore[no-any-return]


def walk(roots: Iterable[T], below: Callable[[T], Sequence[T]] = attrgetter("parts")) -> list[T]:
    """Return every sub-expression, operands before users, each once; iterative.

    `below` says where to go on: of all expressions, and of other trees with `parts`, to these.
    """
    order: list[T] = []
    seen: set[T] = set()
    opened: list[T] = []
    stack: list[T | None] = [*roots]
    stack.reverse()
    while stack:
        expr = stack.pop()
        if expr is None:  # the operands of the one opened last are done
            order.append(opened.pop())
        elif expr not in seen:
            seen.add(expr)
            parts = below(expr)
            if parts:
                opened.append(expr)
                stack.append(None)
                stack += parts[::-1]
            else:
                order.append(expr)
    return order


def variables(roots: Iterable[Expr]) -> set[Var]:
    return set(_union(roots))


def loads(roots: Iterable[Expr]) -> list[Load]:
    return [e for e in walk(roots) if isinstance(e, Load)]


# -- text ------------------------------------------------------------------------------------------------

INFIX: Final = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "mod": "%", "lt": "<", "ge": ">=",
    "le": "<=", "gt": ">", "eq": "==", "ne": "!=", "and": "&", "or": "|",
}  # fmt: skip
_SHORT: Final = 12  # shared expressions this short are repeated
_LONG: Final = 240  # longer ones are named even if they occur once


def to_text(expr: Expr) -> str:
    """Print one expression; what it shares is defined first, as `let %0 = ...; `."""
    lets, (text,) = to_texts((expr,))
    return "".join(f"let {name} = {value}; " for name, value in lets) + text


def to_texts(
    roots: Iterable[Expr], names: Mapping[Var, str] | None = None
) -> tuple[list[tuple[str, str]], list[str]]:
    """Print expressions together: definitions of what they share, in order, and a text for each.

    The length is linear in the number of distinct sub-expressions. `names` renames variables.
    """
    wanted = list(roots)
    order = walk(wanted)
    uses: dict[Expr, int] = {}
    for used in [*wanted, *(c for e in order for c in e.parts)]:
        uses[used] = uses.get(used, 0) + 1
    lane_names = _lane_names(order, names or {})
    free = {**(names or {}), **lane_names}
    captive: set[Expr] = set()
    lets: list[tuple[str, str]] = []
    texts: dict[Expr, str] = {}
    for e in order:
        text = _one_text(e, texts, free)
        inside = e in lane_names or any(c in captive for c in e.parts)
        if inside and not isinstance(e, Lanes):
            captive.add(e)
        elif not isinstance(e, (Const, Var)) and len(text) > (_SHORT if uses[e] > 1 else _LONG):
            lets.append((f"%{len(lets)}", text))
            text = lets[-1][0]
        texts[e] = text
    return lets, [texts[r] for r in wanted]


def _lane_names(order: Iterable[Expr], names: Mapping[Var, str]) -> dict[Var, str]:
    """Return a name for each variable that a lane reduction binds, unlike the names around it."""
    taken = set(names.values())
    bound: dict[Var, str] = {}
    for e in order:
        if isinstance(e, Lanes) and e.var not in bound:
            bound[e.var] = unlike(e.var.name, taken)
            taken.add(bound[e.var])
    return bound


def unlike(name: str, taken: Iterable[str]) -> str:
    """Return `name`, or the first of `name_1`, `name_2`, ... that is not taken."""
    found, k = name, 0
    while found in taken:
        k += 1
        found = f"{name}_{k}"
    return found


def _one_text(e: Expr, texts: Mapping[Expr, str], names: Mapping[Var, str]) -> str:
    if isinstance(e, Const):
        return str(e.value) if e.dtype is int64 else f"{e.value}:{e.dtype}"
    if isinstance(e, Var):
        return names.get(e, e.name)
    parts = [texts[c] for c in e.parts]
    if isinstance(e, Load):
        return f"{e.buffer.name}[{', '.join(parts)}]"
    if isinstance(e, Guard):
        return f"guard({', '.join(parts)})"
    if isinstance(e, Lanes):
        return f"lanes.{e.fn}({names[e.var]} in {e.var.extent}: {parts[0]})"
    if e.fn in INFIX:
        return f"({parts[0]} {INFIX[e.fn]} {parts[1]})"
    name = f"{e.fn}.{e.dtype}" if e.fn in ("cast", "bitcast") else e.fn
    return f"{name}({', '.join(parts)})"
