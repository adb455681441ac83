"""Minimal filtering as matrices: Winograd's algorithms F(m, r), and their transforms as short expressions.

m outputs of a filter with r taps take m + r - 1 products instead of m * r:

    y = output [ (weights g) * (input d) ]        `*` element by element, d of m + r - 1 elements

In two dimensions each matrix is applied to both axes. The matrices follow from the m + r - 2 points at which
polynomials are evaluated, plus infinity (Toom, 1963; Cook, 1966; Winograd, 1980). Lavin and Gray
(arXiv:1509.09308) brought them to convolutions.

Points decide the error. Those in use came out best of pairs +-a, +-b of small fractions: with a * b = 1 the
entries stay small, and F(4, 3) has half the error of the customary points 0, +-1, +-2: about three times
that of a direct sum, five where it adds up 256 channels in one run. F(2, 3) is as exact as a direct sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache
from typing import Final, NamedTuple

from stratal.base.dtypes import DType
from stratal.loops.expr import Buffer, Expr, Var, call, const, index_const
from stratal.loops.stmt import For, Seq, Stmt, Store

Matrix = tuple[tuple[Fraction, ...], ...]

POINTS: Final[dict[int, tuple[Fraction, ...]]] = {
    3: (Fraction(0), Fraction(1), Fraction(-1)),
    5: (Fraction(0), Fraction(2, 3), Fraction(-2, 3), Fraction(3, 2), Fraction(-3, 2)),
    6: (Fraction(0), Fraction(1, 2), Fraction(-1, 2), Fraction(2), Fraction(-2), Fraction(1)),
}
"""Points, by their number: m + r - 2 for F(m, r)."""

MANY_CHANNELS: Final = 64  # beyond, six points would add up too much error


class WinogradMatrices(NamedTuple):
    """F(m, r): `input` [n, n], `weights` [n, r] and `output` [m, n] for n = m + r - 1."""

    input: Matrix
    weights: Matrix
    output: Matrix


def outputs(taps: int, channels: int = 1) -> list[int]:
    """Return every m for which F(m, taps) is worth its error, summed over so many channels.

    Six points have four times the error of five. F(5, 3) saves too little for that.
    """
    few = channels <= MANY_CHANNELS and taps > 3
    return [n + 2 - taps for n in POINTS if n > taps - 1 and (n < 6 or few)]


@cache
def winograd_matrices(m: int, taps: int = 3) -> WinogradMatrices:
    """Return the matrices of F(m, taps)."""
    points = POINTS[m + taps - 2]
    size = m + taps - 1
    rows, scales = [], []
    for p in points:
        others = [q for q in points if q != p]
        rows.append((*_polynomial(others), Fraction(0)))
        scale = Fraction(1)
        for q in others:
            scale /= p - q
        scales.append(scale)
    infinite = (Fraction(0),) * (taps - 1) + (Fraction(1),)
    weights = [tuple(s * p**k for k in range(taps)) for p, s in zip(points, scales, strict=True)]
    output = [(*(p**k for p in points), Fraction(int(k == m - 1))) for k in range(m)]
    assert len(rows) + 1 == size
    return WinogradMatrices((*rows, _polynomial(points)), (*weights, infinite), tuple(output))


def _polynomial(roots: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """Return the coefficients of the product of (x - root), lowest power first."""
    coefficients = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *coefficients]
        for k, c in enumerate(coefficients):
            shifted[k] -= root * c
        coefficients = shifted
    return tuple(coefficients)


def transposed(matrix: Matrix) -> Matrix:
    return tuple(zip(*matrix, strict=True))


# -- as expressions ----------------------------------------------------------------------------------------
def product(matrix: Matrix, values: Sequence[Expr]) -> list[Expr]:
    """Return `matrix @ values`.

    Points come in pairs +-p, so rows or columns come in pairs that differ in signs alone: sums and
    differences of a pair are shared.
    """
    matrix, values = _columns_paired(matrix, list(values))
    results: list[Expr | None] = [None] * len(matrix)
    for k, row in enumerate(matrix):
        if results[k] is not None:
            continue
        twin = next((j for j in range(k + 1, len(matrix)) if _signs_apart(row, matrix[j])), None)
        if twin is None:
            results[k] = _combination(row, values)
            continue
        same = tuple(c if c == d else Fraction(0) for c, d in zip(row, matrix[twin], strict=True))
        turned = tuple(c if c != d else Fraction(0) for c, d in zip(row, matrix[twin], strict=True))
        factor = next(c for c in reversed(turned) if c)
        even = _combination(same, values)
        odd = _combination(tuple(c / factor for c in turned), values)
        results[k], results[twin] = _plus(even, factor, odd), _plus(even, -factor, odd)
    return [r for r in results if r is not None]


def _signs_apart(a: Sequence[Fraction], b: Sequence[Fraction]) -> bool:
    """Return whether two rows are equal but for signs, and not all of these agree or differ."""
    pairs = [(x, y) for x, y in zip(a, b, strict=True) if x or y]
    agree = [x == y for x, y in pairs]
    return all(abs(x) == abs(y) for x, y in pairs) and any(agree) and not all(agree)


def _columns_paired(matrix: Matrix, values: list[Expr]) -> tuple[Matrix, list[Expr]]:
    """Replace pairs of values whose columns differ in signs alone by their sums and differences."""
    columns = list(transposed(matrix))
    for k in range(len(columns)):
        for j in range(k + 1, len(columns)):
            a, b = columns[k], columns[j]
            if _signs_apart(a, b):
                u, v = values[k], values[j]
                values[k], values[j] = u + v, u - v
                columns[k] = tuple(x if x == y else Fraction(0) for x, y in zip(a, b, strict=True))
                columns[j] = tuple(x if x != y else Fraction(0) for x, y in zip(a, b, strict=True))
                break
    return transposed(tuple(columns)), values


def _combination(row: Sequence[Fraction], values: Sequence[Expr]) -> Expr:
    """Return the sum of coefficients times values, starting with one that needs no product."""
    terms = [(c, v) for c, v in zip(row, values, strict=True) if c]
    start = next((k for k, (c, _) in enumerate(terms) if c == 1), 0)
    c, total = terms.pop(start)
    if c != 1:
        total = total * _number(c, total.dtype)
    for c, v in terms:
        total = _plus(total, c, v)
    return total


def _plus(total: Expr, factor: Fraction, value: Expr) -> Expr:
    if abs(factor) == 1:
        return call("add" if factor > 0 else "sub", total, value)
    return call("fma", value, _number(factor, value.dtype), total)


def _number(value: Fraction, dtype: DType) -> Expr:
    return const(float(value), dtype)


def both_sides(
    matrix: Matrix,
    read: Callable[[int, Var], Expr],
    held: Buffer,
    lane: Expr,
    write: Callable[[Var, Sequence[Expr]], Stmt],
) -> Stmt:
    """Apply a matrix to columns, then to rows: `matrix @ d @ matrix.T` for d[k, j] = read(k, j).

    The rows in between lie in registers `held` [rows, columns, lanes]; `write` takes a row and its values.
    """
    rows, size = len(matrix), len(matrix[0])
    j, i = Var("j", size), Var("i", rows)
    columns = product(matrix, [read(k, j) for k in range(size)])
    first = Seq(Store(held, (index_const(k), j, lane), e) for k, e in enumerate(columns))
    second = write(i, product(matrix, [held[i, k, lane] for k in range(size)]))
    return Seq((For(j, first, "unroll"), For(i, second, "unroll")))
