"""Random contractions and convolutions: how they are drawn, their inputs, the result they should have.

A case is data that every system can be given. Its group says what is particular about it; sizes are drawn on
a logarithmic scale, so that small, odd and lopsided ones are as common as large ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]
Rng = np.random.Generator
Shape = tuple[int, ...]

MOST_PRODUCTS = 1 << 28  # of one case: a few milliseconds
MOST_ELEMENTS = 1 << 22  # of an operand or the result
MOST_EXACT = 1 << 22  # products of a case that is only checked
LEAST_WORK = 1 << 17  # products or elements of most that are timed: the rest take no time to speak of
TINY_SHARE = 0.1
TIMED_DTYPES = ("float32", "bfloat16")
CHECKED_DTYPES = ("float64", "float16", "int8", "uint8", "int16", "int32", "int64")
TIMED_SHARE = 0.75
BFLOAT16_SHARE = 0.2  # of those that are timed


@dataclass(frozen=True)
class Case:
    """One random contraction (`spec`, as einsum writes it) or convolution (`geometry`).

    `geometry` has strides, padding, dilation, groups, and for a transposed one output_padding; padding is the
    same at both ends of an axis.
    """

    number: int
    group: str
    dtype: str
    shapes: tuple[Shape, Shape]
    spec: str = ""
    geometry: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        x, w = ("x".join(map(str, s)) or "1" for s in self.shapes)
        settings = ", ".join(f"{k} {_short(v)}" for k, v in self.geometry.items() if not _plain(k, v))
        return f"{self.spec or 'conv'} {x}, {w}" + (f"; {settings}" if settings else "")

    @property
    def timed(self) -> bool:
        """Whether its dtype is one that libraries have fast kernels for."""
        return self.dtype in TIMED_DTYPES

    @property
    def transposed(self) -> bool:
        return "output_padding" in self.geometry

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(values: dict[str, Any]) -> Case:
        """Return the case that `to_json` wrote."""
        geometry = {k: tuple(v) if isinstance(v, list) else v for k, v in values["geometry"].items()}
        first, second = (tuple(s) for s in values["shapes"])
        return Case(**{**values, "shapes": (first, second), "geometry": geometry})

    def inputs(self) -> tuple[Array, Array]:
        """Return the operands; they depend on the case's number alone."""
        rng = np.random.default_rng([self.number, 77])
        dtype = _numpy(self.dtype)
        if np.issubdtype(dtype, np.integer):
            info = np.iinfo(dtype)
            low, high = max(info.min, -(1 << 20)), min(info.max, 1 << 20)
            return tuple(rng.integers(low, high, s, dtype, endpoint=True) for s in self.shapes)  # type: ignore[return-value]
        return tuple(rng.standard_normal(s, np.float32).astype(dtype) for s in self.shapes)  # type: ignore[return-value]


def _numpy(dtype: str) -> Any:
    return np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)


def _plain(name: str, value: Any) -> bool:
    """Return whether a setting of a convolution is its default."""
    default = 1 if name in ("strides", "dilation", "groups") else 0
    return all(v == default for v in (value if isinstance(value, tuple) else (value,)))


