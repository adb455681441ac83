"""Bessel functions of the first and second kind, and modified ones, of orders 0 and 1.

Modified ones are there as they are and scaled: I divided by exp(|x|), K by exp(-x).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array
from stratal.loops import math
from stratal.loops.math.bessel_jy import LARGEST
from stratal.ops.elementwise.special import Special
from stratal.ops.families import records


class Bessel(Special):
    """A Bessel function whose derivatives are others; `family` is its letter."""

    order: ClassVar[int]
    family: ClassVar[str]
    scaled: ClassVar[bool] = False
    domain = (0.3, 2.0)
    ulp = 20.0

    def ratio(self, b: Builder, out: Node, x: Node, at_zero: float) -> Node:
        """Return the function over x."""
        zero = b.eq(x, b.like(x, 0))
        quotient = b.div(out, b.select(zero, b.like(x, 1), x))
        return b.select(zero, b.like(x, at_zero), quotient)


class BesselJY(Bessel):
    """J or Y. The derivatives: F0' = -F1, F1' = F0 - F1/x."""

    def partials(self, b: Builder, out: Node, *inputs: Node) -> Sequence[Node | None]:
        other = b.op(f"{self.family}{1 - self.order}", inputs[0])
        if self.order == 0:
            return [b.neg(other)]
        at_zero = 0.5 if self.family == "j" else -np.inf
        return [b.sub(other, self.ratio(b, out, inputs[0], at_zero))]

    def numpy(self, *arrays: Array) -> Array:
        x = arrays[0].astype(np.longdouble)
        a = np.abs(x)
        with np.errstate(all="ignore"):
            j, y = _jy(self.order, np.where(a < LARGEST, a, np.nan))
            if self.family == "j":
                found = np.where(a == 0, 1 - self.order, j)
                found = np.where((x < 0) & (self.order == 1), -found, found)
                return np.asarray(np.where(np.isinf(a), 0, found), np.float64)
            found = np.where(np.isinf(a), 0, y)
            return np.asarray(np.where(a == 0, -np.inf, np.where(x > 0, found, np.nan)), np.float64)


_LEAST = 5e-324
_EULER = np.longdouble("0.57721566490153286060651209008240243")
_PI = np.longdouble("3.14159265358979323846264338327950288")


def _jy(order: int, a: Array) -> tuple[Array, Array]:
    """Return J(a) and Y(a) for 0 < a, by whichever of three ways serves."""
    ways = (_series, _by_recurrence, _by_hankel)
    ends = ((0.0, 0.5), (0.5, 30.0), (30.0, np.inf))
    found = [way(order, np.clip(a, low or _LEAST, high)) for way, (low, high) in zip(ways, ends, strict=True)]
    j, y = (np.select([a < 0.5, a < 30], [f[k] for f in found[:2]], found[2][k]) for k in (0, 1))
    return j, y


def _series(order: int, x: Array, side: int = -1) -> tuple[Array, Array]:
    """Return J and Y by power series with alternating terms (DLMF 10.2.2, 10.8.1).

    For side 1 I, and pi/2 times what Y would be but for signs: K.
    """
    term: Any = x / 2 if order else np.ones_like(x)
    total, rest = term, (-2 * _EULER + order) * term  # psi(k + 1) + psi(k + 1 + order) times the terms
    digammas = -2 * _EULER + order
    for k in range(1, 40):
        term = term * side * x * x / (4 * k * (k + order))
        digammas = digammas + np.longdouble(1) / k + np.longdouble(1) / (k + order)
        total, rest = total + term, rest + digammas * term
    second = 2 * np.log(x / 2) * total - rest
    if side < 0:
        return total, (second - 2 / x * order) / _PI
    return total, (1 / x + second / 2) if order else -second / 2


def _by_recurrence(order: int, x: Array) -> tuple[Array, Array]:
    """J of all orders by Miller's backward recurrence; Y as a sum of them (DLMF 10.12.4, 10.23.15-17)."""
    after, here = 0 * x, np.ones_like(x)
    norm, sums = 0 * x, [0 * x, 0 * x]
    orders: list[Any] = [0, 0]
    for n in range(110, -1, -1):  # `here` is of order n
        k, odd = divmod(n, 2)
        if not odd:
            norm = norm + (2 if n else 1) * here
        if k:
            weight = np.longdouble(1) / k if not odd else np.longdouble(n) / (k * (k + 1))
            sums[odd] = sums[odd] + (-1) ** k * weight * here
        if n < 2:
            orders[n] = here
        here, after = 2 * n / x * here - after, here
    first, j = orders[0] / norm, orders[order] / norm
    near = 2 * (np.log(x / 2) + _EULER - order) * j
    y = near - 4 * sums[0] / norm if order == 0 else near - 2 * first / x - 2 * sums[1] / norm
    return j, y / _PI


def _by_hankel(order: int, x: Array) -> tuple[Array, Array]:
    """Hankel's asymptotic series (DLMF 10.17.3, 10.17.4)."""
    term: Any = np.ones_like(x)
    parts: list[Any] = [term, 0 * x]
    for k in range(1, 40):
        term = term * (4 * order * order - (2 * k - 1) ** 2) / (8 * k * x)
        parts[k % 2] = parts[k % 2] + (term if k % 4 < 2 else -term)
    plus, minus = np.sin(x) + np.cos(x), np.sin(x) - np.cos(x)  # sqrt(2) cos and sin of x - pi/4
    cosine, sine = (plus, minus) if order == 0 else (minus, -plus)
    p, q = parts
    scale = np.sqrt(1 / (_PI * x))
    return (p * cosine - q * sine) * scale, (p * sine + q * cosine) * scale


