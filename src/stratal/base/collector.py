"""Python's cycle collector, kept out of passes that make many objects and few cycles."""

from __future__ import annotations

import gc
from collections.abc import Generator

from stratal.base.interrupts import block

_paused = False  # here, not by whoever disabled the collector for reasons of their own


@block
def collector_paused() -> Generator[None]:
    """Collect no cycles inside the block: looking for them took a quarter of a compilation."""
    global _paused
    if not gc.isenabled():
        yield
        return
    try:
        gc.disable()
        _paused = True
        yield
    finally:
        _paused = False
        gc.enable()


def collect_paused() -> None:
    """Look for cycles among what was made during a pause: now, while others work for us, not at its end."""
    if _paused:
        gc.collect(0)
