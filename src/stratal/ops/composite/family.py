"""What composites share: their registration under a visible name, scalars, precision, axes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from stratal.base.errors import AttributeValueError, DTypeError
from stratal.base.source import scope
from stratal.graph.builder import Builder, composite
from stratal.graph.node import Node
from stratal.ops.families import cast_to as cast_to

_Function = TypeVar("_Function", bound=Callable[..., Any])


def named(function: _Function) -> _Function:
    """Register a composite; the nodes it builds carry its name as the scope of their source lines."""
    name = function.__name__

    @functools.wraps(function)
    def run(b: Builder, *args: Any, **attributes: Any) -> Any:
        where = tuple(line._replace(scope=(*line.scope, name)) for line in b.where)
        with scope(name):
            return function(b.at(where), *args, **attributes)

    composite(run)
    return run  # type: ignore[return-value]


def in_floats(function: _Function) -> _Function:
    """Register a composite of floats. Its first operand is given to it in the compute dtype; the result is
    rounded to that operand's dtype, so that 16-bit floats are rounded once.
    """

    @functools.wraps(function)
    def rounded(b: Builder, x: Node, *args: Any, **attributes: Any) -> Node:
        check_float(function.__name__, x)
        return cast_to(b, function(b, wide(b, x), *args, **attributes), x.dtype)

    return named(rounded)  # type: ignore[return-value]


def scaled(b: Builder, x: Node, factor: float) -> Node:
    """Return x times a Python scalar."""
    return b.op("mul", x, b.like(x, factor))


def shifted(b: Builder, x: Node, amount: float) -> Node:
    """Return x plus a Python scalar."""
    return b.op("add", x, b.like(x, amount))


def wide(b: Builder, x: Node) -> Node:
    """Return `x` in its compute dtype, so that a composite of 16-bit floats rounds once, at its end."""
    return cast_to(b, x, x.dtype.compute)


def check_float(name: str, *nodes: Node) -> None:
    """Refuse operands that are not real floats of one dtype. Raises: DTypeError."""
    for x in nodes:
        if not x.dtype.is_float or x.dtype is not nodes[0].dtype:
            raise DTypeError(f"{name}: takes floats of one dtype", got=", ".join(str(n.aval) for n in nodes))


def axis_of(name: str, x: Node, axis: int) -> int:
    """Return an axis counted from the front. Raises: AttributeValueError."""
    if not -x.aval.ndim <= axis < x.aval.ndim:
        raise AttributeValueError(f"{name}: axis out of range", got=f"axis {axis} of {x.aval}")
    return axis % x.aval.ndim


def all_axes(name: str, x: Node, axes: Sequence[int] | None) -> tuple[int, ...]:
    """Return axes counted from the front, sorted; every one for None."""
    if axes is None:
        return tuple(range(x.aval.ndim))
    return tuple(sorted(axis_of(name, x, a) for a in axes))


def along(b: Builder, x: Node, like: Node, axes: Sequence[int]) -> Node:
    """Broadcast `x`, whose axes are the given ones of `like`, to the shape of `like`."""
    return b.op("broadcast", x, shape=like.shape, axes=tuple(axes))
