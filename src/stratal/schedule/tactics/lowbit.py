"""Products by packed dot-product instructions (VNNI, AVX512-BF16): 4 bytes or 2 bfloat16 along the
reduction are packed into a word of 32 bits, and the register tiles of other products run over words.

Windows of an image overlap, so no copy of them is made: the image itself is copied with its channels in
words, or read where it lies if they are contiguous and fill words.

Bytes sum in int32. The instructions multiply unsigned bytes by signed ones. Where both operands are of one
kind, the second is shifted by 128 while it is copied into panels, and 128 times the sums of the first one's
rows are put right afterwards: exact, for sums wrap like the result.

Pairs of bfloat16 sum in float32 where the machine has an instruction for that. It rounds after each product,
the later one of a pair first, and takes numbers below the least normal one for 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

from stratal.base.dtypes import DType, bfloat16, float32, int8, int32, uint8
from stratal.base.target import Target
from stratal.loops import index
from stratal.loops.compute import Combiner
from stratal.loops.expr import Buffer, Call, Expr, Load, Var, call, const, guard, lanes
from stratal.loops.lowering import strip_cast
from stratal.loops.rebuild import substitute
from stratal.loops.stmt import Stmt, Store
from stratal.schedule.expressions import GroupExpressions
from stratal.schedule.primitives import Schedule, guard_leaves, sequence
from stratal.schedule.result import Candidate, Pack, Tactic
from stratal.schedule.tactics.common import distribute, nest, unroll_neighbours
from stratal.schedule.tactics.contract import BLOCK, choose_tile, rows_at_once, schedule_tiles, tile_cycles
from stratal.schedule.tactics.product import Product, product_of
from stratal.schedule.tactics.tiles import Tiling

KIND = "contract"


class Kind(NamedTuple):
    """Words of one kind: what they hold, the function that makes one, the function that sums products."""

    elements: tuple[DType, ...]
    group: int  # elements of a word
    make: str
    dot: str
    total: DType


BYTES: Final = Kind((int8, uint8), 4, "bytes4", "dot4", int32)
HALVES: Final = Kind((bfloat16,), 2, "halves2", "dot2", float32)
KINDS: Final = (BYTES, HALVES)
PANELS_AT_ONCE: Final = 4  # written side by side while reading rows that are contiguous across them
BYTE_CYCLES: Final = {"vnni": 1.0, "pairs": 3.0, "arithmetic": 12.0}  # of a step, in those of a multiply-add
PACK_CYCLES: Final = (0.15, 0.5)  # a byte copied into words, along the vectors and across them
SUM_CYCLES: Final = 0.05  # a byte added up


def candidates(x: GroupExpressions, target: Target) -> Iterator[Candidate]:
    """Yield the product over words where both operands are of one kind that the machine multiplies."""
    product = product_of(x, target)
    kind = _kind(product)
    if kind is None:
        return
    words = PackedProduct(x, target, kind)
    tiling = choose_tiling(words)
    yield Candidate(
        "words",
        _cycles(words, tiling) / (target.ghz * 1e9),
        partial(_schedule, target=target, kind=kind),
        (("rows", tiling.rows), ("vectors", tiling.vectors), ("depth", tiling.depth)),
        product.operations,
    )


def _schedule(x: GroupExpressions, target: Target, kind: Kind) -> Tactic:
    words = PackedProduct(x, target, kind)
    return schedule_tiles(words, choose_tiling(words), "words")


def _kind(p: Product) -> Kind | None:
    """Return the words a product may run over, if any."""
    return next((k for k in KINDS if _cycles_per_step(k, p.target) and _suits(p, k)), None)


def _cycles_per_step(kind: Kind, target: Target) -> float:
    """Return the cycles of a step in those of a multiply-add; 0 where the machine cannot do it."""
    has = target.instructions
    return BYTE_CYCLES[has.byte_dots] if kind is BYTES else float(has.bfloat16_dots)


def _suits(p: Product, kind: Kind) -> bool:
    return (
        p.dtype is kind.total
        and all(_short(t, kind) is not None for t in p.terms)
        and all(v.extent for v in (*p.axes, *p.roles.reduce))
        and all(p.panels(k) for k in (0, 1))
        and _packed_axis(p, kind) is not None
    )


def _packed_axis(p: Product, kind: Kind) -> Var | None:
    """Return the reduction that words run along: the innermost for which both operands can be read so."""
    fit = (v for v in reversed(p.roles.reduce) if v.extent >= kind.group)
    return next((v for v in fit if all(_reads_packed(p, n, v, kind) for n in (0, 1))), None)


def _reads_packed(p: Product, n: int, k: Var, kind: Kind) -> bool:
    """Return whether words along `k` can be read where an operand lies, or from a copy not much larger."""
    is_a = n == p.roles.a
    if not _repeats(p, n, (p.m if is_a else p.roles.vector,)):
        return True
    found = _short(p.terms[n], kind)
    if not isinstance(found, Load):
        return False
    if is_a and p.step(n, k) == 1 and k.extent % kind.group == 0:
        return True
    contiguous = is_a or (kind is HALVES and p.step(n, p.roles.vector) == 1 and p.step(n, k) != 1)
    return contiguous and _along(found, k) is not None


def _along(found: Load, k: Var) -> int | None:
    """Return the axis of a buffer that a loop walks, all of it or a group at a time; None if it does not."""
    walked = [axis for axis, i in enumerate(found.indices) if index.depends(i, k)]
    if len(walked) != 1:
        return None
    (axis,) = walked
    start = index.sub(found.indices[axis], k)
    even = index.mod(start, k.extent) is index.as_expr(0) and found.buffer.shape[axis] % k.extent == 0
    return axis if even and not index.depends(start, k) else None


def _short(term: Expr, kind: Kind) -> Expr | None:
    """Return the short number that a term widens: one that is read, or rounded where it is read."""
    if isinstance(term, Call) and term.fn == "cast" and isinstance(strip_cast(term), Load):
        found = term.args[0]
        return found if found.dtype in kind.elements else None
    return None


def _repeats(p: Product, k: int, along: Sequence[Var]) -> bool:
    """Return whether a copy of an operand would be much larger than it: windows overlap."""
    used = p.used(k, (*p.roles.outer, *along, *p.roles.reduce))
    operand = p.operand(k)
    return operand is None or math.prod(v.extent for v in used) > 2 * operand.buffer.size


def choose_tiling(p: PackedProduct) -> Tiling:
    """Choose tiles and blocks; both operands lie as the tiles read them."""
    rows, vectors = choose_tile(p.m.extent, p.roles.vector.extent, p.lanes, p.target)
    width = vectors * p.lanes
    panel = min(BLOCK, max(256, p.target.l2_bytes // 4 // (width * int32.itemsize)))
    if p.kind.total.is_float:
        panel = min(panel, BLOCK // p.kind.group)  # as many products in one run as float32 sums
    if p.depth <= 2 * panel:
        return Tiling(rows, vectors)
    num_columns = -(-p.roles.vector.extent // width) * p.num_outer
    return Tiling(rows, vectors, panel, rows_at_once(-(-p.m.extent // rows), num_columns))


def _cycles(p: PackedProduct, t: Tiling) -> float:
    tiles = tile_cycles(p.m.extent, p.roles.vector.extent, t.rows, t.vectors, p.lanes)
    cycles = p.num_outer * p.depth * tiles * _cycles_per_step(p.kind, p.target)
    return cycles + sum(size * each for size, each in p.prepared)


class PackedProduct(Product):
    """A product over words: `terms` are words of both operands, `packs` the kernels that make them.

    `prepared` lists bytes handled by those kernels, with the cycles each takes.
    """

    def __init__(self, x: GroupExpressions, target: Target, kind: Kind) -> None:
        super().__init__(x, target)
        self.kind: Final = kind
        self.prepared: list[tuple[float, float]] = []
        k = _packed_axis(self, kind)
        assert k is not None
        a, b = self.roles.a, self.roles.b
        dtypes = [self._element(n).dtype for n in (a, b)]
        self.signed_a = dtypes[0] is int8
        shifted = kind is BYTES and dtypes[0] is dtypes[1]
        self.word = Var(k.name, -(-k.extent // kind.group))
        near = [self.step(n, k) == 1 for n in (a, b)]
        across = self.step(b, self.roles.vector) != 1
        self._whole = k.extent % kind.group == 0
        words = [self._word(n, k) for n in (0, 1)]
        lies = near[0] and self._whole and isinstance(self._element(a), Load)  # A is read where it lies
        images = {
            n: self._copy_image(n, k)
            for n, v in ((a, self.m), (b, self.roles.vector))
            if _repeats(self, n, (v,)) and not (lies and n == a)
        }
        self.roles = self.roles._replace(reduce=(*(v for v in self.roles.reduce if v is not k), self.word))
        self.depth = math.prod(v.extent for v in self.roles.reduce)
        self.terms = words
        if not lies:
            self.terms[a] = images[a] if a in images else self._pack_rows(words[a], near[0])
        self.terms[b] = images[b] if b in images else self._pack_panels(words[b], shifted, across)
        self.shift = self._row_sums() if shifted else None

    def _element(self, n: int) -> Expr:
        """Return an operand's short number."""
        found = _short(self.terms[n], self.kind)
        assert found is not None
        return found

    def _word(self, n: int, k: Var) -> Expr:
        """Return neighbours along the reduction as a word; zeros beyond its end."""
        found = self._element(n)
        return self._joined(lambda position: substitute([found], {k: position})[0], k.extent)

    def _joined(self, element: Callable[[Expr], Expr], extent: int) -> Expr:
        """Return the elements of one word."""
        parts = []
        for j in range(self.kind.group):
            position = index.add(index.mul(self.word, self.kind.group), j)
            part = element(position)
            parts.append(guard(index.less(position, extent), part, const(0, part.dtype)))
        return call(self.kind.make, *parts)

    # -- what the tiles see ----------------------------------------------------------------------------------
    @property
    def combiner(self) -> Combiner:
        a, b = self.roles.a, self.roles.b
        first, second = (b, a) if self.signed_a else (a, b)
        return super().combiner._replace(
            combine=lambda states, terms: [call(self.kind.dot, states[0], terms[first], terms[second])]
        )

    def results(self, total: Expr) -> Stmt:
        if self.shift is not None:
            total = total + self.shift
        return super().results(total)

    # -- kernels before --------------------------------------------------------------------------------------
    def _pack_rows(self, word: Expr, near: bool) -> Expr:
        """Copy the first operand into words, as its rows lie."""
        outer, inner = self._loops(word)
        loops = [*outer, self.m, *inner]
        copy = Buffer("words", int32, [v.extent for v in loops])
        s = Schedule(nest(loops, Store(copy, tuple(loops), word)))
        taken = [*outer, self.m]
        if near:
            many, lane = s.split(self.word, self.lanes)
        else:  # contiguous along the rows, if at all
            many, lane = s.split(self.m, self.lanes)
            taken = [*outer, many]
            s.reorder(*taken, *inner, lane)
        s.vectorize(lane)
        if near:
            last = many
        else:  # words of a row fill a line
            last, line = s.split(self.word, self.target.cacheline_bytes // int32.itemsize)
            s.unroll(line)
        self._add(self.roles.a, copy, s, taken, last, near=near)
        return copy[tuple(loops)]

    def _copy_image(self, n: int, k: Var) -> Expr:
        """Copy an operand whose windows overlap as it lies, with the reduction `k` in words."""
        found = self._element(n)
        assert isinstance(found, Load)
        buffer, axis = found.buffer, _along(found, k)
        assert axis is not None
        group = Var("g", buffer.shape[axis] // k.extent)
        loops: list[Var] = []  # over the image as it lies
        at: list[Expr] = []
        where = [Var(f"x{d}", extent) for d, extent in enumerate(buffer.shape)]
        for d in sorted(range(len(where)), key=lambda d: -buffer.strides[d]):
            if d == axis:
                loops += [group, self.word]
                at += [index.floordiv(found.indices[d], k.extent), self.word]
            else:
                loops.append(where[d])
                at.append(found.indices[d])
        start = index.mul(group, k.extent)
        before, after = where[:axis], where[axis + 1 :]
        word = self._joined(lambda p: buffer[(*before, index.add(start, p), *after)], k.extent)
        copy = Buffer("image", int32, [v.extent for v in loops])
        s = Schedule(nest(loops, Store(copy, tuple(loops), word)))
        *taken, last = loops
        many, lane = s.split(last, self.lanes)
        s.vectorize(lane)
        if last is not self.word:
            taken = [*(v for v in taken if v is not self.word), many]
            s.reorder(*taken, self.word, lane)
        self._add(n, copy, s, taken, many if last is self.word else self.word, near=True)
        return copy[tuple(at)]

    def _pack_panels(self, word: Expr, shifted: bool, across: bool) -> Expr:
        """Copy the second operand into panels as wide as a tile, shifted by 128 where that is needed."""
        v = self.roles.vector
        _, vectors = choose_tile(self.m.extent, v.extent, self.lanes, self.target)
        width = min(vectors * self.lanes, v.extent)
        outer, inner = self._loops(word)
        panel, column = Var("p", -(-v.extent // width)), Var("c", width)
        position = index.add(index.mul(panel, width), column)
        loops: list[Var] = [*outer, panel, *inner, column]
        copy = Buffer("panels", int32, [u.extent for u in loops])
        (value,) = substitute([word], {v: position})
        if shifted:
            value = value ^ -0x7F7F7F80
        made = guard_leaves(Store(copy, tuple(loops), value), index.less(position, v.extent))
        s = Schedule(nest(loops, made))
        many, lane = s.split(column, self.lanes if across else self._read_at_once(width))
        s.vectorize(lane)
        last = self.word
        if across:
            taken = [*outer, panel]
            s.reorder(*taken, many, *inner)
            s.unroll(many)
            last = unroll_neighbours(s, self.word)
        else:
            block, one = s.split(panel, min(PANELS_AT_ONCE, -(-panel.extent // 4)))
            taken = [*outer, block]
            s.reorder(*taken, *inner, one, many)
        self._add(self.roles.b, copy, s, taken, last, near=not across)
        return copy[(*outer, index.floordiv(v, width), *inner, index.mod(v, width))]

    def _read_at_once(self, width: int) -> int:
        """Return how many neighbours to read as one vector: whole vectors, if that divides a panel."""
        most = self.target.lanes(self.kind.elements[0].itemsize)
        return next(n for n in (most, most // 2, self.lanes) if width % n == 0 or n <= self.lanes)

    def _row_sums(self) -> Expr:
        """Add up the rows of the first operand, times what the second one's shift adds to each product."""
        word = self.terms[self.roles.a]
        outer, inner = self._loops(word)
        many, lane = Var("o", -(-self.word.extent // self.lanes)), Var("l", self.lanes)
        position = index.add(index.mul(many, self.lanes), lane)
        (wide,) = substitute([word], {self.word: position})
        wide = guard(index.less(position, self.word.extent), wide, const(0, int32))
        acc = Buffer("acc", int32, (self.lanes,), space="register")
        ones = const(0x01010101, int32)
        pair = (ones, wide) if self.signed_a else (wide, ones)
        add = Store(acc, (lane,), call("dot4", acc[lane], *pair))
        times = const(-128 if self.signed_a else 128, int32)
        taken = [*outer, self.m]
        sums = Buffer("sums", int32, [v.extent for v in taken])
        start, across = Var("l", self.lanes), Var("l", self.lanes)
        parts = (
            nest([start], Store(acc, (start,), const(0, int32))),
            nest([*inner[:-1], many, lane], add),
            Store(sums, tuple(taken), lanes("add", acc[across], across) * times),
        )
        s = Schedule(nest(taken, sequence(*parts)), [acc])
        s.vectorize(start)
        s.vectorize(lane)
        if self.word.extent % self.lanes:
            s.peel(many)
        distribute(s, taken, 0.25 * self.depth)
        self.packs.append(Pack(sums, s.body, tuple(s.steps), (acc,), "sums"))
        if not self.frozen[self.roles.a]:
            self.prepared.append((BYTES.group * sums.size * self.depth, SUM_CYCLES))
        return sums[tuple(taken)]

    def _loops(self, word: Expr) -> tuple[list[Var], list[Var]]:
        """Return batch axes and reductions that an operand depends on, words last."""
        outer = [v for v in self.roles.outer if index.depends(word, v)]
        return outer, [v for v in self.roles.reduce if index.depends(word, v)]

    def _add(self, n: int, copy: Buffer, s: Schedule, taken: Sequence[Var], last: Var, *, near: bool) -> None:
        """Finish the kernel that copies an operand: `taken` are the loops of its chunks, `last` is that over
        words whose end may be half a word.
        """
        if not self._whole:
            s.peel(last)
        distribute(s, taken, max(1.0, 2.0 * copy.size / math.prod(v.extent for v in taken)))
        self.packs.append(Pack(copy, s.body, tuple(s.steps)))
        if not self.frozen[n]:
            self.prepared.append((copy.dtype.itemsize * copy.size, PACK_CYCLES[not near]))
