"""Whether what a program prepared from its held inputs still holds: then a run need not prepare it again."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from stratal.runtime.storage import Array, Stamp, Storage

_STAMP: Final = attrgetter("stamp")


class Prologue:
    """Compares held inputs with those of the run that prepared last.

    `stale` is the flag the driver reads.
    """

    __slots__ = ("_held", "_seen", "_stale", "_taken")

    def __init__(self, held: Sequence[int], stale: Array) -> None:
        self._held: Final = tuple(held)
        self._stale: Final = stale
        self._seen: list[Stamp] | None = None  # what held inputs were when they were last prepared from
        self._taken: list[Stamp] | None = None  # what they are in the run that prepares now

    def before(self, inputs: Sequence[Storage]) -> None:
        """Have the run that follows prepare unless every input holds what it held."""
        held = [inputs[k] for k in self._held]
        if list(map(_STAMP, held)) == self._seen:
            return
        self._seen = None  # should the run fail, the next one prepares
        self._taken = [storage.stamped() for storage in held]
        self._stale[0] = True

    def after(self) -> None:
        """Take note that a run ended well."""
        if self._taken is not None:
            self._seen, self._taken = self._taken, None
            self._stale[0] = False
