"""Offload: states that wait in another memory space, a file, and that the plan copies to the arena and back.

    offloaded_states   draft -> draft that copies some states in before their readers, and out once new
    overlapped         copies begin as early, and are waited for as late, as the budget has room for
    copy_waits         how long kernels are predicted to wait for copies

To the planner a copy from the file is a task like others: it may come again, so that a weight is dropped
after the forward pass and fetched once more for the backward pass where that is cheaper than holding it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from stratal.base.artifact import (
    Command,
    Copy,
    CopyDone,
    CopyStart,
    Host,
    Launch,
    Value,
    bodies,
    flat,
    own_reads,
    own_writes,
)
from stratal.memory.plan import round_up
from stratal.memory.tasks import Schedule, TaskGraph, profile
from stratal.schedule.draft import Draft

BYTES_PER_SECOND: Final = 4e9  # of a file in the system's page cache (5.5 read, 10 written alone)
LEAST_BYTES: Final = 1 << 16  # of a state that is worth a copy
AHEAD: Final = 1.5  # times the predicted time of a copy that it gets before somebody waits for it


def copy_seconds(nbytes: int) -> float:
    """Return the time a copy between the arena and the file is predicted to take."""
    return nbytes / BYTES_PER_SECOND


def choices(draft: Draft) -> Iterator[frozenset[int]]:
    """Yield sets of states to offload: those that one command at most reads, whose copies take least; all."""
    readers = offloadable(draft)
    once = frozenset(s for s, count in readers.items() if count <= 1)
    yield from dict.fromkeys(found for found in (once, frozenset(readers)) if found)


def offloadable(draft: Draft) -> dict[int, int]:
    """Return the states that can be offloaded, each with the number of commands that read it.

    Commands at the top may read such a state, and one copy there replaces it by what the arena holds.
    """
    leaves = [c for c in draft.commands if not bodies(c)]
    nested = [inner for c in draft.commands if bodies(c) for inner in flat((c,))]
    excluded = {v for c in nested for v in (*own_reads(c), *own_writes(c))}
    excluded.update(v.alias for v in draft.values if v.alias is not None)
    reads = Counter(r for c in leaves for r in dict.fromkeys(own_reads(c)))
    writes = Counter(w for c in leaves for w in own_writes(c))
    replaced = {c.target for c in leaves if type(c) is Copy and draft.values[c.source].home == "arena"}
    return {
        s: reads[s]
        for s in sorted(replaced.intersection(draft.inputs[k] for k in draft.states) - excluded)
        if writes[s] == 1 and _is_large_and_dense(draft.values[s])
    }


def _is_large_and_dense(value: Value) -> bool:
    return value.nbytes == value.type.nbytes >= LEAST_BYTES


def offloaded_states(draft: Draft, states: frozenset[int]) -> Draft:
    """Return a draft whose commands read copies of these states, and copy out what replaces them.

    Nothing waits for these copies yet: see `overlapped`.
    """
    made = replace(draft, values=[replace(v) for v in draft.values])
    there: dict[int, int] = {}
    commands: list[Command] = []
    for command in draft.commands:
        for s in dict.fromkeys(own_reads(command)):
            if s in states and s not in there:
                old = draft.values[s]
                there[s] = made.value(old.type, old.strides, label=old.label, where=old.where)
                commands.append(CopyStart(s, there[s], old.label))
        if isinstance(command, Copy) and command.target in states:
            commands.append(CopyStart(command.source, command.target, draft.values[command.target].label))
        elif isinstance(command, Copy):
            commands.append(replace(command, source=there.get(command.source, command.source)))
        elif isinstance(command, (Launch, Host)):
            commands.append(replace(command, reads=tuple(there.get(r, r) for r in command.reads)))
        else:
            commands.append(command)
    made.commands = tuple(commands)
    return made


def waited_at_once(draft: Draft) -> Draft:
    """Return a draft that waits for each of its copies as soon as it has begun it."""
    pairs = ([c, _done(c)] if isinstance(c, CopyStart) else [c] for c in draft.commands)
    return replace(draft, commands=tuple(c for pair in pairs for c in pair))


def overlapped(draft: Draft, graph: TaskGraph, schedule: Schedule, room: int) -> Draft:
    """Return a draft that waits for its copies, each begun some time before that where the room allows it.

    The commands of the draft are the tasks of the schedule.
    """
    commands, used = draft.commands, profile(graph, schedule)
    seconds = [
        0.0 if isinstance(c, CopyStart) else graph.tasks[k].seconds
        for c, k in zip(commands, schedule, strict=True)
    ]

    def edge(copy: CopyStart, passed: Iterable[int]) -> int:
        """Return the last of the positions passed during which the copy may be under way, -1 if none."""
        nbytes = round_up(draft.values[copy.source].nbytes)
        left, last = AHEAD * copy_seconds(nbytes), -1
        for other in passed:
            if left <= 0 or used[other] + nbytes > room:
                break
            used[other] += nbytes
            left -= seconds[other]
            last = other
        return last

    begun: dict[int, list[Command]] = {}  # before the command at a position
    ended: dict[int, list[Command]] = {}  # after it
    for position, command in enumerate(commands):
        if not isinstance(command, CopyStart):
            continue
        if draft.values[command.target].home == "arena":
            first = edge(command, range(position - 1, -1, -1))
            begun.setdefault(first if first >= 0 else position, []).append(command)
        else:
            last = edge(command, range(position + 1, len(commands)))
            ended.setdefault(max(last, position), []).append(_done(command))
    made: list[Command] = []
    for position, command in enumerate(commands):
        made += begun.get(position, ())
        inward = isinstance(command, CopyStart) and draft.values[command.target].home == "arena"
        made.append(_done(command) if inward else command)
        made += ended.get(position, ())
    return replace(draft, commands=tuple(made))


def _done(copy: Command) -> CopyDone:
    assert isinstance(copy, CopyStart)
    return CopyDone(copy.source, copy.target, copy.label)


def copy_waits(
    commands: Sequence[Command], values: Sequence[Value], seconds: Callable[[Command], float]
) -> list[tuple[float, float]]:
    """Return for each command at the top how long it is predicted to compute, and to wait for a copy.

    One copy is under way at a time, in the order in which they begin. While kernels run, it takes a processor
    from one of their threads, and they end with the last: that time counts as computing, where the copy is
    waited for.
    """
    clock = channel = 0.0  # channel: when the copies begun so far are done
    done_at: dict[tuple[int, int], tuple[float, float]] = {}
    found = []
    for command in commands:
        computing = waiting = 0.0
        if isinstance(command, CopyStart):
            took = copy_seconds(values[command.source].nbytes)
            channel = max(channel, clock) + took
            done_at[command.source, command.target] = channel, took
        elif isinstance(command, CopyDone):
            done, took = done_at[command.source, command.target]
            waiting = max(0.0, done - clock)
            computing = max(0.0, took - waiting)
        else:
            computing = seconds(command)
        clock += computing + waiting
        found.append((computing, waiting))
    return found

