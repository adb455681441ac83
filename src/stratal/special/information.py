"""Logarithms, entropies and the logistic function, right where their factors are 0 or overflow."""

from __future__ import annotations

import math
from typing import Any

from stratal.special.family import floats
from stratal.tensor.composites.arithmetic import softplus, xlog1py, xlogy
from stratal.tensor.functions.elementwise import FUNCTIONS, clip, round, sinc, where
from stratal.tensor.functions.reductions import log_softmax, logsumexp, softmax
from stratal.tensor.tensor import Tensor

_log, _log1p, _isnan = FUNCTIONS["log"], FUNCTIONS["log1p"], FUNCTIONS["isnan"]
exp2, expm1, log1p, expit = (FUNCTIONS[name] for name in ("exp2", "expm1", "log1p", "sigmoid"))


def entr(x: Any) -> Tensor:
    """Return -x log(x) of each element: 0 at 0, minus infinity below."""
    (t,) = floats("entr", x)
    return where(t < 0, -math.inf, -xlogy(t, where(t < 0, 1.0, t)))  # type: ignore[no-any-return]


def _divergence(name: str, x: Any, y: Any, shifted: bool) -> Tensor:
    a, b = floats(name, x, y)
    inside, nothing = (a > 0) & (b > 0), (a == 0) & (b >= 0)
    p, q = where(inside, a, 1.0), where(inside, b, 1.0)
    ratio = p * _log(p / q)
    result = where(
        inside, ratio - p + q if shifted else ratio, where(nothing, b if shifted else 0.0, math.inf)
    )
    return where(_isnan(a) | _isnan(b), math.nan, result)  # type: ignore[no-any-return]


def rel_entr(x: Any, y: Any) -> Tensor:
    """Return x log(x / y) of each pair: 0 for x = 0 <= y, infinite for other pairs that are not positive."""
    return _divergence("rel_entr", x, y, False)


def kl_div(x: Any, y: Any) -> Tensor:
    """Return x log(x / y) - x + y of each pair, as `scipy.special.kl_div`: the integrand of a divergence."""
    return _divergence("kl_div", x, y, True)


def logit(x: Any, eps: float | None = None) -> Tensor:
    """Return log(x / (1 - x)) of each element; with `eps` x is moved into [eps, 1 - eps] first."""
    (t,) = floats("logit", x)
    if eps is not None:
        t = clip(t, eps, 1.0 - eps)
    middle = (t > 0.25) & (t < 0.75)
    near = where(middle, t, 0.5)
    off = 2.0 * near - 1.0  # exact; log((1 + d)/(1 - d)) = log1p(2 d / (1 - d))
    away = where(middle, 0.25, t)
    return where(middle, _log1p(2.0 * off / (1.0 - off)), _log(away) - _log1p(-away))  # type: ignore[no-any-return]


def log_expit(x: Any) -> Tensor:
    """Return the logarithm of the logistic function, also where that underflows."""
    (t,) = floats("log_expit", x)
    return -softplus(-t)  # type: ignore[no-any-return]


__all__ = [
    "entr", "exp2", "expit", "expm1", "kl_div", "log1p", "log_expit", "log_softmax", "logit", "logsumexp",
    "rel_entr", "round", "sinc", "softmax", "xlog1py", "xlogy",
]  # fmt: skip
