"""Ops whose result PyTorch has in the memory of their operand: their transposes on values, and layouts.

A view is a chain of them. `put` is what a write through a view makes of what the view was taken of.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from stratal.base.dims import Dim, Sym, evaluate, known_equal, product, same_shape
from stratal.base.dtypes import bool_
from stratal.base.source import SourceLine
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node, make
from stratal.graph.op import Op

Put = Callable[[Builder, Any, Node, Node], Any]
_LAYOUTS: Final = 1 << 12  # remembered


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
    made: Node = _PUT[op.name](Builder(where), op, whole, part)
    return made


def _put_slice(b: Builder, op: Any, whole: Node, part: Node) -> Node:
    """Spread the part over the axes it goes to, and choose between it and the rest by where it lies."""
    sizes, shape = part.aval.shape, whole.aval.shape
    if same_shape(sizes, shape):
        return part
    if any(known_equal(n, 0) for n in sizes):
        return whole
    step = tuple(s if not known_equal(n, 1) else 1 for n, s in zip(sizes, op.step, strict=True))
    last = [low + (n - 1) * s for low, n, s in zip(op.start, sizes, step, strict=True)]
    pads = {
        "low": tuple(op.start),
        "high": tuple(n - 1 - k for n, k in zip(shape, last, strict=True)),
        "interior": tuple(s - 1 for s in step),
    }
    where_to = b.pad(b.full(part.aval.with_dtype(bool_), True), b.const(False, bool_), **pads)
    spread_out = b.pad(part, b.const(0, part.aval.dtype), **pads)
    return b.op("select", where_to, spread_out, whole)


def _put_reshaped(b: Builder, op: Any, whole: Node, part: Node) -> Node:
    return b.op("reshape", part, shape=whole.aval.shape)


def _put_permuted(b: Builder, op: Any, whole: Node, part: Node) -> Node:
    return b.op("permute", part, perm=tuple(sorted(range(len(op.perm)), key=op.perm.__getitem__)))


_PUT: dict[str, Put] = {
    "slice": _put_slice,
    "reshape": _put_reshaped,
    "permute": _put_permuted,
    "broadcast": _put_reshaped,
    "flip": lambda b, op, whole, part: b.flip(part, axes=op.axes),
    "bitcast": lambda b, op, whole, part: b.bitcast(part, dtype=whole.aval.dtype),
    "real": lambda b, op, whole, part: b.complex(part, b.imag(whole)),
    "imag": lambda b, op, whole, part: b.complex(b.real(whole), part),
    "conj": lambda b, op, whole, part: b.conj(part),
    "view_as_real": lambda b, op, whole, part: b.view_as_complex(part),
    "view_as_complex": lambda b, op, whole, part: b.view_as_real(part),
}


def is_view(op: Op) -> bool:
    """Return whether an op's result lies in the memory of its operand."""
    return op.name in _PUT


def sized(op: Op, sizes: Mapping[str, int]) -> Op:
    """Return an op with numbers for symbolic sizes."""
    values = {name: tuple(evaluate(n, sizes) for n in getattr(op, name)) for name in op.dim_attributes}
    return dataclasses.replace(op, **values) if values else op  # type: ignore[type-var]


RETYPING = ("bitcast", "real", "imag", "view_as_real", "view_as_complex")  # elements are others in memory


# -- layouts -------------------------------------------------------------------------------------------------
class Layout(NamedTuple):
    """Where a view lies in the memory of its origin, in elements."""

    offset: Dim
    strides: tuple[Dim, ...]

    def is_contiguous(self, shape: tuple[Dim, ...]) -> bool:
        """Return whether elements lie one after another; axes of size 1 do not count."""
        compute = _is_contiguous.__wrapped__ if Sym in map(type, (*shape, *self.strides)) else _is_contiguous
        return compute(shape, self.strides)

    def span(self, shape: Sequence[Dim]) -> tuple[int, int] | None:
        """Return the first and the last element in memory; None where sizes are symbols."""
        steps = [(n - 1) * s for n, s in zip(shape, self.strides, strict=True)]
        if not all(isinstance(k, int) for k in (self.offset, *steps)):
            return None
        return self.offset + sum(k for k in steps if k < 0), self.offset + sum(k for k in steps if k > 0)


