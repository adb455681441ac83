"""Loop-invariant kernels moved back into their loop: packed weights then live for a turn, not for the loop.

    pack w; loop { y = x w }   ->   loop { pack w; y = x w }

Outside of it they run once and their results wait through every turn, together with those of all others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from stratal.base.artifact import Command, Launch, Loop, flat, own_reads, own_writes
from stratal.memory.liveness import rows
from stratal.schedule.draft import Draft


def sunk(draft: Draft) -> Draft | None:
    """Return a draft that launches in every turn what a loop alone reads; None where there is no such."""
    named = rows(draft.values)
    readers = Counter(r for c in draft.commands for r in {named.get(r, r) for r in _reads(c)})
    loops = [c for c in draft.commands if isinstance(c, Loop)]
    inside = {id(loop): (_reads(loop), _written(loop, named)) for loop in loops}
    moved: dict[int, list[Command]] = {id(loop): [] for loop in loops}
    left: list[Command] = []
    for command in draft.commands:
        loop = _only_reader(command, draft, readers, inside)
        moved.get(loop, left).append(command)
    if not any(moved.values()):
        return None
    commands = [
        replace(c, body=_before_readers(moved[id(c)], c.body)) if isinstance(c, Loop) else c for c in left
    ]
    return replace(draft, commands=tuple(commands))


def _before_readers(launches: Sequence[Command], body: tuple[Command, ...]) -> tuple[Command, ...]:
    """Return the body with each launch just before the first command that reads what it writes."""
    found = list(body)
    for launch in reversed(launches):  # what one of them reads of another comes before it
        written = set(own_writes(launch))
        at = next(k for k, command in enumerate(found) if not written.isdisjoint(_reads(command)))
        found.insert(at, launch)
    return tuple(found)


def _only_reader(
    command: Command, draft: Draft, readers: Counter[int], inside: Mapping[int, tuple[set[int], set[int]]]
) -> int:
    """Return the loop that alone reads what a launch writes and changes nothing it reads; else 0."""
    if not isinstance(command, Launch) or command.may_fail or not command.writes:
        return 0
    if any(readers[w] != 1 or draft.values[w].home != "arena" for w in command.writes):
        return 0
    for loop, (reads, writes) in inside.items():
        if reads.issuperset(command.writes) and writes.isdisjoint((*command.reads, *command.writes)):
            return loop
    return 0


def _reads(command: Command) -> set[int]:
    return {r for c in flat((command,)) for r in own_reads(c)}


def _written(command: Command, named: Mapping[int, int]) -> set[int]:
    return {named.get(w, w) for c in flat((command,)) for w in own_writes(c)}
