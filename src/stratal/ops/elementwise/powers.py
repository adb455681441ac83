"""Powers, roots, exponentials and logarithms."""

from __future__ import annotations

import math as python_math
from collections.abc import Iterable, Sequence

import numpy as np

from stratal.base.dtypes import float32
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Sample, record
from stratal.loops import math
from stratal.loops.expr import Expr
from stratal.ops.families import Elementwise, Unary, derivative, records

_LN2 = 0.6931471805599453
unary = records(__name__, Unary)


@record
class Pow(Elementwise):
    """x ** y. Of integers it wraps; a negative power rounds the true value towards 0, for a base of 0 too.

    x ** 0 has the derivative 0 by x, 0 ** y in y >= 0 the derivative 0 by y.
    """

    ulp = 2.0
    arity = 2
    kinds = "uifc"
    domain = (0.3, 2.0)

    def numpy(self, *arrays: Array) -> Array:
        x, y = arrays
        if x.dtype.kind != "i":
            return np.asarray(np.power(x, y))
        whole = np.power(x, np.where(y < 0, 0, y).astype(x.dtype))
        fraction = np.where((x == 1) | (x == -1), np.where(y % 2 == 0, 1, x), 0)
        return np.where(y < 0, fraction, whole)

    def scalar(self, *args: Expr) -> Expr:
        return math.pow(*args) if args[0].dtype.is_float else math.integer_power(*args)

    def partials(self, b: Builder, out: Node, *inputs: Node) -> Sequence[Node | None]:
        x, y = inputs
        zero, one = b.like(y, 0), b.like(y, 1)
        constant = b.eq(y, zero)
        below = b.select(constant, one, b.sub(y, one))
        by_base = b.select(constant, zero, b.mul(y, b.pow(x, below)))
        if not b.needed(1):
            return [by_base, None]
        flat = b.eq(x, zero)
        if y.dtype.is_float:
            flat = b.op("and", flat, b.ge(y, zero))
        log = b.log(b.select(flat, one, x))
        return [by_base, b.select(flat, zero, b.mul(out, log))]


unary(
    "sqrt", "The square root, correctly rounded; NaN below 0.", ufunc=np.sqrt, fn="sqrt", exact="f",
    domain=(0.2, 4.0), slope=lambda b, out, x: b.div(b.like(out, 0.5), out),
)  # fmt: skip
unary(
    "rsqrt", "1 / sqrt(x).", ufunc=lambda x: 1 / np.sqrt(x), formula=math.rsqrt, ulp=1.5, domain=(0.2, 4.0),
    slope=lambda b, out, x: b.mul(b.like(out, -0.5), b.mul(out, b.mul(out, out))),
)  # fmt: skip
unary(
    "cbrt", "The cube root, with the sign of x.", ufunc=np.cbrt, formula=math.cbrt, ulp=1.0, kinds="f",
    domain=(0.2, 4.0), slope=lambda b, out, x: b.div(b.like(out, 1 / 3), b.mul(out, out)),
)  # fmt: skip


@record
@derivative(lambda b, out, x: out)
class Exp(Unary):
    """e ** x."""

    ulp = 1.0
    ufunc = np.exp
    formula = math.exp


@record
class ExpWithin(Exp):
    """e ** x where x is known to lie between `low` and `high` or to be NaN: guards fall away, bits stay.

    `optimize/ranges.py` puts it in.
    """

    name = "exp_within"
    low: float = -python_math.inf
    high: float = python_math.inf

    def scalar(self, *args: Expr) -> Expr:
        (x,) = args
        if x.dtype is float32 and self.low >= -87 and self.high <= 88:
            return math.exp_near(x)
        return math.exp_below(x) if x.dtype is float32 and self.high <= 65 else math.exp(x)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for sample in super().samples():
            for op in (cls(-87.0, 88.0), cls(high=65.0)):
                yield sample._replace(op=op)


unary(
    "exp2", "2 ** x.", ufunc=np.exp2, formula=math.exp2, ulp=1.0,
    slope=lambda b, out, x: b.mul(out, b.like(out, _LN2)),
)  # fmt: skip


@record
@derivative(lambda b, out, x: b.add(out, b.like(out, 1)))
class Expm1(Unary):
    """e ** x - 1, precise near 0."""

    ulp = 2.0
    ufunc = np.expm1
    formula = math.expm1

    def numpy(self, *arrays: Array) -> Array:
        """Return NumPy's result, and where that is not finite or not signed as the array API asks, exp's."""
        x, value = arrays[0], super().numpy(*arrays)
        if x.dtype.kind != "c":
            return value
        value = np.where(np.isfinite(value), value, np.exp(x) - 1)
        value.real += 0.0  # of -0 + 0j the standard wants 0 + 0j
        return value


unary(
    "log", "The natural logarithm; NaN below 0, -inf at 0.", ufunc=np.log, formula=math.log, ulp=1.5,
    domain=(0.2, 4.0), slope=lambda b, out, x: b.div(b.like(out, 1), x),
)  # fmt: skip
unary(
    "log2", "The logarithm to base 2.", ufunc=np.log2, formula=math.log2, ulp=2.0, domain=(0.2, 4.0),
    slope=lambda b, out, x: b.div(b.like(out, 1 / _LN2), x),
)  # fmt: skip
unary(
    "log1p", "log(1 + x), precise near 0.", ufunc=np.log1p, formula=math.log1p, ulp=2.0, domain=(-0.7, 3.0),
    slope=lambda b, out, x: b.div(b.like(out, 1), b.add(x, b.like(out, 1))),
)  # fmt: skip
