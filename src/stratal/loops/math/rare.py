"""What is long and hardly ever needed: scalar functions of the language that another expression defines.

Each takes an operand and what its result is as a rule. Code generation looks whether a vector has operands
for which the rule does not hold, and calls a function then, which is compiled once a kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple

from stratal.base.dtypes import DType
from stratal.loops.expr import Buffer, Expr, Load
from stratal.loops.math.trigonometric import far_cos, far_sin, far_tan, is_far


class Rare(NamedTuple):
    """`value` is the result where `condition` holds; both are expressions of the operand `x`."""

    x: Load
    condition: Expr
    value: Expr


RARE: Final[dict[str, tuple[Callable[[Expr], Expr], Callable[[Expr], Expr]]]] = {
    "far_sin": (is_far, far_sin),
    "far_cos": (is_far, far_cos),
    "far_tan": (is_far, far_tan),
}


@lru_cache(maxsize=16)
def rare(fn: str, dtype: DType) -> Rare:
    """Return the definition of one of these functions for a dtype."""
    condition, value = RARE[fn]
    x = Buffer("x", dtype, ())[()]
    return Rare(x, condition(x), value(x))
