"""Starting ranks by mpirun, and ending all of them whatever happens to one, to mpirun or to the launcher."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Final

from stratal.base.errors import MissingExtraError
from stratal.base.processes import die_with_parent
from stratal.distributed.supervised import Supervisor, Verdict

END_S: Final = 5.0  # given to mpirun to end its ranks, before it is killed
_LINGER_S: Final = 1.0  # given to mpirun when its ranks have gone: with a dead one it may stay for ever
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def find_mpirun() -> str:
    """Return the path of mpirun: that of this Python's environment, or the first of PATH.

    Raises: MissingExtraError.
    """
    beside = Path(sys.executable).parent / "mpirun"
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    if found is None:
        raise MissingExtraError(
            "launch: more than one rank needs MPI", got="no mpirun", hint="pip install 'stratal[parallel]'"
        )
    return found


def mpirun_command(
    ranks: int, command: Sequence[str], hosts: str = "", tag: bool = False, tolerant: bool = False
) -> list[str]:
    """Return the command line that starts `ranks` copies of a command.

    `tolerant`: ranks go on when one dies (`has_fault_tolerance`). On one host messages go through shared
    memory, and the search for networks, a second, is left out. There may be more ranks than cores.
    Raises: MissingExtraError.
    """
    options = ["--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"]
    if hosts:
        options += ["--host", hosts]
        for name in ("STRATAL_THREADS", "PYTHONPATH"):
            options += ["-x", name] if name in os.environ else []
    else:
        options += ["--mca", "pml", "ob1", "--mca", "btl", "sm,self", "--mca", "accelerator", "null"]
    if tag:
        options += ["--output", "tag"]
    if tolerant:
        options += ["--with-ft", "ulfm"]
    return [find_mpirun(), "-n", str(ranks), *options, *command]


def has_fault_tolerance() -> bool:
    """Return whether ranks go on when one dies: with Open MPI from 5 on. Raises: MissingExtraError."""
    asked = [find_mpirun(), "--version"]
    with suppress(OSError, subprocess.SubprocessError):
        said = subprocess.run(asked, capture_output=True, text=True, timeout=END_S, check=False).stdout
        found = re.search(r"Open MPI\D*(\d+)", said)
        return found is not None and int(found[1]) >= 5
    return False


def environment(ranks: int, cores: int) -> dict[str, str]:
    """Return the environment of ranks: the cores are shared out among them, unless STRATAL_THREADS is set."""
    made = {"STRATAL_THREADS": str(max(1, cores // ranks)), **os.environ}
    if os.geteuid() == 0:  # mpirun asks whether root is meant, as in containers
        made |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return made


class _Ended(Exception):
    """A signal asked the launcher to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _raise_ended(number: int, frame: FrameType | None) -> None:
    raise _Ended(number)


def run_ranks(command: Sequence[str], env: dict[str, str]) -> int:
    """Run mpirun to its end; return 0 only if every rank ended with 0, and 128 + n where signal n ended it.

    Signals that ask the launcher to end also end all ranks; and so does its own death, since mpirun is then
    told to end by the system, and ranks by mpirun's.
    """
    status = 0
    with _ending_on_signals() as ended, _mpirun(command, env) as process:
        status = process.wait()
    return ended[0] if ended else status if status >= 0 else 128 - status


def run_elastic(
    command: Callable[[str], Sequence[str]], env: dict[str, str], ranks: int, least: int, restarts: int
) -> int:
    """Run an elastic job to its end; return its exit status, 0 only where every rank that lives ended with 0.

    `command` makes that of mpirun from the address at which ranks report. Where ranks cannot go on without a
    dead one, or fewer than `least` are left, all start again, up to `restarts` times.
    """
    found = Verdict("failed", 1)
    with _ending_on_signals() as ended:
        for restart in range(restarts + 1):
            with Supervisor(ranks, least) as supervisor, _mpirun(command(supervisor.address), env) as process:
                found = _supervise(supervisor, process)
                if found.name == "complete":
                    supervisor.wait(END_S)
                supervisor.kill()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_LINGER_S)  # passes on what ranks printed last
            if found.name != "again":
                break
            what = f"given up after {restarts} restarts"
            if restart < restarts:
                what = f"all {ranks} ranks start again (restart {restart + 1} of {restarts})"
            _say(f"{found.why}; {what}")
    return ended[0] if ended else 0 if found.name == "complete" else found.status or 1


def _supervise(supervisor: Supervisor, process: subprocess.Popen[bytes]) -> Verdict:
    """Return what becomes of a job, once that is decided."""
    told: set[int] = set()
    while True:
        supervisor.look(0.1)
        found = supervisor.judged()
        if found.name != "wait":
            return found
        dead = {r for r, s in supervisor.states.items() if s.name == "dead"} - told
        if dead:
            told |= dead
            _say(f"rank {', '.join(map(str, sorted(dead)))} died; {supervisor.size - len(told)} are left")
        if supervisor.misses_one(process.pid):
            return Verdict("again", 137, "a rank died before it had reported")
        if (status := process.poll()) is not None:
            supervisor.look(0.5)  # what ranks said last
            found = supervisor.judged()
            if found.name == "wait":
                killed = status < 0 or status > 128 or bool(supervisor.states)
                found = Verdict("again" if killed else "failed", abs(status) or 1, "mpirun ended early")
            return found


def _say(what: str) -> None:
    print(f"stratal launch: {what}", file=sys.stderr, flush=True)


@contextmanager
def _ending_on_signals() -> Iterator[list[int]]:
    """Let signals that ask the launcher to end leave the block; the status is then in the list.

    The end of the block itself is not disturbed: it is bounded, and must be done.
    """
    ended: list[int] = []
    before = {number: signal.signal(number, _raise_ended) for number in _SIGNALS}
    try:
        yield ended
    except _Ended as error:
        ended.append(128 + error.number)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _mpirun(command: Sequence[str], env: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run mpirun within the block, and end it with all its ranks behind it."""
    process = None
    try:
        process = subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, process_group=0,
            preexec_fn=lambda: die_with_parent(signal.SIGTERM),
        )  # fmt: skip
        yield process
    finally:
        handlers = {number: signal.signal(number, signal.SIG_IGN) for number in _SIGNALS}
        if process is not None:
            _end(process)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End mpirun, and with it all ranks: they die with it."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            shutil.rmtree(Path(tempfile.gettempdir()) / f"ompi.{process.pid}", ignore_errors=True)
