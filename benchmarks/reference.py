"""What a random case should give: NumPy in float64, or in wrapping integers, and how far a result may be off.

Every product is rounded once and sums add up in some order, so a float may be off by a few units in the last
place of the sum of the products' sizes, more where more of them are added: the probabilistic bound of Higham
and Mary, "A new approach to probabilistic rounding error analysis", 2019.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from benchmarks.cases import Case, depth

Array = np.ndarray[Any, Any]

LAMBDA = 6.0  # the constant of that bound: a fault of one in 10^7 sums
WINOGRAD = 1e-5  # of the largest result, which that algorithm promises
UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
SMALLEST = {"float16": 2.0**-25, "bfloat16": 0.0, "float32": 0.0, "float64": 0.0}  # half of the least number


def fault(case: Case, got: Array) -> str:
    """Return what is wrong with a result; empty where nothing is."""
    x, w = case.inputs()
    exact = np.issubdtype(x.dtype, np.integer)
    want = evaluate(case, x, w) if exact else evaluate(case, x.astype(np.float64), w.astype(np.float64))
    if got.shape != want.shape:
        return f"shape {list(got.shape)} instead of {list(want.shape)}"
    if exact:
        wrong = int(np.sum(got != want))
        return f"{wrong} of {want.size} integers differ" if wrong else ""
    sizes = evaluate(case, np.abs(x.astype(np.float64)), np.abs(w.astype(np.float64)))
    off = np.abs(got.astype(np.float64) - want) / np.maximum(bound(case, want, sizes), 1e-300)
    worst = float(np.max(off, initial=0.0))
    return "" if worst <= 1.0 else f"{worst:.3g} times as far off as is allowed"


def bound(case: Case, want: Array, sizes: Array) -> Array:
    """Return how far each element may be off; `sizes` are the sums of the products' absolute values."""
    unit = UNIT[case.dtype]
    summing = unit if case.dtype in ("float64", "float32") else UNIT["float32"]
    allowed = LAMBDA * math.sqrt(depth(case) + 1) * summing * sizes
    if summing != unit:  # one more rounding, of the sum
        allowed = allowed + 1.01 * unit * np.abs(want) + SMALLEST[case.dtype]
    elif case.dtype == "float32" and case.shapes[1][2:] == (3, 3) and not case.spec:
        allowed = allowed + WINOGRAD * np.max(np.abs(want), initial=0.0)
    return np.asarray(allowed)


def evaluate(case: Case, x: Array, w: Array) -> Array:
    """Return the result in the dtype of the operands."""
    return _contraction(case.spec, x, w) if case.spec else _convolution(case, x, w)


def _contraction(spec: str, x: Array, w: Array) -> Array:
    """Multiply matrices; NumPy's einsum would add up element by element."""
    terms, out = spec.split("->")
    left, right = terms.split(",")
    batch = [c for c in left if c in right and c in out]
    summed = [c for c in left if c in right and c not in out]
    rows, columns = [c for c in left if c not in right], [c for c in right if c not in left]
    size = dict(zip(left + right, x.shape + w.shape, strict=True))
    x = x.transpose([left.index(c) for c in batch + rows + summed])
    w = w.transpose([right.index(c) for c in batch + summed + columns])
    b, m, k, n = (math.prod(size[c] for c in letters) for letters in (batch, rows, summed, columns))
    made = np.matmul(x.reshape(b, m, k), w.reshape(b, k, n))
    letters = batch + rows + columns
    made = made.reshape([size[c] for c in letters])
    return made.transpose([letters.index(c) for c in out])


def _convolution(case: Case, x: Array, w: Array) -> Array:
    """Add up, window offset by window offset, the products of shifted images and filters."""
    g = case.geometry
    if case.transposed:
        return _transposed(case, x, w)
    pads = [(0, 0), (0, 0), *((p, p) for p in g["padding"])]
    x = np.pad(x, pads)
    counts = [
        (n - d * (k - 1) - 1) // s + 1
        for n, k, s, d in zip(x.shape[2:], w.shape[2:], g["strides"], g["dilation"], strict=True)
    ]
    out = np.zeros((x.shape[0], w.shape[0], *counts), x.dtype)
    for offset in np.ndindex(*w.shape[2:]):
        at = [
            slice(k * d, k * d + (n - 1) * s + 1, s)
            for k, n, s, d in zip(offset, counts, g["strides"], g["dilation"], strict=True)
        ]
        out += _pointwise(x[(..., *at)], w[(..., *offset)], g["groups"])
    return out


def _pointwise(x: Array, w: Array, groups: int) -> Array:
    """Return [n, o, places...] from x [n, c, places...] and w [o, c / groups]."""
    n, _, *places = x.shape
    wide = x.reshape(n, groups, -1, math.prod(places))
    made = np.matmul(w.reshape(groups, -1, w.shape[1]), wide)
    return made.reshape(n, w.shape[0], *places)


def _transposed(case: Case, x: Array, w: Array) -> Array:
    """Add up what every element of `x` sends to each place of its window."""
    g = case.geometry
    axes = zip(x.shape[2:], w.shape[2:], g["strides"], g["dilation"], g["output_padding"], strict=True)
    whole = [(n - 1) * s + d * (k - 1) + 1 + e for n, k, s, d, e in axes]
    outputs = w.shape[1] * g["groups"]
    out = np.zeros((x.shape[0], outputs, *whole), x.dtype)
    turned = w.reshape(g["groups"], -1, *w.shape[1:]).swapaxes(1, 2)
    turned = turned.reshape(outputs, -1, *w.shape[2:])  # [o, c / groups, window...]
    for offset in np.ndindex(*w.shape[2:]):
        at = [
            slice(k * d, k * d + (n - 1) * s + 1, s)
            for k, n, s, d in zip(offset, x.shape[2:], g["strides"], g["dilation"], strict=True)
        ]
        out[(..., *at)] += _pointwise(x, turned[(..., *offset)], g["groups"])
    inside = [slice(p, n - p) for n, p in zip(whole, g["padding"], strict=True)]
    return out[(..., *inside)]
