"""The error function, the normal distribution, the logistic function; the gamma function and its kin."""

from __future__ import annotations

import math as python_math
from collections.abc import Callable, Iterable, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np

from stratal.base.dtypes import float32, float64
from stratal.base.errors import AttributeValueError
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Reject, Sample, record
from stratal.loops import math
from stratal.loops.expr import Expr
from stratal.ops.families import SAMPLE_SHAPES, Unary, derivative, records


def each(
    function: Callable[[float], float], refused: Callable[[float], float] = lambda x: python_math.nan
) -> Callable[[Array], Array]:
    """Return a function of Python's numbers for arrays; `refused` says what stands where it raises."""

    def one(x: float) -> float:
        try:
            return function(float(x))
        except (ValueError, OverflowError):
            return refused(float(x))

    made = np.frompyfunc(one, 1, 1)
    return lambda x: np.asarray(made(x), dtype=np.float64)


class Special(Unary):
    """A function of one float."""

    kinds = "f"


special = records(__name__, Special)
special(
    "erf", "The error function.", ufunc=each(python_math.erf), formula=math.erf, ulp=2.0,
    slope=lambda b, out, x: _bell(b, x),
)  # fmt: skip
special(
    "erfc", "1 - erf(x), precise where erf is near 1.", ufunc=each(python_math.erfc), formula=math.erfc,
    ulp=3.0, slope=lambda b, out, x: b.neg(_bell(b, x)),
)  # fmt: skip


def _bell(b: Builder, x: Node) -> Node:
    """Return 2/sqrt(pi) * exp(-x*x), the derivative of erf."""
    return b.mul(b.like(x, 2 / python_math.sqrt(python_math.pi)), b.exp(b.neg(b.mul(x, x))))


@record
@derivative(lambda b, out, x: b.mul(out, b.sub(b.like(out, 1), out)))
class Logistic(Special):
    """1 / (1 + exp(-x)), the sigmoid."""

    ulp = 2.5
    formula = math.sigmoid

    def numpy(self, *arrays: Array) -> Array:
        x = arrays[0]
        small = np.exp(-abs(x))
        return np.asarray(np.where(x < 0, small, 1) / (1 + small)).astype(x.dtype)


_ROOT_PI = python_math.sqrt(python_math.pi)
_ROOT_2PI = python_math.sqrt(2 * python_math.pi)
_ROOT_HALF = python_math.sqrt(0.5)
_NORMAL = NormalDist()


def _edge(x: float, low: float, high: float) -> float:
    """Return the quantile at the ends of the unit interval, NaN beyond."""
    return -python_math.inf if x == low else python_math.inf if x == high else python_math.nan


def _erfinv(x: float) -> float:
    size = -_NORMAL.inv_cdf((1 - abs(x)) / 2) * _ROOT_HALF
    if abs(x) < 0.5:  # a step of Newton's method: the quantile is right to the last place of 1/2 only
        size -= (python_math.erf(size) - abs(x)) * _ROOT_PI / 2 * python_math.exp(size * size)
    return python_math.copysign(size, x)


def _erfcinv(x: float) -> float:
    if not 0 < x < 1e-290:
        return -_NORMAL.inv_cdf(x / 2) * _ROOT_HALF
    root = 26.0  # x/2 may have no bits left: solve erfc's asymptotic series for its exponential
    for _ in range(40):
        square = root * root
        series = 1 - 1 / (2 * square) + 3 / (4 * square**2) - 15 / (8 * square**3) + 105 / (16 * square**4)
        root = python_math.sqrt(-python_math.log(x) - python_math.log(root * _ROOT_PI / series))
    return root


def _erfcx(x: float) -> float:
    if x < 25:
        return float(np.exp(np.longdouble(x) * np.longdouble(x)) * python_math.erfc(x))
    tail = x
    for k in range(60, 0, -1):  # the continued fraction of erfc, from its 60th term back
        tail = x + k / 2 / tail
    return 1 / _ROOT_PI / tail


