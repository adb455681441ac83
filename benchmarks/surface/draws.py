"""Arguments for calls: arrays of about a number of elements, always the same ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Call:
    """Arguments of one call; arrays stand for tensors of whichever library is called."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def mapped(self, make: Callable[[Array], Any]) -> Call:
        """Return the call with `make` of every array."""
        args = tuple(_mapped(a, make) for a in self.args)
        return Call(args, {k: _mapped(a, make) for k, a in self.kwargs.items()})

    def of(self, function: Callable[..., Any]) -> Any:
        """Call a function."""
        return function(*self.args, **self.kwargs)


def _mapped(value: Any, make: Callable[[Array], Any]) -> Any:
    if isinstance(value, np.ndarray):
        return make(value)
    return type(value)(_mapped(v, make) for v in value) if type(value) in (list, tuple) else value


def call(*args: Any, **kwargs: Any) -> Call:
    """Return a call with these arguments."""
    return Call(args, kwargs)


class Draws:
    """Arrays of about `n` elements; `r` is the side of a square matrix of as many."""

    def __init__(self, n: int, seed: int = 0, dtype: Any = np.float32) -> None:
        self.n, self.r, self.dtype = n, math.isqrt(n), dtype
        self.rng = np.random.default_rng(seed)

    def shape(self, *shape: int) -> tuple[int, ...]:
        return shape or (self.r, self.r)

    def x(self, *shape: int) -> Array:
        """Return floats around 0, as many as fit a square unless told."""
        return self.rng.standard_normal(self.shape(*shape)).astype(self.dtype)

    def between(self, low: float, high: float, *shape: int) -> Array:
        return self.rng.uniform(low, high, self.shape(*shape)).astype(self.dtype)

    def inside(self, *shape: int) -> Array:
        """Return floats well between 0 and 1."""
        return self.between(0.05, 0.95, *shape)

    def positive(self, *shape: int) -> Array:
        return self.between(0.1, 5.0, *shape)

    def whole(self, low: int, high: int, *shape: int) -> Array:
        return self.rng.integers(low, high, self.shape(*shape))

    def mask(self, *shape: int) -> Array:
        return np.asarray(self.rng.random(self.shape(*shape)) < 0.5)

    def holes(self, *shape: int) -> Array:
        """Return floats, some of which are NaN."""
        x = self.x(*shape)
        x[self.rng.random(x.shape) < 0.1] = np.nan
        return x

    def complexes(self, *shape: int) -> Array:
        return self.x(*shape) + np.array(1j, np.result_type(self.dtype, np.complex64)) * self.x(*shape)

    def v(self) -> Array:
        """Return a vector of n floats."""
        return self.x(self.n)

    def row(self) -> Array:
        """Return a vector as long as a row of `x()`."""
        return self.x(self.r)

    def order(self) -> Array:
        """Return the rows of `x()` in another order."""
        return self.rng.permutation(self.r)

    def stack(self) -> Array:
        """Return well-conditioned matrices, of 32 x 32 where there is room."""
        k = 32 if self.n >= 1 << 14 else 4
        a = self.x(max(1, self.n // (k * k)), k, k)
        return (a / np.sqrt(k) + 2 * np.eye(k)).astype(self.dtype)

    def definite(self) -> Array:
        """Return symmetric positive definite matrices."""
        a = self.stack()
        return np.asarray(a @ np.swapaxes(a, 1, 2))

    def triangular(self) -> Array:
        return np.asarray(np.tril(self.definite()))

    def column(self) -> Array:
        """Return right-hand sides of `stack()`."""
        s = self.stack().shape
        return self.x(s[0], s[1], 2)

    def images(self, channels: int = 8, dims: int = 2) -> Array:
        """Return 2 images of so many channels and dimensions."""
        side = max(4, round((self.n / (2 * channels)) ** (1 / dims)))
        side += side % 2
        return self.x(2, channels, *(side,) * dims)
