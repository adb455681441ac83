"""Judge programs in other processes: one that crashes or does not end is a verdict like any other."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from programs.execute import Verdict

_PROGRAMS_PER_WORKER = 150
_CONFIRMED = 3  # faults of one cause that are judged again in a process of their own
_END_SECONDS = 10.0  # from the last word of a process to its end
_START_SECONDS = 60.0  # more, for the first program of a process: imports, the first compilation


@dataclass
class Program:
    """A program to judge."""

    name: str
    text: str
    ways: tuple[str, ...] = ("eager", "lazy", "compiled")


class Worker:
    """One process; started when first needed, replaced when it dies and now and then."""

    def __init__(self, limit_seconds: float, cache: str, plant: str = "") -> None:
        self.limit_seconds, self.cache, self.plant = limit_seconds, cache, plant
        self.process: subprocess.Popen[str] | None = None
        self.judged = 0

    def judge(self, program: Program) -> Verdict:
        fresh = self.process is None
        process = self.process or self._start()
        assert process.stdin is not None and process.stdout is not None
        limit = self.limit_seconds + (_START_SECONDS if fresh else 0)
        done, late = threading.Event(), threading.Event()
        threading.Thread(target=_kill_late, args=(process, limit, done, late), daemon=True).start()
        way, found = "", None
        try:
            process.stdin.write(json.dumps({"text": program.text, "ways": program.ways}) + "\n")
            process.stdin.flush()
            while found is None and (line := process.stdout.readline()):
                said = json.loads(line)
                way = said.get("way", way)
                found = said.get("verdict")
        except BrokenPipeError:
            pass
        ended = None if found is not None else _end(process)
        done.set()
        if found is not None:
            verdict = Verdict(**found)
        elif late.is_set():
            verdict = Verdict("hang", way, "no end", f"no end within {limit:.0f} s")
        else:
            verdict = Verdict("crash", way, f"exit {ended}", self._last_words())
        self.judged += 1
        if verdict.verdict in ("crash", "hang") or self.judged % _PROGRAMS_PER_WORKER == 0:
            self.close()
        return verdict

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, str(Path(__file__).parent / "worker.py")]
        if self.plant:
            command += ["--plant", self.plant]
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (as long as the process)
        environment = {"STRATAL_COMPILE_WORKERS": "0", **os.environ, "STRATAL_CACHE_DIR": self.cache}
        if _has_setting("strict"):
            environment["STRATAL_STRICT"] = "1"
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True,
            env=environment,
        )  # fmt: skip
        return self.process

    def _last_words(self) -> str:
        self.errors.seek(0)
        return " | ".join(self.errors.read().splitlines()[-12:])[-600:]

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            _end(self.process)
            self.errors.close()
            self.process = None


def _end(process: subprocess.Popen[str]) -> int | None:
    """Return how a process ended that is about to; one that is not is killed."""
    for _ in range(2):
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(_END_SECONDS)
        process.kill()
    return None


def _kill_late(process: Any, limit: float, done: threading.Event, late: threading.Event) -> None:
    """Kill a process that is not done in time; how long it waited for a processor does not count."""
    started, waited = time.monotonic(), _waited_seconds(process.pid)
    while not done.wait(min(limit, 1.0)):
        if time.monotonic() - started - (_waited_seconds(process.pid) - waited) > limit:
            late.set()
            process.kill()
            return


def _waited_seconds(pid: int) -> float:
    """Return how long a process was ready to run, but did not, as far as the system says."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) * 1e-9
    except (OSError, IndexError):
        return 0.0


def _has_setting(name: str) -> bool:
    from stratal.base import settings

    return hasattr(settings, name)


class Pool:
    """Workers that share a cache of kernels; a context manager."""

    def __init__(self, processes: int = 1, limit_seconds: float = 60.0, plant: str = "") -> None:
        self.processes, self.limit_seconds, self.plant = processes, limit_seconds, plant

    def __enter__(self) -> Pool:
        self.cache = tempfile.mkdtemp(prefix="stratal-fuzz-")
        self.alone = self.worker()  # for what runs one after the other: shrinking
        return self

    def __exit__(self, *error: object) -> None:
        self.alone.close()
        shutil.rmtree(self.cache, ignore_errors=True)

    def worker(self) -> Worker:
        return Worker(self.limit_seconds, self.cache, self.plant)

    def judge_all(self, programs: Iterable[Program], note: Callable[[Program, Verdict], bool | None]) -> None:
        """Judge programs; `note` hears of each verdict (one thread at a time) and may return True to stop.

        Threads take programs as they come to them: one that fails ends the others, and is what is raised.
        """
        source = iter(programs)
        lock, stop, met = threading.Lock(), threading.Event(), Counter[tuple[str, str, str]]()
        failures: list[BaseException] = []

        def judge(worker: Worker) -> None:
            while not stop.is_set():
                with lock:
                    program = next(source, None)
                if program is None:
                    return
                verdict = worker.judge(program)
                with lock:
                    again = verdict.fault and met[verdict.key] < _CONFIRMED
                    met[verdict.key] += 1
                if again:
                    verdict = confirmed(worker, program, verdict)
                with lock:
                    if note(program, verdict):
                        stop.set()

        def work() -> None:
            worker = self.worker()
            try:
                judge(worker)
            except BaseException as error:
                failures.append(error)
                stop.set()
            finally:
                worker.close()

        threads = [threading.Thread(target=work) for _ in range(self.processes)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()  # each program has a limit
        finally:
            stop.set()
        if failures:
            raise failures[0]


def confirmed(worker: Worker, program: Program, verdict: Verdict) -> Verdict:
    """Judge a faulty program once more in a process of its own: programs before it may be the cause."""
    if verdict.verdict == "invalid":
        return verdict
    worker.close()
    again = worker.judge(program)
    if again.fault:
        return again
    return Verdict(
        verdict.verdict, verdict.way, f"only after other programs: {verdict.cause}", verdict.detail
    )
