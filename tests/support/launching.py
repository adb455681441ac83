"""Starts ranks for tests, under a time-out, and leaves no process behind."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
HAS_MPI = importlib.util.find_spec("mpi4py") is not None and bool(
    shutil.which("mpirun") or (Path(sys.executable).parent / "mpirun").exists()
)
needs_mpi = pytest.mark.skipif(not HAS_MPI, reason="MPI is not installed: pip install 'stratal[parallel]'")
launched = pytest.mark.sampled(10, among="launches")  # a launch takes five to twenty seconds of two cores


def environment() -> dict[str, str]:
    return {**os.environ, "STRATAL_THREADS": "1"}


def alive(pid: int) -> bool:
    """Return whether a process runs, stopped ones too; one that ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def command(ranks: int, script: str, *arguments: str, timeout: float = 60.0) -> list[str]:
    launch = [sys.executable, "-m", "stratal", "launch", "-n", str(ranks), "--timeout", str(timeout)]
    return [*launch, str(HERE / script), *arguments]


def launch(
    ranks: int, script: str, *arguments: str, timeout: float = 60.0, limit: float = 150.0
) -> tuple[int, str]:
    """Run a script beside this file on some ranks; return the exit status and all they printed.

    `timeout`: seconds a rank waits for others; `limit`: seconds all of it may take.
    """
    done = subprocess.run(
        command(ranks, script, *arguments, timeout=timeout), env=environment(), timeout=limit, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return done.returncode, done.stdout.decode(errors="replace")
