"""Measurements in another process: what crashes, hangs or is wrong is a reason, not a disaster."""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from stratal.base import tuning
from stratal.base.errors import MeasurementError
from stratal.base.target import Target
from stratal.compiler import driver_object
from stratal.inspect.intervals import Interval, median_interval
from stratal.tune.child import receive, send
from stratal.tune.trial import MOST_TEXT, Trial

START_S: Final = 60.0  # for a process to start on a busy machine
KILL_S: Final = 5.0  # from when a process is killed until it is reaped; longer only where the system hangs
ROUNDS: Final = 7
FINAL_ROUNDS: Final = 25


class Timing(NamedTuple):
    """Times of two programs taken in turns, in seconds."""

    base: tuple[float, ...]
    other: tuple[float, ...]

    @property
    def base_seconds(self) -> float:
        return statistics.median(self.base)

    @property
    def seconds(self) -> float:
        return statistics.median(self.other)

    @property
    def ratio(self) -> Interval:
        """The other's time over that of the base: the median over all turns, with its 95 % interval."""
        return median_interval([b / a for a, b in zip(self.base, self.other, strict=True)])


class Dropped(NamedTuple):
    """Why a candidate was not timed."""

    reason: str


class Measurer:
    """Times trials in a process of its own, which is started anew when one of them kills it.

    `limit_seconds` is what one measurement may take, compilation included. Use it as a context manager.
    """

    def __init__(self, target: Target, *, limit_seconds: float = 20.0) -> None:
        self.target: Final = target
        self.limit_seconds: Final = limit_seconds
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()

    def compare(
        self, base: Trial, other: Trial, *, seed: int = 0, seconds: float = 0.03, rounds: int = ROUNDS
    ) -> Timing | Dropped:
        """Time two programs that compute the same, in turns, for at least some rounds and seconds.

        Raises: MeasurementError where no process can be started.
        """
        if other.text_bytes > MOST_TEXT:
            return Dropped(f"its code would be {other.text_bytes >> 10} KiB of text")
        header = {
            "machine": [self.target.triple, self.target.cpu, self.target.features],
            "indices": base.indices, "seed": seed, "seconds": seconds, "rounds": rounds,
        }  # fmt: skip
        process = self._started()
        blobs = (base.program, other.program, driver_object(self.target))
        try:
            with killed_after(self.limit_seconds, process):
                send(process.stdin, header, blobs)  # type: ignore[arg-type]
                answer, _ = receive(process.stdout)  # type: ignore[arg-type]
        except (BrokenPipeError, EOFError):
            return Dropped(self._ended(process))
        except TimeoutError:
            self._stop()
            return Dropped(f"it takes more than {self.limit_seconds:g} s")
        except BaseException:
            self._stop()  # an answer nobody waits for would be taken for the next
            raise
        if "error" in answer:
            return Dropped(str(answer["error"]))
        return Timing(*(tuple(ns * 1e-9 for ns in answer[which]) for which in "ab"))

    def _started(self) -> subprocess.Popen[bytes]:
        process = self._process
        if process is None or process.poll() is not None:
            self._stop()
            process = self._process = _start()
            try:
                with killed_after(START_S, process):
                    receive(process.stdout)  # type: ignore[arg-type]
            except (EOFError, TimeoutError):
                self._stop()
                raise MeasurementError("tuning: the process that measures does not start") from None
        return process

    def _ended(self, process: subprocess.Popen[bytes]) -> str:
        """Say how the process ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1.0)
        code = process.returncode
        self._stop()
        if code is not None and code < 0:
            return f"it crashes: {signal.Signals(-code).name}"
        return "it ends the process that measures"

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(KILL_S)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


@contextlib.contextmanager
def killed_after(seconds: float, process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Kill a process when a block has taken so long, which ends each wait for one of its pipes.

    Raises: TimeoutError where that happened.
    """
    deadline = time.monotonic() + seconds
    timer = threading.Timer(seconds, process.kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (BrokenPipeError, EOFError):
        if time.monotonic() < deadline:
            raise
        raise TimeoutError from None
    finally:
        timer.cancel()


def _start() -> subprocess.Popen[bytes]:
    source = str(Path(tuning.__file__).parents[2])
    inherited = os.environ.get("PYTHONPATH", "")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (source, inherited)))}
    # Its own process group, so that the terminal's Ctrl-C reaches only the process the user talks to.
    group: dict[str, Any] = {"process_group": 0} if os.name == "posix" else {}
    return subprocess.Popen(
        [sys.executable, "-m", "stratal.tune.child"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        bufsize=0, env=environment, **group,
    )  # fmt: skip
