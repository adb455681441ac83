"""Functions that act on each element alone, generated from a table of records."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import ml_dtypes

from stratal.base.dtypes import DType, as_dtype, bool_, int64
from stratal.base.errors import AttributeValueError, DTypeError
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
from stratal.tensor.handles import CONSTANT
from stratal.tensor.scalars import RuntimeScalar, met
from stratal.tensor.selection import nonzero
from stratal.tensor.state import MODE
from stratal.tensor.tensor import Tensor, fresh, wrap


class Entry(NamedTuple):
    """One function: the record it stands for, and what its operands become first."""

    op: str
    operands: str = (
        "same"  # same | float (integers become float32) | number (bool becomes int64) | bool | integral
    )
    aliases: tuple[str, ...] = ()


UNARY: dict[str, Entry] = {
    "abs": Entry("abs", "number", ("absolute",)),
    "acos": Entry("acos", "float", ("arccos",)),
    "acosh": Entry("acosh", "float", ("arccosh",)),
    "asin": Entry("asin", "float", ("arcsin",)),
    "asinh": Entry("asinh", "float", ("arcsinh",)),
    "atan": Entry("atan", "float", ("arctan",)),
    "atanh": Entry("atanh", "float", ("arctanh",)),
    "bitwise_invert": Entry("not", "integral", ("bitwise_not",)),
    "cbrt": Entry("cbrt", "float"),
    "ceil": Entry("ceil", "whole"),
    "cos": Entry("cos", "float"),
    "cosh": Entry("cosh", "float"),
    "digamma": Entry("digamma", "float"),
    "erf": Entry("erf", "float"),
    "erfc": Entry("erfc", "float"),
    "erfinv": Entry("erfinv", "float"),
    "exp": Entry("exp", "float"),
    "exp2": Entry("exp2", "float"),
    "expm1": Entry("expm1", "float"),
    "floor": Entry("floor", "whole"),
    "i0": Entry("i0", "float"),
    "isfinite": Entry("isfinite", "float"),
    "isinf": Entry("isinf", "float"),
    "isnan": Entry("isnan", "float"),
    "lgamma": Entry("lgamma", "float"),
    "log": Entry("log", "float"),
    "log1p": Entry("log1p", "float"),
    "log2": Entry("log2", "float"),
    "logical_not": Entry("not", "bool"),
    "negative": Entry("neg", "number", ("neg",)),
    "round": Entry("round", "whole"),
    "rsqrt": Entry("rsqrt", "float"),
    "sigmoid": Entry("logistic", "float"),
    "sign": Entry("sign", "number"),
    "sin": Entry("sin", "float"),
    "sinh": Entry("sinh", "float"),
    "sqrt": Entry("sqrt", "float"),
    "tan": Entry("tan", "float"),
    "tanh": Entry("tanh", "float"),
    "trunc": Entry("trunc", "whole"),
}

BINARY: dict[str, Entry] = {
    "add": Entry("add", "number"),
    "atan2": Entry("atan2", "float", ("arctan2",)),
    "bitwise_and": Entry("and", "integral"),
    "bitwise_left_shift": Entry("shl", "integral"),
    "bitwise_or": Entry("or", "integral"),
    "bitwise_right_shift": Entry("shr", "integral"),
    "bitwise_xor": Entry("xor", "integral"),
    "divide": Entry("div", "float", ("div", "true_divide")),
    "equal": Entry("eq", "same", ("eq",)),
    "floor_divide": Entry("floordiv", "number"),
    "fmod": Entry("fmod", "number"),
    "greater": Entry("gt", "same", ("gt",)),
    "greater_equal": Entry("ge", "same", ("ge",)),
    "less": Entry("lt", "same", ("lt",)),
    "less_equal": Entry("le", "same", ("le",)),
    "logical_and": Entry("and", "bool"),
    "logical_or": Entry("or", "bool"),
    "logical_xor": Entry("xor", "bool"),
    "maximum": Entry("max", "number"),
    "minimum": Entry("min", "number"),
    "multiply": Entry("mul", "number", ("mul",)),
    "not_equal": Entry("ne", "same", ("ne",)),
    "remainder": Entry("rem", "number"),
    "subtract": Entry("sub", "number", ("sub",)),
}

_ON_BOOL = {"add": "or", "mul": "and", "max": "or", "min": "and"}  # what arithmetic means on truth values


def operand_dtype(name: str, dtype: DType, wanted: str) -> DType:
    """Return the dtype operands of `dtype` are cast to. Raises: DTypeError."""
    if wanted == "float":
        return default_float(dtype)
    if wanted == "bool":
        return bool_
    if wanted == "number" and dtype.is_bool:
        return int64
    if wanted == "integral" and not (dtype.is_bool or dtype.is_integer):
        raise DTypeError(f"{name}: takes integers or bools", got=str(dtype))
    return dtype


def _unary(name: str, entry: Entry) -> Callable[..., Tensor]:
    wanted, op_name = entry.operands, entry.op

    def function(x: Any, /) -> Tensor:
        t = x if isinstance(x, Tensor) else as_tensor(x, name)
        dtype = t.dtype
        if wanted == "whole":
            if not dtype.is_inexact:
                return fresh(t)
        else:
            target = operand_dtype(name, dtype, wanted)
            if target is not dtype:
                t = cast(t, target)
        result: Tensor = apply(plain(op_name), t)
        return result

    return function


def _binary(name: str, entry: Entry) -> Callable[..., Tensor]:
    wanted, op_name = entry.operands, entry.op
    truth = getattr(REGISTRY[op_name], "result", None) is bool_
    floats_as_they_are = wanted in ("same", "number", "float")

    def function(x: Any, y: Any, /) -> Tensor:
        if type(x) is RuntimeScalar or type(y) is RuntimeScalar:
            found = met(name, op_name, x, y)
            if isinstance(found, Tensor):
                return found
            x, y = found or (x, y)
        if floats_as_they_are and isinstance(x, Tensor) and x.type.dtype.kind == "f":
            # The short ways: a tensor of the same type, or a Python number.
            if isinstance(y, Tensor):
                if x.type == y.type:
                    (a, b), track = nodes_and_track((x, y))
                    return wrap(make(plain(op_name), a, b, where=where_now()), CONSTANT if truth else track)
            elif type(y) in (float, int):
                (a,), track = nodes_and_track((x,))
                line = where_now()
                b = scalar(name, y, x.type.dtype, x.type.shape, line)
                return wrap(make(plain(op_name), a, b, where=line), CONSTANT if truth else track)
        x, y = normalise(name, (x, y))
        dtype = common_dtype(name, (x, y))
        on_bool = dtype.is_bool and op_name in _ON_BOOL
        target = dtype if on_bool else operand_dtype(name, dtype, wanted)
        nodes, track, where = unify(name, x, y, dtype=target)
        record = plain(_ON_BOOL[op_name] if on_bool else op_name)
        result: Tensor = finish(make(record, *nodes, where=where), track)
        return result

    return function


def _generate() -> dict[str, Callable[..., Tensor]]:
    made: dict[str, Callable[..., Tensor]] = {}
    for table, build in ((UNARY, _unary), (BINARY, _binary)):
        for name, entry in table.items():
            function = build(name, entry)
            function.__name__ = function.__qualname__ = name
            function.__module__ = __name__
            operands = "x, y" if table is BINARY else "x"
            meaning = (REGISTRY[entry.op].__doc__ or "").strip().split("\n")[0]
            function.__doc__ = f"Return {name}({operands}) of each element: {meaning}"
            for alias in (name, *entry.aliases):
                made[alias] = function
    return made


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
    result: Tensor = apply(cast_op(target), x)
    return result


def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Tensor:
    """Return `x` as another dtype."""
    return cast(as_tensor(x, "astype"), dtype)


def positive(x: Any, /) -> Tensor:
    """Return `x`."""
    return fresh(as_tensor(x, "positive"))


def square(x: Any, /) -> Tensor:
    """Return x * x of each element."""
    result: Tensor = FUNCTIONS["multiply"](x, x)
    return result


def reciprocal(x: Any, /) -> Tensor:
    """Return 1 / x of each element."""
    result: Tensor = FUNCTIONS["divide"](1, x)
    return result


def pow(x: Any, y: Any, /) -> Tensor:
    """Return x ** y of each element. A Python power of 2 is one multiplication, 0.5 a square root."""
    if isinstance(x, Tensor) and isinstance(y, Scalar) and not isinstance(y, bool):
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
    result: Tensor = finish(make(plain("pow"), *nodes, where=where), track)
    return result


def where(condition: Any, x: Any = None, y: Any = None, /) -> Any:
    """Return x where the condition holds, else y. Both are computed."""
    if x is None and y is None:
        return nonzero(condition)
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
    """Return each element moved into [min, max]; None leaves that side open."""
    result = fresh(as_tensor(x, "clip"))
    if min is not None:
        result = FUNCTIONS["maximum"](result, min)
    if max is not None:
        result = FUNCTIONS["minimum"](result, max)
    return result


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
        return call("complex", *parts)  # type: ignore[no-any-return]
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
    return (low + ((twice > 0) | ((twice == 0) & (low % 2 != 0)))) * scale  # type: ignore[no-any-return]


def log10(x: Any, /) -> Tensor:
    """Return the logarithm to base 10 of each element."""
    result: Tensor = FUNCTIONS["divide"](FUNCTIONS["log"](x), math.log(10.0))
    return result


def sinc(x: Any, /) -> Tensor:
    """Return sin(pi x) / (pi x) of each element, 1 at 0."""
    t = as_tensor(x, "sinc")
    dtype = default_float(t.dtype)
    t = cast(t, dtype.compute)
    at_zero = t == 0
    angle = math.pi * where(at_zero, 1.0, t)
    return cast(where(at_zero, 1.0, FUNCTIONS["sin"](angle) / angle), dtype)


def lerp(x: Any, end: Any, weight: Any) -> Tensor:
    """Return x + weight * (end - x) of each element."""
    start = as_tensor(x, "lerp")
    result: Tensor = start + weight * (end - start)
    return result


def hypot(x: Any, y: Any, /) -> Tensor:
    """Return the length of the vector (x, y) of each pair, without overflow on the way."""
    a, b = FUNCTIONS["abs"](x), FUNCTIONS["abs"](y)
    large, small = FUNCTIONS["maximum"](a, b), FUNCTIONS["minimum"](a, b)
    plain_case = (large == 0) | ~FUNCTIONS["isfinite"](large)
    ratio = small / where(plain_case, 1.0, large)
    result: Tensor = where(plain_case, a + b, large * FUNCTIONS["sqrt"](1.0 + ratio * ratio))
    return result


def logaddexp(x: Any, y: Any, /) -> Tensor:
    """Return log(exp(x) + exp(y)) of each pair, without overflow on the way."""
    high = FUNCTIONS["maximum"](x, y)
    low = FUNCTIONS["minimum"](x, y)
    same = high == low
    gap = where(same, 0.0, low - high)
    return high + FUNCTIONS["log1p"](FUNCTIONS["exp"](gap))


def relu(x: Any, /) -> Tensor:
    """Return max(x, 0) of each element."""
    result: Tensor = call("relu", as_tensor(x, "relu"))
    return result


def nan_to_num(x: Any, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    """Return `x` with NaN and infinities replaced; infinities by the largest finite numbers, unless told."""
    t = as_tensor(x, "nan_to_num")
    if not t.dtype.is_float:
        return t
    limit = float(ml_dtypes.finfo(t.dtype.np).max)  # type: ignore[no-untyped-call]
    t = where(FUNCTIONS["isnan"](t), nan, t)
    infinite = FUNCTIONS["isinf"](t)
    result: Tensor = where(infinite & (t > 0), limit if posinf is None else posinf, t)
    return where(infinite & (t < 0), -limit if neginf is None else neginf, result)  # type: ignore[no-any-return]


def composite(name: str, *tensors: Any, **attributes: Any) -> Any:
    """Apply the composite called `name`, integer operands as floats."""
    given = [as_tensor(t, name) for t in tensors]
    return call(name, *[cast(t, default_float(t.dtype)) for t in given], **attributes)


__all__ = [
    *FUNCTIONS, "astype", "cast", "clip", "hypot", "lerp", "nan_to_num", "relu", "log10", "logaddexp",
    "positive", "pow", "reciprocal",
    "sinc", "square", "stop_gradient", "where",
]  # fmt: skip
