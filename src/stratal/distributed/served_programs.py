"""Workers of a parameter server run one program: each says which one before the first push made with it.

    worker   program a1b2.. -> [12 bytes, on a tag of their own] push push .. program c3d4.. -> [12 bytes] ..
    server   step k of any worker -> the program of step k of all others, else refused before it is taken
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from stratal.base.source import user_line
from stratal.distributed.errors import ProgramMismatchError

Array = np.ndarray[Any, Any]
LENGTH: Final = 12  # bytes
OFFSET: Final = 500  # from the tag of pushes to that of what is said of programs


def message_of(program: str) -> Array:
    """Return what a worker sends for the digest of a program; for none where a step is not compiled."""
    return np.frombuffer(program[:LENGTH].ljust(LENGTH).encode(), np.uint8).copy()


class Programs:
    """The programs that the workers of one optimizer run, as a server knows them."""

    def __init__(self, workers: int) -> None:
        self._current: Final = [""] * workers
        self._first: Final[dict[int, tuple[int, str]]] = {}  # who came first to a step, with which program
        self._steps: Final = [-1] * workers  # the last one of each

    def told(self, worker: int, message: Array) -> None:
        """Note which program a worker pushes from now on."""
        self._current[worker] = message.tobytes().decode(errors="replace").strip()

    def check(self, worker: int, step: int) -> None:
        """Note that a worker pushes the gradients of a step. Raises: ProgramMismatchError."""
        program = self._current[worker]
        self._steps[worker] = step
        first, wanted = self._first.setdefault(step, (worker, program))
        for old in [s for s in self._first if s < min(self._steps)]:
            del self._first[old]
        if program != wanted:
            line = user_line()
            raise ProgramMismatchError(
                f"parameter_server: workers run different programs in step {step + 1}",
                got=f"{_said(wanted)} on rank {first}; {_said(program)} on rank {worker}",
                hint="batches of one shape (drop_last=True) and the same code, compiled on all or on none",
            ).at([line] if line else ())  # fmt: skip


def _said(program: str) -> str:
    return f"program {program}" if program else "a step that is not compiled"