bessel_jy = records(__name__, BesselJY)
bessel_jy("j0", "The Bessel function of the first kind of order 0.", formula=math.j0, family="j", order=0)
bessel_jy("j1", "The Bessel function of the first kind of order 1.", formula=math.j1, family="j", order=1)
# Between their zeros, where errors are absolute:
bessel_jy(
    "y0", "The Bessel function of the second kind of order 0; minus infinity at 0, NaN below.",
    formula=math.y0, family="y", order=0, domain=(1.0, 2.0), ulp=40.0,
)  # fmt: skip
bessel_jy(
    "y1", "The Bessel function of the second kind of order 1; minus infinity at 0, NaN below.",
    formula=math.y1, family="y", order=1, domain=(1.0, 2.0), ulp=40.0,
)  # fmt: skip


class BesselK(Bessel):
    """K(x), or exp(x) K(x). The derivatives: K0' = -K1, K1' = -K0 - K1/x, plus the function if scaled."""

    family = "k"

    def partials(self, b: Builder, out: Node, *inputs: Node) -> Sequence[Node | None]:
        other = b.neg(b.op(f"k{1 - self.order}{'e' if self.scaled else ''}", inputs[0]))
        if self.order:
            other = b.sub(other, self.ratio(b, out, inputs[0], np.inf))
        return [b.add(other, out) if self.scaled else other]

    def numpy(self, *arrays: Array) -> Array:
        """The power series up to 2 (DLMF 10.31), beyond it the integral of exp(-x cosh t) cosh(order t) over
        t > 0 (DLMF 10.32.9).
        """
        x = arrays[0].astype(np.longdouble)
        with np.errstate(all="ignore"):
            near = _series(self.order, np.clip(x, _LEAST, 2), 1)[1]
            far = np.maximum(x, 2)
            step = 2 * np.arcsinh(np.sqrt(35 / far)) / 80
            total: Any = np.longdouble(0.5)
            for k in range(1, 81):
                t = k * step
                total = total + np.exp(-2 * far * np.sinh(t / 2) ** 2) * (np.cosh(t) if self.order else 1)
            total = total * step
            if self.scaled:
                found = np.where(x < 2, near * np.exp(np.minimum(x, 2)), total)
            else:
                found = np.where(x < 2, near, total * np.exp(-far))
            found = np.where(np.isposinf(x), 0, np.where(x == 0, np.inf, found))
        return np.asarray(np.where(x >= 0, found, np.nan), np.float64)


bessel_k = records(__name__, BesselK)
bessel_k(
    "k0", "The modified Bessel function of the second kind of order 0; infinite at 0, NaN below.",
    formula=math.k0, order=0,
)  # fmt: skip
bessel_k(
    "k1", "The modified Bessel function of the second kind of order 1; infinite at 0, NaN below.",
    formula=math.k1, order=1,
)  # fmt: skip
bessel_k("k0e", "exp(x) K0(x), which does not underflow.", formula=math.k0e, order=0, scaled=True)
bessel_k("k1e", "exp(x) K1(x), which does not underflow.", formula=math.k1e, order=1, scaled=True)


class BesselI(Bessel):
    """I(x), or exp(-|x|) I(x). The derivatives: I0' = I1, I1' = I0 - I1/x; less sign(x) times it, scaled."""

    family = "i"
    domain = (-2.0, 2.0)
    ulp = 10.0

    def numpy(self, *arrays: Array) -> Array:
        x = arrays[0].astype(np.longdouble)
        a = np.abs(x)
        with np.errstate(all="ignore"):
            value = _near(self.order, np.minimum(a, 60)) * np.exp(-np.minimum(a, 60))
            value = np.where(a < 60, value, _far(self.order, np.maximum(a, 60)))
            value = value if self.scaled else np.where(np.isinf(a), a, value * np.exp(a))
        return np.asarray(np.copysign(value, x) if self.order else value, np.float64)

    def partials(self, b: Builder, out: Node, *inputs: Node) -> Sequence[Node | None]:
        x = inputs[0]
        other = b.op(f"i{1 - self.order}{'e' if self.scaled else ''}", x)
        if self.order:
            other = b.sub(other, self.ratio(b, out, x, 0.5))
        return [b.sub(other, b.mul(b.sign(x), out)) if self.scaled else other]


def _near(order: int, a: Array) -> Array:
    """Return I(a) by its power series, whose terms are all of one sign; a <= 60."""
    square, term = a * a / 4, a / 2 if order else np.ones_like(a)
    total: Any = term
    for k in range(1, 150):
        term = term * square / (k * (k + order))
        total = total + term
    return np.asarray(total)


def _far(order: int, a: Array) -> Array:
    """Return exp(-a) I(a) by Hankel's asymptotic series (DLMF 10.40.1); a >= 60."""
    term: Any = np.ones_like(a)
    total: Any = term
    for k in range(1, 30):
        term = -term * (4 * order * order - (2 * k - 1) ** 2) / (8 * k * a)
        total = total + term
    return np.asarray(total / np.sqrt(2 * np.longdouble(np.pi) * a))


bessel_i = records(__name__, BesselI)
bessel_i("i0", "The modified Bessel function of the first kind of order 0.", formula=math.i0, order=0)
bessel_i("i1", "The modified Bessel function of the first kind of order 1.", formula=math.i1, order=1)
bessel_i("i0e", "exp(-|x|) I0(x), which does not overflow.", formula=math.i0e, order=0, scaled=True)
bessel_i("i1e", "exp(-|x|) I1(x), which does not overflow.", formula=math.i1e, order=1, scaled=True)
