"""The scalar functions of tensor expressions, one row each: lowering and partial derivatives."""

from __future__ import annotations

import math as numbers
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from stratal.base.dtypes import DType, bool_, int64
from stratal.base.errors import VerifyError
from stratal.loops import index, math
from stratal.loops.expr import Const, Expr, call, const, guard, loads
from stratal.loops.te.term import FUNCTIONS, Function, Reduction, Term, Value, apply, number, reduction

Partials = Callable[[Sequence[Term], Term], Sequence["Term | None"]]
F = TypeVar("F", bound=Callable[..., Any])
_ANY: Final = "buif"
_NUMBER: Final = "uif"
_REAL: Final = "f"
_TWO_OVER_ROOT_PI: Final = 2 / numbers.sqrt(numbers.pi)


# -- lowering --------------------------------------------------------------------------------------------
def _plain(fn: str) -> Callable[..., Expr]:
    """Lower to the loop language's own function; indices stay in normal form."""

    def lower(*args: Expr) -> Expr:
        if args[0].dtype is int64 and fn in ("add", "sub", "mul", "floordiv", "mod"):
            return index.rebuild(fn, (args[0], args[1]))
        if args[0].dtype is bool_ and fn == "and":
            return index.both(*args)
        return call(fn, *args)

    return lower


def _order(fn: str) -> Callable[[Expr, Expr], Expr]:
    """Compare; what the bounds of indices decide vanishes."""

    def lower(a: Expr, b: Expr) -> Expr:
        if a.dtype is int64 and fn in ("lt", "gt"):
            return index.less(a, b) if fn == "lt" else index.less(b, a)
        if a.dtype is int64:
            return index.less(a, index.add(b, 1)) if fn == "le" else index.less(b, index.add(a, 1))
        return call(fn, a, b)

    return lower


def _where(condition: Expr, a: Expr, b: Expr) -> Expr:
    """Choose. What is not chosen is not read either, so it may lie outside of its tensor there."""
    if isinstance(condition, Const):
        return a if condition.value else b
    if loads((b,)):
        b = guard(call("not", condition), b, const(0, b.dtype))
    return guard(condition, a, b) if loads((a,)) else call("select", condition, a, b)


def _cast(*args: Expr) -> Expr:
    raise VerifyError("te: a cast is lowered together with its dtype", got=str(args))


# -- partial derivatives -----------------------------------------------------------------------------------
def _of(f: Callable[[Term, Term], Term]) -> Partials:
    """Return the partial of a function of one argument: f(x, its value)."""
    return lambda args, out: [f(args[0], out)]


def _slopes(*values: float) -> Partials:
    return lambda args, out: [number(v, out.dtype) for v in values]


def _larger(args: Sequence[Term], out: Term) -> list[Term | None]:
    """All goes to the larger, half to each where they are equal."""
    x, y = args
    one, none = number(1.0, x.dtype), number(0.0, x.dtype)
    share = apply("where", x > y, one, apply("where", x < y, none, number(0.5, x.dtype)))
    return [share, 1.0 - share]


def _flat(args: Sequence[Term], out: Term) -> list[Term | None]:
    return [None] * len(args)


def _power(args: Sequence[Term], out: Term) -> list[Term | None]:
    x, y = args
    return [y * power(x, y - 1.0), out * log(x)]


def _row(
    name: str, arity: int, takes: str, lower: Callable[..., Expr], partials: Partials | None = None,
    result: DType | int = 0, infix: str = ""
) -> None:
    FUNCTIONS[name] = Function(name, arity, takes, lower, partials, result, infix)


