"""Copies that a running program begins and waits for: a thread moves bytes between a file and the arena."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from functools import lru_cache
from typing import Final

from stratal.base.artifact import CopyDone, CopyStart
from stratal.engine import Engine, Operation
from stratal.runtime.far_memory import Location, memory_at, read, write


@lru_cache(maxsize=1)
def _engine(process: int) -> Engine:
    """Return the thread that copies, of a process: a fork has none."""
    return Engine(threads=1, name="offload")


class Copies:
    """The copies of one program that are under way, by source and target."""

    def __init__(self) -> None:
        self._under_way: Final[dict[tuple[int, int], Operation]] = {}

    def begin(self, copy: CopyStart, source: Location | int, target: Location | int, nbytes: int) -> None:
        """Begin to copy bytes between two places, of which at most one is in a file."""

        def run() -> None:
            if isinstance(source, Location):
                assert not isinstance(target, Location)
                read(source, memory_at(target, nbytes))
            elif isinstance(target, Location):
                write(target, memory_at(source, nbytes))
            else:
                ctypes.memmove(target, source, nbytes)

        self._under_way[copy.source, copy.target] = _engine(os.getpid()).push(run, name=copy.label or "copy")

    def finish(self, copy: CopyDone) -> None:
        """Return once a copy is done. Raises: OffloadError where it failed."""
        self._under_way.pop((copy.source, copy.target)).wait()

    def drain(self) -> None:
        """Return once none is under way, whatever became of them: a run that failed waits for its copies."""
        while self._under_way:
            _, operation = self._under_way.popitem()
            with suppress(Exception):  # the run failed already, and its own error is raised
                operation.wait()
