"""An Executable as the driver reads it: records, frames, and relocations for inputs and outputs.

Every buffer is at a fixed address (arena, constants) or at an offset of a *slot*: the inputs first, then
the outputs. Words that hold the address of a slot that moved are rewritten by the driver before a run, from a
table of relocations.
"""

from __future__ import annotations

import ctypes
import itertools
import struct
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, Union

import numpy as np

from stratal.base import native
from stratal.base.artifact import (
    Command,
    Copy,
    CopyDone,
    CopyStart,
    Executable,
    Host,
    Launch,
    Loop,
    Once,
    Value,
    While,
    bodies,
)
from stratal.base.errors import CompilerError
from stratal.memory.plan import round_up
from stratal.runtime.storage import Array, aligned_empty


class Place(NamedTuple):
    """Where a value lies: at `address`, or `address` bytes into the memory of a slot."""

    slot: int | None
    address: int


class OutputCopy(NamedTuple):
    """An output that is not computed where it is returned but copied from a value."""

    value: int
    output: int


Step = Union[Command, OutputCopy]
RECORD_BYTES: Final = native.RECORD_WORDS * native.WORD


@dataclass(slots=True)
class Memory:
    """The memory a program owns besides its outputs; `scratch_stride` bytes belong to each thread."""

    arena: Array
    persistent: Array
    constants: Array
    scratch: Array
    scratch_stride: int
    constant_offsets: list[int]

    @property
    def nbytes(self) -> dict[str, int]:
        names = ("arena", "persistent", "constants", "scratch")
        return {name: int(getattr(self, name).nbytes) for name in names}


def allocate(
    executable: Executable, launches: Iterable[Launch], new: Callable[[str, int], Array] | None = None
) -> Memory:
    """Return the program's memory: the arena, what persists, one block of constants, scratch for each thread.

    `new(name, nbytes)` gives the memory of each; 64-byte aligned memory of its own by default.
    """
    new = new or (lambda name, nbytes: aligned_empty(nbytes))
    stride = round_up(max([executable.scratch_bytes, *(launch.scratch_bytes for launch in launches)]))
    offsets, end = [], 0
    for constant in executable.constants:
        offsets.append(end)
        end = round_up(end + len(constant))
    constants = new("constants", end)
    for offset, constant in zip(offsets, executable.constants, strict=True):
        constants[offset : offset + len(constant)] = np.frombuffer(constant, np.uint8)
    scratch = new("scratch", stride * executable.threads)
    arena, persistent = new("arena", executable.arena_bytes), new("persistent", executable.persistent_bytes)
    return Memory(arena, persistent, constants, scratch, stride, offsets)


def address_of(array: Array) -> int:
    return int(array.ctypes.data)


class Places:
    """Answers where each value of a program lies, aliases followed."""

    def __init__(self, executable: Executable, memory: Memory) -> None:
        self._values = {value.id: value for value in executable.values}
        self._num_inputs = len(executable.inputs)
        self._blocks = {
            "arena": (address_of(memory.arena), executable.arena_bytes),
            "persistent": (address_of(memory.persistent), executable.persistent_bytes),
        }
        self._constants = address_of(memory.constants)
        self._constant_offsets = memory.constant_offsets
        self._known: dict[int, Place] = {}

    def value(self, id_: int) -> Value:
        return self._values[id_]

    def root(self, id_: int) -> Value:
        """Return the value whose memory a value shares."""
        value = self._values[id_]
        while value.alias is not None:
            value = self._values[value.alias]
        return value

    def __getitem__(self, id_: int) -> Place:
        place = self._known.get(id_)
        if place is None:
            place = self._known[id_] = self._locate(id_)
        return place

    def row(self, id_: int) -> Value | None:
        """Return the row of another value that a value is or lies in, if it does."""
        value = self._values[id_]
        while value.row is None:
            if value.alias is None:
                return None
            value = self._values[value.alias]
        return value

    def _locate(self, id_: int) -> Place:
        root = self.root(id_)
        if root.home == "input":
            return Place(root.index, 0)
        if root.home == "output":
            return Place(self._num_inputs + root.index, 0)
        if root.home == "const":
            return Place(None, self._constants + self._constant_offsets[root.index])
        start, nbytes = self._blocks[root.home]
        if root.offset < 0 or root.offset + self._values[id_].nbytes > nbytes:
            rule = f"runtime: a value lies outside the {root.home} memory"
            raise CompilerError(rule, got=f"%{id_} at {root.offset}")
        return Place(None, start + root.offset)


class SlotWord(NamedTuple):
    """A word at address `where` that holds the address of a slot and an offset."""

    slot: int
    where: int
    offset: int


