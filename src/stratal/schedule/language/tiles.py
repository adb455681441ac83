"""The part of a tensor that one iteration touches: its start and size, and the loops that copy it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from stratal.base.errors import ScheduleError
from stratal.loops import index
from stratal.loops.expr import Buffer, Expr, Load, Var, const, guard, load
from stratal.loops.stmt import If, Stmt, Store
from stratal.schedule.language.dependence import divided, variables_of
from stratal.schedule.language.nest import Access, nested
from stratal.schedule.primitives import rewrite_expressions

SPACES = ("scratch", "register")


class Region(NamedTuple):
    """A box of a tensor: per axis a start that the loops around decide, and a size.

    `inner` are the variables that move within the box.
    """

    tensor: Buffer
    start: tuple[Expr, ...]
    shape: tuple[int, ...]
    inner: frozenset[Var]

    def local(self, indices: Sequence[Expr]) -> tuple[Expr, ...]:
        """Return a place of the tensor as a place in the box."""
        return tuple(index.sub(i, s) for i, s in zip(indices, self.start, strict=True))

    def axes(self) -> tuple[Var, ...]:
        """Return fresh variables over the box."""
        return tuple(Var(f"{self.tensor.name.lower()}{k}", n) for k, n in enumerate(self.shape))

    def place(self, at: Sequence[Expr]) -> tuple[Expr, ...]:
        """Return a place in the box as one of the tensor."""
        return tuple(index.add(s, v) for s, v in zip(self.start, at, strict=True))

    def inside(self, at: Sequence[Expr]) -> Expr:
        """Return the condition that a place in the box is one of the tensor: a box may reach over its end."""
        condition: Expr = index.less(0, 1)
        for p, n in zip(self.place(at), self.tensor.shape, strict=True):
            condition = index.both(condition, index.within(p, 0, n))
        return condition


def region(step: str, body: Stmt, tensor: Buffer, places: Sequence[Access]) -> Region:
    """Return the box that a statement touches of a tensor. Raises: ScheduleError where it is no box."""
    inner = variables_of(body)
    start: list[Expr] = []
    shape: list[int] = []
    for axis, size in enumerate(tensor.shape):
        found = [divided(p.indices[axis], inner) for p in places]
        outer = found[0][0]
        spans = [index.bounds(index.from_linear(rest, constant)) for _, rest, constant in found]
        low, high = min(s[0] for s in spans), max(s[1] for s in spans)
        if any(f[0] != outer for f in found) or high - low >= 2 * size + 64:
            raise ScheduleError(
                f"{step}: what the loop touches of {tensor.name} is not one box",
                got=", ".join(dict.fromkeys(str(p.indices[axis]) for p in places)),
                hint="take an outer loop",
            )
        start.append(index.from_linear(outer, low))
        shape.append(high - low + 1)
    return Region(tensor, tuple(start), tuple(shape), frozenset(inner))


def at(axes: Sequence[Var]) -> tuple[Expr, ...]:
    """Return the place that loop variables name; an axis of one element has no loop."""
    return tuple(v if v.extent != 1 else index.as_expr(0) for v in axes)


def copy_in(box: Region, tile: Buffer, where: Callable[[Sequence[Expr]], tuple[Expr, ...]] = tuple) -> Stmt:
    """Return the loops that fill a tile from its tensor, zeros beyond the tensor's end."""
    axes = box.axes()
    here = at(axes)
    value = load(box.tensor, box.place(here))
    kept = guard(box.inside(here), value, const(0, tile.dtype))
    return nested(axes, Store(tile, where(here), kept))


def copy_out(box: Region, tile: Buffer) -> Stmt:
    """Return the loops that write a tile back to its tensor, what lies beyond its end left out."""
    axes = box.axes()
    here = at(axes)
    back: Stmt = Store(box.tensor, box.place(here), load(tile, here))
    condition = box.inside(here)
    if condition is not index.less(0, 1):
        back = If(condition, back)
    return nested(axes, back)


def redirected(
    stmt: Stmt, tensor: Buffer, tile: Buffer, local: Callable[[Sequence[Expr]], tuple[Expr, ...]]
) -> Stmt:
    """Return a statement that uses the tile in the place of the tensor."""

    def change(e: Expr) -> Expr | None:
        return load(tile, local(e.indices)) if isinstance(e, Load) and e.buffer is tensor else None

    return rewrite_expressions(stmt, change, {tensor: (tile, local)})


def check_space(step: str, space: str, allowed: Sequence[str] = SPACES) -> None:
    if space not in allowed:
        raise ScheduleError(f"{step}: the space is {' or '.join(allowed)}", got=repr(space))
