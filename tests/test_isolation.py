"""Isolation: threads and forks share a compiled step; memory stays flat over steps and recompiles."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from training import Training

import stratal as st

HERE = Path(__file__).parent


def test_two_threads_calling_one_compiled_function_lose_no_update() -> None:
    total = st.tensor(np.zeros(500, np.float32))

    @st.compile
    def add(x: Any) -> Any:
        total.add_(x)
        return (x * x).sum()

    results: dict[int, set[float]] = {1: set(), 2: set()}

    def work(value: int) -> None:
        x = st.tensor(np.full(500, value, np.float32))
        for _ in range(200):
            results[value].add(float(add(x)))

    threads = [threading.Thread(target=work, args=(value,)) for value in results]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {1: {500.0}, 2: {2000.0}}
    np.testing.assert_array_equal(np.asarray(total), np.full(500, 600.0))


def test_a_child_forked_after_the_first_step_trains_like_its_parent() -> None:
    training = Training("mlp")
    training.run(1)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # no cleanup of the parent's may run here
        try:
            training.run(3)
            os.write(write, training.digest().encode())
        finally:
            os._exit(0)
    os.close(write)
    training.run(3)
    with os.fdopen(read) as found:
        assert found.read() == training.digest()
    assert os.waitpid(child, 0)[1] == 0


def resident(kind: str, count: int) -> list[int]:
    """Return what `steady_memory.py` prints in a fresh process."""
    command = [sys.executable, str(HERE / "steady_memory.py"), kind, str(count)]
    environment = os.environ | {"STRATAL_CACHE_DIR": "off", "STRATAL_COMPILE_WORKERS": "0"}
    child = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert child.returncode == 0, child.stderr[-2000:]
    return list(map(int, child.stdout.split()))


def test_memory_stays_flat_over_steps() -> None:
    samples = resident("steps", 2000)
    assert samples[-1] - samples[0] < 1 << 19, samples


@pytest.mark.slow
def test_memory_stays_flat_over_ten_thousand_steps() -> None:
    samples = resident("steps", 10_000)
    assert samples[-1] - samples[0] < 1 << 19, samples


def test_memory_stays_flat_over_recompiles_once_the_last_programs_are_remembered() -> None:
    samples = resident("recompiles", 50)
    assert samples[-1] - samples[6] < 3 << 20, samples


@pytest.mark.slow
def test_memory_stays_flat_over_a_thousand_recompiles() -> None:
    samples = resident("recompiles", 1000)
    assert samples[-1] < 1.05 * samples[1], samples
