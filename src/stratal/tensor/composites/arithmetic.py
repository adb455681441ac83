"""Arithmetic of each element: quotients, powers of two, common divisors, comparisons with a tolerance."""

from __future__ import annotations

import math
from typing import Any

from stratal.base.dtypes import as_dtype, bool_, float32, int32, int64
from stratal.base.errors import AttributeValueError, DTypeError
from stratal.tensor.build import as_tensor, call, common_dtype, default_float, normalise
from stratal.tensor.calls.call_cache import cached_call
from stratal.tensor.functions.elementwise import FUNCTIONS, as_written, cast, clip, in_floats, pow, where
from stratal.tensor.functions.reductions import all as all_of
from stratal.tensor.functions.reductions import any as any_of
from stratal.tensor.functions.shapes import broadcast_arrays
from stratal.tensor.tensor import Tensor
from stratal.tensor.transformations.control import while_loop

_isnan, _isinf = FUNCTIONS["isnan"], FUNCTIONS["isinf"]


def _pair(name: str, x: Any, y: Any, kinds: str = "uifc") -> tuple[Tensor, Tensor]:
    """Return two operands as tensors of one dtype and shape; bools as int64."""
    given = normalise(name, (x, y))
    dtype = common_dtype(name, given)
    dtype = int64 if dtype is bool_ else dtype
    if dtype.kind not in kinds:
        words = {"iu": "integers", "uif": "real numbers"}
        raise DTypeError(f"{name}: takes {words[kinds]}", got=str(dtype))
    a, b = broadcast_arrays(*(cast(as_tensor(v, name), dtype) for v in given))
    return a, b


def _floats(name: str, x: Any, y: Any) -> tuple[Tensor, Tensor]:
    a, b = _pair(name, x, y)
    dtype = default_float(a.dtype)
    return cast(a, dtype), cast(b, dtype)


# -- sums, quotients and parts -------------------------------------------------------------------------------
def add(x: Any, y: Any, /, *, alpha: Any = 1) -> Tensor:
    """Return x + alpha y. Raises: DTypeError, where `alpha` is no integer and the operands are."""
    return FUNCTIONS["add"](x, _times("add", alpha, x, y))


def subtract(x: Any, y: Any, /, *, alpha: Any = 1) -> Tensor:
    """Return x - alpha y. Raises: DTypeError, where `alpha` is no integer and the operands are."""
    return FUNCTIONS["subtract"](x, _times("subtract", alpha, x, y))


def _times(name: str, alpha: Any, x: Any, y: Any) -> Any:
    if type(alpha) in (int, float) and alpha == 1:
        return y
    dtype = common_dtype(name, normalise(name, (x, y)))
    if dtype is bool_ or not (dtype.is_inexact or isinstance(alpha, int)):
        raise DTypeError(
            f"{name}: alpha is an integer where the operands are, and 1 where they are bools",
            got=f"alpha={alpha!r} with {dtype}",
        )
    return alpha * cast(y, dtype) if isinstance(y, Tensor) else cast(as_tensor(y, name) * alpha, dtype)


def frac(x: Any, /) -> Tensor:
    """Return what is behind the point of each element, with its sign."""
    t = as_tensor(x, "frac")
    return FUNCTIONS["subtract"](t, FUNCTIONS["trunc"](t))


def modf(x: Any, /) -> tuple[Tensor, Tensor]:
    """Return what is behind the point of each element and what is before it, both with its sign."""
    t = in_floats("modf", x)
    whole = FUNCTIONS["trunc"](t)
    return where(_isinf(t), 0.0, t - whole), whole


def divmod(x: Any, y: Any, /) -> tuple[Tensor, Tensor]:
    """Return the floor of each quotient and the remainder, which has the divisor's sign."""
    return FUNCTIONS["floor_divide"](x, y), FUNCTIONS["remainder"](x, y)


def _scaled(t: Tensor, power: Tensor) -> Tensor:
    """Return t * 2**power in three steps, none of which overflows unless the result does."""
    third = FUNCTIONS["floor"](power / 3.0)
    step = FUNCTIONS["exp2"](third)
    return t * step * step * FUNCTIONS["exp2"](power - third - third)


