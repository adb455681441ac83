"""Vectors whose lanes lie apart in memory: neighbours of each lane are read and written together, and turned
in registers.

A gather of 16 elements takes longer than 16 loads of four neighbours each, and most kernels that read one
element per lane read the ones beside it too: a copy into another order, a tile of an image, a window. So four
neighbours (two of eight bytes) are read per lane, and turned into four vectors; stores go the other way.
Words of several short numbers are moved as elements of four bytes are. Lanes known not to run are left out.
Lanes a few elements apart, windows of a pooling for instance, need no more than the vectors they lie in.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Final, NamedTuple

from stratal.base.target import Instructions
from stratal.codegen.placing import Place, Placing, Scope
from stratal.codegen.scalar import mangled, vector_of
from stratal.loops import index
from stratal.loops.expr import Buffer
from stratal.loops.stmt import Kernel

CHUNK_BYTES: Final = 16  # of neighbours: what shuffles within 128 bits turn
PAIR: Final = 2  # vectors that lie between each other's lanes, as real and imaginary parts do
LINE_BYTES: Final = 64  # the longest run that is stored at once
NEAR: Final = 4  # elements from lane to lane that are read with all between


class Run(NamedTuple):
    """Vectors to be stored at neighbouring places, from one on; lanes are equally far apart."""

    buffer: Buffer
    place: Place
    memory: str
    running: tuple[bool, ...]  # by lane
    values: list[str]

    @property
    def lanes(self) -> int:
        return len(self.running)


class LaneTranspose(Placing):
    """Reads and writes vectors of lanes that lie apart.

    `uniform` are masks that all lanes agree in; `runs` are stores that wait for their neighbours.
    """

    def __init__(self, kernel: Kernel, instructions: Instructions) -> None:
        super().__init__(kernel, instructions)
        self.uniform: set[str] = set()
        self.runs: dict[Buffer, Run] = {}

    def _push(self, scope: Scope) -> Scope:
        self._end_runs()
        return super()._push(scope)

    def _pop(self) -> None:
        self._end_runs()
        super()._pop()

    @abstractmethod
    def _pointer(self, buffer: Buffer, place: Place, mask: str | None) -> str:
        """Return the address of an element."""

    def _running(self, mask: str | None) -> tuple[bool, ...] | None:
        """Return which lanes run under a mask, where that is known now; the first, whose address stands for
        all, must be one of them.
        """
        if mask is None:
            return (True,) * self.lanes
        known = self.known_masks.get(mask, ())
        return known if known and known[0] else None

    # -- loads -----------------------------------------------------------------------------------------------
    def _turned(self, buffer: Buffer, place: Place, memory: str, mask: str | None) -> str | None:
        """Return the vector at a place from a window of neighbours; None if there is no such window.

        Lanes that do not run hold zeros.
        """
        running = self._running(None if mask in self.uniform else mask)
        unit = _unit(buffer, memory)
        count = self._count(buffer, memory) if (place.stride or 0) > unit and running else 0
        if not count or running is None or any(self._known(a).loads for a, _ in place.terms):
            return None
        scope = self._scope_of(place)
        low, high = _bounds(place, running)
        last = buffer.size - unit
        one_register = buffer.dtype.itemsize * self.lanes <= LINE_BYTES
        if unit == 1 and (place.stride or 0) <= NEAR and all(running) and one_register:
            found = self._near(buffer, place, memory, scope, (low, last - high))
            if found is not None:
                return found
        starts = range(place.constant, place.constant - count * unit, -unit)  # mostly read in order
        key = ("window", buffer, place.terms, place.stride, memory, running)
        for k, start in enumerate(starts):
            found = scope.memo.get((key, start, k))
            if found is not None:
                return found
        exists = [s for s in starts if low + s >= 0 and high + s + (count - 1) * unit <= last]
        window = place._replace(constant=(exists or starts)[0])
        vectors = self._window(buffer, window, memory, running, scope, masked=not exists)
        for k, vector in enumerate(vectors):
            scope.memo[key, window.constant, k] = vector
        return vectors[(place.constant - window.constant) // unit]

    def _near(
        self, buffer: Buffer, place: Place, memory: str, scope: Scope, room: tuple[int, int]
    ) -> str | None:
        """Return the vector at a place whose lanes lie near, out of all the vectors they lie in, which are
        read as they lie; None if some of that does not exist.

        `room` has the elements of the buffer before and behind the place, its constant left out.
        """
        apart = place.stride or 1
        start = place.constant - place.constant % apart
        if room[0] + start < 0 or start + apart - 1 > room[1]:
            return None
        ty, lanes, size = vector_of(memory, self.lanes), self.lanes, buffer.dtype.itemsize
        key = ("near", buffer, place.terms, apart, memory, start)
        if (key, 0) not in scope.memo:
            pointer = self._pointer(buffer, place._replace(constant=start), None)
            self.target = scope
            for k in range(apart):
                at = self._append(f"getelementptr i8, ptr {pointer}, i64 {k * lanes * size}")
                scope.memo[key, k] = self._append(f"load {ty}, ptr {at}, align {size}")
        self.target = scope
        found = scope.memo[key, 0]
        wanted = [lane * apart + place.constant - start for lane in range(lanes)]  # of all that was read
        position = [e % lanes for e in wanted]
        for k in range(1, apart):
            numbers = [p if e // lanes < k else lanes + p for e, p in zip(wanted, position, strict=True)]
            found = self.scalars.shuffle(ty, found, scope.memo[key, k], numbers)
            position = [
                lane if e // lanes <= k else p
                for lane, (e, p) in enumerate(zip(wanted, position, strict=True))
            ]
        return found

    def _count(self, buffer: Buffer, memory: str) -> int:
        """Return how many neighbours are moved at once; 0 if lanes are not moved so."""
        size = buffer.dtype.itemsize * _unit(buffer, memory)
        if buffer in self.mutable or size not in (4, 8) or memory in ("i1", "i8"):
            return 0
        count = CHUNK_BYTES // size
        return count if self.lanes and self.lanes % count == 0 else 0

    def _scope_of(self, place: Place) -> Scope:
        branch = max((k for k, s in enumerate(self.scopes) if s.branch), default=0)
        return self.scopes[max((branch, *(self._known(a).depth for a, _ in place.terms)))]

    def _window(
        self, buffer: Buffer, place: Place, memory: str, running: tuple[bool, ...], scope: Scope, *,
        masked: bool
    ) -> list[str]:
        """Return the vectors at neighbouring places, from one on.

        With `masked`, what does not exist for all lanes is not read: nobody needs it.
        """
        count, unit = self._count(buffer, memory), _unit(buffer, memory)
        start = self._pointer(buffer, place, None)
        self.target = scope
        small, size = vector_of(memory, count), buffer.dtype.itemsize
        span = place.stride * (_last(running) + 1) - place.stride  # type: ignore[operator]
        mask = self._inside(buffer, start, count, unit, buffer.size - span) if masked else None
        rows = []
        for lane, runs in enumerate(running):
            if not runs:
                rows.append("zeroinitializer")
                continue
            step = lane * (place.stride or 0) * size
            at = self._append(f"getelementptr i8, ptr {start}, i64 {step}")
            if mask is None:
                rows.append(self._append(f"load {small}, ptr {at}, align {size}"))
                continue
            name = f"llvm.masked.load.{mangled(memory, count)}.p0"
            given = ("ptr", f"align {size} {at}"), (f"<{count} x i1>", mask), (small, "zeroinitializer")
            rows.append(self.scalars.intrinsic(name, small, given))
        joined = [self.scalars.joined(rows[k::count], memory, count) for k in range(count)]
        return self._exchange(joined, memory, self.lanes)

    def _inside(self, buffer: Buffer, start: str, count: int, unit: int, size: int) -> str:
        """Return which of `count` neighbours, each of `unit` elements, from an address on are among the first
        `size` elements of a buffer.
        """
        base = self._append(f"ptrtoint ptr {self.pointers[buffer]} to i64")
        distance = self._append(f"sub i64 {self._append(f'ptrtoint ptr {start} to i64')}, {base}")
        ty, itemsize = f"<{count} x i64>", buffer.dtype.itemsize
        first = self._append(f"insertelement {ty} poison, i64 {distance}, i64 0")
        all_ = self._append(f"shufflevector {ty} {first}, {ty} poison, <{count} x i32> zeroinitializer")
        steps = ", ".join(f"i64 {k * unit * itemsize}" for k in range(count))
        positions = self._append(f"add {ty} {all_}, <{steps}>")
        return self._append(f"icmp ult {ty} {positions}, splat (i64 {(size - unit + 1) * itemsize})")

    # -- stores ----------------------------------------------------------------------------------------------
    def _put(self, buffer: Buffer, place: Place, memory: str, value: str) -> bool:
        """Store a vector of lanes that lie apart later, with its neighbours; return whether that is done."""
        count, running = self._count(buffer, memory), self._running(self.exec_mask)
        if not count or running is None:
            return False
        fills_gaps = place.stride == PAIR and all(running)  # pairs of full vectors do
        if (place.stride or 0) < count and not fills_gaps:
            return False
        run = self.runs.get(buffer)
        if run is not None:
            following = run.place._replace(constant=run.place.constant + len(run.values))
            if following == place and run.running == running:
                run.values.append(value)
            else:
                self._end_run(buffer)
                run = None
        if run is None:
            run = self.runs[buffer] = Run(buffer, place, memory, running, [value])
        most = max(count, min(self.lanes, LINE_BYTES // buffer.dtype.itemsize))
        if len(run.values) == (PAIR if place.stride == PAIR else most):
            self._end_run(buffer)
        return True

    def _end_runs(self) -> None:
        """Write what waits: the scope it was computed in ends, or its order begins to matter."""
        for buffer in list(self.runs):
            self._end_run(buffer)

    def _end_run(self, buffer: Buffer) -> None:
        run = self.runs.pop(buffer, None)
        if run is None:
            return
        self.target = self.scopes[-1]
        if len(run.values) == run.place.stride == PAIR and all(run.running):
            self._store_pairs(run)
            return
        count = CHUNK_BYTES // buffer.dtype.itemsize
        if len(run.values) == run.lanes > count:
            self._store_rows(run, 0, self._lines(run.values, run.memory, run.lanes, count))
            return
        for first in range(0, len(run.values), count):
            some = run.values[first : first + count]
            turned = self._exchange([*some, *["poison"] * (count - len(some))], run.memory, run.lanes)
            ty = vector_of(run.memory, run.lanes)
            rows = []
            for lane in range(run.lanes):
                group, row = divmod(lane, count)
                numbers = range(group * count, group * count + len(some))
                rows.append(self.scalars.shuffle(ty, turned[row], "poison", numbers))
            self._store_rows(run, first, rows, len(some))

    def _store_pairs(self, run: Run) -> None:
        """Store two vectors whose lanes take turns in memory."""
        both, ty = vector_of(run.memory, PAIR * run.lanes), vector_of(run.memory, run.lanes)
        numbers = [side * run.lanes + k for k in range(run.lanes) for side in range(PAIR)]
        woven = self.scalars.shuffle(ty, run.values[0], run.values[1], numbers)
        pointer = self._pointer(run.buffer, run.place, None)
        self.target = self.scopes[-1]
        self._line(f"  store {both} {woven}, ptr {pointer}, align {run.buffer.dtype.itemsize}")

    def _lines(self, values: list[str], memory: str, lanes: int, count: int) -> list[str]:
        """Return the transpose of as many vectors as they have lanes."""
        groups = [self._exchange(values[k : k + count], memory, lanes) for k in range(0, lanes, count)]
        rows = [""] * lanes
        for k in range(count):
            rows[k::count] = self._exchange([group[k] for group in groups], memory, lanes, count)
        return rows

    def _store_rows(self, run: Run, first: int, rows: list[str], length: int = 0) -> None:
        """Store one short vector per lane, from the `first` place of a run on."""
        small = vector_of(run.memory, length or run.lanes)
        start = self._pointer(run.buffer, run.place._replace(constant=run.place.constant + first), None)
        self.target = self.scopes[-1]
        for lane, row in enumerate(rows):
            if not run.running[lane]:
                continue
            step = lane * (run.place.stride or 0)
            at = self._append(f"getelementptr {run.memory}, ptr {start}, i64 {step}")
            self._line(f"  store {small} {row}, ptr {at}, align {run.buffer.dtype.itemsize}")

    # -- shuffles --------------------------------------------------------------------------------------------
    def _exchange(self, vectors: list[str], memory: str, lanes: int, unit: int = 1) -> list[str]:
        """Exchange rows and columns of each square of n units of n vectors: its own inverse."""
        n = len(vectors)
        ty = vector_of(memory, lanes)
        for _ in range(n.bit_length() - 1):
            pairs = zip(vectors[: n // 2], vectors[n // 2 :], strict=True)
            vectors = [
                self.scalars.shuffle(ty, a, b, numbers)
                for a, b in pairs
                for numbers in (_woven(lanes, n, half, unit) for half in (0, n // 2))
            ]
        return vectors


def _woven(lanes: int, n: int, first: int, unit: int) -> list[int]:
    """Return numbers that take turns between two vectors: half of each square of n units, from `first` on."""
    return [
        (group + k) * unit + e + side * lanes
        for group in range(0, lanes // unit, n)
        for k in range(first, first + n // 2)
        for side in (0, 1)
        for e in range(unit)
    ]


def _unit(buffer: Buffer, memory: str) -> int:
    """Return how many elements lie in what is moved: an element, or a word of several short numbers."""
    return max(1, 4 // buffer.dtype.itemsize) if memory == "i32" else 1


def _last(running: tuple[bool, ...]) -> int:
    """Return the last lane that runs."""
    return max(lane for lane, runs in enumerate(running) if runs)


def _bounds(place: Place, running: tuple[bool, ...]) -> tuple[int, int]:
    """Return the least and greatest offset of an access, its constant left out."""
    low, high = 0, (place.stride or 0) * _last(running)
    for atom, c in place.terms:
        a, b = index.bounds(atom)
        low, high = low + min(a * c, b * c), high + max(a * c, b * c)
    return low, high