_row("add", 2, _NUMBER, _plain("add"), _slopes(1.0, 1.0), infix="+")
_row("sub", 2, _NUMBER, _plain("sub"), _slopes(1.0, -1.0), infix="-")
_row("mul", 2, _NUMBER, _plain("mul"), lambda a, out: [a[1], a[0]], infix="*")
_row("div", 2, _REAL, _plain("div"), lambda a, out: [1.0 / a[1], -out / a[1]], infix="/")
_row("floordiv", 2, "i", _plain("floordiv"), infix="//")
_row("mod", 2, "i", _plain("mod"), infix="%")
_row("neg", 1, _NUMBER, _plain("neg"), _slopes(-1.0))
_row("lt", 2, _ANY, _order("lt"), _flat, bool_, "<")
_row("le", 2, _ANY, _order("le"), _flat, bool_, "<=")
_row("gt", 2, _ANY, _order("gt"), _flat, bool_, ">")
_row("ge", 2, _ANY, _order("ge"), _flat, bool_, ">=")
_row("eq", 2, _ANY, _plain("eq"), _flat, bool_, "==")
_row("ne", 2, _ANY, _plain("ne"), _flat, bool_, "!=")
_row("and", 2, "b", _plain("and"), _flat, infix="&")
_row("or", 2, "b", _plain("or"), _flat, infix="|")
_row("not", 1, "b", _plain("not"), _flat)
_row("where", 3, _ANY, _where, result=1)  # its derivative is that of what it chooses
_row("cast", 1, _ANY, _cast)
_row("maximum", 2, _NUMBER, _plain("max"), _larger)
_row("minimum", 2, _NUMBER, _plain("min"), lambda a, out: _larger(a, out)[::-1])
_row("abs", 1, _NUMBER, _plain("abs"), _of(lambda x, y: apply("sign", x)))
_row("sign", 1, _REAL, math.sign, _flat)
_row("sqrt", 1, _REAL, math.sqrt, _of(lambda x, y: 0.5 / y))
_row("floor", 1, _REAL, _plain("floor"), _flat)
_row("ceil", 1, _REAL, _plain("ceil"), _flat)
_row("exp", 1, _REAL, math.exp, _of(lambda x, y: y))
_row("log", 1, _REAL, math.log, _of(lambda x, y: 1.0 / x))
_row("sin", 1, _REAL, math.sin, _of(lambda x, y: apply("cos", x)))
_row("cos", 1, _REAL, math.cos, _of(lambda x, y: -apply("sin", x)))
_row("tanh", 1, _REAL, math.tanh, _of(lambda x, y: 1.0 - y * y))
_row("sigmoid", 1, _REAL, math.sigmoid, _of(lambda x, y: y * (1.0 - y)))
_row("erf", 1, _REAL, math.erf, _of(lambda x, y: apply("exp", -(x * x)) * _TWO_OVER_ROOT_PI))
_row("power", 2, _REAL, math.pow, _power)


# -- names to call --------------------------------------------------------------------------------------
def where(condition: Value, a: Value, b: Value) -> Term:
    """Return `a` where the condition holds, else `b`. The side that is not chosen is not read."""
    return apply("where", condition, a, b)


def _of_two(name: str, text: str, row: str = "") -> Callable[[Value, Value], Term]:
    def function(a: Value, b: Value) -> Term:
        return apply(row or name, a, b)

    return _named(function, name, text)


def _of_one(name: str) -> Callable[[Value], Term]:
    def function(x: Value) -> Term:
        return apply(name, x)

    return _named(function, name, f"Return {name}(x) of a term.")


def _named(function: F, name: str, text: str) -> F:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = text
    return function


equal = _of_two("equal", "Return whether two terms are equal (`==` compares the Python objects).", "eq")
not_equal = _of_two("not_equal", "Return whether two terms differ.", "ne")
maximum = _of_two("maximum", "Return the larger of two terms, NaN if either is.")
minimum = _of_two("minimum", "Return the smaller of two terms, NaN if either is.")
power = _of_two("power", "Return a to the power of b, of floats.")
abs, sign, sqrt, floor, ceil, exp, log, sin, cos, tanh, sigmoid, erf = (
    _of_one(n)
    for n in ("abs", "sign", "sqrt", "floor", "ceil", "exp", "log", "sin", "cos", "tanh", "sigmoid", "erf")
)


# -- reductions ----------------------------------------------------------------------------------------------
def _over(combiner: str, text: str) -> Callable[..., Reduction]:
    def function(value: Value, axis: object = None) -> Reduction:
        return reduction(combiner, value, axis)

    return _named(function, combiner, text)


sum = _over(
    "sum", "Add up a term over reduce axes. A product of two elements is added with one rounding (fma)."
)
prod = _over("prod", "Multiply a term over reduce axes.")
max = _over("max", "Return the largest value of a term over reduce axes, NaN if any is.")
min = _over("min", "Return the smallest value of a term over reduce axes, NaN if any is.")
any = _over("any", "Return whether a bool term holds anywhere along reduce axes.")
all = _over("all", "Return whether a bool term holds everywhere along reduce axes.")
