"""Dims: the sizes of axes, today mostly ints, tomorrow bounded symbols.

`infer` rules and the index algebra touch a Dim only through arithmetic (`+ - *`, `//` by an int) and
`known_equal`, `divides`, `upper_bound` and `as_int`. Comparing a symbol by `<` or `==` is refused unless its
bounds decide it, so a rule that silently assumes a concrete size fails its contract test, and what a user's
function decides by a size holds for every size its capture serves.

    Sym := polynomial over atoms with integer coefficients;   atom := name | floor(Sym / int)
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Union, final

from stratal.base.errors import UndecidedError

Monomial = tuple[str, ...]
_QUOTIENTS: dict[str, tuple[Sym, int]] = {}  # what an atom that is no name stands for


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

    def _number(self) -> Any:
        """Return the size as a number of the run, for arithmetic that sizes do not have."""
        if not NUMBERS:
            raise self._asked()
        return NUMBERS[0](self)

    def _collapse(self, terms: dict[Monomial, int], bounds: dict[str, tuple[int, int]]) -> Dim:
        result = Sym(terms, bounds)
        if not result.terms:
            return 0
        if len(result.terms) == 1 and result.terms[0][0] == ():
            return result.terms[0][1]
        return result

    def __add__(self, other: Any) -> Any:
        if not isinstance(other, (int, Sym)):
            return self._number() + other if isinstance(other, float) else NotImplemented
        right = self._lift(other)
        terms = dict(self.terms)
        for monomial, c in right.terms:
            terms[monomial] = terms.get(monomial, 0) + c
        return self._collapse(terms, self.bounds | right.bounds)

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return self._collapse({m: -c for m, c in self.terms}, self.bounds)

    def __sub__(self, other: Any) -> Any:
        if not isinstance(other, (int, Sym)):
            return self._number() - other if isinstance(other, float) else NotImplemented
        return self + self._lift(other) * -1

    def __rsub__(self, other: Any) -> Any:
        if not isinstance(other, int):
            return other - self._number()
        return self * -1 + other

    def __mul__(self, other: Any) -> Any:
        if not isinstance(other, (int, Sym)):
            return self._number() * other if isinstance(other, float) else NotImplemented
        right = self._lift(other)
        terms: dict[Monomial, int] = {}
        for m1, c1 in self.terms:
            for m2, c2 in right.terms:
                monomial = tuple(sorted(m1 + m2))
                terms[monomial] = terms.get(monomial, 0) + c1 * c2
        return self._collapse(terms, self.bounds | right.bounds)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        if not isinstance(other, int):
            return NotImplemented
        if not other:
            raise self._asked()
        if all(c % other == 0 for _, c in self.terms):
            return self._collapse({m: c // other for m, c in self.terms}, self.bounds)
        atom = f"floor(({self})/{other})"
        _QUOTIENTS[atom] = (self, other)
        return Sym({(atom,): 1}, self.bounds | {atom: _divided(self.range(), other)})

    def __mod__(self, other: Any) -> Any:
        return self - self // other * other if isinstance(other, int) else NotImplemented

    def __truediv__(self, other: Any) -> Any:
        if not isinstance(other, (int, float, Sym)):
            return NotImplemented
        return self._number() / other

    def __rtruediv__(self, other: Any) -> Any:
        return other / self._number()

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise self._asked()  # NumPy would make an object of it

    def _asked(self) -> UndecidedError:
        return undecided(self, f"dims: the size {self} is symbolic where a number is needed")

    def __pow__(self, other: Any) -> Any:
        if isinstance(other, (int, float, Sym)):
            raise self._asked()
        return NotImplemented

    def __float__(self) -> float:
        raise self._asked()

    def range(self) -> tuple[int, int]:
        """Return bounds that hold for every value of the atoms."""
        low = high = 0
        for monomial, c in self.terms:
            ends = [c]
            for atom in monomial:
                ends = [e * bound for e in (min(ends), max(ends)) for bound in self.bounds[atom]]
            low, high = low + min(ends), high + max(ends)
        return low, high

    def _decide(self, other: Any, verdict: str) -> bool:
        if isinstance(other, float):
            other = math.ceil(other) if verdict in ("<", ">=") else math.floor(other)
        gap = self - other
        low, high = self._lift(gap).range()
        answers = {
            "<": (high < 0, low >= 0),
            "<=": (high <= 0, low > 0),
            ">": (low > 0, high <= 0),
            ">=": (low >= 0, high < 0),
        }
        yes, no = answers[verdict]
        if yes or no:
            return yes
        rule = f"dims: {self} {verdict} {other} is not decided by the bounds of its symbols"
        raise undecided(gap, rule, verdict)

    def __lt__(self, other: Dim) -> bool:
        return self._decide(other, "<")

    def __le__(self, other: Dim) -> bool:
        return self._decide(other, "<=")

    def __gt__(self, other: Dim) -> bool:
        return self._decide(other, ">")

    def __ge__(self, other: Dim) -> bool:
        return self._decide(other, ">=")

    def __eq__(self, other: object) -> bool:
        if isinstance(other, numbers.Number) and not isinstance(other, int):
            whole = _whole(other)
            if whole is None:
                return False
            other = whole
        if not isinstance(other, (int, Sym)):
            return NotImplemented
        gap: Dim = self - other
        if isinstance(gap, int):
            return gap == 0
        low, high = gap.range()
        if low > 0 or high < 0 or low == high:
            return low == high == 0
        raise undecided(gap, f"dims: {self} == {other} is not decided by the bounds of its symbols", "==")

    def __hash__(self) -> int:
        return hash(self.terms)

    def __bool__(self) -> bool:
        return self != 0

    def __index__(self) -> int:
        raise self._asked()

    def __str__(self) -> str:
        parts = []
        for monomial, c in self.terms:
            name = "*".join(monomial)
            parts.append(str(c) if not name else name if c == 1 else f"{c}*{name}")
        return " + ".join(parts)

    __repr__ = __str__


def _whole(number: Any) -> int | None:
    """Return the int that a number of another kind is equal to, or None."""
    try:
        found = int(number.real)
    except (OverflowError, ValueError):  # not finite
        return None
    return found if found == number else None


def undecided(size: Dim, rule: str, verdict: str = "") -> UndecidedError:
    """Return the error of asking how a symbolic size compares with 0, or for its value."""
    error = UndecidedError(rule, hint="use known_equal, divides or upper_bound")
    error.size, error.verdict = size, verdict
    return error


def _divided(bounds: tuple[int, int], by: int) -> tuple[int, int]:
    ends = bounds[0] // by, bounds[1] // by
    return min(ends), max(ends)


def atoms_of(size: Dim) -> set[str]:
    """Return the names a size depends on, those inside of quotients too."""
    found: set[str] = set()
    for monomial, _ in () if isinstance(size, int) else size.terms:
        for atom in monomial:
            parts = quotient(atom)
            found |= {atom} if parts is None else atoms_of(parts[0])
    return found


def range_of(size: Dim, bounds: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    """Return bounds of a size for given bounds of its names."""
    if isinstance(size, int):
        return size, size
    own: dict[str, tuple[int, int]] = {}
    for monomial, _ in size.terms:
        for atom in monomial:
            parts = quotient(atom)
            if parts is None:
                own[atom] = bounds[atom]
            else:
                own[atom] = _divided(range_of(parts[0], bounds), parts[1])
    return Sym(dict(size.terms), own).range()


def evaluate(size: Dim, values: Mapping[str, int]) -> int:
    """Return a size for given values of its names."""
    if isinstance(size, int):
        return size
    total = 0
    for monomial, c in size.terms:
        for atom in monomial:
            parts = quotient(atom)
            c *= values[atom] if parts is None else evaluate(parts[0], values) // parts[1]
        total += c
    return total


def narrowed(
    size: Sym, verdict: str, values: Mapping[str, int], bounds: Mapping[str, tuple[int, int]]
) -> tuple[str, tuple[int, int]] | None:
    """Return a symbol and bounds of it within which a size compares with 0 as it does for these values.

    The bounds are as wide as the bounds of other symbols allow.
    """
    value = evaluate(size, values)
    if verdict == "==":
        verdict = ">" if value > 0 else "<"
    edge = 0 if verdict in ("<", ">=") else 1  # from where on a size is on the upper side
    above = value >= edge
    for name in sorted(atoms_of(size)):
        own, (low, high) = values[name], bounds[name]

        def decided(low: int, high: int, name: str = name) -> bool:
            least, most = range_of(size, {**bounds, name: (low, high)})
            return least >= edge if above else most < edge

        for found in (_widest_low(decided, low, own, high), _widest_high(decided, low, own, high)):
            if found is not None:
                return name, found
    return None


def _widest_low(
    decided: Callable[[int, int], bool], low: int, value: int, high: int
) -> tuple[int, int] | None:
    if not decided(value, high):
        return None
    unfit, fit = low - 1, value
    while fit - unfit > 1:
        middle = (fit + unfit) // 2
        unfit, fit = (unfit, middle) if decided(middle, high) else (middle, fit)
    return fit, high


def _widest_high(
    decided: Callable[[int, int], bool], low: int, value: int, high: int
) -> tuple[int, int] | None:
    if not decided(low, value):
        return None
    fit, unfit = value, high + 1
    while unfit - fit > 1:
        middle = (fit + unfit) // 2
        fit, unfit = (middle, unfit) if decided(low, middle) else (fit, middle)
    return low, fit


NUMBERS: list[Callable[[Sym], Any]] = []
"""How a size becomes a number of the run: what captures functions puts it here."""

Dim = Union[int, Sym]
Shape = tuple[Dim, ...]


def known_equal(a: Dim, b: Dim) -> bool:
    """Return whether two sizes are equal for every value of their symbols."""
    if isinstance(a, Sym) or isinstance(b, Sym):
        return isinstance(a, Sym) and isinstance(b, Sym) and a.terms == b.terms
    return a == b


def same_shape(a: Sequence[Dim], b: Sequence[Dim]) -> bool:
    """Return whether shapes are equal for every value of their symbols."""
    return len(a) == len(b) and all(map(known_equal, a, b))


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


def quotient(atom: str) -> tuple[Sym, int] | None:
    """Return what an atom is the floor of, and divided by what; None for a name."""
    return _QUOTIENTS.get(atom)


def exact_quotient(whole: Dim, part: Dim) -> Dim | None:
    """Return the size `whole` is `part` times for every value of the symbols; None where there is none."""
    if isinstance(part, int):
        return whole // part if divides(part, whole) else None
    if isinstance(whole, int) or len(part.terms) != 1:
        return 1 if known_equal(whole, part) else None
    ((atoms, factor),) = part.terms
    terms: dict[Monomial, int] = {}
    for monomial, c in whole.terms:
        rest = list(monomial)
        for atom in atoms:
            if atom not in rest:
                return None
            rest.remove(atom)
        if c % factor:
            return None
        terms[tuple(rest)] = c // factor
    return whole._collapse(terms, whole.bounds)


def product(dims: Iterable[Dim]) -> Dim:
    """Return the product of sizes, 1 for none."""
    result: Dim = 1
    for d in dims:
        result = result * d
    return result
