"""Sizes that change from call to call: which axes of which arguments get a symbol, and what bounds it has.

An axis is symbolic from the second size on that a call brings (`dynamic=None`), from the first call on
(`True`), or never (`False`). Axes that always had equal sizes share a symbol. A symbol has bounds [1, c]
with c the least capacity there is that is not `_WASTE` times too large, or a new one; so the number of
programs grows with the logarithm of the sizes. What a function asks of a size that its bounds do not answer
narrows them, or makes the axis a fixed one: then each of its sizes is captured, as all are with `False`.

A call takes the program with the least capacity that its sizes fit, whatever was learned since it was made.
One that is more than `_WASTE` times too large is taken only once there are `_FEW`.
"""

from __future__ import annotations

from math import inf

from stratal.base.dims import Dim, Sym, atoms_of, evaluate, narrowed
from stratal.base.errors import StratalError, UndecidedError
from stratal.base.types import TensorType

Axis = tuple[int, int]  # an argument's number and one of its axes
_LARGEST = 1 << 30
_LEAST = 16  # capacity
_WASTE = 3
_MANY = 3
_FEW = 8
_MOST_SEEN = 64


class Sizes:
    """What is known of the sizes of one kind of call: arguments of the same structure, ranks and dtypes."""

    def __init__(self, dynamic: bool | None) -> None:
        self._dynamic = dynamic
        self._seen: dict[Axis, list[int]] = {}
        self._moving: set[Axis] = set()
        self._fixed: set[Axis] = set()
        self._cuts: dict[Axis, set[int]] = {}  # of a symbol by its first axis: where new bounds begin
        self._capacities: dict[Axis, set[int]] = {}
        self._made: dict[Axis, int] = {}  # how many capacities there ever were
        self._programs: list[Symbolic] = []

    # -- programs --------------------------------------------------------------------------------------------
    def keep(self, symbolic: Symbolic) -> None:
        """Take note of arguments there is a program for."""
        self._programs = [*(p for p in self._programs[-_MOST_SEEN:] if p.types != symbolic.types), symbolic]

    def fitting(self, types: dict[int, TensorType]) -> list[Symbolic]:
        """Return the arguments there are programs for that hold these sizes, the smallest first."""
        most = _LARGEST if len(self._programs) >= _FEW else _WASTE  # times as large as needed
        rooms = sorted((symbolic.room(types), k) for k, symbolic in enumerate(self._programs))
        return [self._programs[k] for room, k in rooms if room <= most]

    # -- learning --------------------------------------------------------------------------------------------
    def note(self, types: dict[int, TensorType]) -> None:
        """Take note of the sizes of a call that no capture fits."""
        for k, type_ in types.items():
            for a, n in enumerate(type_.ints):
                seen = self._seen.setdefault((k, a), [])
                if self._dynamic or (self._dynamic is None and any(m != n for m in seen)):
                    self._moving.add((k, a))
                seen.append(n)
                del seen[:-_MOST_SEEN]

    def learn(self, error: UndecidedError, names: dict[str, Axis], values: dict[str, int]) -> None:
        """Answer a question about sizes for the values at hand: narrow the bounds of a symbol, or fix it."""
        size = error.size
        if isinstance(size, Sym) and error.verdict:
            if error.verdict == "==" and evaluate(size, values) == 0:  # equal: at these values alone
                for name in atoms_of(size):
                    self._cut(names[name], values[name], values[name])
                return
            bounds = {name: self._between(axis, values[name]) for name, axis in names.items()}
            bounds_now = narrowed(size, error.verdict, values, bounds)
            if bounds_now is not None:
                name, (low, high) = bounds_now
                self._cut(names[name], low, high)
                return
        for name in atoms_of(size) if isinstance(size, Sym) else names:
            self.fix(names[name])

    def _cut(self, axis: Axis, low: int, high: int) -> None:
        self._cuts.setdefault(axis, set()).update((low, high + 1))

    def fix(self, first: Axis) -> None:
        """Give no symbol any more to an axis and to those that have its sizes."""
        self._fixed |= {axis for axis in self._moving if self._seen[axis] == self._seen[first]}

    def fix_all(self) -> None:
        """Give no symbols any more."""
        self._fixed |= self._moving

    # -- asking ----------------------------------------------------------------------------------------------
    def symbolic(self, types: dict[int, TensorType]) -> Symbolic:
        """Return the types of arguments with symbols for the sizes that change."""
        symbols: dict[tuple[int, ...], tuple[Axis, Dim]] = {}
        names: dict[str, Axis] = {}
        found: dict[int, TensorType] = {}
        for k, type_ in types.items():
            shape: list[Dim] = list(type_.shape)
            for a, n in enumerate(type_.ints):
                if (k, a) not in self._moving or (k, a) in self._fixed or n == 0:
                    continue
                column = (*self._seen[k, a], n)
                if column not in symbols:
                    size = self._bounded((k, a), n, f"arg{k}_{a}")
                    symbols[column] = (k, a), size
                    if isinstance(size, Sym):
                        names[str(size)] = (k, a)
                shape[a] = symbols[column][1]
            if any(isinstance(n, Sym) for n in shape):
                found[k] = type_.with_shape(shape)
        return Symbolic(found, names, {name: types[k].ints[a] for name, (k, a) in names.items()})

    def _bounded(self, axis: Axis, n: int, name: str) -> Dim:
        low, high = self._between(axis, n)
        if low == high:
            return n
        known = self._capacities.setdefault(axis, set())
        fitting = [min(c, high) for c in known if n <= c <= max(_LEAST, _WASTE * n)]
        finely = self._made.get(axis, 0) < _MANY  # sizes that keep growing get powers of two
        capacity = min(fitting, default=min(high, _rounded(n, 8 if finely else 1)))
        if capacity not in known:  # close smaller ones are not for new sizes any more: they fit into this one
            self._capacities[axis] = {c for c in known if c * _WASTE < capacity or c > capacity} | {capacity}
            self._made[axis] = self._made.get(axis, 0) + 1
        return Sym.named(f"{name}({low}..{capacity})", low, capacity)  # other bounds, another symbol

    def _between(self, axis: Axis, n: int) -> tuple[int, int]:
        """Return the widest bounds around a size for which all questions so far have one answer."""
        cuts = self._cuts.get(axis, ())
        low = max((c for c in cuts if c <= n), default=1)
        return low, min((c - 1 for c in cuts if c > n), default=_LARGEST)


