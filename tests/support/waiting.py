"""Waits that end: what is not done in time is named, and ended where it is a process."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from multiprocessing.process import BaseProcess
from threading import Thread, Timer

import pytest

LIMIT_S = 100.0  # of what takes seconds; below the limit of a whole test


def joined(*workers: Thread | BaseProcess, seconds: float = LIMIT_S) -> None:
    """Wait for threads and processes."""
    deadline = time.monotonic() + seconds
    for worker in workers:
        worker.join(max(0.0, deadline - time.monotonic()))
    late = [worker for worker in workers if worker.is_alive()]
    for worker in late:
        if isinstance(worker, BaseProcess):
            worker.kill()
            worker.join(5.0)
    if late:
        pytest.fail(f"not done within {seconds:g} s: {late}", pytrace=False)


def exit_code(child: int, seconds: float = LIMIT_S) -> int:
    """Wait for a forked child; return its exit code."""
    deadline = time.monotonic() + seconds
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)  # a killed process ends
            pytest.fail(f"the forked child did not end within {seconds:g} s", pytrace=False)
        time.sleep(1e-3)


def next_line(process: subprocess.Popen[str], seconds: float = LIMIT_S) -> str:
    """Return the next line of what a process prints; it is killed where none comes, which ends its output."""
    assert process.stdout is not None
    timer = Timer(seconds, process.kill)
    timer.start()
    try:
        return process.stdout.readline()
    finally:
        timer.cancel()
