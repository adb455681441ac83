"""Starting ranks by mpirun, and ending all of them whatever happens to one, to mpirun or to the launcher."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Final

from stratal.base.errors import MissingExtraError
from stratal.base.processes import die_with_parent

END_S: Final = 5.0  # given to mpirun to end its ranks, before it is killed
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


def mpirun_command(ranks: int, command: Sequence[str], hosts: str = "", tag: bool = False) -> list[str]:
    """Return the command line that starts `ranks` copies of a command.

    On one host messages go through shared memory, and the search for networks, a second, is left out. There
    may be more ranks than cores. Raises: MissingExtraError.
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
    return [find_mpirun(), "-n", str(ranks), *options, *command]


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
    before = {number: signal.signal(number, _raise_ended) for number in _SIGNALS}
    process = None
    try:
        process = subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, process_group=0,
            preexec_fn=lambda: die_with_parent(signal.SIGTERM),
        )  # fmt: skip
        status = process.wait()
    except _Ended as ended:
        status = 128 + ended.number
    finally:
        for number in before:
            signal.signal(number, signal.SIG_IGN)  # what follows is bounded, and must be done
        if process is not None:
            _end(process)
        for number, handler in before.items():
            signal.signal(number, handler)
    return status if status >= 0 else 128 - status


def _end(process: subprocess.Popen[bytes]) -> None:
    """End mpirun, and with it all ranks: they die with it."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
