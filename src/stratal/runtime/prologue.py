"""Validity of what a program prepared from frozen inputs: while they are unchanged, a run skips it."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final

from stratal.runtime.storage import Array, Stamp, Storage, stamps


class Prologue:
    """Compares frozen inputs with those of the run that prepared last.

    `stale` is the flag the driver reads.
    """

    __slots__ = ("_addresses", "_frozen", "_pick", "_seen", "_stale", "_stamps", "_taken")

    def __init__(self, frozen: Sequence[int], stale: Array) -> None:
        self._frozen: Final = tuple(frozen)
        self._pick: Final = itemgetter(*frozen) if len(frozen) > 1 else self._one_by_one
        self._stale: Final = stale
        self._seen: list[weakref.ref[Stamp]] | None = None  # what frozen inputs were when last prepared from
        self._taken: list[Stamp] | None = None  # what they are in the run that prepares now
        self._stamps: tuple[int, int] | None = None  # of all storages, when frozen inputs were last compared
        self._addresses: Sequence[int] = ()  # where they lay then

    def before(self, inputs: Sequence[Storage], addresses: Sequence[int]) -> None:
        """Have the run that follows prepare unless every input holds what it held."""
        if self.stands(addresses):
            return
        frozen = self._pick(inputs)
        if not self._known(frozen):
            self._seen = self._stamps = None  # should the run fail, the next one prepares
            self._taken = [storage.stamped() for storage in frozen]
            self._stale[0] = True
        else:
            self._stamps, self._addresses = stamps(), self._pick(addresses)

    def stands(self, addresses: Sequence[int]) -> bool:
        """Whether every input holds what it held, as can be seen at a glance."""
        # Storages that were stamped are alive, and live storages lie apart.
        return stamps() == self._stamps and self._pick(addresses) == self._addresses

    def after(self) -> None:
        """Take note that a run ended well."""
        if self._taken is not None:
            self._seen, self._taken = [weakref.ref(stamp) for stamp in self._taken], None
            self._stale[0] = False

    def _known(self, frozen: Sequence[Storage]) -> bool:
        if self._seen is None:
            return False
        pairs = zip(frozen, self._seen, strict=True)
        return all(storage.stamp is not None and storage.stamp is seen() for storage, seen in pairs)

    def _one_by_one(self, found: Sequence[Any]) -> Sequence[Any]:
        return [found[k] for k in self._frozen]
