"""Every program within a memory budget between the least it needs and what it takes: no bit may change.

Planted like a fault (`--plant budgets`), which the fuzzers must not find.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

from stratal.base import settings
from stratal.base.errors import DoesNotFit
from stratal.compiler import planned
from stratal.plan import offload
from stratal.tensor.lazy import program_cache


def plant() -> None:
    """Compile every graph once more, within a budget and perhaps with a folder for states, and run that."""
    original = program_cache.compile_graph
    folder = Path(tempfile.mkdtemp(prefix="offloaded-"))
    offload.LEAST_BYTES = 64  # type: ignore[misc]  # all states are small

    def within_a_budget(graph: Any, **options: Any) -> Any:
        program = original(graph, **options)
        draw = random.Random(graph.digest)
        with settings.offload_dir(folder if draw.random() < 0.5 else None):
            peak = program.plan.planned_peak_bytes
            least = _least(graph, peak)
            if least >= peak:
                return program
            with settings.memory(least + int(draw.random() * (peak - least))):
                return original(graph, **options)

    program_cache.compile_graph = within_a_budget


def _least(graph: Any, peak: int) -> int:
    try:
        with settings.memory(1):
            planned(graph)
    except DoesNotFit as error:
        return error.least_bytes
    return peak
