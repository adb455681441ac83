"""Small Fourier transforms as expressions of complex numbers, each a pair (real, imaginary) of expressions.

A composite length is cut in two (Cooley and Tukey, 1965), down to primes; those add what lies symmetrically
first, so that half of the products are left (see Frigo and Johnson, "The design and implementation of
FFTW3", 2005).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from stratal.loops.expr import Expr, call, const

Complex = tuple[Expr, Expr]


def plus(x: Complex, y: Complex) -> Complex:
    return x[0] + y[0], x[1] + y[1]


def minus(x: Complex, y: Complex) -> Complex:
    return x[0] - y[0], x[1] - y[1]


def times(x: Complex, y: Complex) -> Complex:
    """Return the product, each part by one product and one that is added to it at once."""
    (a, b), (c, d) = x, y
    return call("fma", a, c, -(b * d)), call("fma", a, d, b * c)


def conjugate(x: Complex) -> Complex:
    return x[0], -x[1]


def scaled(x: Complex, factor: float) -> Complex:
    return x if factor == 1.0 else (x[0] * factor, x[1] * factor)


def turned(x: Complex, k: int, n: int) -> Complex:
    """Return x exp(-2 pi i k / n)."""
    k %= n
    re, im = x
    if k == 0:
        return x
    if 2 * k == n:
        return -re, -im
    if 4 * k == n:
        return im, -re
    if 4 * k == 3 * n:
        return -im, re
    angle = 2 * math.pi * k / n
    c, s = math.cos(angle), -math.sin(angle)
    dtype = re.dtype
    if 8 * k % n == 0:  # odd eighths: both factors are of one size
        total = {
            (True, False): (re + im, im - re),
            (False, False): (im - re, -(re + im)),
            (False, True): (-(re + im), re - im),
            (True, True): (re - im, re + im),
        }[c > 0, s > 0]
        return scaled(total, math.sqrt(0.5))
    return times(x, (const(c, dtype), const(s, dtype)))


def transform(values: Sequence[Complex]) -> list[Complex]:
    """Return the Fourier transform of a few numbers."""
    n = len(values)
    if n == 1:
        return list(values)
    if n == 2:
        return [plus(*values), minus(*values)]
    few = next((p for p in (4, 2, 3, 5, 7) if n % p == 0 and n > p), n)
    if few == n:
        return _four(values) if n == 4 else _odd_prime(values)
    many = n // few
    columns = [transform(values[j::few]) for j in range(few)]  # each of `many` numbers
    found: list[Complex] = [values[0]] * n
    for k in range(many):
        row = transform([turned(columns[j][k], j * k, n) for j in range(few)])
        found[k::many] = row
    return found


def _four(values: Sequence[Complex]) -> list[Complex]:
    a, b, c, d = values
    even, odd = plus(a, c), plus(b, d)
    left, right = minus(a, c), turned(minus(b, d), 1, 4)
    return [plus(even, odd), plus(left, right), minus(even, odd), minus(left, right)]


def _odd_prime(values: Sequence[Complex]) -> list[Complex]:
    """Return x[0] + the sum over j of cos(j k) (x[j] + x[-j]) - i sin(j k) (x[j] - x[-j])."""
    n = len(values)
    half = range(1, n // 2 + 1)
    dtype = values[0][0].dtype
    sums = {j: plus(values[j], values[n - j]) for j in half}
    differences = {j: minus(values[j], values[n - j]) for j in half}
    total = values[0]
    for j in half:
        total = plus(total, sums[j])
    found = [total] * n
    for k in half:
        cosines = [const(math.cos(2 * math.pi * j * k / n), dtype) for j in half]
        sines = [const(math.sin(2 * math.pi * j * k / n), dtype) for j in half]
        even = tuple(_sum(values[0][p], cosines, [sums[j][p] for j in half]) for p in range(2))
        re, im = (_sum(None, sines, [differences[j][p] for j in half]) for p in range(2))
        found[k] = even[0] + im, even[1] - re
        found[n - k] = even[0] - im, even[1] + re
    return found


def _sum(start: Expr | None, factors: Sequence[Expr], terms: Sequence[Expr]) -> Expr:
    total = start
    for factor, term in zip(factors, terms, strict=True):
        total = factor * term if total is None else call("fma", factor, term, total)
    assert total is not None
    return total
