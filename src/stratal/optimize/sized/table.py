"""The table of rules: how each op is done on values whose sizes are known only at run time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

Rule = Callable[..., Any]
RULES: Final[dict[str, Rule]] = {}
"""rule(sizes, node, *operands) -> the result as Sized, or one for each result."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a function as the rule of some ops."""

    def register(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return register
