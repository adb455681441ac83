"""Ops that move elements, on values whose sizes are known only at run time."""

from __future__ import annotations

from collections.abc import Sequence

from stratal.base.dims import Dim, Sym, known_equal, product, upper_bound
from stratal.base.dtypes import int64
from stratal.base.errors import ShapeError
from stratal.graph.node import Node
from stratal.optimize.sized.values import Factors, Sized, Sizes, capacities, merged, regrouped, rule


@rule("reshape")
def reshape(s: Sizes, node: Node, x: Sized) -> Sized:
    """Cut the physical axes into other groups; only where no groups fit do elements move."""
    target = node.aval.shape
    groups = regrouped(x.flat, target)
    if groups is None:  # all elements in one row, by rank, and from there to the positions of the result
        whole = Sized(x.node, (x.flat,))
        spread = tuple(n for n in target if not known_equal(n, 1)) or (1,)
        row = s.factored(whole, (spread,))
        groups = regrouped(row.flat, target)
        assert groups is not None
        x = row
    axes = tuple(merged(g) for g in groups)
    return Sized(s.shaped(x.node, (n for f in axes for n in f)), axes)


@rule("broadcast")
def broadcast(s: Sizes, node: Node, x: Sized) -> Sized:
    """Stretch; an axis that stays is factored as it was."""
    target, mapped = node.aval.shape, dict(zip(node.op.axes, range(len(x.axes)), strict=True))  # type: ignore[attr-defined]
    axes: list[Factors] = []
    kept: list[int] = []  # of each physical axis of the operand, the one of the result
    sources: list[Dim] = []  # sizes of the operand without the axes that stretch
    for k, n in enumerate(target):
        stays = k in mapped and known_equal(product(x.axes[mapped[k]]), n)
        axes.append(x.axes[mapped[k]] if stays else (n,))
        first = sum(map(len, axes[:-1]))
        if stays:
            kept += range(first, first + len(axes[-1]))
            sources += axes[-1]
    source = s.shaped(x.node, sources)
    shape = capacities(n for f in axes for n in f)
    return Sized(s.b.broadcast(source, shape=shape, axes=tuple(kept)), tuple(axes))


@rule("permute")
def permute(s: Sizes, node: Node, x: Sized) -> Sized:
    """Exchange groups of physical axes."""
    order: Sequence[int] = node.op.perm  # type: ignore[attr-defined]
    physical_axes = tuple(p for k in order for p in x.physical_axes(k))
    return Sized(s.b.permute(x.node, perm=physical_axes), tuple(x.axes[k] for k in order))


@rule("view_as_real")
def view_as_real(s: Sizes, node: Node, x: Sized) -> Sized:
    """Add the axis of the two parts."""
    return Sized(s.b.view_as_real(x.node), (*x.axes, (2,)))


@rule("view_as_complex")
def view_as_complex(s: Sizes, node: Node, x: Sized) -> Sized:
    """Drop the axis of the two parts."""
    return Sized(s.b.view_as_complex(x.node), x.axes[:-1])


@rule("slice")
def slice_(s: Sizes, node: Node, x: Sized) -> Sized:
    """Cut where a bound is a number; take from a computed start where it is not."""
    b, op = s.b, node.op
    bounds = list(zip(op.start, op.stop, op.step, strict=True))  # type: ignore[attr-defined]
    for k, (low, high, step) in enumerate(bounds):
        if not (known_equal(low, 0) and known_equal(high, product(x.axes[k])) and step == 1):
            x = s.prefix(x, k)
            if isinstance(low, Sym) and step != 1:
                raise ShapeError("slice: a step needs a start that is a number", got=f"{low}:{high}:{step}")
    starts, stops, steps, moving = [], [], [], {}
    for k, (low, high, step) in enumerate(bounds):
        for physical, n in zip(x.physical_axes(k), x.axes[k], strict=True):
            whole = len(x.axes[k]) > 1 or isinstance(low, Sym)
            room = upper_bound(n)
            starts.append(0 if whole else low)
            stops.append(room if whole else min(upper_bound(high), room))
            steps.append(1 if whole else step)
            if isinstance(low, Sym):
                moving[physical] = low, high - low
    axes = tuple(
        f if len(f) > 1 or known_equal(n, product(f)) else (n,)
        for f, n in zip(x.axes, node.aval.shape, strict=True)
    )
    y = x.node
    if (tuple(starts), tuple(stops)) != ((0,) * len(starts), y.shape) or any(n != 1 for n in steps):
        y = b.slice(y, start=tuple(starts), stop=tuple(stops), step=tuple(steps))
    for physical, (low, length) in moving.items():
        y = _from(s, y, physical, s.count(low), upper_bound(length))
    return Sized(y, axes)


def _from(s: Sizes, y: Node, physical: int, start: Node, room: int) -> Node:
    """Return as many elements as there is room for along a physical axis, from a computed start on."""
    b = s.b
    index = b.iota(shape=(room,), axis=0, dtype=start.dtype)
    index = b.add(index, b.broadcast(start, shape=(room,), axes=()))
    index = b.op("min", index, b.like(index, max(y.shape[physical] - 1, 0)))
    taken: Node = b.gather(y, index, axis=physical)
    return taken


