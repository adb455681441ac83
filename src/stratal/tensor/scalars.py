"""Runtime scalars: Python floats that became inputs of a captured graph, and behave as Python floats in
promotion.
"""

from __future__ import annotations

from typing import Any

from stratal.base.dtypes import DType, float32, float64
from stratal.graph.node import Node, make
from stratal.graph.op import REGISTRY
from stratal.tensor.build import scalar, to_dtype, where_now
from stratal.tensor.handles import CONSTANT, look
from stratal.tensor.state import MODE
from stratal.tensor.tensor import Tensor, wrap


class RuntimeScalar(Tensor):
    """A float64 scalar that gives way to the dtype of the tensors it meets."""

    __slots__ = ()

    @classmethod
    def of(cls, node: Node) -> RuntimeScalar:
        """Return the scalar a node holds."""
        made = cls.__new__(cls)
        plain = wrap(node)
        for name in Tensor.__slots__:
            if name not in ("__weakref__",):
                setattr(made, name, getattr(plain, name))
        if MODE.trace is not None:
            MODE.trace.made(made)
        return made


def met(name: str, op: str, x: Any, y: Any) -> Any:
    """Return `op` of two operands at least one of which is a runtime scalar; None where ordinary rules do."""
    weak = [isinstance(v, (RuntimeScalar, bool, int, float)) for v in (x, y)]
    where = where_now()
    if all(weak):
        nodes = [
            look(v)[0] if isinstance(v, Tensor) else scalar(name, float(v), float64, (), where)
            for v in (x, y)
        ]
        node = make(REGISTRY[op](), *nodes, where=where)
        return RuntimeScalar.of(node) if node.aval.dtype is float64 else wrap(node, CONSTANT)
    other = y if weak[0] else x
    if not isinstance(other, Tensor):
        return None
    dtype: DType = other.dtype if other.dtype.is_inexact else float32
    return tuple(_as(v, dtype, where) if isinstance(v, RuntimeScalar) else v for v in (x, y))


def _as(value: RuntimeScalar, dtype: DType, where: Any) -> Tensor:
    return wrap(to_dtype(look(value)[0], dtype, where), CONSTANT)
