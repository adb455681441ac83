"""Views as chains of ops whose results lie in their operands' memory: taken, written through, laid out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from stratal.base.dims import Sym, evaluate
from stratal.base.source import SourceLine
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node, make
from stratal.graph.op import Op
from stratal.ops.views.in_memory import LAYOUTS, Layout, layout_after, put_back


def taken(node: Node, ops: Sequence[Op], where: tuple[SourceLine, ...]) -> Node:
    """Return a view of a value."""
    for op in ops:
        node = make(op, node, where=where)
    return node


def put(whole: Node, ops: Sequence[Op], part: Node, where: tuple[SourceLine, ...]) -> Node:
    """Return a value with its view replaced."""
    if not ops:
        return part
    op, *rest = ops
    if rest:
        part = put(make(op, whole, where=where), rest, part, where)
    return put_back(Builder(where), op, whole, part)


def sized(op: Op, sizes: Mapping[str, int]) -> Op:
    """Return an op with numbers for symbolic sizes."""
    values = {name: tuple(evaluate(n, sizes) for n in getattr(op, name)) for name in op.dim_attributes}
    return dataclasses.replace(op, **values) if values else op  # type: ignore[type-var]


def layout_through(type_: TensorType, layout: Layout, ops: tuple[Op, ...]) -> Layout | None:
    """Return the layout of what some ops take of a value with a layout; None where one needs a copy."""
    symbolic = Sym in map(type, (*type_.shape, *layout.strides, layout.offset)) or any(map(_is_symbolic, ops))
    return (_layout_through.__wrapped__ if symbolic else _layout_through)(type_, layout, ops)


@lru_cache(LAYOUTS)
def _is_symbolic(op: Op) -> bool:
    return any(Sym in map(type, getattr(op, name)) for name in op.dim_attributes)


@lru_cache(LAYOUTS)
def _layout_through(type_: Any, layout: Layout | None, ops: tuple[Op, ...]) -> Layout | None:
    for op in ops:
        if layout is None:
            return None
        layout = layout_after(op, type_.shape, layout)
        type_ = op.infer(type_)
    return layout
