"""Where the time of a pipeline goes: calls and seconds of each stage, and what the loop waited for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

WAITED, LOOP = "waited for data", "in the loop"


class StageTimes:
    """Calls and seconds by stage; those of workers are added up."""

    def __init__(self) -> None:
        self.stages: dict[str, tuple[int, float]] = {}
        self._lock = threading.Lock()

    def stage(self, name: str) -> str:
        """Return a name for a stage, with its number."""
        made = f"{sum(s[0].isdigit() for s in self.stages) + 1} {name}"
        self.stages[made] = 0, 0.0
        return made

    def note(self, stage: str, seconds: float, calls: int = 1) -> None:
        """Add calls of a stage."""
        with self._lock:
            before, spent = self.stages.get(stage, (0, 0.0))
            self.stages[stage] = before + calls, spent + seconds

    def __str__(self) -> str:
        rows = [("stage", "calls", "seconds", "us per call")]
        for name, (calls, seconds) in self.stages.items():
            each = f"{1e6 * seconds / calls:.1f}" if calls else "-"
            rows.append((name, f"{calls:,}", f"{seconds:.3f}", each))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        padded = [[c.rjust(w) for c, w in zip(row, widths, strict=True)] for row in rows]
        lines = ["  ".join([row[0].ljust(widths[0]), *p[1:]]) for row, p in zip(rows, padded, strict=True)]
        return "\n".join(lines)

    def reading(self, stage: str, rows: Iterator[Any]) -> Iterator[Any]:
        """Yield the elements of an iterator; each is a call."""
        start = time.perf_counter()
        for row in rows:
            self.note(stage, time.perf_counter() - start)
            yield row
            start = time.perf_counter()


class Timed:
    """A function whose calls are noted."""

    def __init__(self, times: StageTimes, stage: str, function: Callable[..., Any]) -> None:
        self.times, self.stage, self.function = times, stage, function

    def __call__(self, *arguments: Any) -> Any:
        start = time.perf_counter()
        try:
            return self.function(*arguments)
        finally:
            self.times.note(self.stage, time.perf_counter() - start)


class TimedRows:
    """A data set by position whose reads are noted, an element as a call."""

    def __init__(self, times: StageTimes, stage: str, dataset: Any) -> None:
        self._times, self._stage, self._dataset = times, stage, dataset
        for name in ("__getitems__", "columns_at"):  # where it has them
            if hasattr(dataset, name):
                setattr(self, name, self._several(getattr(dataset, name)))

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        start = time.perf_counter()
        try:
            return self._dataset[index]
        finally:
            self._times.note(self._stage, time.perf_counter() - start)

    def _several(self, read: Callable[[Sequence[int]], Any]) -> Callable[[Sequence[int]], Any]:
        def timed(positions: Sequence[int]) -> Any:
            start = time.perf_counter()
            try:
                return read(positions)
            finally:
                self._times.note(self._stage, time.perf_counter() - start, len(positions))

        return timed


def name_of(function: Any) -> str:
    """Return how a table calls a function."""
    return str(getattr(function, "__name__", type(function).__name__)).strip("<>")
