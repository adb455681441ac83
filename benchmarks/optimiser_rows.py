"""What the parts of the optimiser's benchmark share: rows, and medians of runs that take turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

WARM: Final = 9  # rounds: a compiled function checks its capture in calls 2, 3, 5 and 9
PAUSE_S: Final = 0.3  # before each run: for so long PyTorch's threads may spin after the last one
Row = dict[str, Any]


def row(workload: str, against: str, ratio: float, gate: float | None, **more: Any) -> Row:
    """Return a row; without a gate it informs."""
    met = None if gate is None else ratio <= gate
    return {"workload": workload, "system": "stratal", "against": against, "ratio": ratio, "gate": gate,
            "met": met, **more}  # fmt: skip


def medians(runs: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Return median seconds of runs that take turns; the first rounds warm up, and captures are checked."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for k in range(WARM + rounds):
        for name, run in runs.items():
            time.sleep(PAUSE_S)
            began = time.perf_counter()
            run()
            if k >= WARM:
                found[name].append(time.perf_counter() - began)
    return {name: statistics.median(seconds) for name, seconds in found.items()}
