"""What every schedule of a sum of products starts from: which loop does what, and what follows the sum."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from stratal.base.dtypes import DType
from stratal.base.target import Target
from stratal.loops import index
from stratal.loops.compute import Combiner, Compute, fresh_axes
from stratal.loops.expr import Buffer, Call, Const, Expr, Guard, Load, Var, cast, loads, walk
from stratal.loops.lowering import counted_where, strip_cast
from stratal.loops.rebuild import substitute
from stratal.loops.stmt import Prefetch, Stmt, Store, expressions, loaded, stored
from stratal.schedule.expressions import GroupExpressions, work
from stratal.schedule.placement import Placed, placed, stores
from stratal.schedule.result import Pack
from stratal.schedule.tactics.common import in_place_pairs

COPIED = 3.0  # cycles to copy an element across its line
SCATTERED = 4.0  # cycles to store an element across its line


class Roles(NamedTuple):
    """What each loop does.

    `vector` is the axis in vectors; `a` and `b` are positions of the operands among the terms. A may depend
    on `vector` as well, and B on `rows`: such operands are read where they lie, never copied into panels.
    """

    a: int
    b: int
    vector: Var
    rows: tuple[Var, ...]  # the tile's rows: axes of A alone, or one that windows of B overlap along
    outer: tuple[Var, ...]  # batch axes, and further axes of B
    reduce: tuple[Var, ...]


class Grid:
    """The loops over a result: its axes, of which those that operands read in groups are two loops each.

    A filter's number in a grouped convolution is `group * size + member`: images depend on the group alone.
    An axis that lies evenly in memory is one loop, whatever the views it is read through; with `whole`, so is
    one that a single operand reads in groups: a copy puts that in order.
    `places` has such axes as sums of their loops, `steps` how far apart neighbours along a loop are stored.
    The last two may be joined: vectors then cross the ends of lines.
    """

    def __init__(self, axes: Sequence[Var], terms: Sequence[Expr], out: Load, *, whole: bool = False) -> None:
        self.axes: list[Var] = []
        self.places: dict[Var, Expr] = {}
        addresses = [_address(t) for t in terms]
        lonely = {v for v in axes if whole and sum(index.depends(a, v) for a in addresses) < len(addresses)}
        divided = [d for d in _divisions(addresses) if d[0] not in lonely]
        sizes = {
            v: c
            for v, c in (*_divisions((index.offset(out),)), *divided)
            if v in axes and v.extent % c == 0 and 1 < c < v.extent
        }
        for v in axes:
            size = sizes.get(v)
            if size is None:
                self.axes.append(v)
                continue
            group, member = fresh_axes((v.extent // size, size), f"{v.name}g")
            self.axes += [group, member]
            self.places[v] = index.add(index.mul(group, size), member)
        (offset,) = substitute((index.offset(out),), self.places)
        self.steps: list[int | None] = [index.stride_of(offset, v) for v in self.axes]

    def join_last(self, accesses: Sequence[Load]) -> None:
        """Make the last two axes one where every access walks them as one and results lie along the last."""
        if len(self.axes) < 2 or self.steps[-1] != 1:
            return
        if any(v in e.free for v in self.axes[-2:] for e in self.places.values()):
            return  # one of them is two loops
        far, near = self.axes[-2:]
        for access in accesses:
            offset = index.offset(access)
            step = index.stride_of(offset, near)
            if step is None or index.stride_of(offset, far) != step * near.extent:
                return
        one = Var(f"{far.name}{near.name}", far.extent * near.extent)
        self.places |= zip((far, near), index.unflatten(one, (far.extent, near.extent)), strict=True)
        self.axes[-2:], self.steps[-2:] = [one], [self.steps[-1]]


def access_of(term: Expr) -> Load | None:
    """Return the access that a term is, seen through conversions and choices between an element and 0; None
    if it is anything else.
    """
    found = strip_cast(term)
    while isinstance(found, Guard) and isinstance(found.otherwise, Const) and not found.otherwise.value:
        found = strip_cast(found.value)
    return found if isinstance(found, Load) else None


def _address(term: Expr) -> Expr:
    """Return where a term lies in memory; the term itself if it is more than an access."""
    found = access_of(term)
    return term if found is None else index.offset(found)


def _divisions(terms: Iterable[Expr]) -> Iterator[tuple[Var, int]]:
    """Yield every loop variable that is divided by a constant, with that constant."""
    for e in walk(terms):
        if isinstance(e, Call) and e.fn == "floordiv":
            value, size = e.args
            if isinstance(value, Var) and isinstance(size, Const):
                yield value, int(size.value)


def choose_roles(
    terms: Sequence[Expr], grid: Grid, reduce: Sequence[Var], size: int, lanes: int, num_results: int = 1,
    frozen: Sequence[bool] = (False, False)
) -> tuple[float, Roles]:
    """Choose the vector axis: the one with the fewest cycles for arithmetic on padded vectors, for copying an
    operand it is not contiguous in (a frozen one costs nothing), and for storing results across their lines.
    Return these cycles, too.

    An axis of both operands is one as well, as the channels of a depthwise convolution are: then A is read in
    vectors too, where it is contiguous.
    """
    axes = grid.axes
    products = math.prod(v.extent for v in (*axes, *reduce)) / (2 * lanes)
    operands = [access_of(t) for t in terms]
    offsets = [index.as_expr(0) if e is None else index.offset(e) for e in operands]  # 0: a constant
    best: tuple[tuple[float, ...], int, Var] | None = None
    for v, step_out in zip(axes, grid.steps, strict=True):
        b = _vector_operand(offsets, v)
        if b is None:
            continue
        contiguous = index.stride_of(offsets[b], v) == 1 and v.extent > 1
        operand = operands[b]
        cycles = products * (-(-v.extent // lanes) * lanes / max(1, v.extent))
        if not contiguous and operand is not None and not frozen[b]:
            cycles += COPIED * _num_read(offsets[b], (*axes, *reduce))
        if step_out != 1:
            cycles += SCATTERED * num_results * size
        score = (-cycles, int(contiguous), int(step_out == 1), min(v.extent, 64), b)
        if best is None or score > best[0]:
            best = (score, b, v)
    if best is None:
        v = axes[-1] if axes else Var("one", 1)
        best = ((-math.inf,), 1, v)
    (gain, *_), b, vector = best
    a = 1 - b
    rows = [v for v in axes if v is not vector and not index.depends(offsets[b], v)]
    outer = [v for v in axes if v is not vector and v not in rows]
    lonely = math.prod(v.extent for v in rows) == 1 and index.stride_of(offsets[b], vector) == 1
    if lonely and _overlaps(operands[b], offsets[b], (*axes, *reduce)):
        rows += [v for v in outer if index.stride_of(offsets[b], v) is not None and v.extent > 1][-1:]
        outer = [v for v in outer if v not in rows]
    steps = {v: abs(index.stride_of(offsets[a], v) or 0) or (1 << 40) for v in reduce}
    inner = tuple(sorted(reduce, key=lambda v: -steps[v]))
    return -gain, Roles(a, b, vector, tuple(rows), tuple(outer), inner)


def _vector_operand(offsets: Sequence[Expr], v: Var) -> int | None:
    """Return the operand that an axis would read in vectors and may copy; None where it would gather."""
    mine = [index.depends(o, v) for o in offsets]
    if not all(mine):
        return mine.index(True) if any(mine) else None
    near = [index.stride_of(o, v) == 1 for o in offsets]
    return None if not any(near) else near.index(False) if not all(near) else 1


def _overlaps(operand: Load | None, offset: Expr, loops: Sequence[Var]) -> bool:
    """Return whether windows share elements of an operand: a tile of several rows then reads them once."""
    return operand is not None and _num_read(offset, loops) > operand.buffer.size


def _num_read(offset: Expr, loops: Sequence[Var]) -> int:
    """Return how many elements of an operand are read, those in several windows as often."""
    return math.prod(v.extent for v in loops if index.depends(offset, v))


def step_of(term: Expr, v: Var) -> int | None:
    """Return how many elements apart neighbours along `v` are read; None if that varies."""
    found = access_of(term)
    return None if found is None else index.stride_of(index.offset(found), v)


class Product:
    """A contraction and what follows it, over the loops `roles.outer`, `m` (all rows as one) and
    `roles.vector`.
    """

    def __init__(self, x: GroupExpressions, target: Target) -> None:
        self.x = x
        self.target = target
        self.anchor = x.group.members[0]
        self.compute: Compute = x.compute(self.anchor)
        axes = fresh_axes((v.extent for v in self.compute.axes), "i")
        reduce = fresh_axes((v.extent for v in self.compute.reduce), "k")
        operands = x.terms(self.anchor, tuple(axes), tuple(reduce))
        self.dtype: DType = self.compute.state_dtypes[0]
        self.lanes = target.lanes(max(4, self.dtype.itemsize))
        self.frozen = tuple(map(x.is_frozen, operands))  # by operand: what is made of it alone is made once
        ways = (False, True) if any(_divisions(map(_address, operands))) else (False,)
        choices = [self._choice(axes, reduce, operands, whole=whole) for whole in ways]
        _, grid, self.roles = min(choices, key=lambda choice: choice[0])
        self.axes: list[Var] = grid.axes
        operands = substitute(operands, grid.places)
        self.m = Var("m", math.prod(v.extent for v in self.roles.rows))
        rows = index.unflatten(self.m, tuple(v.extent for v in self.roles.rows))
        self.row_index: dict[Var, Expr] = dict(zip(self.roles.rows, rows, strict=True))
        self.where = tuple(substitute(substitute(axes, grid.places), self.row_index))
        self.terms: list[Expr] = substitute(operands, self.row_index)
        self.counted = counted = self._counted_by_tiles()
        if counted is not None:  # it is asked before whole loops, not before every product
            inmost = sorted(self.roles.reduce, key=lambda v: not index.depends(counted, v))
            self.roles = self.roles._replace(reduce=tuple(inmost))
        self.depth = math.prod(v.extent for v in reduce)
        self.in_place: list[tuple[Buffer, Buffer]] = []
        self.packs: list[Pack] = []  # the kernels that make copies which it reads

    def _counted_by_tiles(self) -> Expr | None:
        """Return the condition under which products count, if it is the same for all that a tile holds."""
        found = counted_where(self.terms)
        if found is None or any(index.depends(found, v) for v in (self.m, self.roles.vector)):
            return None
        return found

    def _choice(
        self, axes: Sequence[Var], reduce: Sequence[Var], operands: list[Expr], *, whole: bool
    ) -> tuple[float, Grid, Roles]:
        """Return the best roles in the loops that go with `whole`, after the cycles of what they decide."""
        out = placed(self.x, self.x.results[0], tuple(axes)).access
        grid = Grid(axes, operands, out, whole=whole)
        self._join(grid, axes, operands)
        terms, results = substitute(operands, grid.places), len(self.x.results)
        cycles, roles = choose_roles(terms, grid, reduce, out.buffer.size, self.lanes, results, self.frozen)
        return cycles, grid, roles

    def _join(self, grid: Grid, axes: Sequence[Var], operands: Sequence[Expr]) -> None:
        """Join the last axes of the result where all that is read and written walks them as one."""
        results = self._placed(tuple(axes))
        made = [*operands, *self._values(results), *(p.exists for p in results)]
        if not any(isinstance(e, Guard) for e in walk(made)):
            grid.join_last([*loads(made), *(p.access for p in results)])

    def _values(self, results: Sequence[Placed]) -> list[Expr]:
        """Return what the group computes, each result where it is stored."""
        made = zip(self.x.results, results, strict=True)
        return [self.x.at(r, there.access.indices) for r, there in made]

    @property
    def num_outer(self) -> int:
        return math.prod(v.extent for v in self.roles.outer)

    @property
    def loops(self) -> tuple[Var, ...]:
        """Every loop, those of the reduction last."""
        return (*self.roles.outer, self.m, self.roles.vector, *self.roles.reduce)

    @property
    def operations(self) -> float:
        """The arithmetic of all products, a multiply-add counted as two."""
        return 2.0 * self.num_outer * self.m.extent * self.roles.vector.extent * self.depth

    @property
    def combiner(self) -> Combiner:
        assert self.compute.combiner is not None
        return self.compute.combiner

    @property
    def zero(self) -> Expr:
        (zero,) = self.combiner.identity((self.dtype,))
        return zero

    def operand(self, k: int) -> Load | None:
        """Return the access of an operand; None for a constant."""
        return access_of(self.terms[k])

    def step(self, k: int, v: Var) -> int | None:
        """Return how many elements apart neighbours along `v` lie in an operand; None if that varies."""
        return 0 if self.operand(k) is None else step_of(self.terms[k], v)

    def panels(self, k: int) -> bool:
        """Return whether an operand may be copied into panels: all tiles of the other one read the same."""
        return not index.depends(self.terms[k], self.roles.vector if k == self.roles.a else self.m)

    def narrow(self, k: int) -> bool:
        """Return whether an operand is read as 16-bit floats, which are widened for every product."""
        term, found = self.terms[k], self.operand(k)
        return found is not None and found.dtype.is_float and found.dtype.bits == 16 and term is not found

    def slowing(self, copied: Sequence[int]) -> float:
        """Return by what operands that are not copied slow products down, as measured: by widening them, or
        by choosing 0 where they have no element.
        """
        slow = {"bfloat16": 0.15, "float16": 0.6}
        factor = 1.0
        for k in {0, 1}.difference(copied):
            found = self.operand(k)
            factor += any(isinstance(e, Guard) for e in walk((self.terms[k],))) and self.counted is None
            if found is not None and self.narrow(k):
                factor += slow[found.dtype.name]
        return factor

    def used(self, k: int, loops: Sequence[Var]) -> list[Var]:
        """Return those of some loops that an operand depends on."""
        return [v for v in loops if index.depends(self.terms[k], v)]

    def update(self, acc: Buffer, at: tuple[Expr, ...]) -> Store:
        """Return the statement that adds one product to its accumulator."""
        return Store(acc, at, self.combiner.combine((acc[at],), self.terms)[0])

    def epilogue_work(self) -> int:
        """Return the operations that follow the sum, per element."""
        return work(self._values(self._placed(self.where)))

    def _placed(self, where: tuple[Expr, ...]) -> list[Placed]:
        """Return where each result is stored from the sum's element at `where`."""
        return [placed(self.x, r, where) for r in self.x.results]

    def results(self, total: Expr) -> Stmt:
        """Return the stores of everything the group computes from its sum at one element."""
        made = stores(self.x, cast(total, self.anchor.dtype), self.where)
        operands = {e.buffer for e in loads(self.terms)}
        reads = [b for b in loaded(made) if b not in operands]  # each element alone, where it is written
        self.in_place = in_place_pairs(made, reads, stored(made))
        return made

    def fetches(self) -> list[Stmt]:
        """Return what brings near the memory that `results` touches once per element: large arrays that lie
        as the result does. What is read is left out where a result may take its place.
        """
        made = self.results(self.zero)
        replaced = {r for r, _ in self.in_place}
        read = [e for e in loads(expressions(made)) if e.indices == self.where and e.buffer not in replaced]
        written = [p.access for p in self._placed(self.where) if p.always]
        return [
            Prefetch(e.buffer, e.indices)
            for e in dict.fromkeys((*written, *read))
            if e.buffer.nbytes > self.target.l1d_bytes and step_of(e, self.roles.vector) == 1
        ]


def product_of(x: GroupExpressions, target: Target) -> Product:
    """Return the product that a group is, one for all tactics that look at it."""
    found = x.seen_as.get(target)
    if not isinstance(found, Product):
        found = x.seen_as[target] = Product(x, target)
    return found
