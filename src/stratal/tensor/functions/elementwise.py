"""Functions that act on each element alone, generated from a table of records."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import ml_dtypes
import numpy as np

from stratal.base.dims import Sym
from stratal.base.dtypes import DType, as_dtype, as_element, bool_, float32, float64, int64
from stratal.base.errors import AttributeValueError, DivisionByZeroError, DTypeError
from stratal.graph.node import make
from stratal.graph.op import REGISTRY
from stratal.tensor.autocast import operand_dtypes
from stratal.tensor.build import (
    Scalar,
    apply,
    as_tensor,
    broadcast_shapes,
    call,
    cast_op,
    common_dtype,
    default_float,
    finish,
    nodes_and_track,
    normalise,
    plain,
    scalar,
    to_shape,
    unify,
    where_now,
)
from stratal.tensor.functions.naming import named
from stratal.tensor.functions.selection import nonzero_indices
from stratal.tensor.scalars import RuntimeScalar
from stratal.tensor.tensor import Tensor, fresh, tensor, wrap
from stratal.tensor.values.handle import CONSTANT
from stratal.tensor.values.state import MODE


class Entry(NamedTuple):
    """One function: the record it stands for, and what its operands become first."""

    op: str
    operands: str  # same | float (integers become float32) | number (bool becomes int64) | bool | integral


_IN_FLOATS = (
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "cbrt", "cos", "cosh", "digamma", "erf", "erfc",
    "erfinv", "exp", "exp2", "expm1", "i0", "isfinite", "isinf", "isnan", "lgamma", "log", "log1p", "log2",
    "rsqrt", "sin", "sinh", "sqrt", "tan", "tanh",
)  # fmt: skip
UNARY: dict[str, Entry] = {
    **{name: Entry(name, "float") for name in _IN_FLOATS},
    **{name: Entry(name, "whole") for name in ("ceil", "floor", "round", "trunc")},
    "abs": Entry("abs", "number"),
    "bitwise_invert": Entry("not", "integral"),
    "logical_not": Entry("not", "bool"),
    "negative": Entry("neg", "signed"),
    "sigmoid": Entry("logistic", "float"),
    "sign": Entry("sign", "number"),
}
BINARY: dict[str, Entry] = {
    "add": Entry("add", "number"),
    "atan2": Entry("atan2", "float"),
    "bitwise_and": Entry("and", "integral"),
    "bitwise_left_shift": Entry("shl", "integral"),
    "bitwise_or": Entry("or", "integral"),
    "bitwise_right_shift": Entry("shr", "integral"),
    "bitwise_xor": Entry("xor", "integral"),
    "divide": Entry("div", "float"),
    "equal": Entry("eq", "same"),
    "floor_divide": Entry("floordiv", "number"),
    "fmod": Entry("fmod", "number"),
    "greater": Entry("gt", "same"),
    "greater_equal": Entry("ge", "same"),
    "less": Entry("lt", "same"),
    "less_equal": Entry("le", "same"),
    "logical_and": Entry("and", "bool"),
    "logical_or": Entry("or", "bool"),
    "logical_xor": Entry("xor", "bool"),
    "maximum": Entry("max", "number"),
    "minimum": Entry("min", "number"),
    "multiply": Entry("mul", "number"),
    "not_equal": Entry("ne", "same"),
    "remainder": Entry("rem", "number"),
    "subtract": Entry("sub", "signed"),
}
_ALIASES = {
    "absolute": "abs", "arccos": "acos", "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh",
    "arctan": "atan", "arctan2": "atan2", "arctanh": "atanh", "bitwise_not": "bitwise_invert",
    "div": "divide", "eq": "equal", "ge": "greater_equal", "gt": "greater", "le": "less_equal", "lt": "less",
    "mul": "multiply", "ne": "not_equal", "neg": "negative", "sub": "subtract", "true_divide": "divide",
}  # fmt: skip

_ON_BOOL = {"add": "or", "mul": "and", "max": "or", "min": "and"}  # what arithmetic means on truth values

_QUOTIENTS = {"floordiv", "rem", "fmod"}
# Beside 16-bit floats a number is a factor or divisor in float32, as in PyTorch: 1e-9 * x * 1e9 is x. A term,
# a power or a bound is rounded to their dtype first, there as here.
_BY_FACTORS = {"mul", "div", "floordiv"}


@lru_cache(maxsize=1024)
def _holds(dtype: DType, number: float) -> bool:
    """Return whether a dtype has a number as it is."""
    return float(as_element("number", number, dtype)) == number or number != number


def _widens(dtype: DType, x: Any, y: Any) -> bool:
    """Return whether operands that promote to a dtype are a 16-bit float and a number it does not hold."""
    if dtype.compute is dtype or isinstance(x, Tensor) is isinstance(y, Tensor):
        return False
    number = y if isinstance(x, Tensor) else x
    return type(number) in (Sym, RuntimeScalar) or not _holds(dtype, number)


def _in_float32(function: Callable[..., Tensor], x: Any, y: Any, dtype: DType) -> Tensor:
    """Return the result in a 16-bit dtype of what a function computes in float32."""
    wide = (cast(v, float32) if isinstance(v, Tensor) else v for v in (x, y))
    return cast(function(*wide), dtype)


def operand_dtype(name: str, dtype: DType, wanted: str) -> DType:
    """Return the dtype operands of `dtype` are cast to. Raises: DTypeError."""
    if wanted == "float":
        return default_float(dtype)
    if wanted == "bool":
        return bool_
    if wanted == "number" and dtype.is_bool:
        return int64
    if wanted == "signed" and dtype.is_bool:
        raise DTypeError(
            f"{name}: takes numbers, not bools", got=str(dtype), hint="~mask negates one, ^ compares two"
        )
    if wanted == "integral" and not (dtype.is_bool or dtype.is_integer):
        raise DTypeError(f"{name}: takes integers or bools", got=str(dtype))
    return dtype


def _unary(name: str, entry: Entry) -> Callable[..., Tensor]:
    wanted, op_name = entry.operands, entry.op

    def function(x: Any, /) -> Tensor:
        t = as_tensor(x, name)
        dtype = t.dtype
        if wanted == "whole":
            if not dtype.is_inexact:
                return fresh(t)
        else:
            target = operand_dtype(name, dtype, wanted)
            if target is not dtype:
                t = cast(t, target)
        return apply(plain(op_name), t)

    return function


def _binary(name: str, entry: Entry) -> Callable[..., Tensor]:
    wanted, op_name = entry.operands, entry.op
    truth = getattr(REGISTRY[op_name], "result", None) is bool_
    floats_as_they_are = wanted in ("same", "number", "signed", "float")
    by_factors = op_name in _BY_FACTORS

    def function(x: Any, y: Any, /) -> Tensor:
        if floats_as_they_are and isinstance(x, Tensor) and x.type.dtype.kind == "f":
            # The short ways: a tensor of the same type, or a Python number.
            if isinstance(y, Tensor):
                if x.type == y.type:
                    (a, b), track = nodes_and_track((x, y))
                    return wrap(make(plain(op_name), a, b, where=where_now()), CONSTANT if truth else track)
            elif type(y) in (float, int):
                if by_factors and x.type.dtype.itemsize == 2 and _widens(x.type.dtype, x, y):
                    return _in_float32(function, x, y, x.type.dtype)
                (a,), track = nodes_and_track((x,))
                line = where_now()
                b = scalar(name, y, x.type.dtype, x.type.shape, line)
                return wrap(make(plain(op_name), a, b, where=line), CONSTANT if truth else track)
        x, y = normalise(name, (x, y))
        dtype = common_dtype(name, (x, y))
        on_bool = dtype.is_bool and op_name in _ON_BOOL
        target = dtype if on_bool else operand_dtype(name, dtype, wanted)
        if by_factors and target.itemsize == 2 and _widens(target, x, y):
            return _in_float32(function, x, y, target)
        if op_name in _QUOTIENTS and target.is_integer and not isinstance(y, Tensor) and y == 0:
            raise DivisionByZeroError(f"{name}: integers are not divided by 0", got=f"{x} and {y}"[:200])
        nodes, track, where = unify(name, x, y, dtype=target)
        record = plain(_ON_BOOL[op_name] if on_bool else op_name)
        return finish(make(record, *nodes, where=where), track)

    return function


def _generate() -> dict[str, Callable[..., Tensor]]:
    made: dict[str, Callable[..., Tensor]] = {}
    for table, build in ((UNARY, _unary), (BINARY, _binary)):
        for name, entry in table.items():
            operands = "x, y" if table is BINARY else "x"
            meaning = (REGISTRY[entry.op].__doc__ or "").strip().split("\n")[0]
            doc = f"Return {name}({operands}) of each element: {meaning}"
            made[name] = named(build(name, entry), name, doc)
    return made | {alias: made[name] for alias, name in _ALIASES.items()}


FUNCTIONS = _generate()
globals().update(FUNCTIONS)
if TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Tell type checkers that the names of the table exist."""


