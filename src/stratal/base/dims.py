"""Dims: the sizes of axes, today mostly ints, tomorrow bounded symbols.

`infer` rules and the index algebra touch a Dim only through arithmetic (`+ - *`, `//` by an int) and
`known_equal`, `divides`, `upper_bound` and `as_int`. Comparing a symbol with `<` is refused unless its
bounds decide it, so a rule that silently assumes a concrete size fails its contract test.

    Sym := polynomial over atoms with integer coefficients;   atom := name | floor(Sym / int)
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, Union, final

from stratal.base.errors import ShapeError

Monomial = tuple[str, ...]


@final
class Sym:
    """A bounded symbolic size: a polynomial over atoms, kept in normal form so that equal means equal."""

    __slots__ = ("bounds", "terms")

    def __init__(self, terms: dict[Monomial, int], bounds: dict[str, tuple[int, int]]) -> None:
        self.terms: Final = tuple(sorted((m, c) for m, c in terms.items() if c))
        self.bounds: Final = bounds

    @staticmethod
    def named(name: str, low: int = 1, high: int = 1 << 20) -> Sym:
        """Return the symbol `name`, known to lie in [low, high]."""
        return Sym({(name,): 1}, {name: (low, high)})

    def _lift(self, other: Dim) -> Sym:
        return other if isinstance(other, Sym) else Sym({(): int(other)}, {})

    def _collapse(self, terms: dict[Monomial, int], bounds: dict[str, tuple[int, int]]) -> Dim:
        result = Sym(terms, bounds)
        if not result.terms:
            return 0
        if len(result.terms) == 1 and result.terms[0][0] == ():
            return result.terms[0][1]
        return result

    def __add__(self, other: Dim) -> Dim:
        right = self._lift(other)
        terms = dict(self.terms)
        for monomial, c in right.terms:
            terms[monomial] = terms.get(monomial, 0) + c
        return self._collapse(terms, self.bounds | right.bounds)

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return self * -1

    def __sub__(self, other: Dim) -> Dim:
        return self + self._lift(other) * -1

    def __rsub__(self, other: int) -> Dim:
        return self * -1 + other

    def __mul__(self, other: Dim) -> Dim:
        right = self._lift(other)
        terms: dict[Monomial, int] = {}
        for m1, c1 in self.terms:
            for m2, c2 in right.terms:
                monomial = tuple(sorted(m1 + m2))
                terms[monomial] = terms.get(monomial, 0) + c1 * c2
        return self._collapse(terms, self.bounds | right.bounds)

    __rmul__ = __mul__

    def __floordiv__(self, other: int) -> Dim:
        if all(c % other == 0 for _, c in self.terms):
            return self._collapse({m: c // other for m, c in self.terms}, self.bounds)
        atom = f"floor(({self})/{other})"
        low, high = self.range()
        return Sym({(atom,): 1}, self.bounds | {atom: (low // other, high // other)})

    def range(self) -> tuple[int, int]:
        """Return bounds that hold for every value of the atoms."""
        low = high = 0
        for monomial, c in self.terms:
            ranges = [self.bounds[a] for a in monomial]
            lo = math.prod(r[0] for r in ranges) * c
            hi = math.prod(r[1] for r in ranges) * c
            low, high = low + min(lo, hi), high + max(lo, hi)
        return low, high

    def _decide(self, other: Dim, verdict: str) -> bool:
        low, high = self._lift(self - other).range()
        answers = {
            "<": (high < 0, low >= 0),
            "<=": (high <= 0, low > 0),
            ">": (low > 0, high <= 0),
            ">=": (low >= 0, high < 0),
        }
        yes, no = answers[verdict]
        if yes or no:
            return yes
        raise ShapeError(
            f"dims: {self} {verdict} {other} is not decided by the bounds of its symbols",
            hint="use known_equal, divides or upper_bound",
        )

    def __lt__(self, other: Dim) -> bool:
        return self._decide(other, "<")

    def __le__(self, other: Dim) -> bool:
        return self._decide(other, "<=")

    def __gt__(self, other: Dim) -> bool:
        return self._decide(other, ">")

    def __ge__(self, other: Dim) -> bool:
        return self._decide(other, ">=")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sym) and self.terms == other.terms

    def __hash__(self) -> int:
        return hash(self.terms)

    def __bool__(self) -> bool:
        return self._decide(0, ">")

    def __index__(self) -> int:
        raise ShapeError(f"dims: the size {self} is symbolic where an int is needed")

    def __str__(self) -> str:
        parts = []
        for monomial, c in self.terms:
            name = "*".join(monomial)
            parts.append(str(c) if not name else name if c == 1 else f"{c}*{name}")
        return " + ".join(parts)

    __repr__ = __str__


Dim = Union[int, Sym]
Shape = tuple[Dim, ...]


def known_equal(a: Dim, b: Dim) -> bool:
    """Return whether two sizes are equal for every value of their symbols."""
    return a == b


def divides(divisor: Dim, size: Dim) -> bool:
    """Return whether `divisor` divides `size` for every value of the symbols."""
    if isinstance(size, int) and isinstance(divisor, int):
        return divisor != 0 and size % divisor == 0
    if known_equal(divisor, size):
        return True
    if isinstance(size, Sym) and isinstance(divisor, int):
        return divisor != 0 and all(c % divisor == 0 for _, c in size.terms)
    return False


def upper_bound(a: Dim) -> int:
    """Return the largest value the size can take."""
    return a if isinstance(a, int) else a.range()[1]


def as_int(a: Dim) -> int:
    """Return a size that must be concrete here. Raises: ShapeError for a symbol."""
    return a if isinstance(a, int) else a.__index__()


def product(dims: Iterable[Dim]) -> Dim:
    """Return the product of sizes, 1 for none."""
    result: Dim = 1
    for d in dims:
        result = result * d
    return result