_ERFCX = each(_erfcx)


@record
@derivative(lambda b, out, x: b.sub(b.mul(b.mul(b.like(x, 2), x), out), b.like(x, 2 / _ROOT_PI)))
class Erfcx(Special):
    """exp(x^2) erfc(x), which falls as 1/x where erfc underflows."""

    ulp = 4.0
    formula = math.erfcx

    def numpy(self, *arrays: Array) -> Array:
        with np.errstate(all="ignore"):
            return _ERFCX(arrays[0])


special(
    "ndtri", "The number a normal variable lies below with probability x: infinite at 0 and 1, NaN beyond.",
    ufunc=each(_NORMAL.inv_cdf, lambda p: _edge(p, 0, 1)), formula=math.ndtri, ulp=6.0, domain=(0.05, 0.95),
    slope=lambda b, out, x: b.mul(b.like(out, _ROOT_2PI), b.exp(b.mul(b.like(out, 0.5), b.mul(out, out)))),
)  # fmt: skip
special(
    "erfinv", "The number whose erf is x: infinite at -1 and 1, NaN beyond.",
    ufunc=each(_erfinv, lambda x: _edge(x, -1, 1)), formula=math.erfinv, ulp=8.0, domain=(-0.9, 0.9),
    slope=lambda b, out, x: b.mul(b.like(out, _ROOT_PI / 2), b.exp(b.mul(out, out))),
)  # fmt: skip
special(
    "erfcinv", "The number whose erfc is x: infinite at 0 and 2, NaN beyond.",
    ufunc=each(_erfcinv, lambda x: -_edge(x, 0, 2)), formula=math.erfcinv, ulp=8.0, domain=(0.1, 1.9),
    slope=lambda b, out, x: b.mul(b.like(out, -_ROOT_PI / 2), b.exp(b.mul(out, out))),
)  # fmt: skip


# -- the gamma function, its logarithm and the derivatives of that -------------------------------------------
MOST_DERIVATIVES = 8  # of digamma that have an expression: it adds up 10 + n terms

_GAMMA = each(
    python_math.gamma, lambda x: python_math.copysign(python_math.inf, x) if x >= 0 else python_math.nan
)


class OfGamma(Special):
    """A function of one float, as the gamma function."""

    domain = (0.3, 4.0)


@record
@derivative(lambda b, out, x: b.digamma(x))
class Lgamma(OfGamma):
    """The logarithm of the absolute value of the gamma function; infinity at 0, -1, -2, ...

    Near its zeros below -2 it is right to 1e-15, not to the last place; elsewhere to 5 units there.
    """

    ulp = 600.0  # at -pi, in float64
    ufunc = each(python_math.lgamma, lambda x: python_math.inf)
    formula = math.lgamma


@record
@derivative(lambda b, out, x: b.mul(out, b.digamma(x)))
class Gamma(OfGamma):
    """The gamma function: (x - 1)! of whole numbers; NaN at -1, -2, ..., infinity of the sign of 0 there."""

    ulp = 6.0
    formula = math.gamma

    def numpy(self, *arrays: Array) -> Array:
        x = arrays[0]
        with np.errstate(all="ignore"):
            return np.asarray(np.where(x == 0, 1 / x, _GAMMA(x)))


@record
@derivative(lambda b, out, x: b.polygamma(x, n=1))
class Digamma(OfGamma):
    """The derivative of the logarithm of the gamma function; NaN at -1, -2, ..., infinite at 0."""

    ulp = 16.0  # at -1/2, where 2 is subtracted; above 0 it is 3
    formula = math.digamma

    def numpy(self, *arrays: Array) -> Array:
        return np.asarray(_digamma(arrays[0].astype(np.longdouble)), np.float64)


