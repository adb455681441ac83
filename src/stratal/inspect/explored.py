"""A profile as the explorer takes it: times of kernels, measured roofs, and the timeline of some runs."""

from __future__ import annotations

from typing import Any, Final

from stratal.inspect.kernel_times import ProgramProfile
from stratal.inspect.machine import MachinePeaks

MOST_EVENTS: Final = 12_000  # in the timeline: those of the last runs
_FIGURES: Final = ("number", "seconds", "share", "calls", "of_roofline", "bound")
JSON = dict[str, Any]


def explored(program: ProgramProfile) -> JSON:
    """Return the times of one program; a timeline where the recorder kept a trace."""
    figures: JSON = {
        "seconds": program.seconds,
        "runs": program.num_runs,
        "bottleneck": program.bottleneck,
        "kernels": [{name: getattr(row, name) for name in _FIGURES} for row in program.kernels],
        "roofs": _roofs(program.peaks),
    }
    timeline = _timeline(program)
    return figures if timeline is None else figures | {"timeline": timeline}


def _roofs(peaks: MachinePeaks) -> JSON:
    return {
        "basis": f"measured, {peaks.threads} threads",
        "compute": [[str(dtype), rate] for dtype, rate in peaks.flops.items()],
        "memory": [["memory", peaks.read_gbs], ["L3", peaks.l3_gbs], ["L2", peaks.l2_gbs]],
    }


def _timeline(program: ProgramProfile) -> JSON | None:
    """Return tracks and events [track, start, seconds, kernel, name], in seconds from the first event."""
    logs, _ = program.times.events
    if not logs:
        return None
    *threads, commands = (log.tolist() for log in logs)
    tracks = [("kernels", commands), *((f"thread {k}", log) for k, log in enumerate(threads))]
    most = MOST_EVENTS // len(tracks)
    begin = max((log[-most][2] for _, log in tracks if len(log) > most), default=0)
    events = []
    for track, (_, log) in enumerate(tracks):
        for what, _, start, end in log:
            row = program.by_step.get(what)
            if row is not None and start >= begin:
                events.append([track, start, (end - start) / 1e9, row.number, row.name])
    if not events:
        return None
    first = min(e[1] for e in events)
    for event in events:
        event[1] = (event[1] - first) / 1e9
    runs = sum(start >= begin for start, _ in program.times.spans)
    about = f"the last {runs} of {program.num_runs} runs"
    return {"about": about, "tracks": [name for name, _ in tracks], "events": events}
