"""What is long and hardly ever needed: scalar functions of the language that another expression defines.

Each takes operands and what its result is as a rule. Code generation looks whether a vector has operands for
which the rule does not hold, and calls a function then, which is compiled once a kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple

from stratal.base.dtypes import DType
from stratal.loops.expr import FUNCTIONS, Buffer, Expr, Load
from stratal.loops.math.division import far_mod, is_far_quotient
from stratal.loops.math.trigonometric import far_cos, far_sin, far_tan, is_far


class Rare(NamedTuple):
    """`value` is the result where `condition` holds; both are expressions of the operands `xs`."""

    xs: tuple[Load, ...]
    condition: Expr
    value: Expr


RARE: Final[dict[str, tuple[Callable[..., Expr], Callable[..., Expr]]]] = {
    "far_sin": (is_far, far_sin),
    "far_cos": (is_far, far_cos),
    "far_tan": (is_far, far_tan),
    "far_mod": (is_far_quotient, far_mod),
}


@lru_cache(maxsize=16)
def rare(fn: str, dtype: DType) -> Rare:
    """Return the definition of one of these functions for a dtype."""
    condition, value = RARE[fn]
    xs = tuple(Buffer(f"x{k}", dtype, ())[()] for k in range(FUNCTIONS[fn][0] - 1))
    return Rare(xs, condition(*xs), value(*xs))
