"""Ids of requests, and the log: one line of JSON for each request.

    {"time": "2026-11-26T22:40:01.123Z", "id": "a1", "caller": "shop", "model": "digits", "version": "1",
     "rows": 4, "queue_ms": 0.2, "compute_ms": 0.05, "total_ms": 0.6, "status": 200}

A thread writes, so that a slow disk or a full pipe does not stop the server: where it does not keep up,
lines are dropped, counted, and a line says how many. What a client sends is written as JSON strings of ASCII,
cut to a length: no request can look like two lines.
"""

from __future__ import annotations

import json
import os
import queue
import re
import sys
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TextIO

from stratal.base.errors import AttributeValueError

MOST_WAITING: Final = 10_000
MOST_TEXT: Final = 200
_ID: Final = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")


def chosen_id(*offered: str) -> str:
    """Return the first id that fits: 1 to 128 of A-Z a-z 0-9 . _ : / + = @ -; else a random one."""
    return next(filter(_ID.fullmatch, offered), "") or os.urandom(12).hex()


@dataclass
class Call:
    """A request and what became of it. Times in seconds; `queued` and `computed` only of those that ran."""

    id: str
    model: str = ""
    version: str = ""
    variant: str = ""  # the model that answered, where the one that was asked has variants
    caller: str = ""
    rows: int = 0
    asked: float | None = None  # seconds it may take, where it got as far as a queue
    queued: float | None = None
    computed: float | None = None
    status: int = 200
    error: str = ""
    started: float = field(default_factory=time.perf_counter)

    def failed(self, status: int, error: str) -> None:
        """Note how it failed."""
        self.status, self.error = status, error

    @property
    def seconds(self) -> float:
        """Return how long ago it arrived."""
        return time.perf_counter() - self.started

    def to_json(self) -> dict[str, Any]:
        """Return what the log says of it; what is not known is left out."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        known = {
            "caller": self.caller, "model": self.model[:MOST_TEXT], "version": self.version[:MOST_TEXT],
            "variant": self.variant, "rows": self.rows, "queue_ms": _ms(self.queued),
            "compute_ms": _ms(self.computed),
            "total_ms": _ms(self.seconds), "status": self.status, "error": self.error[: 5 * MOST_TEXT],
        }  # fmt: skip
        return {"time": now, "id": self.id} | {k: v for k, v in known.items() if v not in ("", None)}


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1e3 * seconds, 3)


class RequestLog:
    """A file of JSON lines, appended to by a thread."""

    def __init__(self, path: Path) -> None:
        """Open a file; `-` is standard error. Raises: AttributeValueError where it cannot be written."""
        self.dropped = 0
        self._owned = str(path) != "-"
        try:
            self._file: TextIO = open(path, "a", encoding="ascii") if self._owned else sys.stderr  # noqa: SIM115
        except OSError as error:
            raise AttributeValueError(
                "serve: cannot write the log", got=f"{path}: {error.strerror}"
            ) from error
        self._lines: queue.Queue[str | None] = queue.Queue(MOST_WAITING)
        self._thread = threading.Thread(target=self._write_all, name="request log", daemon=True)
        self._thread.start()

    def write(self, record: dict[str, Any]) -> None:
        """Append a line, or count it as dropped; never wait."""
        try:
            self._lines.put_nowait(json.dumps(record))
        except queue.Full:
            self.dropped += 1

    def _write_all(self) -> None:
        told = 0
        while (line := self._lines.get()) is not None:
            try:
                if (dropped := self.dropped) > told:
                    self._file.write(json.dumps({"dropped": dropped - told}) + "\n")
                    told = dropped
                self._file.write(line + "\n")
                if self._lines.empty():
                    self._file.flush()
            except OSError:  # a full disk: there may be room later
                self.dropped += 1

    def close(self, seconds: float = 2.0) -> None:
        """Write what waits, within a time."""
        try:
            self._lines.put(None, timeout=seconds)
        except queue.Full:
            return
        self._thread.join(seconds)
        if self._owned and not self._thread.is_alive():
            self._file.close()
