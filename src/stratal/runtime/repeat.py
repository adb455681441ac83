"""Runs of a loaded program whose inputs, some apart, stay where they are: nothing of those is read again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stratal.runtime.program import LoadedProgram
from stratal.runtime.storage import Storage


class RepeatedProgram:
    """A program bound to the addresses of its inputs, those at the positions `varying` apart.

    Whoever makes one sees to it that the other inputs stay where they are, keep their layouts, and are looked
    at by nobody where they are written. `varying` holds no state.
    """

    def __init__(self, program: LoadedProgram, inputs: Sequence[Storage], varying: Sequence[int]) -> None:
        executable = program.executable
        self._program: Final = program
        self._addresses: Final = [storage.address for storage in inputs]
        self._varying: Final = [(k, program.layouts[k]) for k in varying]
        self._written: Final = {inputs[k].address for k in executable.states}
        self._outputs: Final = list(enumerate(program.output_memory, len(inputs)))

    def run(self, varied: Sequence[Storage]) -> list[Storage] | None:
        """Run once with other storages at the positions that vary.

        None where these need a closer look: nothing has run then.
        """
        program = self._program
        slots = program.slots
        outputs = []
        with program.pool.lock:
            if program.prologue is not None and not program.prologue.stands(self._addresses):
                return None
            if program.bound is not self:
                program.bound = None
                program.encoding.slots[: len(self._addresses)] = self._addresses
                program.bound = self
            for storage, (position, layout) in zip(varied, self._varying):  # noqa: B905 (strict takes longer)
                address = storage.address
                if storage.layout is not layout or address in self._written:
                    return None
                slots[position] = address
            for position, memory in self._outputs:
                storage = memory.take()
                outputs.append(storage)
                slots[position] = storage.address
            program.execute()
        return outputs
