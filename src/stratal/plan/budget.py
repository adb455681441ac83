"""A memory budget: a draft whose commands run again, or in another order, so that its plan fits.

    draft -> TaskGraph -> schedule within the budget -> draft with that schedule -> shared memory, offsets

Where a file may hold states, drafts that copy them in and out are planned in the same way, and the quickest
that fits is taken. A command that comes again launches the same kernel on the same bytes and writes another
buffer: budgets change no bit of a result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from stratal.base import settings
from stratal.base.artifact import (
    Branch,
    Command,
    Copy,
    CopyStart,
    Host,
    Launch,
    Loop,
    While,
    bodies,
    flat,
    offloaded,
    own_reads,
    own_writes,
)
from stratal.base.errors import DoesNotFit
from stratal.base.log import decide
from stratal.base.target import Target
from stratal.memory.liveness import analyse, roots, rows
from stratal.memory.plan import arena_blocks, arrange, largest_live_sum, plan_home, round_up
from stratal.memory.rematerialize import fitted, smallest
from stratal.memory.render import format_bytes
from stratal.memory.tasks import Schedule, Task, TaskGraph
from stratal.plan.build import fixed_bytes
from stratal.plan.offload import choices, copy_seconds, offloaded_states, overlapped, total_seconds
from stratal.plan.sharing import choose_in_place, share_memory
from stratal.plan.work import Work
from stratal.schedule.draft import Draft

TRIES: Final = 6  # of a budget below the asked one, where blocks of memory leave gaps between them
MOST_NAMED: Final = 3


def within_budget(draft: Draft, budget: int, target: Target) -> Draft:
    """Return a draft that computes the same and whose plan needs at most so many bytes in all.

    Raises: DoesNotFit with the least budget that is known to work, what holds it, and the largest values.
    """
    threads = settings.threads.value
    fixed = fixed_bytes(draft, threads, plan_home(draft.values, "persistent"))
    if arena_bytes(draft) <= budget - sum(fixed):
        return draft
    draft = replace(draft, compact=True)
    drafts = [draft]
    if settings.offload_dir.value is not None:
        drafts += [offloaded_states(draft, states) for states in choices(draft)]
    found = [_planned(d, budget, target, threads) for d in drafts]
    fit = [p for p in found if p.least_bytes <= budget]
    if not fit:
        raise does_not_fit(min(found, key=lambda p: p.least_bytes), budget, threads)
    best = min(fit, key=lambda p: p.seconds)
    _log(best)
    return best.draft


class Planned(NamedTuple):
    """A draft with a schedule, and that draft once its commands are in the order of the schedule.

    `least_bytes`: what it needs in all, or where that is too much, the least it is known to need.
    """

    source: Draft
    graph: TaskGraph
    schedule: Schedule
    draft: Draft
    least_bytes: int
    seconds: float


def _planned(draft: Draft, budget: int, target: Target, threads: int) -> Planned:
    """Return the quickest schedule of a draft within a budget, or the smallest where none is found."""
    fixed = sum(fixed_bytes(draft, threads, plan_home(draft.values, "persistent")))
    room = budget - fixed
    graph = task_graph(draft, target, threads)
    schedule = fitting(draft, graph, room)
    if schedule is None:
        _, schedule = smallest_draft(draft, graph)
    found = scheduled(draft, schedule)
    seconds = sum(graph.tasks[k].seconds for k in schedule)
    if offloaded(draft.commands, draft.inputs):
        synchronous = found
        found = overlapped(synchronous, graph, schedule, room)
        if arena_bytes(found) > room:
            found = overlapped(synchronous, graph, schedule, room, ahead=0.0)
        work = Work(found, found.values)
        seconds = total_seconds(found.commands, found.values, lambda c: work.seconds(c, target, threads))
    return Planned(draft, graph, schedule, found, fixed + arena_bytes(found), seconds)


def fitting(draft: Draft, graph: TaskGraph, room: int) -> Schedule | None:
    """Return a schedule whose arena has at most so many bytes; None where none is found.

    Blocks of memory may leave gaps between them: plans are sought for less until the arena fits, too.
    """
    aim = room
    for _ in range(TRIES):
        plan = fitted(graph, aim) if aim > 0 else None
        if plan is None:
            return None
        over = arena_bytes(scheduled(draft, plan.schedule)) - room
        if over <= 0:
            return plan.schedule
        aim -= over
    return None


def smallest_draft(draft: Draft, graph: TaskGraph) -> tuple[int, Schedule]:
    """Return the fewest bytes of an arena that some schedule is known to need, and that schedule."""
    best = arena_bytes(draft), graph.order
    for plan in smallest(graph):  # fewest bytes first; an arena is never smaller than what lives in it
        if plan.peak_bytes >= best[0]:
            break
        best = min(best, (arena_bytes(scheduled(draft, plan.schedule)), plan.schedule))
    for _ in range(TRIES):  # a budget of one byte less is to be refused
        schedule = fitting(draft, graph, best[0] - 1)
        if schedule is None:
            break
        best = arena_bytes(scheduled(draft, schedule)), schedule
    return best


def arena_bytes(draft: Draft) -> int:
    """Return the bytes of the arena that a draft gets, leaving the draft as it is."""
    made = replace(draft, values=[replace(v) for v in draft.values])
    share_memory(made)
    return arrange(made.values, made.commands, outputs=made.outputs, compact=made.compact).arena_bytes


# -- tasks ---------------------------------------------------------------------------------------------------
def task_graph(draft: Draft, target: Target, threads: int) -> TaskGraph:
    """Return a draft as tasks: one for each command at the top, loops and branches as wholes."""
    values = [replace(v) for v in draft.values]
    made_in = dict(choose_in_place(draft, values))  # sources of copies, by what they are made in
    home_of = {v.id: values[made_in.get(v.id, v.id)].home for v in values}
    named = rows(draft.values)
    owners = set(named.values())
    work = Work(draft, draft.values)

    def names(ids: Sequence[int]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(named.get(i, i) for i in ids))

    commands = draft.commands
    accessed = [(names(_all(command, own_reads)), names(_all(command, own_writes))) for command in commands]
    users = Counter(v for reads, writes in accessed for v in {*reads, *writes})
    writers = Counter(v for _, writes in accessed for v in writes)
    in_arena = {v.id for v in draft.values if home_of[v.id] == "arena"}
    seen: set[int] = set()
    tasks = []
    for command, (reads, writes) in zip(commands, accessed, strict=True):
        inner = bool(bodies(command))
        own = {v for v in {*reads, *writes} if users[v] == 1 and inner and v in in_arena}
        ours = [w for w in writes if w not in own and draft.values[w].home not in ("input", "const")]
        made = tuple(w for w in ours if w not in seen)
        updated = tuple(w for w in ours if w in seen)
        seen.update(made)
        fresh = all(writers[w] == 1 and w in in_arena and w not in owners for w in writes)
        tasks.append(Task(
            copy_seconds(draft.values[command.source].nbytes)
            if isinstance(command, CopyStart) else work.seconds(command, target, threads),
            tuple(v for v in (*reads, *updated) if v not in own and v not in made),
            made,
            tuple(command.in_place_values) if isinstance(command, Launch) else (),
            tuple(s for s in (made_in.get(w, w) for w in writes) if draft.values[s].home == "input"),
            _workspace(command, own, draft) if own else 0,
            _is_repeatable(command) and fresh and bool(writes),
            updated,
            any(isinstance(c, Host) or getattr(c, "may_fail", "") for c in flat((command,))),
            not isinstance(command, (Launch, CopyStart)),
            isinstance(command, CopyStart),
        ))  # fmt: skip
    nbytes = {v: round_up(draft.values[v].nbytes) for v in seen if v in in_arena}
    return TaskGraph(tasks, nbytes, frozenset(draft.outputs) & in_arena)


def _is_repeatable(command: Command) -> bool:
    """Whether a command may run again: a kernel, or a copy of a state."""
    return isinstance(command, CopyStart) or (isinstance(command, Launch) and not command.may_fail)


def _all(command: Command, of: Callable[[Command], tuple[int, ...]]) -> list[int]:
    """Return what a command and all that it holds access."""
    return [v for c in flat((command,)) for v in of(c)]


def _workspace(command: Command, own: set[int], draft: Draft) -> int:
    """Return the most bytes of the values that a loop or a branch has for itself alone."""
    live = analyse((command,), roots(draft.values))
    blocks = [b for b in arena_blocks(draft.values, live) if b.root in own]
    return largest_live_sum(blocks, live.num_moments)


# -- schedules -----------------------------------------------------------------------------------------------
def scheduled(draft: Draft, schedule: Schedule) -> Draft:
    """Return a draft that runs its commands in the order of a schedule.

    A command that comes again writes values of its own.
    """
    made = replace(draft, values=[replace(v) for v in draft.values])
    instance: dict[int, int] = {}
    seen: set[int] = set()
    commands = []
    for number in schedule:
        command = _renamed(draft.commands[number], instance)
        if number in seen:
            for w in own_writes(command):
                old = draft.values[w]
                instance[w] = made.value(old.type, old.strides, label=old.label, where=old.where)
            if isinstance(command, CopyStart):
                command = replace(command, target=instance[command.target])
            else:
                assert isinstance(command, Launch), "only kernels and copies of states are repeatable"
                command = replace(command, writes=tuple(instance[w] for w in command.writes))
        seen.add(number)
        commands.append(command)
    made.commands = tuple(commands)
    return made


def _renamed(command: Command, instance: Mapping[int, int]) -> Command:
    """Return a command that reads the latest instance of each value."""
    if not any(r in instance for c in flat((command,)) for r in own_reads(c)):
        return command
    if isinstance(command, (Launch, Host)):
        return replace(command, reads=tuple(instance.get(r, r) for r in command.reads))
    if isinstance(command, Copy):
        return replace(command, source=instance.get(command.source, command.source))
    inner = {n: tuple(_renamed(c, instance) for c in body) for n, body in bodies(command).items()}
    if isinstance(command, (While, Branch)):
        return replace(command, predicate=instance.get(command.predicate, command.predicate), **inner)  # type: ignore[arg-type]
    if isinstance(command, Loop) and command.trips_value is not None:
        return replace(command, trips_value=instance.get(command.trips_value, command.trips_value), **inner)  # type: ignore[arg-type]
    return replace(command, **inner)  # type: ignore[arg-type]


def _log(planned: Planned) -> None:
    """Note each state that waits in a file, and each recomputation."""
    draft, graph = planned.source, planned.graph
    for position in offloaded(draft.commands, draft.inputs):
        state = draft.values[draft.inputs[position]]
        decide("memory", state.label or f"%{state.id}", f"offloaded, {format_bytes(state.nbytes)}",
               "the budget has no room for it while no kernel needs it", where=state.where)  # fmt: skip
    for number, times in Counter(planned.schedule).items():
        command = draft.commands[number]
        if times > 1:
            freed = sum(map(graph.bytes_of, graph.tasks[number].writes))
            again = "copied in again" if isinstance(command, CopyStart) else "recomputed"
            free = f"{again}, {format_bytes(freed)} are free in between"
            decide("memory", getattr(command, "label", ""), free,
                   "the budget has no room for its results from their first use to their last",
                   seconds=graph.tasks[number].seconds, basis="estimated",
                   where=getattr(command, "where", ()))  # fmt: skip


def does_not_fit(planned: Planned, budget: int, threads: int) -> DoesNotFit:
    """Return the error for a budget that no plan keeps, where the smallest is known."""
    draft, graph, least = planned.source, planned.graph, planned.least_bytes
    fixed = fixed_bytes(draft, threads, plan_home(draft.values, "persistent"))
    parts = ", ".join(f"{name} {format_bytes(n)}" for name, n in fixed._asdict().items() if n)
    largest = sorted(graph.nbytes, key=lambda v: -graph.nbytes[v])[:MOST_NAMED]
    shown = "; ".join(
        f"{draft.values[v].label or f'%{v}'} {format_bytes(graph.nbytes[v])}"
        + (f" ({draft.values[v].where[0]})" if draft.values[v].where else "")
        for v in largest
    )
    hint = "a smaller batch, or a larger budget"
    if settings.offload_dir.value is None:
        hint += ", or STRATAL_OFFLOAD_DIR=<folder> for states to wait in a file"
    return DoesNotFit(
        f"memory: the program needs at least {format_bytes(least)} ({least} bytes)",
        got=f"a budget of {format_bytes(budget)}; {parts} are fixed; largest values: {shown}",
        hint=hint, least_bytes=least,
        where=draft.values[largest[0]].where if largest else (),
    )  # fmt: skip
