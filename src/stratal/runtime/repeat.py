"""Runs of a loaded program whose inputs, some apart, stay where they are: nothing of those is read again."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from stratal.runtime.program import LoadedProgram
from stratal.runtime.storage import Storage

_ADDRESS: Final = attrgetter("address")
_LAYOUT: Final = attrgetter("layout")


class RepeatedProgram:
    """A program bound to the addresses of its inputs, those at the positions `varying` apart.

    Whoever makes one sees to it that the other inputs stay where they are, keep their layouts, and are looked
    at by nobody where they are written. `varying` holds no state.
    """

    def __init__(self, program: LoadedProgram, inputs: Sequence[Storage], varying: Sequence[int]) -> None:
        executable = program.executable
        self._program: Final = program
        self._addresses: Final = [storage.address for storage in inputs]
        self._layouts: Final = [program.layouts[k] for k in varying]
        self._written: Final = {inputs[k].address for k in executable.states}
        outputs = range(len(inputs), len(inputs) + len(executable.outputs))
        self._positions: Final = [*varying, *outputs]

    def run(self, varied: Sequence[Storage]) -> list[Storage] | None:
        """Run once with other storages at the positions that vary.

        None where these need a closer look: nothing has run then.
        """
        program = self._program
        addresses = list(map(_ADDRESS, varied))
        if list(map(_LAYOUT, varied)) != self._layouts or not self._written.isdisjoint(addresses):
            return None
        with program.pool.lock:
            if program.prologue is not None and not program.prologue.stands(self._addresses):
                return None
            if program.bound is not self:
                program.bound = None
                program.encoding.slots[: len(self._addresses)] = self._addresses
                program.bound = self
            slots = program.slots
            outputs = [memory.take() for memory in program.output_memory]
            for position, address in zip(self._positions, (*addresses, *map(_ADDRESS, outputs)), strict=True):
                slots[position] = address
            program.execute()
        return outputs
