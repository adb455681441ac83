"""Tables that forget what dies, without running Python code at the moment of death.

A weak reference's callback runs wherever the last holder lets go, and an exception in it is printed and
dropped. Ctrl-C raises KeyboardInterrupt in whatever Python code runs next: were that a callback, the
interrupt would be lost. Callbacks here are therefore C functions.

Threads share these tables without a lock: an entry is complete before one operation of a dict publishes it,
and whoever removes one takes it that another may have been faster.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Hashable
from functools import partial
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")


class _Entry(weakref.ref[T]):
    """A weak reference that knows its key."""

    __slots__ = ("key",)
    key: Hashable


class WeakTable(Generic[T]):
    """Values by key while somebody else holds them.

    Keys of the dead are removed when the next value is added. A key may hold the ids of objects that its
    value keeps alive: as long as the value lives no other object has these ids.
    """

    __slots__ = ("_dead", "_entries")

    def __init__(self) -> None:
        self._entries: Final[dict[Hashable, _Entry[T]]] = {}
        self._dead: Final[deque[_Entry[T]]] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable) -> T | None:
        """Return the living value of a key."""
        entry = self._entries.get(key)
        return None if entry is None else entry()

    def values(self) -> list[T]:
        """Return all that live."""
        return [value for entry in list(self._entries.values()) if (value := entry()) is not None]

    def clear(self) -> None:
        self._entries.clear()

    def add(self, key: Hashable, value: T) -> T:
        """Remember a value under a key that has no living one, and return it."""
        entries, dead = self._entries, self._dead
        while dead:
            try:
                gone = dead.popleft()
            except IndexError:  # another thread took it
                break
            if entries.get(gone.key) is gone:
                entries.pop(gone.key, None)
        entry = _Entry(value, dead.append)
        entry.key = key
        entries[key] = entry
        return value


class Note(weakref.ref[T]):
    """A weak reference together with what is known of its object."""

    __slots__ = ("fact",)
    fact: Any


def note(table: dict[int, Any], owner: T, fact: Any = None) -> Note[T]:
    """Put what is known of `owner` under its id into `table`, and return it; it goes when `owner` dies."""
    made = Note(owner, partial(table.pop, id(owner)))
    made.fact = fact
    table[id(owner)] = made
    return made
