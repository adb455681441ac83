"""The memory of one program in words: bytes by purpose, what lives at the peak, what is computed again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from stratal.base.artifact import Executable, Launch, flat, offloaded
from stratal.memory.liveness import analyse, roots
from stratal.memory.plan import arena_blocks, at_peak
from stratal.memory.render import format_bytes
from stratal.plan.explain import Explained, Text

MOST_SHOWN: Final = 8


def memory_text(program: Explained) -> Text:
    """Return what a program's memory is made of."""
    return Text("\n".join(_lines(program)))


def recomputations(executable: Executable) -> dict[int, Launch]:
    """Return the launches that compute again what an earlier one computed, by their number in the plan."""
    seen: set[tuple[str, int]] = set()
    found = {}
    launches = [c for c in flat(executable.commands) if isinstance(c, Launch)]
    for number, launch in enumerate(launches, 1):
        if launch.group >= 0 and (launch.kernel, launch.group) in seen:
            found[number] = launch
        seen.add((launch.kernel, launch.group))
    return found


def _lines(program: Explained) -> Iterator[str]:
    memory, budget = program.plan.memory, program.made.chosen["memory"]
    asked = f" of a budget of {format_bytes(budget)}" if budget is not None else ""
    yield f"{program.graph.name}: {format_bytes(memory['planned_peak_bytes'])}{asked}"
    parts = [(name.removesuffix("_bytes"), n) for name, n in memory.items() if name.count("_") == 1]
    yield "  " + ", ".join(f"{name} {format_bytes(n)}" for name, n in parts if n)
    if budget is not None and program.made.chosen["micro_batches"]:
        yield from (f"  {d.choice}: {d.why}" for d in program.log if d.subject == "micro-batches")
    if "offloaded_bytes" in memory:
        yield _copies(program)
    again = recomputations(program.executable)
    rows = [row for row in program.plan.kernels if row["number"] in again]
    if rows:
        seconds, whole = sum(r["seconds"] for r in rows), program.plan.estimated_seconds
        share = seconds / max(whole - seconds, 1e-12)
        runs = "kernel runs" if len(rows) == 1 else "kernels run"
        yield f"  {len(rows)} {runs} again, estimated at {share:.0%} of the time without them"
    yield from _at_peak(program.executable)


def _copies(program: Explained) -> str:
    """Say which states wait in a file and what their copies are expected to take."""
    executable, commands = program.executable, program.plan.commands
    count = len(offloaded(executable.commands, executable.inputs))
    moved = sum(c["read_bytes"] for c in commands if c["do"] == "copy-start")
    waiting = sum(c["seconds"] for c in commands if c["do"] == "copy-done")
    states = "state waits" if count == 1 else "states wait"
    share = waiting / max(program.plan.estimated_seconds, 1e-12)
    return (
        f"  {count} {states} in a file; a run copies {format_bytes(moved)}, which is expected "
        f"to take {share:.0%} of the time"
    )


def _at_peak(executable: Executable) -> Iterator[str]:
    """Yield the largest blocks of the arena at the moment when most of it is in use."""
    values = {v.id: v for v in executable.values}
    live = analyse(executable.commands, roots(executable.values))
    blocks = arena_blocks(executable.values, live, executable.outputs)
    if not blocks:
        return
    peak, alive = at_peak(blocks, live.num_moments)
    leaf = live.leaves[peak] if peak < live.num_moments else None
    during = getattr(leaf[1], "label", "") if leaf else ""
    yield f"  at the peak, {format_bytes(sum(b.nbytes for b in alive))}" + (f" in {during}" if during else "")
    for block in alive[:MOST_SHOWN]:
        value = values[block.root]
        where = f"  {value.where[0]}" if value.where else ""
        yield f"    {format_bytes(block.nbytes):>10}  {value.type}  {value.label}{where}"
    if len(alive) > MOST_SHOWN:
        rest = sum(b.nbytes for b in alive[MOST_SHOWN:])
        yield f"    {format_bytes(rest):>10}  in {len(alive) - MOST_SHOWN} more"