@record
class Polygamma(OfGamma):
    """The n-th derivative of digamma. At 0, -1, -2, ... infinite, if n is even NaN below 0: signs differ."""

    n: int = 1
    ulp = 16.0

    def infer(self, *types: TensorType) -> TensorType:
        if self.n < 1:
            raise AttributeValueError(
                "polygamma: n counts derivatives of digamma", got=str(self.n), hint="digamma is its own op"
            )
        return super().infer(*types)

    def host_reason(self, *types: TensorType) -> str:
        long = f"its expression adds up 10 + n terms: too long beyond n = {MOST_DERIVATIVES}"
        return long if self.n > MOST_DERIVATIVES else super().host_reason(*types)

    def numpy(self, *arrays: Array) -> Array:
        return np.asarray(_polygamma(self.n, arrays[0].astype(np.longdouble)), np.float64)

    def scalar(self, *args: Expr) -> Expr:
        return math.polygamma(self.n, *args)

    def partials(self, b: Builder, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [b.polygamma(inputs[0], n=self.n + 1)]

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for n in (1, 2, 5, MOST_DERIVATIVES + 1):
            for dtype in (float32, float64):
                for shape in SAMPLE_SHAPES if n == 1 else SAMPLE_SHAPES[:1]:
                    yield Sample(cls(n), (TensorType(dtype, shape),), cls.domain)

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls(0), (TensorType(float32, (2,)),), "derivatives")


# -- references in extended precision ------------------------------------------------------------------------
_PI = np.longdouble("3.14159265358979323846264338327950288")
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)  # B2, B4, ...
_SHIFT = 40  # terms added up before the asymptotic series takes over


def _cotangent(x: Array) -> Array:
    """Return cot(pi x)."""
    left = x - np.rint(x)
    return np.asarray(np.cos(_PI * left) / np.sin(_PI * left))


def _digamma(x: Array) -> Array:
    with np.errstate(all="ignore"):
        w: Any = np.where(x < 0, 1 - x, x)
        y = w + _SHIFT
        total = np.log(y) - 1 / (2 * y) - sum(c / (2 * j * y ** (2 * j)) for j, c in enumerate(_BERNOULLI, 1))
        above = total - sum(1 / (w + k) for k in range(_SHIFT))
        at_zero = np.where(x == 0, -1 / x, above)
        below = np.where(x == np.rint(x), np.nan, above - _PI * _cotangent(x))
    return np.asarray(np.where(x < 0, below, np.where(np.isposinf(x), x, at_zero)))


def _polygamma(n: int, x: Array) -> Array:
    sign, size = (1 if n % 2 else -1), np.longdouble(python_math.factorial(n))
    with np.errstate(all="ignore"):
        w: Any = np.where(x < 0, 1 - x, x)
        y = w + _SHIFT + 2 * n
        total = y**-n / n + y ** -(n + 1) / 2
        rising: Any = np.longdouble(1)
        for j, c in enumerate(_BERNOULLI, 1):  # (n + 2j - 1)! / (n! (2j)!)
            rising = (
                python_math.factorial(n + 2 * j - 1) / python_math.factorial(n) / python_math.factorial(2 * j)
            )
            total = total + c * rising * y ** -(n + 2 * j)
        total = total + sum((w + k) ** -(n + 1) for k in range(_SHIFT + 2 * n))
        above = sign * size * total
        above = np.where(np.isposinf(x), sign * 0.0, above)
        turned = _PI ** (n + 1) * np.polyval(_cotangent_derivative(n), _cotangent(x))
        pole: Any = np.inf if n % 2 else np.nan
        pole = np.where(np.isinf(x), np.nan, pole)
        below = np.where(x == np.rint(x), pole, (above if n % 2 == 0 else -above) - turned)
    return np.asarray(np.where(x < 0, below, above))


def _cotangent_derivative(n: int) -> list[int]:
    """Return the n-th derivative of cot as a polynomial in cot, the highest power first."""
    poly = np.poly1d([1, 0])
    for _ in range(n):
        poly = poly.deriv() * np.poly1d([-1, 0, -1])
    return [int(c) for c in poly.coefficients]
