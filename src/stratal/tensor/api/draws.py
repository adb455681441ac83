"""Functions that draw, kept as calls, and methods that fill a tensor with draws; bits are our own."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from stratal.base.errors import AttributeValueError
from stratal.tensor.api.writes import update
from stratal.tensor.calls.call_cache import cached_call
from stratal.tensor.functions import random
from stratal.tensor.functions.elementwise import FUNCTIONS
from stratal.tensor.tensor import Tensor

bernoulli = cached_call(random.bernoulli)
multinomial = cached_call(random.multinomial)
normal = cached_call(random.normal)
rand = cached_call(random.rand)
rand_like = cached_call(random.rand_like)
randint = cached_call(random.randint)
randn = cached_call(random.randn)
randn_like = cached_call(random.randn_like)
randperm = cached_call(random.randperm)


def normal_(self: Tensor, mean: Any = 0.0, std: Any = 1.0, *, generator: Any = None) -> Tensor:
    """Give this tensor draws from the normal distribution, and return it."""
    drawn = random.randn(self.shape, dtype=self.dtype, generator=generator)
    return update(self, drawn * std + mean, "normal_")


def uniform_(self: Tensor, from_: Any = 0.0, to: Any = 1.0, *, generator: Any = None) -> Tensor:
    """Give this tensor draws from the uniform distribution on [from_, to), and return it."""
    drawn = random.rand(self.shape, dtype=self.dtype, generator=generator)
    return update(self, drawn * (to - from_) + from_, "uniform_")


def bernoulli_(self: Tensor, p: Any = 0.5, *, generator: Any = None) -> Tensor:
    """Give this tensor 1 with probability `p`, else 0, and return it."""
    return update(self, random.rand(self.shape, generator=generator) < p, "bernoulli_")


def _positive(name: str, **numbers: Any) -> None:
    for word, value in numbers.items():
        if not isinstance(value, Tensor) and not value > 0:
            raise AttributeValueError(f"{name}: {word} is greater than 0", got=str(value))


def _units(self: Tensor, generator: Any) -> Tensor:
    """Return draws of (0, 1]."""
    return 1 - random.rand(self.shape, dtype=self.dtype if self.dtype.is_float else None, generator=generator)


def exponential_(self: Tensor, lambd: Any = 1.0, *, generator: Any = None) -> Tensor:
    """Give this tensor draws from the exponential distribution of rate `lambd`, and return it."""
    _positive("exponential_", lambd=lambd)
    return update(self, -FUNCTIONS["log"](_units(self, generator)) / lambd, "exponential_")


def cauchy_(self: Tensor, median: Any = 0.0, sigma: Any = 1.0, *, generator: Any = None) -> Tensor:
    """Give this tensor draws from the Cauchy distribution, and return it."""
    _positive("cauchy_", sigma=sigma)
    turned = FUNCTIONS["tan"]((_units(self, generator) - 0.5) * math.pi)
    return update(self, turned * sigma + median, "cauchy_")


def log_normal_(self: Tensor, mean: Any = 1.0, std: Any = 2.0, *, generator: Any = None) -> Tensor:
    """Give this tensor e to the power of draws from the normal distribution, and return it."""
    _positive("log_normal_", std=std)
    drawn = random.randn(self.shape, dtype=self.dtype, generator=generator)
    return update(self, FUNCTIONS["exp"](drawn * std + mean), "log_normal_")


def geometric_(self: Tensor, p: Any, *, generator: Any = None) -> Tensor:
    """Give this tensor numbers of tries until the first success of probability `p`, from 1, and return it."""
    if not isinstance(p, Tensor) and not 0 < p < 1:
        raise AttributeValueError("geometric_: p lies between 0 and 1", got=str(p))
    fails = FUNCTIONS["log1p"](-p) if isinstance(p, Tensor) else math.log1p(-p)
    tries = FUNCTIONS["ceil"](FUNCTIONS["log"](_units(self, generator)) / fails)
    tries = FUNCTIONS["maximum"](tries, 1)
    return update(self, tries.to(self.dtype), "geometric_")


def random_(self: Tensor, from_: Any = None, to: Any = None, *, generator: Any = None) -> Tensor:
    """Give this tensor whole numbers uniform in [from_, to), in [0, from_) with one bound, else below the
    greatest that its dtype holds with all before it, and return it.
    """
    low, high = (0, from_) if to is None else (from_ or 0, to)
    if high is None and self.dtype.is_bool:
        high = 2
    elif high is None:
        whole = self.dtype.is_integer
        limits: Any = ml_dtypes.finfo
        high = int(np.iinfo(self.dtype.np).max) if whole else 2 << limits(self.dtype.np).nmant
    if not low < high:
        raise AttributeValueError("random_: the first bound is below the second", got=f"{low}, {high}")
    drawn = random.randint(low, min(high, 2**63 - 1), self.shape, generator=generator)
    return update(self, drawn.to(self.dtype), "random_")


DRAWS = (bernoulli_, cauchy_, exponential_, geometric_, log_normal_, normal_, random_, uniform_)
__all__ = [
    "DRAWS", "bernoulli", "multinomial", "normal", "rand", "rand_like", "randint", "randn", "randn_like",
    "randperm",
]