@lru_cache(_LAYOUTS)  # of numbers alone: symbols with one name may have several bounds
def _is_contiguous(shape: tuple[Dim, ...], strides: tuple[Dim, ...]) -> bool:
    pairs = zip(shape, strides, row_major(shape).strides, strict=True)
    return any(known_equal(n, 0) for n in shape) or all(
        known_equal(s, want) or known_equal(n, 1) for n, s, want in pairs
    )


def row_major(shape: Sequence[Dim]) -> Layout:
    """Return the layout of a contiguous tensor."""
    return Layout(0, tuple(product(shape[k + 1 :]) for k in range(len(shape))))


def layout_through(type_: TensorType, layout: Layout, ops: tuple[Op, ...]) -> Layout | None:
    """Return the layout of what some ops take of a value with a layout; None where one needs a copy."""
    symbolic = Sym in map(type, (*type_.shape, *layout.strides, layout.offset)) or any(map(_is_symbolic, ops))
    return (_layout_through.__wrapped__ if symbolic else _layout_through)(type_, layout, ops)


@lru_cache(_LAYOUTS)
def _is_symbolic(op: Op) -> bool:
    return any(Sym in map(type, getattr(op, name)) for name in op.dim_attributes)


@lru_cache(_LAYOUTS)
def _layout_through(type_: Any, layout: Layout | None, ops: tuple[Op, ...]) -> Layout | None:
    for op in ops:
        if layout is None:
            return None
        layout = layout_after(op, type_.shape, layout)
        type_ = op.infer(type_)
    return layout


def layout_after(op: Any, shape: Sequence[Dim], layout: Layout) -> Layout | None:
    """Return the layout of an op's result in the memory of its operand; None where it needs a copy."""
    offset, strides = layout
    if op.name == "slice":
        offset = sum((low * s for low, s in zip(op.start, strides, strict=True)), offset)
        return Layout(offset, tuple(s * k for s, k in zip(strides, op.step, strict=True)))
    if op.name == "permute":
        return Layout(offset, tuple(strides[a] for a in op.perm))
    if op.name == "flip":
        offset = sum(((shape[k] - 1) * strides[k] for k in op.axes), offset)
        return Layout(offset, tuple(-s if k in op.axes else s for k, s in enumerate(strides)))
    if op.name == "broadcast":
        of = dict(zip(op.axes, zip(shape, strides, strict=True), strict=True))
        kept = [k in of and known_equal(of[k][0], n) for k, n in enumerate(op.shape)]
        return Layout(offset, tuple(of[k][1] if same else 0 for k, same in enumerate(kept)))
    if op.name == "reshape":
        found = _regrouped(shape, layout, op.shape)
        return None if found is None else Layout(offset, found)
    if op.name in ("real", "imag"):
        return Layout(2 * offset + (op.name == "imag"), tuple(2 * s for s in strides))
    if op.name == "view_as_real":
        return Layout(2 * offset, (*(2 * s for s in strides), 1))
    if op.name == "view_as_complex":
        return Layout(offset // 2, tuple(s // 2 for s in strides[:-1]))
    return layout


def _regrouped(shape: Sequence[Dim], layout: Layout, target: Sequence[Dim]) -> tuple[Dim, ...] | None:
    """Return the strides of another shape of the same elements, where axes merge and split in place."""
    if layout.is_contiguous(tuple(shape)):
        return row_major(target).strides
    axes = [(n, s) for n, s in zip(shape, layout.strides, strict=True) if not known_equal(n, 1)]
    found: list[Dim] = [1] * len(target)
    left = len(target)
    while axes:
        size, unit = axes.pop()
        while axes and known_equal(axes[-1][1], size * unit):
            size = size * axes.pop()[0]
        covered: Dim = 1
        while left and (not known_equal(covered, size) or known_equal(target[left - 1], 1)):
            left -= 1
            found[left] = covered * unit
            covered = covered * target[left]
        if not known_equal(covered, size):
            return None
    return tuple(found)
