"""Workers that are stopped, never greet, or are killed: each program is built, and nothing waits for ever."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import stratal as st
from stratal.base import settings
from stratal.base.errors import CompilerError
from stratal.codegen import assemble as assemble_module
from stratal.codegen import assemble_workers
from stratal.codegen import assembly as assembly_module
from stratal.codegen.assemble import assemble, host_machine
from stratal.codegen.assemble_workers import MOST_UNSTARTED, SCRIPT, Workers
from stratal.codegen.assembly import Assembly, compile_all
from stratal.plan import host as host_module

HOST = host_machine()
LIMIT_S = 100.0  # of what takes a second or two; half a minute on a machine with a dozen busy processes


def jobs(count: int, steps: int = 40) -> list[tuple[str, str]]:
    """Return kernels with a chain of operations each, so that they take a moment to compile."""
    made = []
    for number in range(count):
        lines = ["%v0 = load <16 x float>, ptr %frame, align 4"]
        lines += [f"%v{k + 1} = fmul <16 x float> %v{k}, %v0" for k in range(steps + number)]
        lines += [f"store <16 x float> %v{steps + number}, ptr %frame, align 4", "ret void"]
        body = "\n  ".join(lines)
        made.append((f"k{number}", f"define void @k{number}(ptr %frame) {{\n  {body}\n}}\n"))
    return made


def compiled_here(batch: list[tuple[str, str]]) -> dict[str, bytes]:
    return {key: assemble(text, HOST) for key, text in batch}


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    """Workers of the test's own, which take part in any batch; none is left afterwards."""
    own = Workers()
    monkeypatch.setattr(own, "seconds_to_start", lambda: 0.0)
    for module in (assembly_module, assemble_module, host_module):
        monkeypatch.setattr(module, "WORKERS", own)
    started: list[assemble_workers.Worker] = []

    class Noted(assemble_workers.Worker):
        def __init__(self) -> None:
            super().__init__()
            started.append(self)

    monkeypatch.setattr(assemble_workers, "Worker", Noted)
    yield own
    own.close()
    deadline = time.monotonic() + LIMIT_S
    while left := [worker.pid for worker in started if worker.alive]:  # a killed one takes a moment to end
        assert time.monotonic() < deadline, left
        time.sleep(0.01)


@pytest.fixture
def within_limit() -> Iterator[None]:
    begin = time.monotonic()
    yield
    assert time.monotonic() - begin < LIMIT_S


