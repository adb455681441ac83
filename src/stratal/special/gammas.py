"""The gamma function and what is made of it: derivatives of its logarithm, beta, counts."""

from __future__ import annotations

import math
from typing import Any

from stratal.base.errors import AttributeValueError
from stratal.graph.op import REGISTRY
from stratal.special.family import floats, from_records
from stratal.tensor.build import apply
from stratal.tensor.functions.elementwise import FUNCTIONS, cast, where
from stratal.tensor.tensor import Tensor

_RECORDS = {
    "digamma": "digamma", "gamma": "gamma", "gammaln": "lgamma", "lgamma": "lgamma", "loggamma": "lgamma",
    "psi": "digamma",
}  # fmt: skip
_functions = from_records(__name__, _RECORDS)
globals().update(_functions)
gamma, lgamma, digamma = _functions["gamma"], _functions["lgamma"], _functions["digamma"]
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)


_MOST_DERIVATIVES = 170  # 171! is more than float64 holds


def polygamma(n: int, x: Any) -> Tensor:
    """Return the n-th derivative of `digamma`."""
    if not hasattr(n, "__index__") or not 0 <= int(n) <= _MOST_DERIVATIVES:
        raise AttributeValueError(
            f"polygamma: n is a number of derivatives from 0 to {_MOST_DERIVATIVES}", got=repr(n),
            hint="beyond that its factors leave the range of float64",
        )  # fmt: skip
    (t,) = floats("polygamma", x)
    if int(n) == 0:
        return digamma(t)
    return apply(REGISTRY["polygamma"](int(n)), t)  # type: ignore[call-arg]


_MOST_DIMENSIONS = 1000  # each is a term of the program


def multigammaln(x: Any, p: int) -> Tensor:
    """Return the logarithm of the multivariate gamma function of dimension p; x exceeds (p - 1)/2."""
    if not hasattr(p, "__index__") or not 1 <= int(p) <= _MOST_DIMENSIONS:
        raise AttributeValueError(
            f"multigammaln: the dimension is a positive number up to {_MOST_DIMENSIONS}", got=repr(p)
        )
    (t,) = floats("multigammaln", x)
    result = lgamma(t) + p * (p - 1) / 4 * math.log(math.pi)
    for k in range(1, int(p)):
        result = result + lgamma(t - k / 2)
    return where(t > (p - 1) / 2, result, math.nan)  # type: ignore[no-any-return]


# -- beta ----------------------------------------------------------------------------------------------------
def stirling(x: Tensor) -> Tensor:
    """Return what Stirling's formula lacks: log gamma(x) - (x - 1/2) log x + x - log(2 pi)/2, for x >= 10."""
    inverse = 1.0 / x
    square = inverse * inverse
    total: Any = _STIRLING[-1]
    for c in reversed(_STIRLING[:-1]):
        total = total * square + c
    return total * inverse


def betaln(a: Any, b: Any) -> Tensor:
    """Return the logarithm of the absolute value of the beta function of each pair.

    Where one of them is large, log gamma of it and of the sum are subtracted as formulas: nothing cancels.
    """
    first, second = floats("betaln", a, b)
    dtype = first.dtype
    first, second = (
        cast(t, "float64") for t in (first, second)
    )  # the exponential of the result has its error
    large, small = FUNCTIONS["maximum"](first, second), FUNCTIONS["minimum"](first, second)
    far = (large >= 10.0) & (small > 0)
    q, p = where(far, large, 10.0), where(far, small, 1.0)
    s = q + p
    fall = (q - 0.5) * FUNCTIONS["log1p"](p / q) + p * FUNCTIONS["log"](s) - p
    apart = lgamma(p) - fall + stirling(q) - stirling(s)
    q, p = where(far, 1.0, first), where(far, 1.0, second)
    together = where((q == 0) & (p == 0), math.inf, lgamma(q) + lgamma(p) - lgamma(q + p))
    return cast(where(far, apart, together), dtype)


def beta(a: Any, b: Any) -> Tensor:
    """Return gamma(a) gamma(b) / gamma(a + b) of each pair."""
    first, second = floats("beta", a, b)
    dtype = first.dtype
    first, second = cast(first, "float64"), cast(second, "float64")
    far = (FUNCTIONS["maximum"](first, second) >= 10.0) & (first > 0) & (second > 0)
    x, y = where(far, 1.0, first), where(far, 1.0, second)
    near = where((x == 0) & (y == 0), math.inf, gamma(x) / gamma(x + y) * gamma(y))
    x, y = where(far, first, 1.0), where(far, second, 1.0)
    return cast(where(far, FUNCTIONS["exp"](betaln(x, y)), near), dtype)


# -- counting ------------------------------------------------------------------------------------------------
def factorial(n: Any) -> Tensor:
    """Return n! of each element as a float: gamma(n + 1), 0 below 0."""
    (t,) = floats("factorial", n)
    return where(t < 0, 0.0, gamma(where(t < 0, 0.0, t) + 1.0))  # type: ignore[no-any-return]


def binom(n: Any, k: Any) -> Tensor:
    """Return the binomial coefficient of each pair of real numbers: 1 / ((n + 1) beta(n - k + 1, k + 1))."""
    top, low = floats("binom", n, k)
    return 1.0 / ((top + 1.0) * beta(top - low + 1.0, low + 1.0))  # type: ignore[no-any-return]


def comb(n: Any, k: Any) -> Tensor:
    """Return in how many ways k of n things can be chosen, as a float: 0 unless 0 <= k <= n."""
    top, low = floats("comb", n, k)
    wide = [cast(t, "float64") for t in (top, low)]
    possible = (low >= 0) & (low <= top) & (top >= 0)
    found = binom(where(possible, wide[0], 1.0), where(possible, wide[1], 1.0))
    whole = (
        (wide[0] == FUNCTIONS["floor"](wide[0])) & (wide[1] == FUNCTIONS["floor"](wide[1])) & (found < 1e14)
    )
    return cast(where(possible, where(whole, FUNCTIONS["round"](found), found), 0.0), top.dtype)


def perm(n: Any, k: Any) -> Tensor:
    """Return in how many orders k of n things can be taken, as a float: 0 unless 0 <= k <= n."""
    top, low = floats("perm", n, k)
    wide = [cast(t, "float64") for t in (top, low)]
    possible = (low >= 0) & (low <= top) & (top >= 0)
    result = comb(*wide) * factorial(wide[1])
    return cast(where(possible, result, 0.0), top.dtype)


mvlgamma = multigammaln
__all__ = [
    *_RECORDS, "beta", "betaln", "binom", "comb", "factorial", "multigammaln", "mvlgamma", "perm",
    "polygamma",
]  # fmt: skip
