"""Constant folding: values known at compile time are computed by the records' references.

Large results are not stored: what is a broadcast of a scalar, or could be made again for nothing, stays an
op. What has no elements, or adds up none, is such a broadcast.
"""

from __future__ import annotations

import numpy as np

from stratal.base.dims import known_equal
from stratal.base.types import TensorType, TupleType
from stratal.graph.interpret import apply
from stratal.graph.node import Const, Item, Node, constant, make
from stratal.graph.op import REGISTRY, Array
from stratal.graph.pattern import uniform_scalar
from stratal.ops.families import Elementwise

MAX_ELEMENTS = 4096  # a folded result is stored in the program; this many float32 are 16 KiB
MAX_OPERAND_ELEMENTS = 1 << 16  # work at compile time stays in the microseconds
_CHEAP_TO_MAKE = frozenset({"broadcast", "iota", "barrier", "constrain"})
_POINTWISE = frozenset({"select", "cast", "bitcast"})
_SUMS = frozenset({"contract", "sum"})


def fold(node: Node) -> tuple[str, Node] | None:
    """Return the constant a node computes, or None where it is unknown, not allowed or too large."""
    if isinstance(node.op, Const):
        return _uniform(node)
    if not node.inputs or isinstance(node.type, TupleType) or isinstance(node.op, Item) or node.op.effects:
        return None
    if not node.op.foldable or node.op.name in _CHEAP_TO_MAKE:
        return None
    if _adds_nothing(node):
        return "empty", _repeated(constant(np.zeros((), node.dtype.np), node.where), node)
    scalars = [uniform_scalar(i) for i in node.inputs]
    if any(s is None and not isinstance(i.op, Const) for i, s in zip(node.inputs, scalars, strict=True)):
        return None
    if all(s is not None for s in scalars) and _is_pointwise(node):
        return _fold_scalars(node, [s for s in scalars if s is not None])
    arrays = [_known(i) for i in node.inputs]
    if _elements(node.type) <= MAX_ELEMENTS and all(a is not None for a in arrays):
        return "fold", constant(np.asarray(apply(node.op, *(a for a in arrays if a is not None))), node.where)
    return None


def _known(node: Node) -> Array | None:
    """Return the array of a constant, repeated where it is a broadcast scalar, unless it is large."""
    if isinstance(node.op, Const):
        return node.op.value.array
    scalar = uniform_scalar(node)
    if scalar is None or _elements(node.aval) > MAX_OPERAND_ELEMENTS:
        return None
    return np.broadcast_to(scalar.op.value.array, node.aval.ints)  # type: ignore[attr-defined]


def _adds_nothing(node: Node) -> bool:
    """Return whether a value has no elements, or is a sum of none."""
    if node.op.name in _SUMS:
        return any(known_equal(i.aval.size, 0) for i in node.inputs)
    return _is_pointwise(node) and known_equal(node.aval.size, 0)


def _is_pointwise(node: Node) -> bool:
    return isinstance(node.op, Elementwise) or node.op.name in _POINTWISE


def _fold_scalars(node: Node, scalars: list[Node]) -> tuple[str, Node]:
    """Compute one element and repeat it."""
    value = apply(node.op, *(s.op.value.array for s in scalars))  # type: ignore[attr-defined]
    return "fold", _repeated(constant(np.asarray(value), node.where), node)


def _repeated(scalar: Node, like: Node) -> Node:
    if like.aval.ndim == 0:
        return scalar
    return make(REGISTRY["broadcast"](shape=like.shape, axes=()), scalar, where=like.where)  # type: ignore[call-arg]


def _uniform(node: Node) -> tuple[str, Node] | None:
    """A stored array of equal elements becomes a broadcast scalar, which kernels read as an immediate."""
    array = node.op.value.array  # type: ignore[attr-defined]
    if array.ndim == 0 or array.size == 0:
        return None
    flat = array.reshape(-1)
    first = flat[:1].tobytes()
    if flat[-1:].tobytes() != first or array.tobytes() != first * array.size:
        return None
    return "uniform", _repeated(constant(flat[0].reshape(()), node.where), node)


def _elements(type_: TensorType) -> int:
    return int(type_.size) if isinstance(type_.size, int) else MAX_ELEMENTS + 1
