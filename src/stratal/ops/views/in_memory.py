"""Ops whose result PyTorch has in the memory of their operand: where it lies there, and what a write to it
makes of the operand. One registry, by record.

    layout(op, shape, layout)      the result's layout, of an operand with a shape and a layout; None: a copy
    put(b, op, whole, part)        the operand with the view of it replaced by `part`
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from stratal.base.dims import Dim, Sym, known_equal, product, same_shape
from stratal.base.dtypes import bool_
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Op
from stratal.ops.elementwise.complex_numbers import Conj, Imag, Real, ViewAsComplex, ViewAsReal
from stratal.ops.elementwise.conversion import Bitcast
from stratal.ops.views.boxes import Slice
from stratal.ops.views.shapes import Broadcast, Flip, Permute, Reshape

LAYOUTS: Final = 1 << 12  # remembered


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


@lru_cache(LAYOUTS)  # of numbers alone: symbols with one name may have several bounds
def _is_contiguous(shape: tuple[Dim, ...], strides: tuple[Dim, ...]) -> bool:
    pairs = zip(shape, strides, row_major(shape).strides, strict=True)
    return any(known_equal(n, 0) for n in shape) or all(
        known_equal(s, want) or known_equal(n, 1) for n, s, want in pairs
    )


def row_major(shape: Sequence[Dim]) -> Layout:
    """Return the layout of a contiguous tensor."""
    return Layout(0, tuple(product(shape[k + 1 :]) for k in range(len(shape))))


class InMemory(NamedTuple):
    """What is known of an op whose result lies in the memory of its operand.

    `retypes`: elements are others in memory, of another type or number.
    """

    layout: Callable[[Any, Sequence[Dim], Layout], Layout | None]
    put: Callable[[Builder, Any, Node, Node], Any]
    retypes: bool = False


def retypes(op: Op) -> bool:
    """Return whether a view has other elements in memory than what it is taken of."""
    return IN_MEMORY[type(op)].retypes


def layout_after(op: Op, shape: Sequence[Dim], layout: Layout) -> Layout | None:
    """Return the layout of an op's result in the memory of its operand; None where it needs a copy."""
    return IN_MEMORY[type(op)].layout(op, shape, layout)


def put_back(b: Builder, op: Op, whole: Node, part: Node) -> Node:
    """Return an op's operand with its result replaced."""
    made: Node = IN_MEMORY[type(op)].put(b, op, whole, part)
    return made


# -- layouts -------------------------------------------------------------------------------------------------
def _same(op: Op, shape: Sequence[Dim], layout: Layout) -> Layout:
    return layout


def _of_slice(op: Slice, shape: Sequence[Dim], layout: Layout) -> Layout:
    offset, strides = layout
    offset = sum((low * s for low, s in zip(op.start, strides, strict=True)), offset)
    return Layout(offset, tuple(s * k for s, k in zip(strides, op.step, strict=True)))


def _of_permute(op: Permute, shape: Sequence[Dim], layout: Layout) -> Layout:
    return Layout(layout.offset, tuple(layout.strides[a] for a in op.perm))


def _of_flip(op: Flip, shape: Sequence[Dim], layout: Layout) -> Layout:
    offset, strides = layout
    offset = sum(((shape[k] - 1) * strides[k] for k in op.axes), offset)
    return Layout(offset, tuple(-s if k in op.axes else s for k, s in enumerate(strides)))


def _of_broadcast(op: Broadcast, shape: Sequence[Dim], layout: Layout) -> Layout:
    of = dict(zip(op.axes, zip(shape, layout.strides, strict=True), strict=True))
    kept = [k in of and known_equal(of[k][0], n) for k, n in enumerate(op.shape)]
    return Layout(layout.offset, tuple(of[k][1] if same else 0 for k, same in enumerate(kept)))


def _of_reshape(op: Reshape, shape: Sequence[Dim], layout: Layout) -> Layout | None:
    found = _regrouped(shape, layout, op.shape)
    return None if found is None else Layout(layout.offset, found)


def _of_real(op: Op, shape: Sequence[Dim], layout: Layout) -> Layout:
    return Layout(2 * layout.offset, tuple(2 * s for s in layout.strides))


def _of_imag(op: Op, shape: Sequence[Dim], layout: Layout) -> Layout:
    return Layout(2 * layout.offset + 1, tuple(2 * s for s in layout.strides))


def _of_pairs(op: Op, shape: Sequence[Dim], layout: Layout) -> Layout:
    return Layout(2 * layout.offset, (*(2 * s for s in layout.strides), 1))


def _of_numbers(op: Op, shape: Sequence[Dim], layout: Layout) -> Layout:
    return Layout(layout.offset // 2, tuple(s // 2 for s in layout.strides[:-1]))


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


# -- writes --------------------------------------------------------------------------------------------------
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


IN_MEMORY: Final[dict[type[Op], InMemory]] = {
    Slice: InMemory(_of_slice, _put_slice),
    Reshape: InMemory(_of_reshape, _put_reshaped),
    Permute: InMemory(_of_permute, _put_permuted),
    Broadcast: InMemory(_of_broadcast, _put_reshaped),
    Flip: InMemory(_of_flip, lambda b, op, whole, part: b.flip(part, axes=op.axes)),
    Bitcast: InMemory(
        _same, lambda b, op, whole, part: b.bitcast(part, dtype=whole.aval.dtype), retypes=True
    ),
    Real: InMemory(_of_real, lambda b, op, whole, part: b.complex(part, b.imag(whole)), retypes=True),
    Imag: InMemory(_of_imag, lambda b, op, whole, part: b.complex(b.real(whole), part), retypes=True),
    Conj: InMemory(_same, lambda b, op, whole, part: b.conj(part)),
    ViewAsReal: InMemory(_of_pairs, lambda b, op, whole, part: b.view_as_complex(part), retypes=True),
    ViewAsComplex: InMemory(_of_numbers, lambda b, op, whole, part: b.view_as_real(part), retypes=True),
}