def _short(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


# -- drawing -----------------------------------------------------------------------------------------------
def draw_cases(contractions: int, convolutions: int, seed: int) -> list[Case]:
    """Return so many cases, the groups in turn; equal arguments give equal cases."""
    rng = np.random.default_rng(seed)
    cases = []
    for kind, count in ((CONTRACTIONS, contractions), (CONVOLUTIONS, convolutions)):
        groups = list(kind)
        for k in range(count):
            group = groups[k % len(groups)]
            cases.append(_drawn(len(cases), group, kind[group], rng))
    return cases


def _drawn(number: int, group: str, draw: Callable[[Rng], Any], rng: Rng) -> Case:
    """Draw until a case is neither too large nor so small that nothing is left to do."""
    dtype = _dtype(rng)
    timed = dtype in TIMED_DTYPES
    most = MOST_PRODUCTS if timed else MOST_EXACT
    least = LEAST_WORK if timed and rng.random() > TINY_SHARE else 0
    while True:
        x, w, spec, geometry = draw(rng)
        case = Case(number, group, dtype, (x, w), spec, geometry)
        out = result_shape(case)
        sizes = [math.prod(s) for s in (x, w, out)]
        if min(out, default=1) < 1 or num_products(case) > most or max(sizes) > MOST_ELEMENTS:
            continue
        if max(num_products(case), *sizes) >= least:
            return case


def _dtype(rng: Rng) -> str:
    if rng.random() < TIMED_SHARE:
        return "bfloat16" if rng.random() < BFLOAT16_SHARE else "float32"
    return str(rng.choice(CHECKED_DTYPES))


def _size(rng: Rng, low: int, high: int) -> int:
    return round(math.exp(rng.uniform(math.log(low), math.log(high))))


def _odd(rng: Rng, low: int, high: int) -> int:
    return _size(rng, low, high) | 1


_PRODUCTS = ("mk,kn->mn", "km,kn->mn", "mk,nk->mn", "km,nk->mn", "mk,kn->nm")
_BATCHED = ("bmk,bkn->bmn", "bmk,bnk->bmn", "bkm,bkn->bmn", "bhqd,bhkd->bhqk", "bqhd,bkhd->bhqk",
            "bhqk,bhkd->bhqd")  # fmt: skip
_GENERAL = ("abk,kcd->abcd", "akb,kc->acb", "abkl,klc->abc", "kab,kc->abc", "ab,bcd->acd", "abc,cd->abd")
_LONELY = ("mk,k->m", "k,kn->n", "m,n->mn", "k,k->", "bmk,bk->bm", "bk,bkn->bn")


def _operands(spec: str, sizes: dict[str, int]) -> tuple[Shape, Shape, str, dict[str, Any]]:
    left, right = spec.partition("->")[0].split(",")
    x, w = (tuple(sizes[c] for c in letters) for letters in (left, right))
    return x, w, spec, {}


def _letters(spec: str) -> list[str]:
    return sorted(set(spec) - set(",->"))


def _product(rng: Rng) -> Any:
    return _operands("mk,kn->mn", {c: _size(rng, 8, 1500) for c in "mkn"})


def _transposed_product(rng: Rng) -> Any:
    spec = str(rng.choice(_PRODUCTS[1:]))
    return _operands(spec, {c: _size(rng, 8, 1500) for c in _letters(spec)})


def _skinny(rng: Rng) -> Any:
    spec, few = str(rng.choice(_PRODUCTS)), str(rng.choice(list("mkn")))
    return _operands(spec, {c: _size(rng, 2, 16) if c == few else _size(rng, 32, 3000) for c in "mkn"})


def _odd_product(rng: Rng) -> Any:
    spec = str(rng.choice(_PRODUCTS))
    return _operands(spec, {c: _odd(rng, 3, 1200) for c in "mkn"})


def _batched(rng: Rng) -> Any:
    spec = str(rng.choice(_BATCHED))
    sizes = {c: _size(rng, 2, 24) if c in "bh" else _size(rng, 4, 400) for c in _letters(spec)}
    return _operands(spec, sizes)


def _with_one(rng: Rng) -> Any:
    spec = str(rng.choice((*_PRODUCTS, *_BATCHED, *_GENERAL)))
    letters = _letters(spec)
    sizes = {c: _size(rng, 2, 500) for c in letters}
    for c in rng.choice(letters, int(rng.integers(1, 3)), replace=False):
        sizes[str(c)] = 1
    return _operands(spec, sizes)


def _vectors(rng: Rng) -> Any:
    spec = str(rng.choice(_LONELY))
    sizes = {c: _size(rng, 2, 40) if c == "b" else _size(rng, 16, 3000) for c in _letters(spec)}
    return _operands(spec, sizes)


def _general(rng: Rng) -> Any:
    spec = str(rng.choice(_GENERAL))
    return _operands(spec, {c: _size(rng, 2, 200) for c in _letters(spec)})


CONTRACTIONS: dict[str, Callable[[Rng], Any]] = {
    "product": _product, "transposed": _transposed_product, "batched": _batched, "skinny": _skinny,
    "odd": _odd_product, "size 1": _with_one, "vectors": _vectors, "general": _general,
}  # fmt: skip


def _image(rng: Rng, axes: int) -> Shape:
    most = {1: 2000, 2: 70, 3: 20}[axes]
    return tuple(_size(rng, 5 if axes < 3 else 3, most) for _ in range(axes))


def _window(rng: Rng, axes: int) -> Shape:
    sizes, shares = (1, 2, 3, 5, 7), (0.2, 0.1, 0.45, 0.15, 0.1)
    square = int(rng.choice(sizes, p=shares))
    if rng.random() < 0.8:
        return (square,) * axes
    return tuple(int(rng.choice(sizes, p=shares)) for _ in range(axes))


def _convolution(
    rng: Rng, *, axes: int = 2, strides: int = 1, dilation: int = 1, groups: int = 1, depthwise: bool = False,
    odd: bool = False, transposed: bool = False,
) -> Any:  # fmt: skip
    """Draw a convolution; `strides`, `dilation` and `groups` are the largest there may be."""
    draw = _odd if odd else _size
    batch, image, window = draw(rng, 1, 32), _image(rng, axes), _window(rng, axes)
    if odd:
        image = tuple(n | 1 for n in image)
    num_groups = draw(rng, 4, 200) if depthwise else int(rng.integers(2, groups + 1)) if groups > 1 else 1
    n_in = 1 if depthwise else draw(rng, 1, max(2, 160 // num_groups))
    n_out = int(rng.choice([1, 1, 2])) if depthwise else draw(rng, 1, max(2, 160 // num_groups))
    step = tuple(int(rng.integers(2, strides + 1)) if strides > 1 else 1 for _ in range(axes))
    apart = tuple(int(rng.integers(2, dilation + 1)) if dilation > 1 else 1 for _ in range(axes))
    pads = tuple(int(rng.choice([0, (k - 1) * d // 2])) for k, d in zip(window, apart, strict=True))
    geometry: dict[str, Any] = {"strides": step, "padding": pads, "dilation": apart, "groups": num_groups}
    x = (batch, n_in * num_groups, *image)
    w = (n_out * num_groups, n_in, *window)
    if transposed:
        geometry["output_padding"] = tuple(int(rng.integers(0, s)) for s in step)
        w = (n_in * num_groups, n_out, *window)
    return x, w, "", geometry


CONVOLUTIONS: dict[str, Callable[[Rng], Any]] = {
    "conv": _convolution,
    "conv odd": lambda rng: _convolution(rng, odd=True),
    "conv strided": lambda rng: _convolution(rng, strides=3),
    "conv dilated": lambda rng: _convolution(rng, dilation=3),
    "conv grouped": lambda rng: _convolution(rng, groups=8, strides=int(rng.integers(1, 3))),
    "conv depthwise": lambda rng: _convolution(rng, depthwise=True, strides=int(rng.integers(1, 3))),
    "conv transposed": lambda rng: _convolution(rng, transposed=True, strides=int(rng.integers(1, 4))),
    "conv 1d 3d": lambda rng: _convolution(
        rng, axes=int(rng.choice([1, 3])), strides=int(rng.integers(1, 3))
    ),
}


class Product(NamedTuple):
    """How a contraction is a product of views: the orders of the axes of both operands and of the result."""

    left: tuple[int, ...]
    right: tuple[int, ...]
    out: tuple[int, ...]


def as_product(spec: str) -> Product | None:
    """Return a contraction as batch axes, then rows x columns, each at most one; None where it is no such
    product.
    """
    terms, out = spec.split("->")
    left, right = terms.split(",")
    batch = [c for c in out if c in left and c in right]
    rows, columns = [c for c in left if c not in right], [c for c in right if c not in left]
    summed = [c for c in left if c in right and c not in out]
    fewest = 1 if batch else 0  # without batch axes, a vector is a product's operand as well
    if len(summed) != 1 or not all(fewest <= len(letters) <= 1 for letters in (rows, columns)):
        return None
    made = [*batch, *rows, *columns]
    return Product(
        tuple(left.index(c) for c in (*batch, *rows, *summed)),
        tuple(right.index(c) for c in (*batch, *summed, *columns)),
        tuple(made.index(c) for c in out),
    )


# -- what a case is worth, and its result --------------------------------------------------------------------
def result_shape(case: Case) -> Shape:
    """Return the shape of a result; an axis may come out smaller than 1, where no window fits."""
    x, w = case.shapes
    if case.spec:
        terms, out = case.spec.split("->")
        left, right = terms.split(",")
        size = dict(zip(left + right, (*x, *w), strict=True))
        return tuple(size[c] for c in out)
    g = case.geometry
    axes = zip(x[2:], w[2:], g["strides"], g["padding"], g["dilation"], strict=True)
    if case.transposed:
        spatial = tuple((n - 1) * s - 2 * p + d * (k - 1) + 1 for n, k, s, p, d in axes)
        spatial = tuple(n + e for n, e in zip(spatial, g["output_padding"], strict=True))
        return (x[0], w[1] * g["groups"], *spatial)
    return (x[0], w[0], *((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in axes))


def num_products(case: Case) -> int:
    """Return how many products a case adds up, those with padding counted."""
    x, w = case.shapes
    if case.spec:
        left, right = case.spec.partition("->")[0].split(",")
        return math.prod(dict(zip(left + right, (*x, *w), strict=True)).values())
    window = math.prod(w[2:])
    if case.transposed:
        return math.prod(x) * w[1] * window
    return math.prod(result_shape(case)) * w[1] * window


def depth(case: Case) -> int:
    """Return how many products one element of the result adds up at most."""
    x, w = case.shapes
    if case.spec:
        return num_products(case) // max(1, math.prod(result_shape(case)))
    return (x[1] // case.geometry["groups"] if case.transposed else w[1]) * math.prod(w[2:])
