"""One element of each row of a large value, found before what follows on it, and row by row.

    reshape(x)[V i + y],  i = 0, 1, ..., N - 1       ->  gather_along(x, y)       x[arange(N), y], as written
    reshape(scatter of u at V i + y into zeros)      ->  select(columns == y, u, 0)        what flows back
    gather_along(x - rows, y)                        ->  gather_along(x, y) - rows     of a log_softmax, too

All to the bit. An index out of range is refused by either form.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from stratal.base.dtypes import int64
from stratal.graph.builder import Builder
from stratal.graph.node import Const, Node, make
from stratal.graph.pattern import uniform_scalar
from stratal.optimize.online.scores import follows

OUT_OF_RANGE: Final = (1 << 31) - 1  # what indexing makes of an index out of range, for its check to find
DECIDED: Final = {
    "lt": lambda a, b: True if a.high < b.low else False if a.low >= b.high else None,
    "ge": lambda a, b: True if a.low >= b.high else False if a.high < b.low else None,
}


class Bounds(NamedTuple):
    """The least and greatest value of an integer."""

    low: int
    high: int


def picked(node: Node) -> tuple[str, Node] | None:
    """Return what an element per row is read from, or written to, by its row."""
    if node.op.name == "gather_along":
        return _before_rows(node)
    if node.op.name == "gather" and node.op.attributes["axis"] == 0 and node.inputs[0].op.name == "reshape":
        (x,) = node.inputs[0].inputs
        columns = _columns_of(node.inputs[1], x)
        if columns is not None:
            b = Builder(node.where)
            index = b.reshape(columns, shape=(*columns.shape, 1))
            return "picked", b.reshape(b.gather_along(x, index, axis=1), shape=node.shape)
    if node.op.name == "reshape" and node.inputs[0].op.name == "scatter":
        return _spread(node)
    return None


def _spread(node: Node) -> tuple[str, Node] | None:
    (scatter,) = node.inputs
    zeros, index, updates = scatter.inputs
    start = uniform_scalar(zeros)
    plain = scatter.op.attributes["kind"] == "add" and scatter.op.attributes["axis"] == 0
    if not plain or start is None or not isinstance(start.op, Const) or start.op.value.array.any():
        return None
    columns = _columns_of(index, node)
    if columns is None or updates.shape != columns.shape:
        return None
    b = Builder(node.where)
    number = b.iota(shape=node.shape, axis=1, dtype=columns.dtype)
    here = b.eq(number, b.broadcast(columns, shape=node.shape, axes=(0,)))
    return "spread", b.op("select", here, b.broadcast(updates, shape=node.shape, axes=(0,)), b.like(node, 0))


def _before_rows(node: Node) -> tuple[str, Node] | None:
    """Read an element before numbers of rows change it: what they make of the others is not needed."""
    x, index = node.inputs
    axis = node.op.attributes["axis"]
    if node.shape[axis] != 1 or not _of_rows(x, axis):
        return None
    b = Builder(node.where)
    operands = [_at(b, i, index, axis) for i in x.inputs]
    return "picked before rows", make(x.op, *operands, where=x.where)


def _of_rows(x: Node, axis: int) -> bool:
    """Return whether a value follows from one other value, and numbers of rows are part of that."""
    if not follows(x):
        return False
    others = [i for i in x.inputs if not _repeats(i, axis)]
    if len(others) != 1:
        return False
    return any(uniform_scalar(i) is None for i in x.inputs if i is not others[0]) or _of_rows(others[0], axis)


def _repeats(node: Node, axis: int) -> bool:
    return node.op.name == "broadcast" and axis not in node.op.attributes["axes"]


def _at(b: Builder, x: Node, index: Node, axis: int) -> Node:
    if not _repeats(x, axis):
        return b.gather_along(x, index, axis=axis)
    return b.broadcast(x.inputs[0], shape=index.shape, axes=x.op.attributes["axes"])


# -- indices -------------------------------------------------------------------------------------------------
def _columns_of(index: Node, x: Node) -> Node | None:
    """Return y where an index into x as one axis is V i + y for each row i, with y in [0, V) or refused."""
    if x.aval.ndim != 2 or index.shape != x.shape[:1] or index.op.name != "add" or index.dtype is not int64:
        return None
    columns = x.aval.ints[1]
    for scaled, found in (index.inputs, index.inputs[::-1]):
        if scaled.op.name != "mul":
            continue
        for row, factor in (scaled.inputs, scaled.inputs[::-1]):
            number = _chosen(row).op.name == "iota"  # 0, 1, 2, .., by its shape
            if number and _bounds(factor) == Bounds(columns, columns) and _in_range(found, columns):
                return found
    return None


def _in_range(node: Node, size: int) -> bool:
    """Return whether an index lies in [0, size), but for where it is made one that is always refused."""
    found = _bounds(node)
    if found is not None and found.low >= 0 and found.high < size:
        return True
    if node.op.name != "select" or node.inputs[0].op.name != "or":
        return False
    test, refused, given = node.inputs
    tests = {(t.op.name, t.inputs[0], _bounds(t.inputs[1])) for t in test.inputs}
    wanted = {("lt", given, Bounds(0, 0)), ("ge", given, Bounds(size, size))}
    return tests == wanted and _bounds(refused) == Bounds(OUT_OF_RANGE, OUT_OF_RANGE)


def _decided(test: Node) -> bool | None:
    """Return what a comparison of integers always is, None where that depends."""
    if test.op.name in ("or", "and"):
        both = [_decided(i) for i in test.inputs]
        decisive = test.op.name == "or"
        return decisive if decisive in both else None if None in both else not decisive
    rule = DECIDED.get(test.op.name)
    ends = [_bounds(i) for i in test.inputs] if rule is not None else [None]
    return None if rule is None or None in ends else rule(*ends)


def _chosen(node: Node) -> Node:
    """Return what a value is that a decided comparison chooses."""
    while node.op.name == "select":
        test = _decided(node.inputs[0])
        if test is None:
            break
        node = node.inputs[1 if test else 2]
    return node


def _bounds(node: Node) -> Bounds | None:
    """Return the bounds of an integer, None where they are not known."""
    node = _chosen(node)
    scalar = uniform_scalar(node)
    if scalar is not None and isinstance(scalar.op, Const) and scalar.dtype.is_integer:
        value = int(scalar.op.value.array)
        return Bounds(value, value)
    if node.op.name == "iota" and node.dtype.is_integer:
        return Bounds(0, node.aval.ints[node.op.attributes["axis"]] - 1)
    return None
