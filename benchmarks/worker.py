"""One system with one task in a process of its own; commands on stdin, answers as JSON lines on stdout.

    first            the first call                  {"seconds", "loss"}
    calls K          K calls, each timed             {"times", "losses", "peak_rss_mb", "cpu_s"}
    outputs FILE     the last results, as .npz       {}
    quit

Of the task `cases`, a process serves any number of random cases (`benchmarks/cases.py`), each built by

    case VARIANT JSON   builds it and makes two calls   {"seconds"}, the second call's

Between commands the process waits on its pipe. A fault is answered with {"error", "unsupported"} and ends it.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import resource
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases import Case
from benchmarks.sizes import task as task_named
from benchmarks.systems import SYSTEMS, Job, UnsupportedError

CASES = "cases"  # the task that is no task of its own


def rss_mb(which: str) -> float:
    """Return `VmRSS` (now) or `VmHWM` (the highest so far) in MB.

    Not `ru_maxrss`, which remembers the process this one was forked from.
    """
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(which):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def pin(threads: int) -> None:
    """Keep this process and its threads on as many cores as it may use threads."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def prepare(system: str, task: str, variant: str, model_file: Path) -> tuple[Server, dict[str, Any]]:
    """Import the library and build the task; return its server with what that took."""
    begin, base_mb = time.perf_counter(), rss_mb("VmRSS")
    importlib.import_module(SYSTEMS[system].library)
    module = importlib.import_module(f"benchmarks.systems.{SYSTEMS[system].module}")
    imported = time.perf_counter()
    facts = {"import_s": imported - begin, "import_rss_mb": rss_mb("VmRSS"), "python_rss_mb": base_mb}
    if task == CASES:
        return CaseServer(module), facts
    job = module.build(task_named(task), variant, model_file)
    return Server(job), facts | {"build_s": time.perf_counter() - imported}


class Server:
    """Answers commands with calls of one job."""

    def __init__(self, job: Job) -> None:
        self.job, self.result = job, None

    def answer(self, command: str, argument: str) -> dict[str, Any]:
        if command == "outputs":
            arrays = self.job.outputs(self.result)
            np.savez(argument, *arrays)
            return {}
        times: list[float] = []
        losses: list[float] = []
        for _ in range(1 if command == "first" else int(argument)):
            begin = time.perf_counter()
            self.result = self.job.call()
            times.append(time.perf_counter() - begin)
            losses += [self.result] if isinstance(self.result, float) else []
        if command == "first":
            return {"seconds": times[0], "losses": losses}
        cost = {"peak_rss_mb": rss_mb("VmHWM"), "cpu_s": time.process_time()}
        return {"times": times, "losses": losses} | cost


class CaseServer(Server):
    """Answers commands with calls of the case it was given last; a case that fails ends nothing."""

    def __init__(self, module: Any) -> None:
        self.module, self.result = module, None

    def answer(self, command: str, argument: str) -> dict[str, Any]:
        if command != "case":
            return super().answer(command, argument)
        variant, _, text = argument.partition(" ")
        try:
            self.job = self.module.build_case(Case.from_json(json.loads(text)), variant)
            return {"seconds": super().answer("calls", "2")["times"][1]}
        except UnsupportedError as error:
            return {"unsupported": str(error)}
        except Exception as error:
            traceback.print_exc()
            return {"fault": f"{type(error).__name__}: {error}"}


def send(answer: dict[str, Any]) -> None:
    os.write(_ANSWERS, (json.dumps(answer) + "\n").encode())


def main() -> None:
    """Serve one job until told to stop."""
    parser = argparse.ArgumentParser()
    parser.add_argument("system", choices=SYSTEMS)
    parser.add_argument("task")
    parser.add_argument("--variant", default="")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--model-file", type=Path, default=Path())
    arguments = parser.parse_args()
    pin(arguments.threads)
    try:
        server, facts = prepare(arguments.system, arguments.task, arguments.variant, arguments.model_file)
        send(facts)
        for line in sys.stdin:
            command, _, argument = line.strip().partition(" ")
            if command == "quit":
                break
            send(server.answer(command, argument))
    except UnsupportedError as error:
        send({"error": str(error), "unsupported": True})
    except Exception as error:
        traceback.print_exc()
        send({"error": f"{type(error).__name__}: {error}", "unsupported": False})
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # some libraries hang or crash while they tear down their threads


# Answers go to what stdout was; what a library prints goes to stderr.
_ANSWERS = os.dup(1)

if __name__ == "__main__":
    os.dup2(2, 1)
    main()
