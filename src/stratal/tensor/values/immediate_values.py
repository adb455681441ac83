"""Small exact work runs at once: the value of a new node whose operands have theirs, by NumPy.

It is the rule for the ops of a public call (`calls/call_cache`) all operands of which have their values,
outside of captures and steps of optimizers, where no gradient is asked for:

| op | at once | because |
|---|---|---|
| moves elements (`Movement`) | up to 16 MB | it is one copy; programs would differ by where a slice begins |
| rounds once, or not at all (`Op.exact`) | up to 16,384 elements | NumPy's bits are the kernel's |
| any other | no | a program computes it, with all that waits; `calls/direct` knows those of one call |

What is computed here is no node any more for whoever reads it, so that nothing small ever waits.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from stratal.base.errors import StratalError
from stratal.base.types import TensorType, Type
from stratal.graph.node import Const, Node
from stratal.graph.op import Op
from stratal.ops.families import Movement
from stratal.ops.views.shapes import Broadcast
from stratal.runtime.storage import Array, Storage
from stratal.tensor.values import node_values

SMALL: Final = 1 << 14  # elements
MOVED_BYTES: Final = 1 << 24
_DEPTH: Final = 4  # nodes that no tensor holds: a cast and a broadcast of an operand, and the like


def is_exact(op: Op, type_: Type) -> bool:
    """Return whether an op's reference has the bits of its kernel."""
    return isinstance(type_, TensorType) and type_.dtype.kind in op.exact


def value_of(node: Node) -> Storage | None:
    """Return the value of a new node, if it is computed at once."""
    type_: Any = node.type
    size = type_.size if hasattr(type_, "dtype") else None
    if size.__class__ is not int or (size > SMALL and not _is_move(node, type_)):
        return None
    try:
        array = _array(node, _DEPTH)
        return None if array is None else Storage.copy_of(array, type_)
    except (MemoryError, StratalError):  # it waits, and fails where somebody asks for it
        return None


def _is_move(node: Node, type_: Any) -> bool:
    moves = isinstance(node.op, Movement) and not isinstance(node.op, Broadcast)
    return moves and type_.nbytes <= MOVED_BYTES


def _array(node: Node, depth: int) -> Array | None:
    """Return the value of a node as an array, which may be a view of an operand's."""
    known = node_values.finished(node)
    if known is not None:
        return known.array
    op = node.op
    if isinstance(op, Const):
        return op.value.array
    if not depth or not is_exact(op, node.type):
        return None
    operands = []
    for child in node.inputs:
        operand = _array(child, depth - 1)
        if operand is None or operand.dtype.kind == "c":
            return None
        operands.append(operand)
    with np.errstate(all="ignore"):
        return np.asarray(op.ref(*operands))
