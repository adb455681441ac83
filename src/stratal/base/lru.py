"""Tables of what was used last."""

from __future__ import annotations

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class LRU(dict[K, V]):
    """A table that forgets, beyond its capacity, what was kept longest ago.

    No `OrderedDict`: what a signal handler raises while that one compares keys leaves it broken.
    """

    __slots__ = ("capacity",)

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity

    def keep(self, key: K, value: V) -> V:
        """Put a value at the end of the table, and return it."""
        self.pop(key, None)
        self[key] = value
        if len(self) > self.capacity:
            del self[next(iter(self))]
        return value
