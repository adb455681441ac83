"""Isolation: threads and forks share a compiled step; memory stays flat over steps and recompiles."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
from layout import SUPPORT
from training import Training
from waiting import LIMIT_S, exit_code, joined

import stratal as st


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
    joined(*threads)
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
    assert exit_code(child) == 0
    with os.fdopen(read) as found:
        assert found.read() == training.digest()


def test_a_child_forked_while_another_thread_runs_a_program_can_run_it_too() -> None:
    """The thread does not come along, nor does the lock it holds."""
    started, leave = threading.Event(), threading.Event()

    def slowly(x: Any) -> Any:
        started.set()
        if os.getpid() == parent:
            leave.wait(10)
        return x

    parent = os.getpid()
    x = st.tensor(np.ones(4, np.float32))
    double, wait = st.compile(lambda x: x * 2), st.compile(lambda x: st.host_call(slowly, x, x) + 1)
    leave.set()
    double(x), wait(x)
    for event in (started, leave):
        event.clear()
    thread = threading.Thread(target=wait, args=(x,))
    thread.start()
    assert started.wait(LIMIT_S)
    child = os.fork()
    if child == 0:  # no cleanup of the parent's may run here
        code = 1
        signal.alarm(20)
        try:
            code = 0 if all((f(x).numpy() == 2).all() for f in (double, wait)) else 2
        finally:
            os._exit(code)
    try:
        assert exit_code(child) == 0
    finally:
        leave.set()
        joined(thread)
    assert (wait(x).numpy() == 2).all()


def printed(*arguments: str) -> str:
    """Return what a fresh Python process prints that keeps no kernels and compiles alone."""
    environment = os.environ | {"STRATAL_CACHE_DIR": "off", "STRATAL_COMPILE_WORKERS": "0"}
    command = [sys.executable, *arguments]
    child = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert child.returncode == 0, child.stderr[-2000:]
    return child.stdout


def resident(kind: str, count: int) -> list[int]:
    return list(map(int, printed(str(SUPPORT / "steady_memory.py"), kind, str(count)).split()))


@pytest.mark.sampled(4)
def test_memory_stays_flat_over_steps() -> None:
    samples = resident("steps", 2000)
    assert samples[-1] - samples[0] < 1 << 19, samples


@pytest.mark.slow
def test_memory_stays_flat_over_ten_thousand_steps() -> None:
    samples = resident("steps", 10_000)
    assert samples[-1] - samples[0] < 1 << 19, samples


@pytest.mark.sampled(5)
def test_memory_stays_flat_over_recompiles_once_the_last_programs_are_remembered() -> None:
    samples = resident("recompiles", 60)  # some forty programs are remembered, at half a megabyte each
    assert samples[-1] - samples[7] < 3 << 20, samples


@pytest.mark.slow
def test_memory_stays_flat_over_a_thousand_recompiles() -> None:
    samples = resident("recompiles", 1000)
    assert samples[-1] < 1.05 * samples[1], samples


FRAGMENTED = """
import ctypes, numpy as np, stratal as st
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
numbers = (ctypes.c_int,) * 3
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *numbers, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
PRIVATE, ANONYMOUS, NORESERVE = 0x02, 0x20, 0x4000
blocks = [libc.mmap(None, 3 << 30, 0, PRIVATE | ANONYMOUS | NORESERVE, -1, 0) for _ in range(5)]
for block in blocks:  # the next pages anybody asks for lie gigabytes apart
    libc.munmap(block + (1 << 30), 4096)
for n in range(3, 9):
    f = st.compile(lambda x: (st.erf(x * 0.3) + st.exp(x)).sum())
    x = np.full((7, n), 0.5, np.float32)
    assert abs(float(f(st.tensor(x))) - 7 * n * (0.1679960 + 1.64872127)) < 1e-3
print("fine")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="says mmap in Linux's numbers")
def test_kernels_load_where_free_memory_lies_gigabytes_apart() -> None:
    assert printed("-c", FRAGMENTED) == "fine\n"
