"""Modified Bessel functions of the first kind of orders 0 and 1, as they are and divided by exp(|x|)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, record
from stratal.loops import math
from stratal.loops.expr import Expr
from stratal.ops.elementwise.special import Special


class BesselI(Special):
    """exp(-|x|) I(x), or I(x)."""

    order: ClassVar[int]
    scaled: ClassVar[bool] = False
    ulp = 10.0

    def numpy(self, *arrays: Array) -> Array:
        x = arrays[0].astype(np.longdouble)
        a = np.abs(x)
        with np.errstate(all="ignore"):
            value = _near(self.order, np.minimum(a, 60)) * np.exp(-np.minimum(a, 60))
            value = np.where(a < 60, value, _far(self.order, np.maximum(a, 60)))
            value = value if self.scaled else np.where(np.isinf(a), a, value * np.exp(a))
        return np.asarray(np.copysign(value, x) if self.order else value, np.float64)

    def scalar(self, *args: Expr) -> Expr:
        function = getattr(math, self.name)
        return function(*args)  # type: ignore[no-any-return]

    def partials(self, b: Builder, out: Node, *inputs: Node) -> Sequence[Node | None]:
        """I0' = I1 and I1' = I0 - I1/x, which is 1/2 at 0; with exp(-|x|) less sign(x) times the function."""
        x, mark = inputs[0], "e" if self.scaled else ""
        other = b.op(f"i{1 - self.order}{mark}", x)
        if self.order:
            zero = b.eq(x, b.like(x, 0))
            ratio = b.div(out, b.select(zero, b.like(x, 1), x))
            other = b.sub(other, b.select(zero, b.like(x, 0.5), ratio))
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


@record
class I0(BesselI):
    """The modified Bessel function of the first kind of order 0."""

    order = 0


@record
class I1(BesselI):
    """The modified Bessel function of the first kind of order 1."""

    order = 1


@record
class I0e(BesselI):
    """exp(-|x|) I0(x), which does not overflow."""

    order = 0
    scaled = True


@record
class I1e(BesselI):
    """exp(-|x|) I1(x), which does not overflow."""

    order = 1
    scaled = True