def cast(x: Tensor, dtype: Any) -> Tensor:
    """Return `x` as another dtype; the tensor itself where it has it."""
    target = as_dtype(dtype)
    if x.dtype is target:
        return x
    return apply(cast_op(target), x)


def in_floats(name: str, x: Any) -> Tensor:
    """Return a tensor of floats or complex numbers; integers and bools become floats."""
    t = as_tensor(x, name)
    return cast(t, default_float(t.dtype))


def as_written(name: str, value: Any, dtype: DType) -> Tensor:
    """Return what is written into elements of a dtype: a number, which must fit, or a tensor that is cast."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, (*Scalar, Sym)):
        return wrap(scalar(name, value, dtype, (), where_now()))
    return cast(as_tensor(value, name), dtype)


def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Tensor:
    """Return `x` as another dtype: a copy, where it has that dtype, too, unless told otherwise."""
    t = as_tensor(x, "astype")
    found = cast(t, dtype)
    return fresh(t) if copy and found is t else found


def clone(x: Tensor, **_: Any) -> Tensor:
    """Return the value as a tensor of its own, through which gradients flow."""
    return fresh(x)


def is_floating_point(x: Tensor) -> bool:
    """Return whether the dtype is a float."""
    return x.dtype.is_float


def is_complex(x: Tensor) -> bool:
    """Return whether the dtype is complex."""
    return x.dtype.is_complex


def positive(x: Any, /) -> Tensor:
    """Return `x`."""
    return as_tensor(x, "positive")


def square(x: Any, /) -> Tensor:
    """Return x * x of each element."""
    return FUNCTIONS["multiply"](x, x)


def reciprocal(x: Any, /) -> Tensor:
    """Return 1 / x of each element."""
    return FUNCTIONS["divide"](1, x)


def div(x: Any, y: Any, *, rounding_mode: str | None = None) -> Tensor:
    """Return x / y of each pair; with `rounding_mode` "floor" or "trunc" the rounded quotient."""
    if rounding_mode is None:
        return FUNCTIONS["divide"](x, y)
    if rounding_mode not in ("floor", "trunc"):
        raise AttributeValueError("div: rounding_mode is None, 'floor' or 'trunc'", got=repr(rounding_mode))
    if rounding_mode == "floor":
        return FUNCTIONS["floor_divide"](x, y)
    if common_dtype("div", (x, y)).is_inexact:
        return FUNCTIONS["trunc"](FUNCTIONS["divide"](x, y))
    return FUNCTIONS["floor_divide"](x - FUNCTIONS["fmod"](x, y), y)  # exact


def pow(x: Any, y: Any, /) -> Tensor:
    """Return x ** y of each element. A Python power of 2 is one multiplication, 0.5 a square root."""
    if isinstance(x, Tensor) and isinstance(y, Scalar) and not isinstance(y, bool) and not x.dtype.is_bool:
        if y == 2 and (x.dtype.is_inexact or isinstance(y, int)):
            return square(x)
        if y == 1 and (x.dtype.is_inexact or isinstance(y, int)):
            return fresh(x)
        if y == 0.5:
            return FUNCTIONS["sqrt"](x)
        if isinstance(y, int) and y < 0 and x.dtype.is_integer:
            raise DTypeError("pow: an integer to a negative power is no integer", got=f"{x.type} ** {y}",
                             hint="cast to a float first")  # fmt: skip
    x, y = normalise("pow", (x, y))
    dtype = common_dtype("pow", (x, y))
    if MODE.autocast is not None:
        (dtype,) = operand_dtypes("pow", [dtype])
    target = int64 if dtype.is_bool else dtype
    nodes, track, where = unify("pow", x, y, dtype=target)
    return finish(make(plain("pow"), *nodes, where=where), track)


@overload
def where(condition: Any, /) -> tuple[Tensor, ...]: ...
@overload
def where(condition: Any, x: Any, y: Any, /) -> Tensor: ...
def where(condition: Any, x: Any = None, y: Any = None, /) -> Any:
    """Return x where the condition holds, else y. Both are computed."""
    if x is None and y is None:
        return nonzero_indices(condition)
    if x is None or y is None:
        raise AttributeValueError("where: takes both x and y, or neither", got=f"x={x}, y={y}")
    chosen = as_tensor(condition, "where")
    chosen = chosen if chosen.dtype.is_bool else cast(chosen, bool_)
    (a, b), track, line = unify("where", x, y)
    shape = broadcast_shapes("where", chosen.shape, a.shape, b.shape)
    (c,), _ = nodes_and_track([chosen])
    nodes = [to_shape(n, shape, line) for n in (c, a, b)]
    return finish(make(plain("select"), *nodes, where=line), track)


def clip(x: Any, min: Any = None, max: Any = None) -> Tensor:
    """Return each element moved into [min, max]; None leaves that side open.

    The gradient goes to `x` inside and at the bounds, outside of them to the bound; NaN stays and takes none.
    """
    result = fresh(as_tensor(x, "clip"))
    if min is not None:
        result = _bounded(result, min, "maximum", "greater_equal", "less")
    if max is not None:
        result = _bounded(result, max, "minimum", "less_equal", "greater")
    return result


def _bounded(x: Tensor, bound: Any, extreme: str, inside: str, beyond: str) -> Tensor:
    value = FUNCTIONS[extreme](x, bound)
    if not value.dtype.is_float:
        return value
    moved = value.detach()
    if isinstance(bound, Tensor):
        moved = where(FUNCTIONS[beyond](x, bound), bound, moved)
    result = where(FUNCTIONS[inside](x, bound), x, moved)
    return result if result.dtype is value.dtype else cast(result, value.dtype)


def stop_gradient(x: Any, /) -> Tensor:
    """Return `x`, through which no gradient flows."""
    return as_tensor(x, "stop_gradient").detach()


_MOST_DECIMALS = 308  # floats have no digits beyond


def round(x: Any, /, decimals: int = 0) -> Tensor:
    """Return each element rounded to so many decimals, ties to even; below 0 to tens, hundreds."""
    nearest = FUNCTIONS["round"]
    t = as_tensor(x, "round")
    if t.dtype.is_complex:
        parts = (round(call(part, t), decimals) for part in ("real", "imag"))
        return call("complex", *parts)
    if decimals == 0:
        return nearest(t)
    if decimals > _MOST_DECIMALS:
        return fresh(t)
    decimals = decimals if decimals > -_MOST_DECIMALS else -_MOST_DECIMALS
    scale = int(10 ** (decimals if decimals > 0 else -decimals))
    if t.dtype.is_inexact:
        factor = float(scale)
        return nearest(t * factor) / factor if decimals > 0 else nearest(t / factor) * factor
    if decimals > 0 or t.dtype is bool_:
        return fresh(t)
    if scale >= 2 ** (t.dtype.bits - 1):
        return t * 0
    low = t // scale
    twice = (t - low * scale) * 2 - scale
    return (low + ((twice > 0) | ((twice == 0) & (low % 2 != 0)))) * scale


def log10(x: Any, /) -> Tensor:
    """Return the logarithm to base 10 of each element."""
    return FUNCTIONS["divide"](FUNCTIONS["log"](x), math.log(10.0))


def sinc(x: Any, /) -> Tensor:
    """Return sin(pi x) / (pi x) of each element, 1 at 0."""
    t = as_tensor(x, "sinc")
    dtype = default_float(t.dtype)
    angle = cast(t, dtype.compute) * math.pi
    near = FUNCTIONS["abs"](angle) < 0.5  # by its series, or the derivative would cancel
    inner = where(near, angle, 0.0)
    series: Any = 0.0
    for k in range(8, -1, -1):
        series = series * (inner * inner) + (-1.0) ** k / math.factorial(2 * k + 1)
    away = where(near, 1.0, angle)
    return cast(where(near, series, FUNCTIONS["sin"](away) / away), dtype)


def lerp(x: Any, end: Any, weight: Any) -> Tensor:
    """Return x + weight * (end - x) of each element, from the end that is nearer: both ends are exact."""
    start = as_tensor(x, "lerp")
    if start.dtype.compute is not start.dtype:
        wide = [cast(v, v.dtype.compute) if isinstance(v, Tensor) else v for v in (start, end, weight)]
        return cast(lerp(*wide), common_dtype("lerp", (start, end, weight)))
    way = end - start
    varies = type(weight) is RuntimeScalar
    if not varies and isinstance(weight, (int, float)):
        result: Tensor = start + weight * way if -0.5 < weight < 0.5 else end - (1 - weight) * way
        return result
    exact = tensor(weight, float64) if varies else weight
    near = FUNCTIONS["abs"](exact) < 0.5
    return where(near, start + weight * way, end - (1 - weight) * way)


def hypot(x: Any, y: Any, /) -> Tensor:
    """Return the length of the vector (x, y) of each pair, without overflow on the way."""
    a, b = FUNCTIONS["abs"](x), FUNCTIONS["abs"](y)
    large, small = FUNCTIONS["maximum"](a, b), FUNCTIONS["minimum"](a, b)
    plain_case = (large == 0) | ~FUNCTIONS["isfinite"](large)
    ratio = small / where(plain_case, 1.0, large)
    length = where(plain_case, a + b, large * FUNCTIONS["sqrt"](1.0 + ratio * ratio))
    infinite = FUNCTIONS["isinf"](a) | FUNCTIONS["isinf"](b)  # next to NaN, too
    return where(infinite, math.inf, length)


def logaddexp(x: Any, y: Any, /) -> Tensor:
    """Return log(exp(x) + exp(y)) of each pair, without overflow on the way."""
    high = FUNCTIONS["maximum"](x, y)
    low = FUNCTIONS["minimum"](x, y)
    same = high == low
    gap = where(same, 0.0, low - high)
    return high + FUNCTIONS["log1p"](FUNCTIONS["exp"](gap))


def relu(x: Any, /) -> Tensor:
    """Return max(x, 0) of each element."""
    return call("relu", as_tensor(x, "relu"))


def nan_to_num(x: Any, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    """Return `x` with NaN and infinities replaced; infinities by the largest finite numbers, unless told."""
    t = as_tensor(x, "nan_to_num")
    if not t.dtype.is_float:
        return fresh(t)
    limit = float(ml_dtypes.finfo(t.dtype.np).max)  # type: ignore[no-untyped-call]
    infinite = FUNCTIONS["isinf"](t)
    result = where(infinite & (t > 0), limit if posinf is None else posinf, t)
    result = where(infinite & (t < 0), -limit if neginf is None else neginf, result)
    return where(FUNCTIONS["isnan"](t), nan, result)


def composite(name: str, *tensors: Any, **attributes: Any) -> Tensor:
    """Apply the composite called `name`, integer operands as floats."""
    return call(name, *[in_floats(name, t) for t in tensors], **attributes)


__all__ = [
    *FUNCTIONS, "astype", "cast", "clip", "clone", "hypot", "is_complex", "is_floating_point", "lerp",
    "log10", "logaddexp", "nan_to_num", "positive", "pow", "reciprocal", "relu", "sinc", "square",
    "stop_gradient", "where",
]  # fmt: skip
