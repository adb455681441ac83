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
    """A float64 scalar that gives way to the dtype of the tensors it meets.

    `nonzero` and `positive` say what is known of it: where Python may raise, it needs the number.
    """

    __slots__ = ("nonzero", "positive")
    _weak = True
    nonzero: bool
    positive: bool

    @classmethod
    def of(cls, node: Node, nonzero: bool = False, positive: bool = False) -> RuntimeScalar:
        """Return the scalar a node holds."""
        made = initialize(cls.__new__(cls), node.aval, node)
        made.nonzero, made.positive = nonzero, positive
        place(made)
        return made

    def __neg__(self) -> Any:
        return met("negative", "mul", self, -1.0)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        node = make(REGISTRY["abs"](), look(self)[0], where=where_now())
        return RuntimeScalar.of(node, self.nonzero, self.nonzero)

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
    low, high = size.range()
    node = to_dtype(look(number(size))[0], float64, where_now())
    return RuntimeScalar.of(node, low > 0 or high < 0, low > 0)


NUMBERS.append(of_size)


_DIVIDING = ("div", "floordiv", "rem")


def _known(op: str, x: Any, y: Any) -> tuple[bool, bool]:
    """Return whether a result is known to be nonzero, and positive; ask for the numbers where Python may
    raise, or make a complex one.
    """
    (a, above), (b, also_above) = (
        (v.nonzero, v.positive) if isinstance(v, RuntimeScalar) else (v != 0, v > 0) for v in (x, y)
    )
    if op in _DIVIDING:
        fine = b
    elif op == "pow":
        whole = not isinstance(y, RuntimeScalar) and float(y).is_integer()
        fine = above or (whole and (a or y >= 0))
    else:
        fine = True
    for v in (x, y) if not fine else ():
        float(v)
    if op in ("mul", "div"):
        return a and b, above and also_above
    above = above and (op == "pow" or (op == "add" and also_above))
    return above, above


def met(name: str, op: str, x: Any, y: Any) -> Any:
    """Return `op` of two operands at least one of which is a runtime scalar; None where ordinary rules do."""
    if isinstance(y, Sym) and op in _DIVIDING and y == 0:
        raise ZeroDivisionError("division by zero")
    x, y = (of_size(v) if isinstance(v, Sym) else v for v in (x, y))
    weak = [isinstance(v, (RuntimeScalar, bool, int, float)) for v in (x, y)]
    where = where_now()
    if all(weak):
        nodes = [
            look(v)[0] if isinstance(v, Tensor) else scalar(name, float(v), float64, (), where)
            for v in (x, y)
        ]
        known = _known(op, x, y)
        node = make(REGISTRY[op](), *nodes, where=where)
        return RuntimeScalar.of(node, *known) if node.aval.dtype is float64 else wrap(node, CONSTANT)
    other = y if weak[0] else x
    if not isinstance(other, Tensor):
        return None
    dtype: DType = other.dtype if other.dtype.is_inexact else as_dtype(float)
    return tuple(
        wrap(to_dtype(look(v)[0], dtype, where), CONSTANT) if isinstance(v, RuntimeScalar) else v
        for v in (x, y)
    )
