"""The inverse of an index map: where an element goes, from where its reader takes it.

    out[v...] = source[indices(v...)]    ->    out[inverse(i...)] = source[i...]

An index is a number in mixed radix: its digits are axes, and quotients and remainders of axes, as reshapes,
permutations and slices make them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stratal.loops import index
from stratal.loops.expr import Call, Const, Expr, Var

Digits = dict[Expr, Expr]


def inverse(indices: Sequence[Expr], axes: Sequence[Var], there: Sequence[Expr]) -> tuple[Expr, ...] | None:
    """Return the place in `axes` that reads the position `there`; None where it is not found.

    Positions that nobody reads give places outside the axes. So every digit decides a place, and once only:
    a diagonal, which reads the positions whose digits are equal, has no inverse.
    """
    digits: Digits = {}
    for number, value in zip(indices, there, strict=True):
        found = _digits(number, value)
        if found is None or not digits.keys().isdisjoint(found):
            return None
        digits |= found
    places = []
    left = set(digits)
    for v in axes:
        place = index.as_expr(0) if v.extent == 1 and v not in digits else _value(v, digits, left)
        if place is None:
            return None
        places.append(place)
    return None if left else tuple(places)


def _digits(number: Expr, value: Expr) -> Digits | None:
    """Return the digits of a number that has this value; None where they run into each other."""
    terms, constant = index.linear(number)
    digits: Digits = {}
    scales = sorted(((scale, atom) for atom, scale in terms.items()), key=lambda t: t[0])
    if not scales:
        return digits if index.bounds(value) == (constant, constant) else None
    least = constant + sum(scale * index.bounds(atom)[0] for scale, atom in scales)
    rest, scale = index.sub(value, least), 1
    for k, (step, atom) in enumerate(scales):
        if step != scale:
            return None  # or backwards, as a flip counts
        low, high = index.bounds(atom)
        size = high - low + 1
        digit = index.floordiv(rest, step)
        if k < len(scales) - 1:
            digit = index.mod(digit, size)
        elif isinstance(atom, Call) and atom.fn == "mod" and not _below(digit, size):
            return None  # a remainder too large would be taken for another element's
        digits[atom] = index.add(digit, low)
        scale *= size
    return digits


def _value(number: Expr, digits: Digits, left: set[Expr]) -> Expr | None:
    """Return the value of an axis, or of its quotient, from its digits, which are taken from those `left`."""
    if number in digits:
        left.discard(number)
        return digits[number]
    for remainder, size, shift in _remainders(number, digits):
        quotient = _value(index.floordiv(index.add(number, shift), size), digits, left)
        if quotient is not None:
            left.discard(remainder)
            return index.sub(index.add(index.mul(quotient, size), digits[remainder]), shift)
    return None


def _remainders(number: Expr, digits: Digits) -> Iterator[tuple[Expr, int, int]]:
    """Yield the digits (number + shift) % size, with `size` and `shift`."""
    for atom in digits:
        if isinstance(atom, Call) and atom.fn == "mod" and isinstance(atom.args[1], Const):
            shift = index.sub(atom.args[0], number)
            if isinstance(shift, Const):
                yield atom, int(atom.args[1].value), int(shift.value)


def _below(digit: Expr, size: int) -> bool:
    low, high = index.bounds(digit)
    return low >= 0 and high < size
