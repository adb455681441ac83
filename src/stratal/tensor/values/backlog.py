"""Bounds pending work: a loop that never reads a value is computed piece by piece.

A piece ends with the op, and at the line, that the last one ended with: it holds whole turns of the loop, so
that its program is found again. Where it is not, as in a loop that writes elsewhere in every turn, pieces get
smaller: they compile sooner, and come again sooner. Where sizes change from turn to turn, each turn is a
piece: a program for all sizes serves it (`lazy/symbolic_sizes`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any, ClassVar, Final

from stratal.base.source import SourceLine
from stratal.base.weak import note
from stratal.tensor.values.handle import Handle
from stratal.tensor.values.live import Handles

Origin = tuple[str | SourceLine | None, ...]  # the name of an op, and its line

MOST_OPS: Final = 1 << 13
LEAST_OPS: Final = 1 << 7
MOST_ANEW: Final = 3  # pieces in a row whose programs were new; the first may hold what came before the loop
FOR_GRADIENTS: Final = 4  # times as many: what a backward pass reads had better run together with it
TURN_OPS: Final = 64  # a turn whose sizes change has as many ops at least
MOST_ORIGINS: Final = 1 << 10
MOST_BYTES: Final = 1 << 28  # of operands without other references, such as the batches of an epoch


class Backlog:
    """Ops of one thread, and bytes of their operands, since what really waits was counted.

    `flush_some(tensor, origin)` is called at the bound: it computes a piece, or corrects the counts;
    `compute_all()` ends a turn. `write_view(tensor, value, track)` returns whether it wrote a view at once.
    """

    flush_some: ClassVar[Callable[..., None]]
    compute_all: ClassVar[Callable[[], None]]
    write_view: ClassVar[Callable[..., bool]]

    def __init__(self) -> None:
        self.operands: Handles = {}  # tensors with a value that ops were applied to
        self.end: Origin | None = None  # of the last piece
        self.piece_ops, self.anew = MOST_OPS, 0
        self.made = 0  # ops, ever
        self.origins: dict[Hashable, tuple[Any, int]] = {}  # what sizes came there last, and when
        self.turn: Hashable = None  # where the turns of a loop begin whose sizes change
        self.turn_made = self.turn_ops = 0  # when the last one began, and how many ops it had
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
        """Note whether a program was compiled for the last piece."""
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
        self.made += ops
        if self.full:
            late = self.ops >= 2 * self.most_ops or self.nbytes >= 2 * MOST_BYTES
            if late or self.end is None or origin == self.end:
                self.flush_some(tensor, origin)

    def note_sizes(self, origin: Hashable, sizes: Any) -> None:
        """Compute what waits if a turn begins here, with other sizes than the turn before."""
        before, made = self.origins.get(origin, (sizes, self.made))
        if len(self.origins) >= MOST_ORIGINS:
            self.origins.clear()
        self.origins[origin] = sizes, self.made
        ops = self.made - made
        if before == sizes or ops < TURN_OPS or self.ops < TURN_OPS:
            return
        if origin == self.turn or self.made - self.turn_made > 2 * self.turn_ops:  # or turns begin elsewhere
            self.turn, self.turn_made, self.turn_ops = origin, self.made, ops
            type(self).compute_all()


class _Here(threading.local):
    def __init__(self) -> None:
        self.backlog: Final = Backlog()
        self.at_once: bool | None = None  # whether the public call under way computes at once


HERE: Final = _Here()  # what is this thread's own
