"""The arena: where each value lies; what lives at the same time never overlaps, and the whole is small.

Values that alias one another are one block, alive as long as any of them. Packing blocks with fixed lives
is NP-hard; a few cheap orders, tried in turn until one is good enough, come within a few per cent of the
lower bound on real programs.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from stratal.base.artifact import Command, Once, Value
from stratal.base.fallback import skippable
from stratal.memory.liveness import Interval, Liveness, analyse, roots

ALIGNMENT: Final = 64
GOOD_ENOUGH: Final = 1.01  # of the lower bound: stop looking for better
MOST_GREEDY: Final = 4000  # blocks up to which the quadratic orders are tried
MOST_REPAIRED: Final = 1200  # blocks up to which an order is improved by repair
WIDE: Final = 1 << 20  # bytes of a block that is kept among its equals, as long as
LITTLE: Final = 1 << 23  # the arena takes no more


class Block(NamedTuple):
    """Memory for one value and all that alias it. `root` is the value whose offset counts."""

    root: int
    members: tuple[int, ...]
    nbytes: int  # rounded up to the alignment
    life: Interval


@dataclass(frozen=True, slots=True)
class ArenaPlan:
    """Blocks with their offsets, the arena's size and the largest sum of blocks alive at one moment."""

    blocks: tuple[Block, ...]
    offsets: tuple[int, ...]
    arena_bytes: int
    live_minimum: int
    num_moments: int


