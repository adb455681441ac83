"""Places that hold Python values."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any, Final

from stratal.tensor.capture.containers import kind_of
from stratal.tensor.capture.plain import same

MISSING: Final[Any] = object()
Quick = tuple[Callable[[Any], Any], Any, Any]


class Location:
    """Somewhere a value stands: `read` gives it, or MISSING."""

    __slots__ = ("holder", "key", "name")

    def __init__(self, holder: Any, key: Any, name: str) -> None:
        self.holder, self.key, self.name = holder, key, name

    def identity(self) -> tuple[int, type, Any]:
        """Return what is equal for places that are one and the same, while their holders live."""
        return (id(self.holder), type(self), self.key)

    def read(self) -> Any:
        raise NotImplementedError

    def write(self, value: Any) -> None:
        raise NotImplementedError

    def delete(self) -> None:
        raise NotImplementedError

    def restore(self, value: Any) -> None:
        """Write a value; MISSING takes what stands there away."""
        if value is not MISSING:
            self.write(value)
        elif self.read() is not MISSING:
            self.delete()

    def quick(self, expected: Any) -> Quick:
        """Return a function, its argument and its result as long as the expected object stands there.

        Where it does not, the function may also raise ValueError, LookupError or AttributeError.
        """
        return type(self).read, self, expected


class Cell(Location):
    """A variable that functions share; `holder` is the closure's cell."""

    __slots__ = ()

    def read(self) -> Any:
        try:
            return self.holder.cell_contents
        except ValueError:
            return MISSING

    def write(self, value: Any) -> None:
        self.holder.cell_contents = value

    def delete(self) -> None:
        del self.holder.cell_contents

    def quick(self, expected: Any) -> Quick:
        return super().quick(expected) if expected is MISSING else (_CONTENTS, self.holder, expected)


_CONTENTS: Final = attrgetter("cell_contents")


class Item(Location):
    """An entry of a dict: a global, an attribute of an instance or module, an item."""

    __slots__ = ()

    def read(self) -> Any:
        return dict.get(self.holder, self.key, MISSING)

    def write(self, value: Any) -> None:
        kind_of(self.holder).__setitem__(self.holder, self.key, value)

    def delete(self) -> None:
        kind_of(self.holder).__delitem__(self.holder, self.key)

    def quick(self, expected: Any) -> Quick:
        if expected is MISSING:
            return self.holder.__contains__, self.key, False
        if type(self.holder) is dict:
            return self.holder.__getitem__, self.key, expected
        if hasattr(type(self.holder), "__missing__"):  # it makes what is not there, as of a defaultdict
            return super().quick(expected)
        return partial(dict.__getitem__, self.holder), self.key, expected


class Element(Location):
    """An item of a list."""

    __slots__ = ()

    def read(self) -> Any:
        try:
            return self.holder[self.key]
        except IndexError:
            return MISSING

    def write(self, value: Any) -> None:
        self.holder[self.key] = value

    def quick(self, expected: Any) -> Quick:
        if expected is MISSING:
            return super().quick(expected)
        return self.holder.__getitem__, self.key, expected


class Slot(Location):
    """An attribute that the object itself stores: a slot, or one of a class written in C."""

    __slots__ = ()

    def read(self) -> Any:
        asked = type if isinstance(self.holder, type) else object
        try:
            return asked.__getattribute__(self.holder, self.key)  # not by a method of a user's
        except AttributeError:
            return MISSING

    def write(self, value: Any) -> None:
        (type if isinstance(self.holder, type) else object).__setattr__(self.holder, self.key, value)

    def delete(self) -> None:
        (type if isinstance(self.holder, type) else object).__delattr__(self.holder, self.key)

    def quick(self, expected: Any) -> Quick:
        if expected is MISSING or type(self.holder).__getattribute__ not in _GETTING:
            return super().quick(expected)
        return attrgetter(self.key), self.holder, expected


class Computed(Slot):
    """An attribute that a class written in C computes: nothing but what it takes can be put there."""

    __slots__ = ()


_GETTING: Final[tuple[Any, ...]] = (object.__getattribute__, type.__getattribute__)


class ClassAttribute(Slot):
    """An entry of a class: a method, a descriptor, a value that instances share."""

    __slots__ = ()

    def read(self) -> Any:
        return self.holder.__dict__.get(self.key, MISSING)

    def quick(self, expected: Any) -> Quick:
        entries = self.holder.__dict__
        if expected is MISSING:
            return entries.__contains__, self.key, False
        return entries.__getitem__, self.key, expected


class OfThread(Location):
    """An attribute of a `threading.local`: each thread has its own."""

    __slots__ = ()

    def read(self) -> Any:
        return self.holder.__dict__.get(self.key, MISSING)

    def write(self, value: Any) -> None:
        setattr(self.holder, self.key, value)

    def delete(self) -> None:
        delattr(self.holder, self.key)


class Measured(Location):
    """Something computed from a holder, by the function `key`: its length, its contents."""

    __slots__ = ()

    def read(self) -> Any:
        return self.key(self.holder)

    def quick(self, expected: Any) -> Quick:
        return self.key, self.holder, expected


def _specials(kind: type) -> tuple[Any, ...]:
    return tuple(x for name, x in kind.__dict__.items() if name not in _NO_METHODS and _is_special(name, x))


def _is_special(name: str, value: Any) -> bool:
    return name[:2] == "__" == name[-2:] or (hasattr(value, "__set__") and not hasattr(value, "__objclass__"))


class Specials(Measured):
    """What a class defines that Python looks up by itself: `__add__`, `__getattr__`, properties, .."""

    __slots__ = ()

    def __init__(self, kind: type) -> None:
        super().__init__(kind, _specials, f"the special methods of {kind.__name__}")

    def quick(self, expected: Any) -> Quick:
        return _Unchanged(self, expected), None, expected


class _Unchanged:
    """Compares special methods only where a class has changed since: CPython numbers its states."""

    __slots__ = ("expected", "location", "version")

    def __init__(self, location: Specials, expected: Any) -> None:
        self.location, self.expected = location, expected
        self.version = 0

    def __call__(self, _: None) -> Any:
        version = _VERSION(id(self.location.holder) + _VERSION_TAG).value if _VERSION_TAG else 0
        if version != self.version or not version:
            found = self.location.read()
            if not same(found, self.expected):
                return found
            self.version = version
        return self.expected


_NO_METHODS: Final = frozenset({
    "__abstractmethods__", "__annotations__", "__dict__", "__doc__", "__firstlineno__", "__module__",
    "__parameters__", "__qualname__", "__slots__", "__static_attributes__", "__weakref__",
})  # fmt: skip
_VERSION: Final = ctypes.c_uint.from_address
_VERSION_TAG: Final = 384 if (3, 11) <= sys.version_info < (3, 14) else 0  # of PyTypeObject; 0: none known


class Zero(Location):
    """Whether an entry of a dict is zero."""

    __slots__ = ()

    def read(self) -> Any:
        return dict.get(self.holder, self.key) == 0


class Weakly(Location):
    """A place of an object that `holder` refers to weakly; `key` is the kind of place and its own key."""

    __slots__ = ()

    def read(self) -> Any:
        holder, (kind, key) = self.holder(), self.key
        return MISSING if holder is None else kind(holder, key, self.name).read()
