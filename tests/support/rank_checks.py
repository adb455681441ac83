"""What scripts that run on every rank of a test share: checks by name, and what must be refused."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from stratal import distributed as dist


def run_checks(checks: Sequence[Callable[[], None]]) -> None:
    """Run the checks that the command line names, or all; rank 0 says which have passed."""
    for check in checks if len(sys.argv) == 1 else [c for c in checks if c.__name__ in sys.argv]:
        began = time.monotonic()
        check()
        if dist.rank() == 0:
            print("passed", check.__name__, f"{time.monotonic() - began:.1f} s", flush=True)


def refused(kind: type[Exception], said: str, call: Callable[[], Any]) -> None:
    """Assert that a call raises an error of a kind that says something."""
    try:
        call()
    except kind as error:
        assert said in str(error), error
        return
    raise AssertionError(f"not refused: {said}")
