"""Memory touched ahead: the arena of a program gets its pages while the program is still compiled.

The system makes a page when it is touched for the first time, and clears it: for the arena of a training step
that can take longer than the step. How large it will be is about known before the first kernel is scheduled;
from then on a thread touches it, while this process decides and others run LLVM.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable
from typing import Final

from stratal.base.artifact import Executable, flat
from stratal.runtime.host import has_host_calls
from stratal.runtime.storage import Array, aligned_empty
from stratal.runtime.workspace import Workspace

LEAST_BYTES: Final = 32 << 20  # less is touched within milliseconds
MOST_BYTES: Final = 1 << 29  # of a program that may never run
PART_BYTES: Final = 16 << 20  # between two looks at whether that is still wanted
SPARE: Final = 1.5  # an arena is larger than what is foreseen; what nobody touches takes address space only


class ArenaPrefault:
    """The memory of one program that is compiled in a `with` block, that of a workspace where it can be."""

    def __init__(self, workspace: Workspace | None = None) -> None:
        self._workspace = workspace
        self._memory: Array | None = None
        self._thread: threading.Thread | None = None
        self._wanted = True

    def __enter__(self) -> ArenaPrefault:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    def expect(self, nbytes: int) -> None:
        """Touch memory for an arena of about so many bytes; the first time it is worth a thread counts."""
        if self._workspace is not None or self._memory is not None or nbytes < LEAST_BYTES:
            return
        try:
            self._memory = aligned_empty(int(SPARE * nbytes))
        except MemoryError:  # whoever allocates the arena says so
            return
        self._thread = threading.Thread(
            target=self._touch, args=(self._memory[:nbytes][:MOST_BYTES],), daemon=True
        )
        self._thread.start()

    def _touch(self, memory: Array) -> None:
        for start in range(0, memory.nbytes, PART_BYTES):
            if not self._wanted:
                return
            memory[start : start + PART_BYTES : mmap.PAGESIZE] = 0  # NumPy lets other threads run meanwhile

    def _end(self) -> None:
        """Let nothing touch the memory any more."""
        self._wanted = False
        if self._thread is not None:
            self._thread.join()  # within a part
            self._thread = None

    def source(self, executable: Executable) -> Callable[[str, int], Array]:
        """Return what gives a program its memory: a host call could run another one in its workspace."""
        if self._workspace is None or has_host_calls(list(flat(executable.commands))):
            return self.new
        return self._workspace.new

    def new(self, name: str, nbytes: int) -> Array:
        """Return memory, see `encode.allocate`: for the arena what was touched, if it is large enough."""
        self._end()
        if name == "arena" and self._memory is not None and nbytes <= self._memory.nbytes:
            return self._memory[:nbytes]
        return aligned_empty(nbytes)
