"""Aliases after an in-place write: values of the other views of the memory, as ops of the graph.

After a write through a view, the new value is scattered into its bases; other aliases are derived again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from stratal.base.dtypes import bool_
from stratal.base.errors import NotDifferentiableError
from stratal.base.source import SourceLine
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.ops.views.in_memory import retypes
from stratal.tensor.values.handle import CONSTANT, CONSUMED, STOPPED, TRACKED
from stratal.tensor.values.memory import View
from stratal.tensor.values.view_ops import put, taken

Where = tuple[SourceLine, ...]


class Write(NamedTuple):
    """A value given to a view."""

    view: View
    node: Node
    track: int
    grad: bool  # whether gradients were recorded then


def joint(nodes: list[Node], tracks: Sequence[int], grad: bool) -> tuple[list[Node], int]:
    """Return the operands of one op, and what its result is to gradients."""
    if CONSUMED in tracks and grad:
        return nodes, CONSUMED  # a gradient that left out what can no more be followed would be wrong
    if TRACKED in tracks and grad:
        if STOPPED in tracks:
            nodes = [stopped(n) if k == STOPPED else n for n, k in zip(nodes, tracks, strict=True)]
        return nodes, TRACKED
    return nodes, STOPPED if TRACKED in tracks or STOPPED in tracks else CONSTANT


def stopped(node: Node) -> Node:
    """Return a node through which no gradient flows."""
    return Builder(node.where).stop_gradient(node) if node.aval.dtype.is_inexact else node


def rewritten(
    view: View, old: tuple[Node, int, bool], done: Sequence[Write], where: Where
) -> tuple[Node, int]:
    """Return the value of a view after a write, the first of `done`, and what it is to gradients; `old` is
    what it was, and whether it is a leaf.

    A write that the gradients of this view do not see changes its value and leaves its history.
    """
    first = done[0]
    node, track, leaf = old
    seen = first.grad and view.group is first.view.group and not leaf
    of = next((w for w in done if w.view.covers(view) and (not seen or w.view.group is view.group)), None)
    if of is not None:
        new, mixed = taken(of.node, view.ops[len(of.view.ops) :], where), of.track
    elif seen:
        (before, value), mixed = joint([node, first.node], [track, first.track], True)
        new = _merged(view, before, first.view, value, where)
    else:
        new, mixed = _merged(view, node, first.view, first.node, where), first.track
    if seen or leaf:
        return new, TRACKED if leaf else mixed
    if track == TRACKED:
        return Builder(where).straight_through(new, node), TRACKED
    if track == CONSUMED:
        return new, CONSUMED
    return new, STOPPED if first.track in (TRACKED, STOPPED) else track


def _merged(view: View, old: Node, written: View, value: Node, where: Where) -> Node:
    """Return the value of a view after a write to another that does not cover it."""
    if view.covers(written):
        return put(old, written.ops[len(view.ops) :], value, where)
    shared = 0
    type_: Any = view.memory.type
    while view.ops[shared] == written.ops[shared]:
        type_ = view.ops[shared].infer(type_)
        shared += 1
    ours, theirs = view.ops[shared:], written.ops[shared:]
    retyped = next((op for op in (*ours, *theirs) if retypes(op)), None)
    if retyped is not None:
        raise NotDifferentiableError(
            "in-place: two views of different dtypes, and the tensor they are views of is gone",
            got=f"{retyped.name} of {type_}", hint="keep that tensor", where=where,
        )  # fmt: skip
    b = Builder(where)
    flags = type_.with_dtype(bool_)
    mask = put(b.full(flags, False), theirs, b.full(value.aval.with_dtype(bool_), True), where)
    spread_out = put(b.full(type_, 0), theirs, value, where)
    return b.op("select", taken(mask, ours, where), taken(spread_out, ours, where), old)