class Relocations:
    """The driver's table of the words that hold addresses of slots, and of where each slot was last."""

    def __init__(self, slot_words: Iterable[SlotWord]) -> None:
        self.slot_words: Final = sorted(slot_words)
        words: list[int] = []
        last: list[int] = []
        for slot, group in itertools.groupby(self.slot_words, key=lambda word: word.slot):
            last.append(len(words) + 1)
            places = list(group)
            words += slot, 0, len(places)
            for place in places:
                words += place.where, place.offset
        self.count: Final = len(last)
        self.table: Final = np.array(words or [0], np.int64)
        self._last: Final = last

    def forget(self) -> None:
        """Let the next run write every word: another table has written them since."""
        self.table[self._last] = 0


class Encoding:
    """The binary program.

    The arrays must outlive every run; `command_at` maps a record back to its command.
    """

    def __init__(
        self, executable: Executable, memory: Memory, kernels: dict[str, int], callback: int, num_slots: int
    ) -> None:
        self.places: Final = Places(executable, memory)
        self.error: Final = np.zeros(1, np.int64)
        self.slots: Final = np.zeros(max(num_slots, 1), np.int64)
        self.stale: Final = np.ones(1, np.bool_)  # whether what runs once has to run now
        self._kernels = kernels
        self._callback = callback
        self._frame_tail = (address_of(memory.scratch), memory.scratch_stride, address_of(self.error))
        self._slot_words: list[SlotWord] = []
        self._rows: list[tuple[int, Value]] = []  # words that hold the address of a row, and the row
        before, after = _output_copies(executable, self.places)
        self.command_at: Final[list[Step]] = []
        spans, self.count = self._flatten([*before, *executable.commands, *after])
        self.records: Final = np.zeros((max(len(self.command_at), 1), native.RECORD_WORDS), np.int64)
        self._records_at = address_of(self.records)
        self.frames: Final = np.zeros(sum(map(_frame_words, self.command_at)) + 1, np.int64)
        self._frames_at = address_of(self.frames)
        self._frame_words: list[int] = []
        for index, command in enumerate(self.command_at):
            row = self._record(index, command, spans[index])
            self.records[index, : len(row)] = row
        self.frames[: len(self._frame_words)] = self._frame_words
        self.moves: Final = self._moves()
        self.relocations: Final = Relocations(self._slot_words)

    def context(self, pool: int) -> Array:
        """Return the block `stratal_run` takes."""
        error, slots, table = map(address_of, (self.error, self.slots, self.relocations.table))
        words = [pool, error, 0, self._records_at, self.count, slots, table, self.relocations.count, 0]
        return np.array(words, np.int64)

    def record_at(self, index: int) -> int:
        """Return the address of a record."""
        return self._records_at + index * RECORD_BYTES

    def index_of(self, record: int) -> int:
        """Return which record lies at an address."""
        return (record - self._records_at) // RECORD_BYTES

    def move(self, index: int, counter: int) -> None:
        """Do what a turn of the loop in a record begins with, where nobody runs the loop natively."""
        table = int(self.records[index, 7])
        if not table:
            return
        start = (table - address_of(self.moves)) // native.WORD
        for k in range(int(self.moves[start])):
            word = start + 1 + k * native.MOVE_WORDS
            where, base, stride = (int(w) for w in self.moves[word : word + native.MOVE_WORDS])
            ctypes.c_int64.from_address(where).value = base + counter * stride

    def _flatten(self, commands: list[Step]) -> tuple[list[list[tuple[int, int]]], int]:
        """List every command, nested lists contiguous; return (first record, count) of each one's lists."""
        spans: list[list[tuple[int, int]]] = []
        pending: deque[tuple[int, list[Step]]] = deque([(-1, commands)])
        top = 0
        while pending:
            owner, listed = pending.popleft()
            kept = [c for c in listed if not self._does_nothing(c)]
            if owner < 0:
                top = len(kept)
            else:
                spans[owner].append((len(self.command_at), len(kept)))
            for command in kept:
                if not isinstance(command, OutputCopy):
                    pending.extend((len(self.command_at), list(body)) for body in bodies(command).values())
                self.command_at.append(command)
                spans.append([])
        return spans, top

    def _does_nothing(self, command: Step) -> bool:
        if isinstance(command, Copy):
            ends = command.source, command.target
            moving = any(self.places.row(id_) is not None for id_ in ends)
            same = not moving and self.places[command.source] == self.places[command.target]
            return same or self.places.value(command.source).nbytes == 0
        if isinstance(command, OutputCopy):
            return self.places.value(command.value).nbytes == 0
        return isinstance(command, Launch) and command.chunks <= 0

    def _record(self, index: int, command: Step, spans: list[tuple[int, int]]) -> list[int]:
        def point(word: int, place: Place | int) -> int:
            at = self._records_at + index * RECORD_BYTES + word * native.WORD
            return self._point(at, place) if isinstance(place, Place) else self._point_at(at, place)

        lists = [(self._records_at + start * RECORD_BYTES, count) for start, count in spans]
        if isinstance(command, Launch):
            return [native.LAUNCH, command.chunks, self._kernels[command.kernel], self._frame(command)]
        if isinstance(command, (Host, CopyStart, CopyDone)):
            return [native.HOST, index, self._callback]
        if isinstance(command, Copy):
            nbytes = self.places.value(command.source).nbytes
            return [native.COPY, nbytes, point(2, command.target), point(3, command.source)]
        if isinstance(command, OutputCopy):
            source, target = self.places[command.value], Place(command.output, 0)
            return [native.COPY, self.places.value(command.value).nbytes, point(2, target), point(3, source)]
        if isinstance(command, Loop):
            ((body, count),) = lists
            counter = point(2, self.places[command.counter])
            trips_value = 0 if command.trips_value is None else point(3, self.places[command.trips_value])
            trips = max(command.trips, 0)
            return [native.LOOP, trips, counter, trips_value, body, count, int(command.reverse)]
        if isinstance(command, Once):
            ((body, count),) = lists
            return [native.BRANCH, count, address_of(self.stale), body, body, 0]
        (first, num_first), (second, num_second) = lists
        opcode = native.WHILE if isinstance(command, While) else native.BRANCH
        return [opcode, num_first, point(2, self.places[command.predicate]), first, second, num_second]

    def _point(self, where: int, place: Place) -> int:
        """Return the address of a place; a slot's is written at `where` before a run."""
        if place.slot is not None:
            self._slot_words.append(SlotWord(place.slot, where, place.address))
        return place.address

    def _point_at(self, where: int, id_: int) -> int:
        """Return the address of a value; that of a row is written at `where` before each turn of its loop."""
        row = self.places.row(id_)
        if row is None:
            return self._point(where, self.places[id_])
        self._rows.append((where, row))
        return 0

    def _moves(self) -> Array:
        """Return the tables of the loops whose turns move rows, and enter them in the loops' records.

        A row may lie in a row of a loop further out, which then moves what the inner one counts from.
        """
        loops = {c.counter: k for k, c in enumerate(self.command_at) if isinstance(c, Loop)}
        sizes = dict.fromkeys(loops, 0)
        for _, row in self._rows:
            found: Value | None = row
            while found is not None:
                assert found.row is not None and found.alias is not None
                sizes[found.row] += 1
                found = self.places.row(found.alias)
        moving = {counter: n for counter, n in sizes.items() if n}
        table = np.zeros(sum(1 + native.MOVE_WORDS * n for n in moving.values()) + 1, np.int64)
        at, start = {}, 0
        for counter, n in moving.items():
            self.records[loops[counter], 7] = address_of(table) + start * native.WORD
            table[start], at[counter] = n, start + 1
            start += 1 + native.MOVE_WORDS * n
        pending = list(self._rows)
        while pending:
            where, row = pending.pop()
            assert row.row is not None and row.alias is not None
            word = at[row.row]
            at[row.row] += native.MOVE_WORDS
            base_at = address_of(table) + (word + 1) * native.WORD
            outer = self.places.row(row.alias)
            base = 0 if outer is not None else self._point(base_at, self.places[row.alias])
            if outer is not None:
                pending.append((base_at, outer))
            table[word : word + native.MOVE_WORDS] = where, base, row.nbytes
        return table

    def _frame(self, launch: Launch) -> int:
        """Append the Frame of a launch, its tables behind it; return its address."""
        if launch.chunks > native.MAX_CHUNKS:
            got = f"{launch.chunks} of {launch.kernel}"
            raise CompilerError("runtime: too many chunks in one launch", got=got)
        words = self._frame_words
        start = self._frames_at + len(words) * native.WORD
        buffers = launch.reads + launch.writes
        at_buffers = start + native.FRAME_WORDS * native.WORD
        at_ints = at_buffers + len(buffers) * native.WORD
        words += at_buffers, at_ints, at_ints + len(launch.ints) * native.WORD, *self._frame_tail
        for k, id_ in enumerate(buffers):
            words.append(self._point_at(at_buffers + k * native.WORD, id_))
        words += launch.ints
        words += [struct.unpack("q", struct.pack("d", number))[0] for number in launch.floats]
        return start


def _frame_words(command: Step) -> int:
    if not isinstance(command, Launch):
        return 0
    tables = len(command.reads) + len(command.writes) + len(command.ints) + len(command.floats)
    return native.FRAME_WORDS + tables


def _output_copies(executable: Executable, places: Places) -> tuple[list[OutputCopy], list[OutputCopy]]:
    """Return the copies that make outputs of values which live elsewhere, before and after the commands.

    An input returned as it came is copied before: a state input means its old value. Everything else is
    copied after.
    """
    before: list[OutputCopy] = []
    after: list[OutputCopy] = []
    for position, id_ in enumerate(executable.outputs):
        root = places.root(id_)
        if root.home == "output" and root.index == position:
            continue
        copy = OutputCopy(id_, len(executable.inputs) + position)
        (before if places.value(id_).home == "input" else after).append(copy)
    return before, after
