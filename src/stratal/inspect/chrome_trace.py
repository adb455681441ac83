"""A profile as a Chrome trace: what Perfetto (ui.perfetto.dev) and chrome://tracing show.

Tracks: the Python thread with compilations and runs, the commands of each run, and, for each thread of the
pool, the chunks it ran. Format: the Trace Event Format, complete events ("ph": "X"), times in microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stratal.formats.files import write_atomically
from stratal.inspect.kernel_times import KernelTime, ProgramProfile

if TYPE_CHECKING:
    from stratal.inspect.profiler import Profile

PYTHON: Final = 0
COMMANDS: Final = 1
THREADS: Final = 2  # the first thread of the pool, which is the one that runs Python
PROCESS: Final = 1
Event = dict[str, Any]


def trace_events(profile: Profile) -> list[Event]:
    """Return the events of a profile, the names of the tracks first."""
    start = profile.recorder.started_ns
    most = max((p.times.timed.threads for p in profile.programs), default=0)
    names = {PYTHON: "Python", COMMANDS: "commands"}
    names |= {THREADS + k: f"thread {k}" + (" (runs Python)" if k == 0 else "") for k in range(most)}
    naming = {"ph": "M", "pid": PROCESS, "name": "thread_name"}
    found = [naming | {"tid": track, "args": {"name": name}} for track, name in names.items()]
    for name, begin, end in profile.recorder.compiled_spans:
        found.append(_complete(PYTHON, f"compile {name}", "compile", begin - start, end - begin))
    for program in profile.programs:
        for begin, end in program.times.spans:
            found.append(_complete(PYTHON, f"run {program.name}", "run", begin - start, end - begin))
        found += _commands(program, start)
    return found


def save_trace(profile: Profile, path: str | Path) -> None:
    """Write a profile as a Chrome trace. Raises: FileWriteError."""
    dropped = sum(p.times.events[1] for p in profile.programs)
    value = {
        "traceEvents": trace_events(profile),
        "displayTimeUnit": "ms",
        "otherData": {"bottleneck": profile.bottleneck, "events_without_room": dropped},
    }
    write_atomically(Path(path), [json.dumps(value).encode()])


def _commands(program: ProgramProfile, start: int) -> Iterator[Event]:
    """Yield the chunks of each thread, then the commands, with what they compute and where they come from."""
    logs, _ = program.times.events
    for track, log in enumerate(logs):
        chunks = track < len(logs) - 1
        for what, chunk, begin, end in log.tolist():
            row = program.by_step.get(what)
            if row is None:  # the run as a whole: it is on the Python track
                continue
            arguments = {"chunk": chunk} if chunks else _facts(row)
            name = f"{row.number} {row.name}" if row.number else row.name
            place = THREADS + track if chunks else COMMANDS
            yield _complete(place, name, row.kernel_class, begin - start, end - begin, arguments)


def _facts(row: KernelTime) -> Event:
    return {
        "lines": list(row.lines), "tactic": row.tactic, "bound": row.bound, "GFLOP/s": round(row.gflops, 1),
        "GB/s": round(row.gbs, 1), "of_roofline": round(row.of_roofline, 3),
    }  # fmt: skip


def _complete(
    track: int, name: str, category: str, begin_ns: int, took_ns: int, arguments: Event | None = None
) -> Event:
    return {
        "ph": "X", "pid": PROCESS, "tid": track, "name": name, "cat": category, "ts": begin_ns / 1e3,
        "dur": took_ns / 1e3, "args": arguments or {},
    }  # fmt: skip
