"""What the parts of the serving benchmarks share: a run with its limits, and rows."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Rates = dict[str, float]


class TimeIsUpError(Exception):
    """A part has used its time."""


@dataclass(frozen=True)
class Run:
    """Where the models of a part are, and nothing else; how long a trial takes, and when the part ends."""

    folder: Path
    names: tuple[str, ...]
    seconds: float
    ends: float  # of the monotonic clock
    say: Callable[[str], None]

    def check(self) -> None:
        if time.monotonic() > self.ends:
            raise TimeIsUpError


def row(workload: str, ratio: float | None, gate: float, bound: str, **more: Any) -> Row:
    """Return a row; `bound` is "at most" or "at least", and without a ratio nothing was measured."""
    met = None if ratio is None else bool(ratio <= gate if bound == "at most" else ratio >= gate)
    return {"workload": workload, "system": "stratal", "ratio": ratio, "gate": gate, "met": met,
            "bound": bound, **more}  # fmt: skip


def cores() -> tuple[str, int]:
    """Return the cores of front end and workers as `serving_server` takes them, and the number of workers."""
    available = sorted(os.sched_getaffinity(0))
    front, *back = available
    return f"{front}/{','.join(map(str, back or [front]))}", max(1, len(back))
