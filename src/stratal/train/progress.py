"""The line a fit shows on a terminal: where it is, how fast, and what it waits for."""

from __future__ import annotations

import time
from typing import Any, Final

from stratal.train.history import Row, Running

REFRESH_S: Final = 0.1


class Progress:
    """Draws an epoch's line at most ten times a second, and leaves it standing when the epoch ends.

    Where `shown` is False nothing is drawn and rich is not imported. Without a terminal nothing is drawn
    either, unless `shown` is True: a log gets the line of each epoch that ended.
    """

    def __init__(self, shown: bool | None, epochs: int) -> None:
        self.epochs = epochs
        self._console = _console(shown)
        self._live: Any = None
        self._due = 0.0
        self._began = 0.0

    def begin(self, epoch: int, batches: int | None) -> None:
        """Begin the line of an epoch."""
        if self._console is None:
            return
        from rich.live import Live

        self._title = f"epoch {epoch}/{self.epochs}"
        self._batches = batches
        self._began = time.perf_counter()
        self._due = self._began + REFRESH_S
        if self._console.is_terminal:
            self._live = Live(self._title, console=self._console, auto_refresh=False)
            self._live.start()

    def step(self, running: Running) -> None:
        """Draw where the epoch is, if it is time."""
        if self._live is None or (now := time.perf_counter()) < self._due:
            return
        self._due = now + REFRESH_S
        self._live.update(self._line(running, now - self._began), refresh=True)

    def end(self, running: Running, row: Row | None) -> None:
        """End the line with the epoch's results."""
        if self._console is None:
            return
        line = self._line(running, time.perf_counter() - self._began, row)
        if self._live is None:
            self._console.print(line, soft_wrap=True)
            return
        live, self._live = self._live, None
        live.update(line, refresh=True)
        live.stop()

    def close(self) -> None:
        """Leave the terminal as it was where an epoch did not end."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _line(self, running: Running, seconds: float, row: Row | None = None) -> Any:
        from rich.text import Text

        of = "" if self._batches is None else f"/{self._batches}"
        parts = [f"{self._title}  {running.batches}{of}"]
        if row is not None:
            parts += [f"{name} {value:.4g}" for name, value in _results(row)]
        elif running.rows:
            parts.append(f"loss {running.mean_loss():.4g}")
        if running.rows and seconds:
            parts.append(f"{running.rows / seconds:,.0f} samples/s")
        if row is None and self._batches and running.batches:
            left = seconds / running.batches * (self._batches - running.batches)
            parts.append(f"{left:.0f} s left")
        return Text("  ".join([*parts, waits_of(running, seconds)]), no_wrap=True, overflow="ellipsis")


def waits_of(running: Running, seconds: float) -> str:
    """Return what an epoch waited for, in percent of its time."""
    waits = {"data": running.data_s, "compile": running.compile_s, "compute": running.compute_s}
    return "  ".join(f"{name} {100 * s / seconds:.0f}%" for name, s in waits.items()) if seconds else ""


def _results(row: Row) -> list[tuple[str, float]]:
    from stratal.train.history import TIMES

    return [(k, v) for k, v in row.items() if k not in (*TIMES, "epoch") and isinstance(v, (int, float))]


def _console(shown: bool | None) -> Any:
    if shown is False:
        return None
    from rich.console import Console

    console = Console(stderr=True)
    return console if shown or console.is_terminal else None
