"""`fft`, `rfft` and `irfft` as transforms of lines that kernels compute (`dft`), and what stands around them.

    few long lines       n = n1 n2: a line is a matrix whose columns, then rows are transformed, with a twist
                         in between (Gentleman and Sande, 1966; Bailey, 1990)
    large prime factors  a convolution with a chirp, by transforms of a longer length (Bluestein, 1970)
    real lines           half as many complex numbers (see `schedule/tactics/dft.py`)

Lines are complex values of shape [r, n, c]: n is the axis to transform.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from stratal.base.dtypes import float64
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array
from stratal.ops.families import COMPLEX_OF
from stratal.ops.fourier.dft import roots
from stratal.ops.fourier.lengths import MOST, halves, is_smooth, smooth_from

LONGEST: Final = 1 << 22  # beyond, tables of twists would take more memory than the host call saves time
FEW: Final = 8  # lines that do not fill vectors
SHORT: Final = 64  # numbers of a line that is not worth two kernels


def is_served(n: int) -> bool:
    """Return whether there is a form in real numbers for lines of a length."""
    return 1 <= n <= LONGEST


def nothing(b: Builder, type_: TensorType) -> Node:
    """Return a result without elements."""
    zeros = b.full(type_.with_dtype(type_.dtype.real), 0)
    return b.complex(zeros, zeros) if type_.dtype.is_complex else zeros


def scale_of(norm: str, n: int, *, inverse: bool) -> float:
    """Return what a transform of n numbers is multiplied by."""
    if norm == "ortho":
        return 1.0 / math.sqrt(n)
    return 1.0 / n if (norm == "backward") == inverse else 1.0


def lines(x: Node, axis: int) -> tuple[int, int, int]:
    """Return how many numbers stand before, along and behind an axis."""
    shape = x.aval.ints
    return int(np.prod(shape[:axis])), shape[axis], int(np.prod(shape[axis + 1 :]))


def along(b: Builder, x: Node, axis: int, scale: float, *, inverse: bool) -> Node:
    """Return the transform of complex numbers along an axis."""
    made = transform(b, b.reshape(x, shape=lines(x, axis)), scale, inverse=inverse)
    return b.reshape(made, shape=x.shape)


def transform(b: Builder, x: Node, scale: float, *, inverse: bool) -> Node:
    """Return the transform of complex lines."""
    r, n, c = x.aval.ints
    if is_direct(r, n, c):
        return _direct(b, x, n, form="complex", scale=scale, inverse=inverse)
    in_steps = _by_chirp if halves(n) is None else _in_two_steps
    return in_steps(b, x, scale, inverse=inverse)


def is_direct(r: int, n: int, c: int) -> bool:
    """Return whether one kernel transforms lines: they are short, or fill vectors."""
    near = n <= SHORT or halves(n) is None or max(r, c) >= FEW
    return n <= MOST and is_smooth(n) and near


def _direct(b: Builder, x: Node, n: int, **attributes: Any) -> Node:
    """Return one `dft` of lines; complex ones are pairs for it."""
    pairs = b.view_as_real(x) if x.dtype.is_complex else x
    made: Node = b.dft(pairs, b.const(roots(n, x.dtype.real)), **attributes)
    return made if attributes["form"] == "to_real" else b.view_as_complex(made)


def _in_two_steps(b: Builder, x: Node, scale: float, *, inverse: bool) -> Node:
    r, n, c = x.aval.ints
    many, few = halves(n) or (n, 1)
    columns = transform(b, b.reshape(x, shape=(r, many, few * c)), 1.0, inverse=inverse)
    powers = np.multiply.outer(np.arange(many), np.arange(few)) % n
    twisted = _times(b, b.reshape(columns, shape=(r, many, few, c)), _roots(n, inverse)[powers], (1, 2))
    rows = transform(b, b.reshape(twisted, shape=(r * many, few, c)), scale, inverse=inverse)
    turned = b.permute(b.reshape(rows, shape=(r, many, few, c)), perm=(0, 2, 1, 3))
    return b.reshape(turned, shape=(r, n, c))


def _by_chirp(b: Builder, x: Node, scale: float, *, inverse: bool) -> Node:
    """-2 j k = (k - j)^2 - j^2 - k^2: chirps before and behind a convolution with one."""
    n = x.aval.ints[1]
    longer = smooth_from(2 * n - 1)
    chirp = _roots(2 * n, inverse)[np.arange(n) ** 2 % (2 * n)]
    kernel = np.zeros(longer, np.complex128)
    kernel[:n] = chirp.conj()
    kernel[longer - n + 1 :] = chirp[:0:-1].conj()
    zero = b.const(0, x.dtype)
    padded = b.pad(
        _times(b, x, chirp, (1,)), zero, low=(0, 0, 0), high=(0, longer - n, 0), interior=(0, 0, 0)
    )
    spectrum = _times(b, transform(b, padded, 1.0, inverse=False), np.fft.fft(kernel), (1,))
    back = transform(b, spectrum, scale / longer, inverse=True)
    return _times(b, first(b, back, n), chirp, (1,))


def _roots(n: int, inverse: bool) -> Array:
    """Return exp(-2 pi i k / n), + for the inverse, of complex128."""
    pairs = roots(n, float64)
    return pairs[:, 0] + pairs[:, 1] * (-1j if inverse else 1j)


def _times(b: Builder, x: Node, factors: Array, axes: tuple[int, ...]) -> Node:
    """Return x times constants that vary along some axes."""
    table = b.broadcast(b.const(factors, x.dtype), shape=x.shape, axes=axes)
    return b.mul(x, table)


def first(b: Builder, x: Node, count: int) -> Node:
    """Return the first numbers of lines."""
    return places(b, x, 0, count)


def places(b: Builder, x: Node, start: int, stop: int, step: int = 1) -> Node:
    """Return every `step`-th number of lines, from `start` on."""
    r, _, c = x.shape
    return b.slice(x, start=(0, start, 0), stop=(r, stop, c), step=(1, step, 1))


# -- real lines ----------------------------------------------------------------------------------------------
def of_real(b: Builder, x: Node, count: int, scale: float) -> Node:
    """Return the first `count` terms of the transform of real lines [r, n, c]."""
    r, n, c = x.aval.ints
    if n % 2 == 0 and is_direct(r, n, c):
        return _direct(b, x, n, form="from_real", scale=scale, count=count)
    if n % 2 or count != n // 2 + 1:
        return first(b, transform(b, b.cast(x, dtype=COMPLEX_OF[x.dtype]), scale, inverse=False), count)
    m = n // 2
    z = transform(b, b.complex(places(b, x, 0, n, 2), places(b, x, 1, n, 2)), scale / 2, inverse=False)
    here = b.concatenate(z, first(b, z, 1), axis=1)
    there = b.conj(b.flip(here, axes=(1,)))
    odd = _times(b, b.sub(here, there), -1j * _roots(n, False)[: m + 1], (1,))
    return b.add(b.add(here, there), odd)


def to_real(b: Builder, x: Node, n: int, scale: float) -> Node:
    """Return the n real numbers of which lines [r, n // 2 + 1, c] are the first terms, inverse."""
    r, _, c = x.aval.ints
    if n % 2 == 0 and is_direct(r, n, c):
        return _direct(b, x, n, form="to_real", scale=scale, inverse=True)
    m = n // 2
    start = _real_only(b, first(b, x, 1))
    if n % 2:
        rest = places(b, x, 1, m + 1)
        whole = b.concatenate(start, rest, b.conj(b.flip(rest, axes=(1,))), axis=1)
        return b.real(transform(b, whole, scale, inverse=True))
    here = b.concatenate(start, places(b, x, 1, m), _real_only(b, places(b, x, m, m + 1)), axis=1)
    there = b.conj(b.flip(here, axes=(1,)))
    here, there = first(b, here, m), first(b, there, m)
    odd = _times(b, b.sub(here, there), 1j * _roots(n, True)[:m], (1,))
    z = transform(b, b.add(b.add(here, there), odd), scale, inverse=True)
    pairs = b.permute(b.view_as_real(z), perm=(0, 1, 3, 2))
    return b.reshape(pairs, shape=(r, n, c))


def _real_only(b: Builder, x: Node) -> Node:
    re = b.real(x)
    return b.complex(re, b.like(re, 0))
