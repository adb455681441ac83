"""Runs of a loaded program whose inputs, some apart, stay where they are: nothing of those is read again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from stratal.runtime.program import LoadedProgram
from stratal.runtime.storage import Storage


class RepeatedProgram:
    """A program bound to the addresses of its inputs, those at the positions `varying` apart.

    Whoever makes one sees to it that the other inputs stay where they are, keep their layouts, and are looked
    at by nobody where they are written. `varying` holds no state.
    """

    def __init__(self, program: LoadedProgram, inputs: Sequence[Storage], varying: Sequence[int]) -> None:
        executable = program.executable
        self.layouts: Final = [program.layouts[k] for k in varying]  # of what varies
        self._program: Final = program
        self._addresses: Final = [storage.address for storage in inputs]
        self._written: Final = {inputs[k].address for k in executable.states}
        self._outputs: Final = program.output_memory
        num_slots = len(inputs) + len(self._outputs)
        self._slots: Final = np.array([*varying, *range(len(inputs), num_slots)], np.int64)

    def run(self, addresses: list[int]) -> list[Storage] | None:
        """Run once with what varies at other addresses, in the layouts expected; call with `LOCK` held.

        None where these need a closer look: nothing has run then. The list is used up.
        """
        program = self._program
        if program.prologue is not None and not program.prologue.stands(self._addresses):
            return None
        if self._written and not self._written.isdisjoint(addresses):
            return None
        if program.bound is not self:
            program.bind(self, self._addresses, self._slots)
        outputs = []
        for memory in self._outputs:
            storage = memory.take()
            outputs.append(storage)
            addresses.append(storage.address)
        program.execute(addresses)
        return outputs
