"""Counts what may wait for its value: a loop that never asks for one is computed piece by piece.

A piece ends with the op, and at the line, that the last one ended with: it holds whole turns of the loop, so
that its program is found again. Where it is not, as in a loop that writes elsewhere in every turn, pieces get
smaller: they compile sooner, and come again sooner.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import ClassVar, Final

from stratal.base.source import SourceLine
from stratal.base.weak import note
from stratal.tensor.values.alive import Handles
from stratal.tensor.values.handle import Handle

Origin = tuple[str | SourceLine | None, ...]  # the name of an op, and its line

MOST_OPS: Final = 1 << 13
LEAST_OPS: Final = 1 << 7
MOST_ANEW: Final = 3  # pieces in a row whose programs were new; the first may hold what came before the loop
FOR_GRADIENTS: Final = 4  # times as many: what a backward pass reads had better run together with it
MOST_BYTES: Final = 1 << 28  # of operands that nobody else holds, such as the batches of an epoch


class Backlog:
    """Ops of one thread, and bytes of their operands, since somebody looked at what really waits.

    `relieve(tensor, origin)` does so when there are too many: it computes a piece, or corrects the counts.
    """

    relieve: ClassVar[Callable[..., None]]

    def __init__(self) -> None:
        self.operands: Handles = {}  # tensors with a value that ops were applied to
        self.end: Origin | None = None  # of the last piece
        self.piece_ops, self.anew = MOST_OPS, 0
        self.clear()

    def clear(self) -> None:
        """Start a new piece."""
        self.ops, self.nbytes, self.most_ops = 0, 0, self.piece_ops

    def begin_piece(self, end: Origin) -> None:
        """Start a new piece after one that ends here."""
        if end != self.end:
            self.end, self.piece_ops, self.anew = end, MOST_OPS, 0
        self.clear()

    def note_program(self, anew: bool) -> None:
        """Hear whether a program was compiled for the last piece."""
        self.anew = self.anew + 1 if anew else 0
        if self.anew == MOST_ANEW:
            self.piece_ops, self.anew = max(self.piece_ops // 4, LEAST_OPS), 0
            self.clear()

    def nothing_waits(self) -> None:
        """Start to count anew: all that waited has its value."""
        self.ops = self.nbytes = 0

    @property
    def full(self) -> bool:
        return self.ops >= self.most_ops or self.nbytes >= MOST_BYTES

    def note_operand(self, tensor: Handle) -> None:
        """Count a tensor that has a value when an op is applied to it for the first time."""
        self.nbytes += tensor.type.nbytes
        note(self.operands, tensor)

    def note_result(self, tensor: Handle, ops: int, origin: Origin) -> None:
        """Count the ops of a new tensor without a value."""
        self.ops += ops
        if self.full:
            late = self.ops >= 2 * self.most_ops or self.nbytes >= 2 * MOST_BYTES
            if late or self.end is None or origin == self.end:
                self.relieve(tensor, origin)


class _Here(threading.local):
    def __init__(self) -> None:
        self.backlog: Final = Backlog()


HERE: Final = _Here()  # what is this thread's own
