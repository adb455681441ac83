"""Around the normal distribution: the scaled complement of erf, quantiles, inverses of erf and erfc."""

from __future__ import annotations

import math as python_math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, record
from stratal.loops import math
from stratal.loops.expr import Expr
from stratal.ops.elementwise.gamma import each
from stratal.ops.elementwise.special import Special

_ROOT_PI = python_math.sqrt(python_math.pi)
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


_NDTRI = each(_NORMAL.inv_cdf, lambda p: _edge(p, 0, 1))
_ERFINV = each(_erfinv, lambda x: _edge(x, -1, 1))
_ERFCINV = each(_erfcinv, lambda x: -_edge(x, 0, 2))
_ERFCX = each(_erfcx, lambda x: python_math.nan)


@record
class Erfcx(Special):
    """exp(x^2) erfc(x), which falls as 1/x where erfc underflows."""

    ulp = 4.0

    def numpy(self, *arrays: Array) -> Array:
        with np.errstate(all="ignore"):
            return _ERFCX(arrays[0])

    def scalar(self, *args: Expr) -> Expr:
        return math.erfcx(*args)

    def partials(self, b: Builder, out: Node, *inputs: Node) -> Sequence[Node | None]:
        x = inputs[0]
        return [b.sub(b.mul(b.mul(b.like(x, 2), x), out), b.like(x, 2 / _ROOT_PI))]


@record
class Ndtri(Special):
    """The number a normal variable lies below with probability x: infinite at 0 and 1, NaN beyond."""

    ulp = 6.0
    domain = (0.05, 0.95)

    def numpy(self, *arrays: Array) -> Array:
        return _NDTRI(arrays[0])

    def scalar(self, *args: Expr) -> Expr:
        return math.ndtri(*args)

    def partials(self, b: Builder, out: Node, *inputs: Node) -> Sequence[Node | None]:
        square = b.mul(b.like(out, 0.5), b.mul(out, out))
        return [b.mul(b.like(out, python_math.sqrt(2 * python_math.pi)), b.exp(square))]


@record
class Erfinv(Special):
    """The number whose erf is x: infinite at -1 and 1, NaN beyond."""

    ulp = 8.0
    domain = (-0.9, 0.9)

    def numpy(self, *arrays: Array) -> Array:
        return _ERFINV(arrays[0])

    def scalar(self, *args: Expr) -> Expr:
        return math.erfinv(*args)

    def partials(self, b: Builder, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [b.mul(b.like(out, _ROOT_PI / 2), b.exp(b.mul(out, out)))]


@record
class Erfcinv(Special):
    """The number whose erfc is x: infinite at 0 and 2, NaN beyond."""

    ulp = 8.0
    domain = (0.1, 1.9)

    def numpy(self, *arrays: Array) -> Array:
        return _ERFCINV(arrays[0])

    def scalar(self, *args: Expr) -> Expr:
        return math.erfcinv(*args)

    def partials(self, b: Builder, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [b.mul(b.like(out, -_ROOT_PI / 2), b.exp(b.mul(out, out)))]