def _rounded(n: int, parts: int) -> int:
    """Return a size rounded up to a multiple of a part of the next power of two."""
    step = max(_LEAST, 1 << (n - 1).bit_length()) // parts
    return max(_LEAST, -(-n // step) * step)


class Symbolic:
    """The arguments of one call that have symbolic types, and the symbols' axes and values."""

    def __init__(self, types: dict[int, TensorType], names: dict[str, Axis], values: dict[str, int]) -> None:
        self.types, self.names, self.values = types, names, values

    def __bool__(self) -> bool:
        return bool(self.types)

    def room(self, types: dict[int, TensorType]) -> float:
        """Return how many times as large as needed the most generous capacity is (`_LEAST` is no more than
        needed); infinity where sizes do not fit.
        """
        values: dict[Dim, int] = {}
        largest = 1.0
        for k, symbolic in self.types.items():
            for size, n in zip(symbolic.shape, types[k].ints, strict=True):
                if not isinstance(size, Sym):
                    if size != n:
                        return inf
                    continue
                low, high = size.range()
                if not low <= n <= high or values.setdefault(size, n) != n:
                    return inf
                largest = max(largest, high / max(n, _LEAST / _WASTE))
        return largest


def needs_sizes(why: str) -> UndecidedError:
    """Return the error of a function that can only be captured for known sizes."""
    return UndecidedError(f"capture: sizes must be known: {why}")


def may_depend_on_sizes(error: BaseException) -> bool:
    """Return whether an operation that raised an error, given symbolic sizes, may do without one for some of
    them: shapes are refused that fit only sometimes, and symbols are not all that ints are.
    """
    if isinstance(error, AttributeError) and not isinstance(error, StratalError):
        return isinstance(error.obj, Sym)
    return isinstance(error, (StratalError, TypeError, ValueError, ArithmeticError))


__all__ = ["Sizes", "Symbolic", "may_depend_on_sizes", "needs_sizes"]
