"""Worker processes as the harness sees them: started, asked, waited for with patience, ended."""

from __future__ import annotations

import argparse
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.export import digest
from benchmarks.systems import SYSTEMS
from benchmarks.task import Task

ROOT = Path(__file__).parents[1]
PYTHON_VARIABLE = "BENCHMARK_PYTHON"
FRAMEWORKS = ("keras", "lightning")  # peers of `product`, which run no tasks


class WorkerError(Exception):
    """A worker could not do what it was asked; says why."""

    def __init__(self, message: str, unsupported: bool = False) -> None:
        super().__init__(message)
        self.unsupported = unsupported


@dataclass(frozen=True)
class Settings:
    """What holds for a whole run."""

    threads: int = 2
    rounds: int = 5
    patience_s: float = 300.0  # for one answer
    keep: Path = Path()  # compilers that need long, and exported models, keep their results here
    pythons: dict[str, str] = field(default_factory=dict)  # system -> interpreter
    versions: dict[str, str] = field(default_factory=dict)  # system -> version of its library

    def python(self, system: str) -> str:
        """Return the interpreter of a system; `peers` is that of all but Stratal."""
        default = sys.executable if system == "stratal" else self.pythons.get("peers", sys.executable)
        return self.pythons.get(system, default)


def interpreters(parser: argparse.ArgumentParser, options: list[str]) -> dict[str, str]:
    """Return system -> interpreter from the environment and the options, which come later and win."""
    found = {}
    for text in [*os.environ.get(PYTHON_VARIABLE, "").split(), *options]:
        system, _, path = text.partition("=")
        if system not in (*SYSTEMS, *FRAMEWORKS, "peers") or not path:
            parser.error(f"--python takes SYSTEM=PATH with a system or `peers`; got {text!r}")
        found[system] = path
    return found


class Process:
    """A process that answers commands, a line each, with JSON. Use it in a `with` block, or close it.

    Raises: WorkerError where it ends, or does not answer within `patience_s`.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], patience_s: float) -> None:
        self.patience_s = patience_s
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, cwd=ROOT,
            env={**os.environ, **environment},
        )  # fmt: skip
        try:
            self.facts = self._answer()
        except BaseException:
            self.close()
            raise

    def ask(self, command: str) -> dict[str, Any]:
        """Send a command and return the answer. Raises: WorkerError."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(command.encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise WorkerError(self._ending()) from None
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        line = self._line()
        if not line:
            raise WorkerError(self._ending())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise WorkerError(answer["error"], answer["unsupported"])
        return answer

    def _line(self) -> bytes:
        """Wait for one line, blocked on the pipe."""
        assert self.process.stdout is not None
        line, end = b"", time.monotonic() + self.patience_s
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(max(0.0, end - time.monotonic())):
                    self.process.kill()
                    raise WorkerError(f"no answer within {self.patience_s:.0f} s")
                part = os.read(self.process.stdout.fileno(), 1 << 16)
                if not part:
                    break
                line += part
        return line

    def _ending(self) -> str:
        code = self.process.wait()
        self.log.seek(0)
        lines = self.log.read().decode(errors="replace").strip().splitlines()
        return f"the process ended with exit code {code}: {lines[-1] if lines else 'it said nothing'}"

    def close(self) -> None:
        """End the process."""
        if self.process.stdin and not self.process.stdin.closed:
            try:
                self.process.stdin.write(b"quit\n")
                self.process.stdin.close()
            except BrokenPipeError:
                pass
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()
        self.log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Worker(Process):
    """A process that runs one task in one system."""

    def __init__(
        self,
        system: str,
        task: str,
        settings: Settings,
        *,
        variant: str,
        cache: Path,
        model_file: Path = Path(),
    ) -> None:
        self.system = system
        places = {"threads": str(settings.threads), "cache": str(cache)}
        environment = {k: v.format(**places) for k, v in SYSTEMS[system].environment.items()}
        command = [settings.python(system), "-m", "benchmarks.worker", system, task, "--variant", variant]
        command += ["--threads", str(settings.threads), "--model-file", str(model_file)]
        super().__init__(command, environment, settings.patience_s)


def version(system: str, settings: Settings) -> str | None:
    """Return the version of a system's library in its interpreter, or None where it is missing."""
    code = (
        "import importlib.util, sys; from importlib import metadata\n"
        "name = sys.argv[1]\n"
        "sys.exit(3) if importlib.util.find_spec(name) is None else print(metadata.version(name))"
    )
    command = [settings.python(system), "-c", code, SYSTEMS[system].library]
    try:
        found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    except OSError:
        return None
    return found.stdout.strip() if found.returncode == 0 else None


def exported(task: Task, settings: Settings, say: Callable[[str], None]) -> Path:
    """Return the model file of a task, written by PyTorch if it is not kept. Raises: WorkerError."""
    folder = settings.keep / f"{task.name}-{digest()}"
    file = folder / "model.onnx"
    if not file.exists():
        say(f"{task.name}: PyTorch writes the model file")
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / "part"
        part.mkdir(exist_ok=True)
        command = [settings.python("torch"), "-m", "benchmarks.export", task.name, str(part / "model.onnx")]
        environment = {**os.environ, "OMP_NUM_THREADS": str(settings.threads)}
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:]
            raise WorkerError(f"there is no model file: {''.join(last)}", unsupported=True)
        for path in sorted(part.iterdir(), key=lambda p: p.name == "model.onnx"):  # the model last
            path.rename(folder / path.name)
    return file