def instead(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    """Let workers run another script."""
    (folder / "worker.py").write_text(script)
    monkeypatch.setattr(assemble_workers, "SCRIPT", folder / "worker.py")


@pytest.mark.sampled(5)
@pytest.mark.usefixtures("within_limit")
def test_a_stopped_worker_is_replaced_and_its_kernels_are_compiled(workers: Workers) -> None:
    (worker,) = workers.take(1)
    worker.wait_until_ready(LIMIT_S)
    os.kill(worker.pid, signal.SIGSTOP)
    workers.give_back([worker])
    batch = jobs(6)
    with settings.compile_timeout(1):
        assert compile_all(batch, HOST, num_workers=1) == compiled_here(batch)
    assert worker.pid not in workers.pids() and worker.lost


@pytest.mark.sampled(4)
@pytest.mark.usefixtures("within_limit")
def test_workers_that_are_stopped_while_they_compile_are_replaced(workers: Workers) -> None:
    batch = jobs(6, 1000)
    with settings.compile_timeout(1), Assembly(HOST, num_workers=2) as assembly:
        for key, text in batch:
            assembly.add(key, text)
        stopped = list(assembly._taken)
        for worker in stopped:
            os.kill(worker.pid, signal.SIGSTOP)
        assert assembly.finish() == compiled_here(batch)
    assert stopped and not {w.pid for w in stopped} & set(workers.pids())


@pytest.mark.sampled(5)
@pytest.mark.usefixtures("within_limit")
def test_a_module_at_which_two_workers_fall_silent_is_refused(
    workers: Workers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sleepy = SCRIPT.read_text().replace("answer = _answer(jobs)", "__import__('time').sleep(600)")
    instead(monkeypatch, tmp_path, sleepy)
    start = workers.take

    def take_ready(count: int) -> list[assemble_workers.Worker]:
        taken = start(count)
        for worker in taken:
            worker.wait_until_ready(LIMIT_S)
        return taken

    monkeypatch.setattr(workers, "take", take_ready)
    with settings.compile_timeout(1), pytest.raises(CompilerError, match="rejected") as caught:
        compile_all(jobs(1), HOST, num_workers=1)
    assert "silent" in caught.value.got


SILENT = ["import time; time.sleep(600)", "import sys; sys.exit(3)", "import os; os.close(1); os.read(0, 1)"]


@pytest.mark.sampled(7)
@pytest.mark.usefixtures("within_limit")
@pytest.mark.parametrize("script", SILENT)
def test_where_workers_never_greet_this_process_compiles(
    workers: Workers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str
) -> None:
    instead(monkeypatch, tmp_path, script)
    batch = jobs(5)
    with settings.compile_timeout(1), settings.compile_workers(1):
        assert host_machine.__wrapped__() == HOST
        assert compile_all(batch, HOST, num_workers=1) == compiled_here(batch)
        assert workers._unstarted == MOST_UNSTARTED and workers.take(1) == []
        assert compile_all(batch, HOST, num_workers=2) == compiled_here(batch)


def test_time_in_which_nobody_waits_does_not_count_as_silence(workers: Workers) -> None:
    (worker,) = workers.take(1)
    worker.wait_until_ready(LIMIT_S)
    os.kill(worker.pid, signal.SIGSTOP)
    worker.give("k", *HOST, jobs(1)[0][1])
    time.sleep(0.2)  # as if this process had been stopped, too
    worker.check(0.1)
    os.kill(worker.pid, signal.SIGCONT)
    deadline = time.monotonic() + LIMIT_S
    while not (found := list(worker.answers())) and time.monotonic() < deadline:
        assemble_workers.wait_for_answers([worker])
    assert found[0][:2] == ("k", True)
    workers.give_back([worker])


HANDLED = """
import signal, subprocess, sys
import stratal as st
from stratal.codegen import assemble_workers

answers, inside, left = [], [], [signal.SIGUSR2, signal.SIGUSR1]

class Interrupted(subprocess.Popen):
    def __init__(self, *args, **options):
        if len(left) == 2:
            signal.raise_signal(left.pop())
        super().__init__(*args, **options)
        if left:
            signal.raise_signal(left.pop())

def handler(number, frame):
    inside.append(number)
    answers.append(st.compile(lambda x: (x * number).sum())(st.ones(3)).item())

assemble_workers.subprocess.Popen = Interrupted
for number in (signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, handler)
result = st.compile(lambda x: st.softmax(x @ x.T, 1).sum())(st.ones((40, 40))).item()
print(round(result), sorted(answers) == sorted(3.0 * number for number in inside), len(set(inside)))
"""


@pytest.mark.sampled(5)
def test_a_handler_may_compile_while_workers_are_started() -> None:
    assert printed(HANDLED).split() == ["40", "True", "2"]


STOPPED = """
import os, signal
import stratal as st
from stratal.codegen.assemble_workers import WORKERS
print((st.ones(3) * 2).sum().item(), flush=True)
for pid in WORKERS.pids():
    os.kill(pid, signal.SIGSTOP)
print(len(WORKERS.pids()) > 0, {})
"""


@pytest.mark.sampled(7)
@pytest.mark.parametrize("rest", ["0", "os.fork() and os.wait()[1]"])
def test_a_process_whose_workers_are_stopped_ends(rest: str) -> None:
    assert printed(STOPPED.format(rest)).split()[:2] == ["6.0", "True"]


def printed(code: str) -> str:
    """Return what a program prints that compiles in two workers without a cache."""
    around = {**os.environ, "STRATAL_CACHE_DIR": "off", "STRATAL_COMPILE_WORKERS": "2"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=around, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


def program(a: float, b: float) -> Callable[[st.Tensor], st.Tensor]:
    return lambda x: (st.softmax(x @ x.T * a, 1) @ st.exp(x * b)).sum(0)


def reference(x: np.ndarray, a: float, b: float) -> np.ndarray:
    e = np.exp(x @ x.T * a)
    return (e / e.sum(1, keepdims=True) @ np.exp(x * b)).sum(0)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("times", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_every_program_is_built_though_a_worker_is_killed_each_time(workers: Workers, times: int) -> None:
    rng, killed = random.Random(times), 0
    x = np.random.default_rng(0).standard_normal((24, 16))
    with settings.using(cache_dir=None, compile_workers=2):
        for _ in range(times):
            constants = rng.random(), rng.random()  # which no program had before
            with Killer(workers, rng.random() * 0.05) as killer:
                got = st.compile(program(*constants))(st.tensor(x, dtype=st.float32)).numpy()
            killed += killer.killed
            np.testing.assert_allclose(got, reference(x, *constants), rtol=1e-4)
    assert killed > times // 2


class Killer:
    """Kill a worker at work, some time after it was given any, while a block runs."""

    def __init__(self, workers: Workers, delay_s: float) -> None:
        self._workers, self._delay_s = workers, delay_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._kill, daemon=True)
        self.killed = False

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join(LIMIT_S)

    def _kill(self) -> None:
        while not self._over.wait(1e-3):
            if any(w.unanswered for w in list(self._workers._taken)):
                self._over.wait(self._delay_s)
                for worker in [w for w in list(self._workers._taken) if w.unanswered][:1]:
                    os.kill(worker.pid, signal.SIGKILL)
                    self.killed = True
                return