def round_up(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def plan_home(values: Sequence[Value], home: str) -> int:
    """Set the `offset` of every value of one home, `arena` or `persistent`; return the bytes of that memory.

    Each has memory of its own.
    """
    end = 0
    for value in values:
        if value.home == home and value.alias is None:
            value.offset = end
            end += round_up(value.nbytes)
    return end


@skippable(lambda values, *_, **__: plan_home(values, "arena"))
def plan_arena(
    values: Sequence[Value], commands: tuple[Command, ...], *, outputs: Iterable[int] = (),
    compact: bool = False,
) -> int:  # fmt: skip
    """Set the `offset` of every arena value and return the bytes of the arena.

    `outputs` are values still needed after the last command. In a `compact` arena nothing is set apart for
    the sake of caches.
    """
    plan = arrange(values, commands, outputs=outputs, compact=compact)
    offset_of = {m: o for b, o in zip(plan.blocks, plan.offsets, strict=True) for m in b.members}
    for value in values:
        value.offset = offset_of.get(value.id, -1)
    return plan.arena_bytes


def arranged(values: Sequence[Value], commands: tuple[Command, ...], outputs: Iterable[int]) -> ArenaPlan:
    """Return the plan that the offsets of values stand for."""
    live = analyse(commands, roots(values))
    blocks = arena_blocks(values, live, outputs)
    by_id = {value.id: value for value in values}
    offsets = tuple(by_id[block.root].offset for block in blocks)
    height = max((o + b.nbytes for o, b in zip(offsets, blocks, strict=True)), default=0)
    floor = largest_live_sum(blocks, live.num_moments)
    return ArenaPlan(tuple(blocks), offsets, height, floor, live.num_moments)


def arrange(
    values: Sequence[Value], commands: tuple[Command, ...], *, outputs: Iterable[int] = (),
    compact: bool = False,
) -> ArenaPlan:  # fmt: skip
    """Return the plan that `plan_arena` would set, leaving the values alone."""
    live = analyse(commands, roots(values))
    blocks = arena_blocks(values, live, outputs)
    once = _end_of_once(commands, live)  # what runs once shares the arena with what runs each time
    parts = [[b for b in blocks if b.life.last < once], [b for b in blocks if b.life.first >= once]]
    if sum(map(len, parts)) < len(blocks):
        parts = [blocks]
    offset_of: dict[int, int] = {}
    arena_bytes = 0
    for part in parts:
        offsets, height = _packed(part, live.num_moments, compact)
        offset_of.update(zip((b.root for b in part), offsets, strict=True))
        arena_bytes = max(arena_bytes, height)
    floor = largest_live_sum(blocks, live.num_moments)
    placed = tuple([offset_of[b.root] for b in blocks])
    return ArenaPlan(tuple(blocks), placed, arena_bytes, floor, live.num_moments)


def _end_of_once(commands: tuple[Command, ...], live: Liveness) -> int:
    """Return the moment after which the commands come that run each time, 0 where all do."""
    leaves = enumerate(live.leaves, 1)
    return max((t for t, leaf in leaves if leaf and isinstance(commands[leaf[0][0]], Once)), default=0)


def _packed(blocks: Sequence[Block], num_moments: int, compact: bool) -> tuple[list[int], int]:
    """Return the offsets of blocks and their height."""
    if not blocks:
        return [], 0
    offsets, height = pack(blocks, largest_live_sum(blocks, num_moments))
    if WIDE < height < LITTLE and not compact:
        apart, higher = _among_equals(blocks, num_moments)
        if higher < LITTLE:
            return apart, higher
    return offsets, height


def live_minimum(values: Sequence[Value], commands: tuple[Command, ...], outputs: Iterable[int] = ()) -> int:
    """Return the largest sum, over moments, of arena blocks alive then: no plan can be smaller."""
    live = analyse(commands, roots(values))
    return largest_live_sum(arena_blocks(values, live, outputs), live.num_moments)


def arena_blocks(values: Iterable[Value], live: Liveness, outputs: Iterable[int] = ()) -> list[Block]:
    """Return the blocks the arena must hold, in order of their first moment."""
    by_id = {value.id: value for value in values}
    root_of = roots(by_id.values())
    kept = {root_of[i] for i in outputs}
    members: dict[int, list[int]] = {}
    for id_, root in root_of.items():
        if by_id[root].home == "arena":
            members.setdefault(root, []).append(id_)
    blocks = []
    for root, ids in members.items():
        life = live.intervals.get(root)
        nbytes = round_up(max(by_id[i].nbytes for i in ids))
        if root in kept:
            life = Interval(life.first if life else 0, live.num_moments)
        if life is not None:
            blocks.append(Block(root, tuple(ids), nbytes, life))
    return sorted(blocks, key=lambda b: (b.life.first, -b.nbytes, b.root))


def largest_live_sum(blocks: Iterable[Block], num_moments: int) -> int:
    """Return the most bytes that live at one moment."""
    return int(live_bytes(blocks, num_moments).max())


def live_bytes(blocks: Iterable[Block], num_moments: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the bytes that live at each moment."""
    change = np.zeros(num_moments + 2, np.int64)
    for block in blocks:
        change[block.life.first] += block.nbytes
        change[block.life.last + 1] -= block.nbytes
    return np.cumsum(change)


def at_peak(blocks: Sequence[Block], num_moments: int) -> tuple[int, list[Block]]:
    """Return the first moment at which most bytes live, and the blocks alive then, the largest first."""
    moment = int(live_bytes(blocks, num_moments).argmax())
    alive = [b for b in blocks if b.life.first <= moment <= b.life.last]
    return moment, sorted(alive, key=lambda b: -b.nbytes)


def pack(blocks: Sequence[Block], floor: int) -> tuple[list[int], int]:
    """Return an offset per block and the height of the packing; the best of several orders."""
    best, height = _sweep(blocks)
    if height <= floor * GOOD_ENOUGH or len(blocks) > MOST_GREEDY:
        return best, height
    for order in _orders(blocks):
        offsets, reached = _greedy(blocks, order)
        if len(blocks) <= MOST_REPAIRED:
            offsets, reached = _repair(blocks, order, offsets, reached, floor)
        if reached < height:
            best, height = offsets, reached
        if height <= floor * GOOD_ENOUGH:
            break
    return best, height


def _among_equals(blocks: Sequence[Block], num_moments: int) -> tuple[list[int], int]:
    """Pack wide blocks that have an equal over their equals alone, and all others above them.

    Threads share what is of one size out alike, mostly. A line that two processors have read, as they read a
    small operand as a whole, takes five times as long to write as one that a single processor has looked at.
    """
    sizes = Counter(b.nbytes for b in blocks)
    parts: dict[int, list[int]] = {}
    for k, block in enumerate(blocks):
        alike = block.nbytes >= WIDE and sizes[block.nbytes] > 1
        parts.setdefault(block.nbytes if alike else 0, []).append(k)
    offsets, end = [0] * len(blocks), 0
    for _, numbers in sorted(parts.items(), reverse=True):
        part = [blocks[k] for k in numbers]
        placed, height = pack(part, largest_live_sum(part, num_moments))
        for k, offset in zip(numbers, placed, strict=True):
            offsets[k] = end + offset
        end += height
    return offsets, end


def _sweep(blocks: Sequence[Block]) -> tuple[list[int], int]:
    """Give each block, in order of time, the smallest free hole that fits, as an allocator would."""
    offsets = [0] * len(blocks)
    dying = sorted(range(len(blocks)), key=lambda k: blocks[k].life.last)
    free = _FreeList()
    height = died = 0
    for k, block in enumerate(blocks):
        while died < len(dying) and blocks[dying[died]].life.last < block.life.first:
            free.release(offsets[dying[died]], blocks[dying[died]].nbytes)
            died += 1
        offsets[k] = free.take(block.nbytes)
        height = max(height, free.top)
    return offsets, height


class _FreeList:
    """The holes below `top`, sorted by start and by size; no two are adjacent, none touches the top."""

    __slots__ = ("by_size", "by_start", "top")

    def __init__(self) -> None:
        self.by_start: list[tuple[int, int]] = []  # (start, end)
        self.by_size: list[tuple[int, int]] = []  # (size, start)
        self.top = 0

    def take(self, nbytes: int) -> int:
        """Return where `nbytes` go: the smallest hole that holds them, the lowest of equals, or the top."""
        at = bisect.bisect_left(self.by_size, (nbytes, 0))
        if at == len(self.by_size):
            start, self.top = self.top, self.top + nbytes
            return start
        size, start = self.by_size[at]
        self._remove(start, start + size)
        if size > nbytes:
            self._add(start + nbytes, start + size)
        return start

    def release(self, start: int, nbytes: int) -> None:
        """Return memory, joined with the holes beside it."""
        if not nbytes:
            return
        end = start + nbytes
        at = bisect.bisect_left(self.by_start, (start, 0))
        if at < len(self.by_start) and self.by_start[at][0] == end:
            end = self.by_start[at][1]
            self._remove(*self.by_start[at])
        if at and self.by_start[at - 1][1] == start:
            start = self.by_start[at - 1][0]
            self._remove(*self.by_start[at - 1])
        if end == self.top:
            self.top = start
        else:
            self._add(start, end)

    def _add(self, start: int, end: int) -> None:
        bisect.insort(self.by_start, (start, end))
        bisect.insort(self.by_size, (end - start, start))

    def _remove(self, start: int, end: int) -> None:
        del self.by_start[bisect.bisect_left(self.by_start, (start, end))]
        del self.by_size[bisect.bisect_left(self.by_size, (end - start, start))]


def _orders(blocks: Sequence[Block]) -> list[list[int]]:
    """Return the orders worth a try: big first; big and long-lived first; long-lived first; as time goes."""

    def length(k: int) -> int:
        return blocks[k].life.last - blocks[k].life.first + 1

    numbers = range(len(blocks))
    return [
        sorted(numbers, key=lambda k: (-blocks[k].nbytes, -length(k))),
        sorted(numbers, key=lambda k: (-blocks[k].nbytes * length(k), k)),
        sorted(numbers, key=lambda k: (-length(k), -blocks[k].nbytes)),
        list(numbers),
    ]


def _greedy(blocks: Sequence[Block], order: Sequence[int]) -> tuple[list[int], int]:
    """Place blocks in an order, each at the lowest offset where nothing alive at the same time lies."""
    first, last, start, end = (np.zeros(len(blocks), np.int64) for _ in range(4))
    offsets = [0] * len(blocks)
    for placed, k in enumerate(order):
        block = blocks[k]
        meets = (first[:placed] <= block.life.last) & (last[:placed] >= block.life.first)
        offset = _lowest_gap(start[:placed][meets], end[:placed][meets], block.nbytes)
        offsets[k] = offset
        first[placed], last[placed] = block.life
        start[placed], end[placed] = offset, offset + block.nbytes
    return offsets, int(end.max(initial=0))


def _lowest_gap(starts: np.ndarray[Any, Any], ends: np.ndarray[Any, Any], nbytes: int) -> int:
    if not len(starts):
        return 0
    by_start = np.argsort(starts, kind="stable")
    starts = starts[by_start]
    reached = np.maximum.accumulate(ends[by_start])
    if starts[0] >= nbytes:
        return 0
    wide = np.nonzero(starts[1:] - reached[:-1] >= nbytes)[0]
    return int(reached[wide[0]]) if len(wide) else int(reached[-1])


def _repair(
    blocks: Sequence[Block], order: list[int], offsets: list[int], height: int, floor: int, rounds: int = 12
) -> tuple[list[int], int]:
    """Improve an order: what sticks out at the top is placed first in the next try."""
    best, lowest = offsets, height
    for _ in range(rounds):
        if lowest <= floor * GOOD_ENOUGH:
            break
        out = {k for k in order if offsets[k] + blocks[k].nbytes == height}
        order = [k for k in order if k in out] + [k for k in order if k not in out]
        offsets, height = _greedy(blocks, order)
        if height < lowest:
            best, lowest = offsets, height
    return best, lowest
