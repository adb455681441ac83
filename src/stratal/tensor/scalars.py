"""Runtime scalars: Python floats that became inputs of a captured graph, and what Python makes of symbolic
sizes. They behave as Python floats in promotion.
"""

from __future__ import annotations

from typing import Any

from stratal.base.dims import NUMBERS, Sym
from stratal.base.dtypes import DType, as_dtype, float64
from stratal.graph.node import Node, make
from stratal.graph.op import REGISTRY
from stratal.tensor.build import number, scalar, to_dtype, where_now
from stratal.tensor.tensor import Tensor, wrap
from stratal.tensor.values.handle import CONSTANT, initialize
from stratal.tensor.values.handles import look, place


class RuntimeScalar(Tensor):
    """A float64 scalar that gives way to the dtype of the tensors it meets."""

    __slots__ = ()
    _weak = True

    @classmethod
    def of(cls, node: Node) -> RuntimeScalar:
        """Return the scalar a node holds."""
        made = initialize(cls.__new__(cls), node.aval, node)
        place(made)
        return made

    def __neg__(self) -> Any:
        return met("negative", "mul", self, -1.0)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return RuntimeScalar.of(make(REGISTRY["abs"](), look(self)[0], where=where_now()))

    def __pow__(self, other: Any) -> Any:
        found = met("pow", "pow", self, other)
        return found if isinstance(found, Tensor) else super().__pow__(other)

    def __rpow__(self, other: Any) -> Any:
        found = met("pow", "pow", other, self)
        return found if isinstance(found, Tensor) else super().__rpow__(other)


def _made_anew(name: str) -> Any:
    def operator(self: RuntimeScalar, other: Any) -> Any:
        return getattr(self, f"__{name}__")(other)

    return operator


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    setattr(RuntimeScalar, f"__i{_name}__", _made_anew(_name))  # x += 1 makes another number of a number


def of_size(size: Sym) -> RuntimeScalar:
    """Return a symbolic size as a number of the run."""
    return RuntimeScalar.of(to_dtype(look(number(size))[0], float64, where_now()))


NUMBERS.append(of_size)


def met(name: str, op: str, x: Any, y: Any) -> Any:
    """Return `op` of two operands at least one of which is a runtime scalar; None where ordinary rules do."""
    x, y = (of_size(v) if isinstance(v, Sym) else v for v in (x, y))
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
    dtype: DType = other.dtype if other.dtype.is_inexact else as_dtype(float)
    return tuple(
        wrap(to_dtype(look(v)[0], dtype, where), CONSTANT) if isinstance(v, RuntimeScalar) else v
        for v in (x, y)
    )
