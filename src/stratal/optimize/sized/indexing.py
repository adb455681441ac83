"""Reading and writing at computed indices, on values whose sizes are known only at run time."""

from __future__ import annotations

from stratal.base.dims import Dim, Sym, upper_bound
from stratal.base.dtypes import int64
from stratal.base.errors import ShapeError
from stratal.graph.node import Node
from stratal.ops.indexing.scatter import ScatterAlong
from stratal.optimize.sized.numeric import identity
from stratal.optimize.sized.values import Factors, Sized, Sizes, capacities, no_rule, rule

no_rule("the compiler makes it of a scatter, after sizes are bounded", "segments", "segment_sum")


def _checked(s: Sizes, index: Sized, size: Dim) -> Sized:
    """Return indices of which the invalid ones are 0; those beyond the end lie beyond the capacity.

    So the op itself finds an index out of range, and reads nothing between the end and the capacity.
    """
    b = s.b
    node = s.masked(index, range(len(index.axes)), 0)
    if isinstance(size, Sym):
        wide = b.cast(node, dtype=int64) if node.dtype is not int64 else node
        end = b.broadcast(s.count(size), shape=wide.shape, axes=())
        node = b.select(b.lt(wide, end), wide, b.like(wide, upper_bound(size)))
    return Sized(node, index.axes)


@rule("gather")
def gather(s: Sizes, node: Node, x: Sized, index: Sized) -> Sized:
    """Take slices; where the indexed axis has an unknown size, indices are compared with it."""
    axis: int = node.op.axis  # type: ignore[attr-defined]
    x = s.prefix(x, axis)
    index = _checked(s, index, x.axes[axis][0])
    taken = s.b.gather(x.node, index.node, axis=x.physical_axes(axis)[0])
    return Sized(taken, (*x.axes[:axis], *index.axes, *x.axes[axis + 1 :]))


@rule("gather_along")
def gather_along(s: Sizes, node: Node, x: Sized, index: Sized) -> Sized:
    """Take single elements."""
    axis: int = node.op.axis  # type: ignore[attr-defined]
    x, index = s.prefix(x, axis), s.prefix(index, axis)
    x, index = _alike(s, x, index, axis)
    index = _checked(s, index, x.axes[axis][0])
    return Sized(s.b.gather_along(x.node, index.node, axis=x.physical_axes(axis)[0]), index.axes)


def _alike(s: Sizes, x: Sized, y: Sized, axis: int) -> tuple[Sized, Sized]:
    """Hold all axes but one of two values in the same way."""
    axes = [max(p, q, key=len) for p, q in zip(x.axes, y.axes, strict=True)]
    x = s.factored(x, [x.axes[k] if k == axis else f for k, f in enumerate(axes)])
    y = s.factored(y, [y.axes[k] if k == axis else f for k, f in enumerate(axes)])
    return x, y


@rule("scatter")
def scatter(s: Sizes, node: Node, x: Sized, index: Sized, update: Sized) -> Sized:
    """Invalid updates change nothing at index 0; `set` has one more element for them, cut off after, beyond
    which an index out of range points.
    """
    op = node.op
    kind, axis = op.kind, op.axis  # type: ignore[attr-defined]
    x = s.prefix(x, axis)
    rows = len(index.axes)
    factored: list[Factors] = [*x.axes[:axis], *index.axes, *x.axes[axis + 1 :]]
    update = s.factored(update, factored)
    return _combined(s, node, kind, x, axis, index, update, range(axis, axis + rows))


@rule("scatter_along")
def scatter_along(s: Sizes, node: Node, x: Sized, index: Sized, update: Sized) -> Sized:
    """As `scatter`, one element at a time."""
    op = node.op
    kind, axis = op.kind, op.axis  # type: ignore[attr-defined]
    x, index = s.prefix(x, axis), s.prefix(index, axis)
    x, index = _alike(s, x, index, axis)
    return _combined(s, node, kind, x, axis, index, update, range(len(index.axes)))


def _combined(
    s: Sizes, node: Node, kind: str, x: Sized, axis: int, index: Sized, update: Sized, axes: range
) -> Sized:
    b = s.b
    physical = x.physical_axes(axis)[0]
    if isinstance(node.op, ScatterAlong):
        update = s.factored(update, index.axes)
    counted = s.inside(index, range(len(index.flat)))
    checked = _checked(s, index, x.axes[axis][0]).node
    if counted is None:
        made = b.op(node.op.name, x.node, checked, update.node, kind=kind, axis=physical)
        return Sized(made, x.axes)
    if kind != "set":
        values = s.masked(update, axes, identity(kind, update.node.dtype))
        return Sized(b.op(node.op.name, x.node, checked, values, kind=kind, axis=physical), x.axes)
    room = x.node.shape[physical]
    zero = b.const(0, x.node.dtype)
    one = tuple(int(k == physical) for k in range(len(x.flat)))
    wider = b.pad(x.node, zero, low=(0,) * len(one), high=one, interior=(0,) * len(one))
    here = b.lt(checked, b.like(checked, room))
    beyond = b.select(here, checked, b.like(checked, room + 1))
    spare = b.select(counted, beyond, b.like(checked, room))
    made = b.op(node.op.name, wider, spare, update.node, kind=kind, axis=physical)
    return Sized(s.front(made, capacities(x.flat)), x.axes)


@rule("search_sorted")
def search_sorted(s: Sizes, node: Node, edges: Sized, x: Sized) -> Sized:
    """Invalid values find any position; edges must all be valid."""
    last = len(edges.axes) - 1
    if edges.symbolic(last):
        raise ShapeError("sizes: edges of unknown number", got=str(node.aval))
    edges, x = _alike(s, edges, s.prefix(x, last), last)
    return Sized(s.b.op("search_sorted", edges.node, x.node, **node.op.attributes), x.axes)
