"""A profile as the explorer takes it: times of kernels, measured roofs, and the timeline of some runs."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Any, Final

from stratal.inspect.kernel_times import ProgramProfile
from stratal.inspect.machine import MachinePeaks

MOST_EVENTS: Final = 12_000  # in the timeline
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
    logs, dropped = program.times.events
    *threads, commands = (log.tolist() for log in logs) if logs else ([],)
    tracks = [("kernels", commands), *((f"thread {k}", log) for k, log in enumerate(threads))]
    runs = _shown_runs(program.times.spans, [log for _, log in tracks if log], cut_off=dropped > 0)
    events = []
    for track, (_, log) in enumerate(tracks):
        for what, _, start, end in log:
            row = program.by_step.get(what)
            if row is not None and runs and runs[0][0] <= start <= runs[-1][1]:
                events.append([track, start, (end - start) / 1e9, row.number, row.name])
    if not events:
        return None
    events = sorted(events, key=lambda e: -e[2])[:MOST_EVENTS]  # of one run that has more: the longest
    first = min(e[1] for e in events)
    shown = [[track, (start - first) / 1e9, *rest] for track, start, *rest in events]
    about = f"{len(runs)} of {program.num_runs} runs"
    return {
        "about": about, "tracks": [name for name, _ in tracks],
        "events": sorted(shown, key=lambda e: e[:2]),
    }  # fmt: skip


def _shown_runs(
    spans: Iterable[tuple[int, int]], logs: Sequence[Sequence[Any]], *, cut_off: bool
) -> list[tuple[int, int]]:
    """Return the last runs, as (start, end), whose events are all there and no more than `MOST_EVENTS`.

    `cut_off` says that some logs had no room for the last events: what ran after the first full one is left
    out, for its tracks would look idle.
    """
    room = max(map(len, logs), default=0)
    until = min((log[-1][3] for log in logs if len(log) == room), default=0) if cut_off else None
    runs = [span for span in spans if until is None or span[1] <= until]
    runs = runs or list(spans)[:1]
    starts = sorted(event[2] for log in logs for event in log)
    shown: list[tuple[int, int]] = []
    for run in reversed(runs):
        if shown and bisect_right(starts, shown[-1][1]) - bisect_left(starts, run[0]) > MOST_EVENTS:
            break
        shown.insert(0, run)
    return shown
