"""Python's operators for the scalars of a language: `0.5 * (a + b)` is two of its functions applied."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Operators(Generic[T]):
    """Operators as functions of a language, by name. `==` stays Python's: it compares objects."""

    __slots__ = ()

    def _apply(self, name: str, *operands: Any) -> T:
        """Return `name(*operands)`; numbers take the dtype of the other operand."""
        raise NotImplementedError

    def __add__(self, other: T | float) -> T:
        return self._apply("add", self, other)

    def __radd__(self, other: float) -> T:
        return self._apply("add", other, self)

    def __sub__(self, other: T | float) -> T:
        return self._apply("sub", self, other)

    def __rsub__(self, other: float) -> T:
        return self._apply("sub", other, self)

    def __mul__(self, other: T | float) -> T:
        return self._apply("mul", self, other)

    def __rmul__(self, other: float) -> T:
        return self._apply("mul", other, self)

    def __truediv__(self, other: T | float) -> T:
        return self._apply("div", self, other)

    def __rtruediv__(self, other: float) -> T:
        return self._apply("div", other, self)

    def __neg__(self) -> T:
        return self._apply("neg", self)

    def __abs__(self) -> T:
        return self._apply("abs", self)

    def __lt__(self, other: T | float) -> T:
        return self._apply("lt", self, other)

    def __le__(self, other: T | float) -> T:
        return self._apply("le", self, other)

    def __gt__(self, other: T | float) -> T:
        return self._apply("gt", self, other)

    def __ge__(self, other: T | float) -> T:
        return self._apply("ge", self, other)

    def __and__(self, other: T | float) -> T:
        return self._apply("and", self, other)

    def __or__(self, other: T | float) -> T:
        return self._apply("or", self, other)

    def __invert__(self) -> T:
        return self._apply("not", self)