@rule("pad")
def pad(s: Sizes, node: Node, x: Sized, value: Sized) -> Sized:
    """Pad after the valid region, which puts the value into what is outside of it."""
    b, op = s.b, node.op
    sizes = list(zip(op.low, op.high, op.interior, strict=True))  # type: ignore[attr-defined]
    for k, (low, high, between) in enumerate(sizes):
        if not (known_equal(low, 0) and known_equal(high, 0) and not between):
            x = s.prefix(x, k)
    padded = [k for k, n in enumerate(sizes) if any(not known_equal(v, 0) for v in n)]
    inside = s.inside(x, [p for k in padded for p in x.physical_axes(k)])
    y = x.node
    if inside is not None:
        y = b.select(inside, y, b.broadcast(value.node, shape=y.shape, axes=()))
    lows: list[int] = []
    highs: list[int] = []
    between_all: list[int] = []
    moved: dict[int, Dim] = {}
    axes: list[Factors] = []
    for k, (low, _high, between) in enumerate(sizes):
        n = node.aval.shape[k]
        axes.append((n,) if k in padded else x.axes[k])
        for physical, f in zip(x.physical_axes(k), x.axes[k], strict=True):
            if k not in padded:
                lows.append(0)
                highs.append(0)
                between_all.append(0)
                continue
            room = upper_bound(f)
            span = (room - 1) * (between + 1) + 1 if room else 0
            if isinstance(low, Sym):
                moved[physical] = low
            front = 0 if isinstance(low, Sym) else low
            lows.append(front)
            highs.append(upper_bound(n) - span - front)
            between_all.append(between)
    low_, high_ = tuple(lows), tuple(max(h, 0) for h in highs)
    y = b.pad(y, value.node, low=low_, high=high_, interior=tuple(between_all))
    for physical, low in moved.items():
        y = _shifted(s, y, physical, s.count(low), value.node)
    over = [min(h, 0) for h in highs]
    return Sized(s.front(y, [n + h for n, h in zip(y.shape, over, strict=True)]), tuple(axes))


def _shifted(s: Sizes, y: Node, physical: int, by: Node, value: Node) -> Node:
    """Return the elements along a physical axis moved up, a value in front of them."""
    b, room = s.b, y.shape[physical]
    index = b.sub(b.iota(shape=(room,), axis=0, dtype=by.dtype), b.broadcast(by, shape=(room,), axes=()))
    front = b.lt(index, b.like(index, 0))
    taken = b.gather(y, b.select(front, b.like(index, 0), index), axis=physical)
    before = b.broadcast(front, shape=y.shape, axes=(physical,))
    moved: Node = b.select(before, b.broadcast(value, shape=y.shape, axes=()), taken)
    return moved


@rule("concatenate")
def concatenate(s: Sizes, node: Node, *parts: Sized) -> Sized:
    """Join; a part behind one of unknown size is moved up to its end."""
    b, axis = s.b, node.op.axis  # type: ignore[attr-defined]
    parts = tuple(s.prefix(x, axis) for x in parts)
    longest = max((x.axes for x in parts), key=lambda axes: sum(map(len, axes)))
    parts = tuple(s.factored(x, [*longest[:axis], x.axes[axis], *longest[axis + 1 :]]) for x in parts)
    physical = parts[0].physical_axes(axis)[0]
    total = node.aval.shape[axis]
    joined, so_far = parts[0].node, parts[0].axes[axis][0]
    for x in parts[1:]:
        size = x.axes[axis][0]
        if not upper_bound(size):
            continue
        room = upper_bound(so_far) + upper_bound(size)
        if isinstance(so_far, int):
            joined = b.concatenate(joined, x.node, axis=physical)
        else:
            index = b.iota(shape=(room,), axis=0, dtype=int64)
            end = b.broadcast(s.count(so_far), shape=(room,), axes=())
            first = b.lt(index, end)
            later = b.sub(index, end)
            later = b.op("max", later, b.like(later, 0))
            later = b.op("min", later, b.like(later, x.node.shape[physical] - 1))
            early = b.op("min", index, b.like(index, joined.shape[physical] - 1))
            shape = (*joined.shape[:physical], room, *joined.shape[physical + 1 :])
            chosen = b.broadcast(first, shape=shape, axes=(physical,))
            after = b.gather(x.node, later, axis=physical)
            joined = b.select(chosen, b.gather(joined, early, axis=physical), after)
        so_far = so_far + size
    axes = tuple((total,) if k == axis else f for k, f in enumerate(parts[0].axes))
    return Sized(s.front(joined, capacities(n for f in axes for n in f)), axes)


@rule("flip")
def flip(s: Sizes, node: Node, x: Sized) -> Sized:
    """Read the valid region backwards."""
    b = s.b
    fixed: list[int] = []
    for k in node.op.axes:  # type: ignore[attr-defined]
        if not x.symbolic(k):
            fixed += x.physical_axes(k)
            continue
        x = s.prefix(x, k)
        (physical,), (size,) = x.physical_axes(k), x.axes[k]
        room = upper_bound(size)
        last = b.broadcast(s.count(size - 1), shape=(room,), axes=())
        index = b.sub(last, b.iota(shape=(room,), axis=0, dtype=last.dtype))
        index = b.op("max", index, b.like(index, 0))
        x = Sized(b.gather(x.node, index, axis=physical), x.axes)
    return Sized(b.flip(x.node, axes=tuple(fixed)), x.axes) if fixed else x
