"""Times of single commands: a loaded program run again through records that read the clock.

The program's code, memory and threads are the ones it always uses. Only the list of records differs: every
command that does work stands in a TIMED record, and with a trace every launch goes through a TracedCall,
which notes who ran which chunk. The records the program was loaded with stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from stratal.base import native
from stratal.base.artifact import Branch, Launch, Loop, Once, While
from stratal.base.errors import StratalError
from stratal.runtime.encode import RECORD_BYTES, Encoding, Relocations, SlotWord, Step, address_of
from stratal.runtime.pool import LOCK
from stratal.runtime.program import LoadedProgram
from stratal.runtime.storage import Array, Storage

EVENT: Final = np.dtype([("what", "<i8"), ("chunk", "<i8"), ("start_ns", "<i8"), ("end_ns", "<i8")])
_LISTS: Final[dict[type, tuple[int, ...]]] = {  # words of addresses
    Loop: (4,), While: (3, 4), Branch: (3, 4), Once: (3, 4),
}  # fmt: skip


class TimedProgram:
    """A loaded program whose commands are timed one by one.

    `steps` are its commands, those inside loops included. After a run, `calls[i]` and `total_ns[i]` belong to
    `steps[i]`, the last entry of both to the run as a whole. `events_per_log` above zero keeps a trace: that
    many events for each thread, and for the commands. Raises: StratalError for a checked program.
    """

    def __init__(self, loaded: LoadedProgram, *, events_per_log: int = 0) -> None:
        if loaded.checked:
            raise StratalError(
                f"{loaded.name}: a checked run cannot be timed",
                got="STRATAL_VERIFY is on: every byte is compared after every command",
                hint="profile without it",
            )
        self.loaded: Final = loaded
        encoding = loaded.encoding
        self.steps: Final[list[Step]] = encoding.command_at
        self.threads: Final = loaded.pool.threads
        num_steps = len(self.steps)
        self._timings: Final = np.zeros((num_steps + 1, native.TIMING_WORDS), np.int64)
        self._logs: Final = _logs(self.threads + 1, events_per_log)
        self._traced: Final = bool(events_per_log)
        if self._traced:
            self._timings[:, 2] = address_of(self._logs[self.threads])
        self._timings[:, 3] = range(num_steps + 1)
        self._calls: Final = np.zeros((num_steps + 1, native.TRACED_CALL_WORDS), np.int64)
        self._bodies: Final = np.zeros((num_steps + 1, native.RECORD_WORDS), np.int64)
        self._records: Final = np.zeros((num_steps + 1, native.RECORD_WORDS), np.int64)
        for index, step in enumerate(self.steps):
            self._wrap(encoding, index, step)
        self._records[num_steps] = self._timed(num_steps, address_of(self._records), encoding.count)
        self._relocations: Final = Relocations(self._slot_words(encoding))
        self._context: Final = self._make_context(encoding)

    def run(self, inputs: Sequence[Storage]) -> list[Storage]:
        """Run once, as `LoadedProgram.run` does; the times of the run before are forgotten."""
        with LOCK:
            self._timings[:, :2] = 0
            self._relocations.forget()
            try:
                return self.loaded.run_in(self._context, inputs)
            finally:
                self.loaded.encoding.relocations.forget()

    @property
    def calls(self) -> Array:
        """How often each command ran in the last run, int64[len(steps) + 1]."""
        return self._timings[:, 0].copy()

    @property
    def total_ns(self) -> Array:
        """Nanoseconds each command took in the last run, over all its calls, int64[len(steps) + 1]."""
        return self._timings[:, 1].copy()

    def take_events(self) -> tuple[list[Array], int]:
        """Return the events since the last call, and how many found no room.

        One array of EVENT for each thread, with the chunks it ran, and one for the commands. `what` is an
        index of `steps`, or `len(steps)` for a whole run.
        """
        taken, dropped = [], 0
        for log in self._logs:
            count = int(log[0])
            kept = min(count, int(log[1]))
            dropped += count - kept
            words = log[native.LOG_WORDS : native.LOG_WORDS + kept * native.EVENT_WORDS]
            taken.append(words.copy().view(EVENT))
            log[0] = 0
        return taken, dropped

    # -- the records -----------------------------------------------------------------------------------------
    def _wrap(self, encoding: Encoding, index: int, step: Step) -> None:
        lists = _LISTS.get(type(step))
        if lists is not None:  # its lists are the same commands in this array
            self._records[index] = encoding.records[index]
            self._records[index, list(lists)] += address_of(self._records) - encoding.record_at(0)
            return
        body = encoding.record_at(index)
        if self._traced and isinstance(step, Launch):
            kernel, frame = (int(word) for word in encoding.records[index, 2:4])
            log_bytes = int(self._logs.strides[0])
            self._calls[index] = kernel, frame, address_of(self._logs), log_bytes, index
            self._bodies[index] = encoding.records[index]
            self._bodies[index, 2:4] = self.loaded.pool.trace_chunk, address_of(self._calls[index])
            body = address_of(self._bodies[index])
        self._records[index] = self._timed(index, body, 1)

    def _timed(self, index: int, body: int, count: int) -> list[int]:
        return [native.TIMED, 0, address_of(self._timings[index]), 0, body, count, 0, 0]

    def _slot_words(self, encoding: Encoding) -> list[SlotWord]:
        """Return the words that hold addresses of slots, those of loops and branches copied here, too."""
        start, found = encoding.record_at(0), encoding.relocations.slot_words
        distance = address_of(self._records) - start

        def nested(word: SlotWord) -> bool:
            record = (word.where - start) // RECORD_BYTES
            return 0 <= record < len(self.steps) and type(self.steps[record]) in _LISTS

        return [*found, *(w._replace(where=w.where + distance) for w in found if nested(w))]

    def _make_context(self, encoding: Encoding) -> Array:
        context = encoding.context(self.loaded.pool.address)
        context[3:5] = address_of(self._records[-1]), 1
        context[6:8] = address_of(self._relocations.table), self._relocations.count
        return context


def _logs(num_logs: int, capacity: int) -> Array:
    """Return empty logs; pages that no event reaches are never touched."""
    logs = np.zeros((num_logs, native.LOG_WORDS + capacity * native.EVENT_WORDS), np.int64)
    logs[:, 1] = capacity
    return logs
