"""Locks whose holder died, was stopped, or is the very thread that waits: nothing waits for ever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from waiting import exit_code, next_line

import stratal as st
from stratal.base import files, settings, tuning
from stratal.base.errors import CacheError
from stratal.base.files import create_locked, held_alone
from stratal.codegen.assemble_workers import WORKERS
from stratal.runtime import loader, pool, vendor
from stratal.runtime.cache import object_cache
from stratal.tensor.values import node_values
from stratal.tune.child import receive, send
from stratal.tune.measure import killed_after

HOLDING = """
import sys, time
from pathlib import Path
from stratal.base.files import held_alone
with held_alone(Path(sys.argv[1]), 60.0):
    print("held", flush=True)
    time.sleep(600)
"""


@contextmanager
def another_process_holding(path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", HOLDING, str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert next_line(process) == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate(timeout=60)


def test_the_lock_of_a_file_is_free_once_its_holder_is_dead(tmp_path: Path) -> None:
    with another_process_holding(tmp_path / "file") as process:
        with pytest.raises(TimeoutError, match="another process"), held_alone(tmp_path / "file", 0.05):
            pass
        process.kill()
        with held_alone(tmp_path / "file", 60.0):
            pass


def test_tuning_records_that_a_stopped_process_holds_are_not_waited_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "WAIT_S", 0.05)
    with another_process_holding(tmp_path / "records.json") as process:
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(CacheError, match="cannot be written") as caught:
            tuning.write_file(tmp_path / "records.json", [])
    assert "another process holds its lock" in caught.value.got


def test_a_new_file_whose_lock_is_not_to_be_had_is_not_waited_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "REMOVAL_S", 0.05)
    monkeypatch.setattr(files, "lock", lambda file: False)
    with pytest.raises(TimeoutError, match="another process"):
        create_locked(tmp_path / "file")


@contextmanager
def every_lock_held() -> Iterator[None]:
    """Hold whatever a program is compiled, loaded and run under."""
    with ExitStack() as held, settings.compile_workers(0):
        locks = loader._lock, vendor._lock, pool._lock, object_cache()._lock, pool.LOCK, node_values.NAMING
        for lock in locks:
            held.enter_context(lock)
        yield


def result(number: float) -> float:
    """Return what a program gives that is compiled for it."""
    return float(st.compile(lambda x: st.softmax(x * number, 0).sum() * number)(st.ones(5)))


def test_a_handler_compiles_whatever_its_thread_was_about_to_compile() -> None:
    program = f"""
import signal, sys
sys.path[:0] = {sys.path!r}
from test_locks import every_lock_held, result
signal.signal(signal.SIGUSR1, lambda *_: print(round(result(3.0), 3), flush=True))
with every_lock_held():
    signal.raise_signal(signal.SIGUSR1)
print(round(result(4.0), 3))
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=os.environ)
    assert done.stdout.split() == ["3.0", "4.0"], done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 1])
def test_a_child_forked_while_another_thread_holds_every_lock_compiles(workers: int) -> None:
    held, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with every_lock_held(), WORKERS._lock:
            held.set()
            leave.wait(100)

    assert result(1.5) == pytest.approx(1.5)
    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    assert held.wait(60)
    try:
        child = os.fork()
        if child == 0:  # no cleanup of the parent's may run here
            code = 1
            try:
                with settings.compile_workers(workers):
                    code = 0 if abs(result(2.5 + workers) - 2.5 - workers) < 1e-5 else 2
                WORKERS.close()
            finally:
                os._exit(code)
        assert exit_code(child) == 0
    finally:
        leave.set()
        thread.join(60)


@pytest.mark.parametrize("direction", ["read", "written to"])
def test_a_process_that_measures_and_is_stopped_is_killed_when(direction: str) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.send_signal(signal.SIGSTOP)
        begin = time.monotonic()
        with pytest.raises(TimeoutError), killed_after(0.2, process):
            if direction == "read":
                receive(process.stdout)
            else:
                send(process.stdin, {}, (bytes(1 << 22),))
        assert time.monotonic() - begin < 30
        assert process.wait(30) == -signal.SIGKILL
