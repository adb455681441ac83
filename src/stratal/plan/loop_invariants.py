"""Loop-invariant kernels moved back into their loop: packed weights then live for a turn, not for the loop.

    pack w; loop { y = x w }   ->   loop { pack w; y = x w }

Outside of it they run once and their results wait through every turn, together with those of all others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from stratal.base.artifact import Command, Launch, Loop, all_reads, all_writes, own_writes
from stratal.memory.liveness import rows
from stratal.schedule.draft import Draft


def sunk(draft: Draft) -> Draft | None:
    """Return a draft that launches in every turn what a loop alone reads; None where there is no such."""
    named = rows(draft.values)
    writes = [{named.get(w, w) for w in all_writes(c)} for c in draft.commands]
    readers: dict[int, list[int]] = {}
    for position, command in enumerate(draft.commands):
        for r in {named.get(r, r) for r in all_reads(command)}:
            readers.setdefault(r, []).append(position)
    moved: dict[int, list[Command]] = {}  # by the position of the loop
    left: list[tuple[int, Command]] = []
    for position, command in enumerate(draft.commands):
        loop = _only_reader(command, draft, readers)
        between = writes[position + 1 : loop + 1]  # of what it reads, nothing may change until it runs
        if loop >= 0 and all(w.isdisjoint((*command.reads, *command.writes)) for w in between):  # type: ignore[union-attr]
            moved.setdefault(loop, []).append(command)
        else:
            left.append((position, command))
    if not moved:
        return None
    return replace(draft, commands=tuple(
        replace(c, body=_before_readers(moved[at], c.body)) if isinstance(c, Loop) and at in moved else c
        for at, c in left
    ))  # fmt: skip


def _only_reader(command: Command, draft: Draft, readers: Mapping[int, list[int]]) -> int:
    """Return the position of the loop that alone reads what a launch writes; else -1."""
    if not isinstance(command, Launch) or command.may_fail or not command.writes:
        return -1
    found = {position for w in command.writes for position in readers.get(w, [-1])}
    if len(found) > 1 or any(draft.values[w].home != "arena" for w in command.writes):
        return -1
    (position,) = found
    reader = draft.commands[position]
    in_body = {r for c in reader.body for r in all_reads(c)} if isinstance(reader, Loop) else set()
    return position if in_body.issuperset(command.writes) else -1  # itself, not rows of its memory


def _before_readers(launches: Sequence[Command], body: tuple[Command, ...]) -> tuple[Command, ...]:
    """Return the body with each launch just before the first command that reads what it writes."""
    found = list(body)
    for launch in reversed(launches):  # what one of them reads of another comes before it
        written = set(own_writes(launch))
        at = next(k for k, command in enumerate(found) if not written.isdisjoint(all_reads(command)))
        found.insert(at, launch)
    return tuple(found)