def ldexp(x: Any, exponent: Any, /) -> Tensor:
    """Return x * 2**exponent of each pair, for exponents beyond those of the dtype, too."""
    t = in_floats("ldexp", x)
    wide = cast(t, t.dtype.compute)
    power = cast(as_tensor(exponent, "ldexp"), wide.dtype)
    return cast(
        _scaled(wide, clip(power, -3000.0, 3000.0) if wide.dtype.bits == 64 else clip(power, -350.0, 350.0)),
        t.dtype,
    )


def frexp(x: Any, /) -> tuple[Tensor, Tensor]:
    """Return a mantissa in [0.5, 1) and an int32 exponent of each element: x = mantissa * 2**exponent.

    0, infinities and NaN are mantissas of exponent 0. Gradients flow through the mantissa.
    """
    t = in_floats("frexp", x)
    if not t.dtype.is_float:
        raise DTypeError("frexp: takes real numbers", got=str(t.type))
    wide = cast(t, t.dtype.compute)
    digits, bias, word = (23, 126, "int32") if wide.dtype is float32 else (52, 1022, "int64")
    size = FUNCTIONS["abs"](wide.detach())
    plain = (size == 0) | ~FUNCTIONS["isfinite"](size)
    small = (size < 2.0 ** (2 - bias)) & ~plain
    raised = wide * where(small, 2.0 ** (digits + 2), 1.0)
    field = call("bitcast", FUNCTIONS["abs"](raised).detach(), dtype=as_dtype(word)) >> digits
    exponent = where(plain, 0, field - bias)  # of what is raised: from 4 - bias on
    # a quarter of it is a normal number, and so is the power of two that leaves a mantissa
    power = call("bitcast", (bias + 3 - exponent) << digits, dtype=wide.dtype)
    mantissa = raised * 0.25 * power
    return cast(mantissa, t.dtype), cast(exponent - where(small, digits + 2, 0), int32)


# -- whole numbers -------------------------------------------------------------------------------------------
_STEPS = 5  # of Euclid's algorithm in one round of the loop: fewer passes over memory


