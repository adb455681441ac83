"""The gamma function, its logarithm and the derivatives of that."""

from __future__ import annotations

import math as python_math
from collections.abc import Callable, Iterable, Sequence
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
from stratal.ops.families import SAMPLE_SHAPES, Elementwise

MOST_DERIVATIVES = 8  # of digamma that have an expression: it adds up 10 + n terms


def each(function: Callable[[float], float], refused: Callable[[float], float]) -> Callable[[Array], Array]:
    """Return a function of Python's numbers for arrays; `refused` says what stands where it raises."""

    def one(x: float) -> float:
        try:
            return function(float(x))
        except (ValueError, OverflowError):
            return refused(float(x))

    made = np.frompyfunc(one, 1, 1)
    return lambda x: np.asarray(made(x), dtype=np.float64)


_LGAMMA = each(python_math.lgamma, lambda x: python_math.inf)
_GAMMA = each(
    python_math.gamma,
    lambda x: python_math.copysign(python_math.inf, x) if x >= 0 else python_math.nan,
)


class OfGamma(Elementwise):
    """A function of one float, as the gamma function."""

    arity = 1
    kinds = "f"
    domain = (0.3, 4.0)


@record
class Lgamma(OfGamma):
    """The logarithm of the absolute value of the gamma function; infinity at 0, -1, -2, ...

    Near its zeros below -2 it is right to 1e-15, not to the last place; elsewhere to 5 units there.
    """

    ulp = 600.0  # at -pi, in float64

    def numpy(self, *arrays: Array) -> Array:
        return _LGAMMA(arrays[0])

    def scalar(self, *args: Expr) -> Expr:
        return math.lgamma(*args)

    def partials(self, b: Builder, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [b.digamma(inputs[0])]


@record
class Gamma(OfGamma):
    """The gamma function: (x - 1)! of whole numbers; NaN at -1, -2, ..., infinity of the sign of 0 there."""

    ulp = 6.0

    def numpy(self, *arrays: Array) -> Array:
        x = arrays[0]
        with np.errstate(all="ignore"):
            return np.asarray(np.where(x == 0, 1 / x, _GAMMA(x)))

    def scalar(self, *args: Expr) -> Expr:
        return math.gamma(*args)

    def partials(self, b: Builder, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [b.mul(out, b.digamma(inputs[0]))]


@record
class Digamma(OfGamma):
    """The derivative of the logarithm of the gamma function; NaN at -1, -2, ..., infinite at 0."""

    ulp = 16.0  # at -1/2, where 2 is subtracted; above 0 it is 3

    def numpy(self, *arrays: Array) -> Array:
        return np.asarray(_digamma(arrays[0].astype(np.longdouble)), np.float64)

    def scalar(self, *args: Expr) -> Expr:
        return math.digamma(*args)

    def partials(self, b: Builder, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [b.polygamma(inputs[0], n=1)]


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
