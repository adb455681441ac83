"""The checked run: every command alone, with proof that it wrote only its write set and read nothing dead.

Inputs and outputs lie in guarded memory, all memory is watched byte by byte, and the control flow is walked
here. Before a command all arena bytes that no living value holds are set to 0xFF, a NaN in every float
format; after it every byte outside its write set must be what it was, and so must the guards around each
block.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Final

import numpy as np

from stratal.base.artifact import Branch, Command, Copy, Executable, Host, Launch, Loop, Once, While
from stratal.base.errors import VerifyError
from stratal.memory.liveness import Path, analyse, roots
from stratal.memory.plan import round_up
from stratal.runtime import encode
from stratal.runtime.host import HostCalls
from stratal.runtime.pool import Pool
from stratal.runtime.storage import Array, Storage, aligned_empty

POISON: Final = 0xFF
GUARD: Final = 0xA7
GUARD_BYTES: Final = 4096


class GuardedBlock:
    """Memory with guards on both sides; `payload` is what the program may use."""

    def __init__(self, name: str, nbytes: int) -> None:
        self.name: Final = name
        self._all: Final = aligned_empty(2 * GUARD_BYTES + round_up(nbytes))
        self._all[:] = GUARD
        self.payload: Final[Array] = self._all[GUARD_BYTES : GUARD_BYTES + nbytes]
        self.address: Final = encode.address_of(self.payload)
        self._before: Final = self._all.copy()

    def snapshot(self) -> None:
        self._before[:] = self._all

    def first_change(self, allowed: Sequence[tuple[int, int]]) -> int | None:
        """Return the first offset that changed outside the allowed (address, bytes); guards count."""
        changed = self._all != self._before
        for address, nbytes in allowed:
            start = address - self.address
            if 0 <= start <= self.payload.nbytes:
                changed[GUARD_BYTES + start : GUARD_BYTES + start + nbytes] = False
        where = np.flatnonzero(changed)
        return int(where[0]) - GUARD_BYTES if len(where) else None


class CheckedRun:
    """Runs an encoded program command by command.

    `blocks` hold the program's own memory; `arena` is one of them.
    """

    def __init__(
        self, executable: Executable, encoding: encode.Encoding, blocks: dict[str, GuardedBlock], pool: Pool,
        host: HostCalls
    ) -> None:
        live = analyse(executable.commands, roots(executable.values))
        self._executable = executable
        self._encoding = encoding
        self._blocks = blocks
        self._host = host
        self._context = encoding.context(pool.address)
        self._runner = pool.runner(encode.address_of(self._context))
        self._moments = {leaf[0]: t for t, leaf in enumerate(live.leaves) if leaf is not None}
        self._records = {id(command): k for k, command in enumerate(encoding.command_at)}
        values = {value.id: value for value in executable.values}
        shared = roots(executable.values)
        kept = {shared[i] for i in executable.outputs}
        self._holders: list[tuple[int, int, int, int]] = []  # first, last moment; start, end in the arena
        for id_, root in shared.items():
            life, owner = live.intervals.get(root), values[root]
            if life is not None and owner.home == "arena":
                last = live.num_moments if root in kept else life.last
                self._holders.append((life.first, last, owner.offset, owner.offset + values[id_].nbytes))
        self._slots: list[GuardedBlock] = []
        self._turns: dict[int, int] = {}  # by counter: its cell holds it only while somebody reads it

    def run(self, inputs: Sequence[Storage], outputs: Sequence[Storage]) -> tuple[int, int]:
        """Run once, filling outputs and updating states; return the error code and the record that failed.

        Raises: VerifyError naming the command that broke a rule.
        """
        self._slots = [GuardedBlock(f"input {k}", _span(s)) for k, s in enumerate(inputs)]
        self._slots += [GuardedBlock(f"output {k}", _span(s)) for k, s in enumerate(outputs)]
        guarded = [_inside(block, s) for block, s in zip(self._slots, (*inputs, *outputs), strict=True)]
        for copy, storage in zip(guarded, inputs, strict=False):
            copy.array[...] = storage.array
        self._encoding.slots[: len(guarded)] = [s.address for s in guarded]
        with self._host.during(guarded):
            code = self._run(self._executable.commands)
        if not code:
            for position in self._executable.states:
                inputs[position].array[...] = guarded[position].array
            for copy, storage in zip(guarded[len(inputs) :], outputs, strict=True):
                storage.array[...] = copy.array
        self._slots = []
        return code, int(self._context[2])

    def _run(self, commands: tuple[Command, ...]) -> int:
        """Run the whole: output copies before, commands, output copies after; relocate on the way."""
        top = self._encoding.command_at[: self._encoding.count]
        copies = [k for k, command in enumerate(top) if isinstance(command, encode.OutputCopy)]
        inner = [k for k, command in enumerate(top) if not isinstance(command, encode.OutputCopy)]
        first = inner[0] if inner else len(top)
        self._native(0, 0, relocate=True)
        for k in copies:
            if k < first:
                self._native(k, 1)
        code = self._list(commands, ())
        if not code:
            for k in copies:
                if k > first:
                    self._native(k, 1)
        return code

    def _native(self, record: int, count: int, *, relocate: bool = False) -> int:
        self._context[3] = self._encoding.record_at(record)
        self._context[4] = count
        self._context[7] = self._encoding.relocations.count if relocate else 0
        return self._runner()

    def _list(self, commands: tuple[Command, ...], path: Path) -> int:
        for k, command in enumerate(commands):
            code = self._command(command, (*path, k))
            if code:
                return code
        return 0

    def _command(self, command: Command, path: Path) -> int:
        if isinstance(command, (Launch, Copy, Host)):
            return self._leaf(command, path)
        if isinstance(command, Loop):
            return self._loop(command, path)
        if isinstance(command, Once):
            return self._once(command, path)
        if isinstance(command, Branch):
            taken = self._byte(command.predicate)
            return self._list(command.then if taken else command.otherwise, (*path, 0 if taken else 1))
        return self._while(command, path)

    def _loop(self, command: Loop, path: Path) -> int:
        trips = command.trips
        if command.trips_value is not None:
            trips = max(0, min(trips, self._cell(command.trips_value).value))
        for turn in range(trips):
            counter = trips - 1 - turn if command.reverse else turn
            self._cell(command.counter).value = self._turns[command.counter] = counter
            self._encoding.move(self._records[id(command)], counter)
            code = self._list(command.body, (*path, 0))
            if code:
                return code
        return 0

    def _once(self, command: Once, path: Path) -> int:
        """Run a body that may be skipped: where it should be, it makes again what it made before."""
        kept = self._blocks["persistent"].payload
        before = None if self._encoding.stale[0] else kept.copy()
        code = self._list(command.body, (*path, 0))
        if before is not None and not code and not np.array_equal(before, kept):
            raise VerifyError(
                "runtime: what is prepared once would have come out otherwise now",
                got=f"byte {int(np.flatnonzero(before != kept)[0])} of the kept memory differs",
                hint="a frozen input was written, and nobody took notice of it",
            )
        return code

    def _while(self, command: While, path: Path) -> int:
        code = self._list(command.condition, (*path, 0))
        while not code and self._byte(command.predicate):
            code = self._list(command.body, (*path, 1)) or self._list(command.condition, (*path, 0))
        return code

    def _leaf(self, command: Launch | Copy | Host, path: Path) -> int:
        record = self._records.get(id(command))
        if record is None:  # a copy onto itself: encoded as nothing
            return 0
        self._poison(self._moments[path])
        watched = [*self._blocks.values(), *self._slots]
        for block in watched:
            block.snapshot()
        code = self._native(record, 1)
        places = self._encoding.places
        allowed = [(self._address(id_), places.value(id_).nbytes) for id_ in command.writes]
        for block in watched:
            scratch = [(block.address, block.payload.nbytes)] if block.name == "scratch" else []
            offset = block.first_change([*allowed, *scratch])
            if offset is not None:
                raise VerifyError(
                    "runtime: a command writes outside its write set",
                    got=f"{command.label or command!r} changed byte {offset} of {block.name}"[:500],
                    where=getattr(command, "where", ()),
                    hint="the command's kernel or the memory plan is wrong",
                )
        return code

    def _poison(self, moment: int) -> None:
        """Overwrite what no value holds: alive is what was written before and is still needed now."""
        arena = self._blocks["arena"].payload
        held = np.zeros(arena.nbytes, np.bool_)
        for first, last, start, end in self._holders:
            if first < moment <= last:
                held[start:end] = True
        arena[~held] = POISON

    def _address(self, id_: int) -> int:
        places = self._encoding.places
        row, place = places.row(id_), places[id_]
        if row is not None:
            assert row.row is not None and row.alias is not None
            return self._address(row.alias) + self._turns[row.row] * row.nbytes
        return place.address if place.slot is None else self._slots[place.slot].address + place.address

    def _cell(self, id_: int) -> ctypes.c_int64:
        return ctypes.c_int64.from_address(self._address(id_))

    def _byte(self, id_: int) -> int:
        return ctypes.c_uint8.from_address(self._address(id_)).value


def _span(storage: Storage) -> int:
    """Return the bytes from the first to the last element."""
    type_, strides, _ = storage.layout
    if not type_.nbytes:
        return 0
    return sum((n - 1) * s for n, s in zip(type_.ints, strides, strict=True)) + type_.dtype.itemsize


def _inside(block: GuardedBlock, storage: Storage) -> Storage:
    """Return storage of the same layout in a guarded block."""
    type_, strides, _ = storage.layout
    return Storage(type_, np.ndarray(type_.ints, type_.dtype.np, block.payload.data, 0, strides))
