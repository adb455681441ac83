"""Tensorisation: loops replaced by a declared block that computes the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import cleandoc

from stratal.base.errors import ScheduleError
from stratal.loops import index
from stratal.loops.expr import Buffer, Const, Expr, Load, Var, load
from stratal.loops.stmt import For, Stmt, Store, substitute_stmt
from stratal.loops.te.text import parse_algorithm
from stratal.schedule.language.dependence import accumulates_exactly, carried, divided
from stratal.schedule.language.intrinsic import INTRINSICS, Intrinsic, intrinsic
from stratal.schedule.language.nest import Nest
from stratal.schedule.language.registry import primitive
from stratal.schedule.language.tiles import redirected
from stratal.schedule.primitives import fresh_loops

FAMILY = "Tensorisation"
_PRODUCT = """
    A = placeholder((8, 4), "float32")
    B = placeholder((8, 4), "float32")
    k = reduce_axis(8)
    C = compute((4, 4), lambda y, x: sum(A[k, y] * B[k, x], axis=k))
"""


def _example() -> None:
    """Declare the block of the example: a 4 x 4 product of depth 4 in vectors, added to what is there."""
    algorithm = parse_algorithm(cleandoc(_PRODUCT).replace("8", "4"))
    intrinsic("gemm4x4_add", algorithm.results[0], "reorder(k, y, x)\nvectorize(x)", accumulate=True)


_example()


_STEPS = """
    fission(x)
    fission(y)
    split(k, 4)
    reorder(ko, y_1, x_1, ki)
    tensorize(y_1, gemm4x4_add)
