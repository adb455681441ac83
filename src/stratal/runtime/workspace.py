"""Workspaces: memory that several programs compute in, one after another.

No value in an arena or in scratch outlives a run, and a process runs one program at a time (`pool.LOCK`): the
programs of a model for all its batch sizes need one arena, as large as the largest.
"""

from __future__ import annotations

from typing import Final

from stratal.runtime.storage import Array, aligned_empty

BLOCKS: Final = ("arena", "scratch")


class Workspace:
    """A block of memory by its name, given to each program that fits into it.

    For one that does not there is a new block; the programs before stay in theirs, so load the largest first.
    A program with host calls must not be here: such a call may run another program meanwhile.
    """

    def __init__(self) -> None:
        self._blocks: dict[str, Array] = {}

    def new(self, name: str, nbytes: int) -> Array:
        """Return memory, see `encode.allocate`; what persists is each program's own."""
        if name not in BLOCKS:
            return aligned_empty(nbytes)
        block = self._blocks.get(name)
        if block is None or block.nbytes < nbytes:
            block = self._blocks[name] = aligned_empty(nbytes)
        return block[:nbytes]
