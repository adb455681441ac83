"""MPI's own all-reduce, which cannot be broken off: entered once all ranks have come, and watched over.

    ledger: every rank is in this very collective -> MPI's call
    the call takes longer than the time-out       -> say who does what, end all ranks

A rank that does not come, comes to another collective, or has ended is found before the call, as in the
rounds of other algorithms. What is left is a rank that is stopped or breaks off between its line in the
ledger and its call: microseconds, so the price is the job, not an error that a script could catch.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from stratal.distributed.algorithms import Combine, Whole
from stratal.distributed.ledger import Ledger

# Where MPI's sums are NumPy's up to their order: its maximum does not pass NaN on.
OPERATIONS: Final[dict[Combine, str]] = {np.add: "SUM", np.multiply: "PROD"}
DTYPES: Final = {("f", 4), ("f", 8), ("i", 4), ("i", 8)}
_LOOK_S: Final = 0.25


def takes(combine: np.ufunc, dtype: np.dtype[Any]) -> bool:
    """Return whether MPI's own call makes this reduction."""
    return combine in OPERATIONS and (dtype.kind, dtype.itemsize) in DTYPES and dtype.isnative


class OwnCall:
    """MPI's all-reduce over one communicator, in place; one thread at a time calls it."""

    def __init__(self, mpi: Any, comm: Any, ledger: Ledger) -> None:
        self._all_reduce: Final = comm.Allreduce
        self._in_place: Final = mpi.IN_PLACE
        self._operations: Final = {combine: getattr(mpi, name) for combine, name in OPERATIONS.items()}
        self._ledger: Final = ledger
        self._inside: tuple[int, str] | None = None  # number, what

    def run(self, whole: Whole, number: int, what: str) -> None:
        """Reduce a buffer over all ranks, which are in this collective already."""
        operation = self._operations[whole.combine]
        self._inside = number, what
        try:
            self._all_reduce(self._in_place, whole.buffer, operation)
        finally:
            self._inside = None

    def watch(self, seconds: float, abort: Callable[[int], None]) -> None:
        """End all ranks from a thread of its own where a call takes longer than that."""
        threading.Thread(target=self._watch, args=(seconds, abort), name="mpi-watch", daemon=True).start()

    def _watch(self, seconds: float, abort: Callable[[int], None]) -> None:
        before, since = None, 0.0
        while True:
            time.sleep(_LOOK_S)
            inside = self._inside
            if inside is None or inside is not before:
                before, since = inside, time.monotonic()
                continue
            number, what = inside
            ranks = range(len(self._ledger.lines))
            found = self._ledger.trouble(number, what, ranks)
            if found is None and time.monotonic() - since > seconds:
                found = self._ledger.timed_out(number, what, ranks, seconds)
            if found is not None and self._inside is inside:
                where = self._ledger.where(self._ledger.rank)
                print(
                    f"stratal: {found.rule}\n  got:   {found.got}\n  where: {where}",
                    file=sys.stderr,
                    flush=True,
                )
                abort(1)