def gcd(x: Any, y: Any, /) -> Tensor:
    """Return the greatest common divisor of each pair of integers, by Euclid's algorithm; of two zeros 0."""

    def step(pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        a, b = pair
        for _ in range(_STEPS):
            a, b = where(b == 0, a, b), FUNCTIONS["fmod"](a, b)  # which by 0 is 0
        return a, b

    pair = _pair("gcd", x, y, "iu")
    result: Tensor = while_loop(lambda pair: any_of(pair[1] != 0), step, pair)[0]
    return FUNCTIONS["abs"](result) if result.dtype.kind == "i" else result


def lcm(x: Any, y: Any, /) -> Tensor:
    """Return the least common multiple of each pair of integers; with 0 it is 0."""
    a, b = _pair("lcm", x, y, "iu")
    return FUNCTIONS["abs"](a // gcd(a, b) * b)  # 0 divided by 0 is 0


# -- extremes and steps --------------------------------------------------------------------------------------
def fmax(x: Any, y: Any, /) -> Tensor:
    """Return the larger of each pair; a NaN gives way to a number. Of equal ones x takes the gradient."""
    return _number("fmax", "greater_equal", x, y)


def fmin(x: Any, y: Any, /) -> Tensor:
    """Return the smaller of each pair; a NaN gives way to a number. Of equal ones x takes the gradient."""
    return _number("fmin", "less_equal", x, y)


def _number(name: str, wins: str, x: Any, y: Any) -> Tensor:
    a, b = _pair(name, x, y)
    first = FUNCTIONS[wins](a, b)
    return _of_bools(where(first | _isnan(b) if a.dtype.is_inexact else first, a, b), name, x, y)


def _of_bools(result: Tensor, name: str, x: Any, y: Any) -> Tensor:
    """Return a result as bools where both operands are."""
    return cast(result, bool_) if common_dtype(name, normalise(name, (x, y))) is bool_ else result


def heaviside(x: Any, values: Any, /) -> Tensor:
    """Return 0 below 0, `values` at 0 and 1 above; NaN for NaN."""
    a, b = _pair("heaviside", x, values)
    step = where(a == 0, b, where(a < 0, 0, 1))
    step = where(_isnan(a), a, step) if a.dtype.is_inexact else cast(step, a.dtype)
    return _of_bools(step, "heaviside", x, values)


def sgn(x: Any, /) -> Tensor:
    """Return the sign of real numbers, and complex ones over their absolute value; 0 for 0."""
    t = as_tensor(x, "sgn")
    if not t.dtype.is_complex:
        return FUNCTIONS["sign"](t)
    size = call("complex", FUNCTIONS["abs"](t), FUNCTIONS["abs"](t) * 0)
    zero = t == 0
    return where(zero, t, t / where(zero, 1.0, size))


# -- powers, logarithms, angles ------------------------------------------------------------------------------
def float_power(x: Any, y: Any, /) -> Tensor:
    """Return x ** y of each pair in float64."""
    a, b = _pair("float_power", x, y)
    wide = "complex128" if a.dtype.is_complex else "float64"
    return pow(cast(a, wide), cast(b, wide))


def logaddexp2(x: Any, y: Any, /) -> Tensor:
    """Return log2(2**x + 2**y) of each pair, without overflow on the way."""
    a, b = _floats("logaddexp2", x, y)
    high, low = FUNCTIONS["maximum"](a, b), FUNCTIONS["minimum"](a, b)
    gap = where(high == low, 0.0, low - high)
    return high + FUNCTIONS["log1p"](FUNCTIONS["exp2"](gap)) * (1 / math.log(2.0))


def xlogy(x: Any, y: Any, /) -> Tensor:
    """Return x log(y) of each pair, 0 where x is 0 and y a number.

    Where x is 0 the gradient by x is log(y), 0 for y <= 0 and for infinity; by y it is 0.
    """
    return _times_log("log", *_floats("xlogy", x, y), 0.0)


def xlog1py(x: Any, y: Any, /) -> Tensor:
    """Return x log(1 + y) of each pair, 0 where x is 0 and y a number. See `xlogy` for the gradient at 0."""
    return _times_log("log1p", *_floats("xlog1py", x, y), -1.0)


def _times_log(log: str, a: Tensor, b: Tensor, pole: float) -> Tensor:
    nothing = (a == 0) & ((b <= pole) | (b == math.inf))
    return a * FUNCTIONS[log](where(nothing, pole + 1.0, b))


def deg2rad(x: Any, /) -> Tensor:
    """Return angles given in degrees in radians."""
    return FUNCTIONS["multiply"](in_floats("deg2rad", x), math.pi / 180.0)


def rad2deg(x: Any, /) -> Tensor:
    """Return angles given in radians in degrees."""
    return FUNCTIONS["multiply"](in_floats("rad2deg", x), 180.0 / math.pi)


def softplus(x: Any, /) -> Tensor:
    """Return log(1 + exp(x)) of each element, without overflow on the way."""
    t = in_floats("softplus", x)
    return FUNCTIONS["maximum"](t, 0.0) + FUNCTIONS["log1p"](FUNCTIONS["exp"](-FUNCTIONS["abs"](t)))


# -- multiplied and added ------------------------------------------------------------------------------------
def addcmul(x: Any, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Tensor:
    """Return x + value * tensor1 * tensor2 of each element."""
    dtype = common_dtype("addcmul", (x, tensor1, tensor2))
    if dtype.compute is not dtype:
        return cast(addcmul(*_widened(x, tensor1, tensor2), value=value), dtype)
    tensor1, tensor2 = (cast(as_tensor(t, "addcmul"), dtype) for t in (tensor1, tensor2))
    factor = tensor1 if value == 1 else FUNCTIONS["multiply"](tensor1, value)
    return FUNCTIONS["add"](x, FUNCTIONS["multiply"](factor, tensor2))


def addcdiv(x: Any, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Tensor:
    """Return x + value * tensor1 / tensor2 of each element."""
    dtype = common_dtype("addcdiv", (x, tensor1, tensor2))
    if dtype.compute is not dtype:
        return cast(addcdiv(*_widened(x, tensor1, tensor2), value=value), dtype)
    if dtype.is_inexact:
        tensor1 = cast(as_tensor(tensor1, "addcdiv"), dtype)
    factor = tensor1 if value == 1 else FUNCTIONS["multiply"](tensor1, value)
    return FUNCTIONS["add"](x, FUNCTIONS["divide"](factor, tensor2))


def _widened(*given: Any) -> list[Any]:
    """Return tensors of 16-bit floats as float32."""
    return [cast(t, t.dtype.compute) for t in map(as_tensor, given)]


def clamp_min(x: Any, min: Any) -> Tensor:
    """Return each element, or `min` where it is below."""
    return clip(x, min)


def clamp_max(x: Any, max: Any) -> Tensor:
    """Return each element, or `max` where it is above."""
    return clip(x, None, max)


def threshold(x: Any, threshold: float, value: float) -> Tensor:
    """Return each element that is above a threshold, and a value in place of the others; NaN stays."""
    t = as_tensor(x, "threshold")
    return where(t <= threshold, as_written("threshold", value, t.dtype), t)


# -- questions -----------------------------------------------------------------------------------------------
def isclose(x: Any, y: Any, /, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Tensor:
    """Return whether |x - y| <= atol + rtol * |y| of each pair; integers are compared in float64."""
    if rtol < 0 or atol < 0:
        raise AttributeValueError("isclose: tolerances are not negative", got=f"rtol={rtol}, atol={atol}")
    a, b = _pair("isclose", x, y)
    same = a == b
    if not a.dtype.is_inexact:
        a, b = cast(a, "float64"), cast(b, "float64")
    a, b = (cast(t, t.dtype.compute) for t in (a, b))
    near = FUNCTIONS["abs"](a - b) <= atol + rtol * FUNCTIONS["abs"](b)
    result = same | (near & FUNCTIONS["isfinite"](a) & FUNCTIONS["isfinite"](b))
    return result | (_isnan(a) & _isnan(b)) if equal_nan else result


def allclose(x: Any, y: Any, /, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
    """Return whether `isclose` holds for every pair: a Python bool, so the values are needed now."""
    return bool(_all_close(x, y, rtol, atol, equal_nan))


@cached_call
def _all_close(x: Any, y: Any, rtol: float, atol: float, equal_nan: bool) -> Tensor:
    return all_of(isclose(x, y, rtol, atol, equal_nan))


def array_equal(x: Any, y: Any, /, equal_nan: bool = False) -> bool:
    """Return whether two tensors have one shape and equal elements: the values are needed now."""
    a, b = as_tensor(x, "array_equal"), as_tensor(y, "array_equal")
    if a.shape != b.shape:
        return False
    return bool(_all_equal(a, b, equal_nan))


@cached_call
def _all_equal(a: Tensor, b: Tensor, equal_nan: bool) -> Tensor:
    same = a == b
    if equal_nan and a.dtype.is_inexact and b.dtype.is_inexact:
        same = same | (_isnan(a) & _isnan(b))
    return all_of(same)


def isposinf(x: Any, /) -> Tensor:
    """Return whether each element is plus infinity."""
    t = as_tensor(x, "isposinf")
    return FUNCTIONS["equal"](t, math.inf) if t.dtype.is_float else _no(t)


def isneginf(x: Any, /) -> Tensor:
    """Return whether each element is minus infinity."""
    t = as_tensor(x, "isneginf")
    return FUNCTIONS["equal"](t, -math.inf) if t.dtype.is_float else _no(t)


def isreal(x: Any, /) -> Tensor:
    """Return whether each element has no imaginary part."""
    t = as_tensor(x, "isreal")
    return FUNCTIONS["equal"](call("imag", t), 0.0) if t.dtype.is_complex else ~_no(t)


def iscomplex(x: Any, /) -> Tensor:
    """Return whether each element has an imaginary part."""
    return FUNCTIONS["logical_not"](isreal(x))


def _no(t: Tensor) -> Tensor:
    return (
        FUNCTIONS["not_equal"](t, t) if not t.dtype.is_inexact else FUNCTIONS["logical_and"](t == t, t != t)
    )


def fix(x: Any, /) -> Tensor:
    """Return each element without what is behind the point."""
    return FUNCTIONS["trunc"](x)


__all__ = [
    "add", "addcdiv", "addcmul", "allclose", "array_equal", "clamp_max", "clamp_min", "deg2rad", "divmod",
    "fix", "float_power", "fmax", "fmin", "frac", "frexp", "gcd", "heaviside", "isclose", "iscomplex",
    "isneginf", "isposinf", "isreal", "lcm", "ldexp", "logaddexp2", "modf", "rad2deg", "sgn", "softplus",
    "subtract", "threshold",
]  # fmt: skip
