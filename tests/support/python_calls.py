"""How much Python a piece of work runs, which no busy machine changes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def calls_and_depth(work: Callable[[], Any]) -> tuple[int, int]:
    """Return how many Python functions a piece of work calls, and how deep they nest."""
    calls = depth = deepest = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls, depth, deepest
        if event == "call":
            calls, depth = calls + 1, depth + 1
            deepest = max(deepest, depth)
        elif event == "return":
            depth -= 1

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls, deepest