"""


@primitive(FAMILY, _PRODUCT, _STEPS)
def tensorize(nest: Nest, loop: For, block: str) -> Nest:
    """Put a declared block in the place of a loop and all below it. See `te.intrinsic`.

    Legal where the loops compute what the block declares, on tiles of tensors that start anywhere, and the
    block combines the terms of a reduction in the same order.
    """
    if block not in INTRINSICS:
        raise ScheduleError(
            f"tensorize: no block is declared as {block!r}",
            got="declared: " + ", ".join(INTRINSICS),
            hint="te.intrinsic(name, C, steps)",
        )
    found = _Match(INTRINSICS[block], loop)
    body, local = found.code(nest)
    unit = For(Var(block, 1), body, "unroll")
    return nest.replaced(loop, unit)._replace(local=(*nest.local, *local))


class _Match:
    """One block against one nest: which loop and which tensor of the nest stands for which of the block's."""

    def __init__(self, block: Intrinsic, loop: For) -> None:
        self.block = block
        self.loops: dict[Var, Var] = {}  # the block's variable -> the nest's
        self.places: dict[Buffer, tuple[Buffer, tuple[Expr, ...]]] = {}
        chain, leaf = _chain(loop)
        own, declared = _chain(block.declared)
        self.variables = set(chain)
        if not isinstance(leaf, Store):
            raise self.error("more than one plain statement below the loop", type(leaf).__name__)
        assert isinstance(declared, Store)
        if sorted(v.extent for v in chain) != sorted(v.extent for v in own):
            raise self.error("the loops have other extents", ", ".join(f"{v.name}<{v.extent}" for v in chain))
        self._load(load(declared.buffer, declared.indices), load(leaf.buffer, leaf.indices))
        self._expression(declared.value, leaf.value)
        if set(self.loops.values()) != self.variables:
            raise self.error("not all loops take part", ", ".join(v.name for v in chain))
        self._order(chain, own, leaf, declared)

    def error(self, what: str, got: object) -> ScheduleError:
        return ScheduleError(
            f"tensorize: the loops are not what {self.block.name} declares: {what}",
            got=str(got),
            hint=f"print(te.INTRINSICS[{self.block.name!r}]) shows the block",
        )

    def _expression(self, mine: Expr, theirs: Expr) -> None:
        if isinstance(mine, Load) and isinstance(theirs, Load):
            self._load(mine, theirs)
            return
        same = type(mine) is type(theirs) and mine.dtype is theirs.dtype
        same = same and getattr(mine, "fn", None) == getattr(theirs, "fn", None)
        below, others = mine.parts, theirs.parts
        if not same or len(below) != len(others) or (isinstance(mine, (Const, Var)) and mine is not theirs):
            raise self.error("another expression", f"{theirs} for {mine}")
        for a, b in zip(below, others, strict=True):
            self._expression(a, b)

    def _load(self, mine: Load, theirs: Load) -> None:
        if mine.dtype is not theirs.dtype or len(mine.indices) != len(theirs.indices):
            raise self.error("another tensor", f"{theirs.buffer} for {mine.buffer}")
        start = tuple(self._index(m, t) for m, t in zip(mine.indices, theirs.indices, strict=True))
        known = self.places.setdefault(mine.buffer, (theirs.buffer, start))
        if known != (theirs.buffer, start):
            raise self.error("one tensor at two places", f"{theirs} for {mine.buffer}")

    def _index(self, mine: Expr, theirs: Expr) -> Expr:
        """Match the moving parts of two indices; return what theirs has more: where the tile starts."""
        terms, constant = index.linear(mine)
        outer, moving, extra = divided(theirs, self.variables)
        for atom, c in terms.items():
            if not isinstance(atom, Var):
                raise self.error("another index", f"{theirs} for {mine}")
            fit = [a for a, k in moving.items() if k == c and isinstance(a, Var) and a.extent == atom.extent]
            chosen = self.loops.get(atom)
            if chosen is None:
                chosen = next((a for a in fit if a not in self.loops.values()), None)
            if chosen is None or chosen not in fit:
                raise self.error("another index", f"{theirs} for {mine}")
            self.loops[atom] = chosen
            del moving[chosen]
        if moving:
            raise self.error("another index", f"{theirs} for {mine}")
        return index.from_linear(outer, extra - constant)

    def _order(self, chain: Sequence[Var], own: Sequence[Var], leaf: Store, declared: Store) -> None:
        """The loops that carry the reduction come in the same order in both."""
        for b, loops in carried(leaf, list(chain)).items():
            theirs = [v for v in chain if v in loops]
            mine = [self.loops[v] for v in own if v in carried(declared, list(own))[declared.buffer]]
            if theirs != mine and not accumulates_exactly(leaf, b):
                raise self.error("the reduction runs in another order", ", ".join(v.name for v in theirs))

    def code(self, nest: Nest) -> tuple[Stmt, list[Buffer]]:
        """Return the block's own loops on the nest's tensors, and the temporaries they need."""
        stmt = fresh_loops(self.block.body.body)
        local: list[Buffer] = []
        for b in self.block.body.local:
            again = Buffer(nest.fresh(f"{self.block.name}_{b.name}"), b.dtype, b.shape, space=b.space)
            stmt = redirected(stmt, b, again, tuple)
            local.append(again)
        stand_in = {b: Buffer(f"{b.name}'", b.dtype, b.shape) for b in self.places}
        for b, s in stand_in.items():  # in two steps: a tensor of the nest may be one of the block's
            stmt = redirected(stmt, b, s, tuple)
        for b, (theirs, start) in self.places.items():
            stmt = redirected(stmt, stand_in[b], theirs, _shifted(start))
        return stmt, local


def _shifted(start: tuple[Expr, ...]) -> Callable[[Sequence[Expr]], tuple[Expr, ...]]:
    return lambda indices: tuple(index.add(s, i) for s, i in zip(start, indices, strict=True))


def _chain(stmt: Stmt) -> tuple[list[Var], Stmt]:
    """Return the loops of a perfect nest, those of one iteration left out, and what stands innermost."""
    loops: list[Var] = []
    while isinstance(stmt, For):
        if stmt.var.extent == 1:
            stmt = substitute_stmt(stmt.body, {stmt.var: index.as_expr(0)})
        else:
            loops.append(stmt.var)
            stmt = stmt.body
    return loops, stmt
