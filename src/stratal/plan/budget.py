"""A memory budget: a draft whose commands run again, or in another order, so that its plan fits.

    draft -> TaskGraph -> schedule within the budget -> draft with that schedule -> shared memory, offsets

Where a file may hold states, drafts that copy them in and out are planned in the same way, and the quickest
that fits is taken. A command that comes again launches the same kernel on the same bytes and writes another
buffer: budgets change no bit of a result.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    all_reads,
    all_writes,
    bodies,
    flat,
    offloaded,
    own_writes,
)
from stratal.base.errors import DoesNotFit
from stratal.base.log import DecisionLog, collect, decide
from stratal.base.target import Target
from stratal.memory.liveness import analyse, roots, rows
from stratal.memory.plan import arena_blocks, arrange, largest_live_sum, plan_home, round_up
from stratal.memory.rematerialize import MemoryPlanner
from stratal.memory.render import format_bytes
from stratal.memory.tasks import Schedule, Task, TaskGraph
from stratal.optimize.batch_parts import NotSplit
from stratal.plan.build import FixedBytes, fixed_bytes
from stratal.plan.loop_invariants import sunk
from stratal.plan.offload import (
    choices,
    copy_seconds,
    copy_waits,
    offloaded_states,
    overlapped,
    waited_at_once,
)
from stratal.plan.sharing import choose_in_place, share_memory
from stratal.plan.work import Work
from stratal.schedule.draft import Draft

TRIES: Final = 6  # of a budget below the asked one, where blocks of memory leave gaps between them
OVERLAPS: Final = (1.0, 0.98, 0.95, 0.9)  # of the room, for copies under way: blocks leave gaps
ENOUGH: Final = 1.03  # times the time without a budget: no quicker plan is looked for
MOST_NAMED: Final = 3


class InParts(NamedTuple):
    """A draft that computes its batch in equal parts, and the decisions that led to it."""

    parts: int
    draft: Draft
    log: DecisionLog


def within_budget(
    draft: Draft, budget: int, target: Target, in_parts: Iterable[InParts] = ()
) -> tuple[Draft, DecisionLog | None]:
    """Return a draft that computes the same and whose plan needs at most so many bytes in all.

    `in_parts` are drafts of the same program by parts of its batch, fewest first, asked for where recomputing
    takes time or does not suffice; the decisions of the one taken come with it.
    Raises: DoesNotFit with the least budget that is known to work, what holds it, and the largest values.
    """
    planner = BudgetPlanner(draft, target)
    if planner.needed_bytes <= budget:
        return draft, None
    whole = _attempt(planner, budget)
    if whole.plan is not None and whole.plan.seconds <= ENOUGH * planner.seconds:
        _log(whole.plan)
        return whole.plan.draft, None
    best, taken = whole, None
    try:
        for tried, found in _attempts_in_parts(in_parts, budget, target, whole):
            if found.seconds < best.seconds:
                best, taken = found, tried
            elif found.plan is None and best.plan is None and found.least_bytes < best.least_bytes:
                best = found
    except NotSplit as reason:
        decide("memory", "micro-batches", "its batch is not split", reason.why, where=reason.node.where)
        if best.error is not None:
            best.error.hint += f"; its batch is not split: {reason}"
    if best.plan is None:
        assert best.error is not None
        raise best.error
    if taken is None:
        _log(best.plan)
        return best.plan.draft, None
    with collect(taken.log):
        decide("memory", "micro-batches", f"{taken.parts} parts of the batch, one after another",
               "sums over the batch are added up part by part: results agree to rounding, not to the bit",
               seconds=best.seconds, basis="estimated")  # fmt: skip
        _log(best.plan)
    return best.plan.draft, taken.log


class Attempt(NamedTuple):
    """The quickest plan of a draft within a budget, or why there is none."""

    plan: Planned | None
    error: DoesNotFit | None = None

    @property
    def seconds(self) -> float:
        return math.inf if self.plan is None else self.plan.seconds

    @property
    def least_bytes(self) -> float:
        return math.inf if self.error is None else self.error.least_bytes


def _attempt(planner: BudgetPlanner, budget: int) -> Attempt:
    try:
        return Attempt(planner.plan(budget))
    except DoesNotFit as error:
        return Attempt(None, error)


def _attempts_in_parts(
    in_parts: Iterable[InParts], budget: int, target: Target, whole: Attempt
) -> Iterator[tuple[InParts, Attempt]]:
    """Yield drafts in parts with their plans, while more parts may recompute less, or until some fit."""
    before = whole
    for tried in in_parts:
        planner = BudgetPlanner(tried.draft, target)
        found = _attempt(planner, budget)
        yield tried, found
        if found.plan is not None and found.seconds >= before.seconds:
            break  # more parts take longer
        if found.seconds <= ENOUGH * planner.seconds:
            break  # more parts recompute no less
        before = found


class Program(NamedTuple):
    """A draft, the planner of its tasks, and what it needs beside the arena."""

    draft: Draft
    planner: MemoryPlanner
    fixed: FixedBytes


class Planned(NamedTuple):
    """A program, a schedule of its tasks, the draft in that order, and how long it is predicted to take.

    Seconds: of kernels, and for which kernels wait for copies.
    """

    program: Program
    schedule: Schedule
    draft: Draft
    computing: float
    waiting: float = 0.0

    @property
    def seconds(self) -> float:
        return self.computing + self.waiting


class BudgetPlanner:
    """Plans one draft within budgets; what one question found is there for the next."""

    def __init__(self, draft: Draft, target: Target) -> None:
        self.draft: Final = draft
        self.target: Final = target
        self.threads: Final = settings.threads.value
        self.needed_bytes: Final = sum(self._fixed(draft)) + arena_bytes(draft)  # without a budget
        self._drafts: Final = self._ways(replace(draft, compact=True))
        self._programs: Final[list[Program]] = []
        self._work: Final = Work(draft, draft.values)

    def _fixed(self, draft: Draft) -> FixedBytes:
        return fixed_bytes(draft, self.threads, plan_home(draft.values, "persistent"))

    def _ways(self, draft: Draft) -> Iterator[Draft]:
        """Yield the draft, then with loops that repeat what they alone read, then those that offload states,
        with fewest copies first.
        """
        yield draft
        if (repeating := sunk(draft)) is not None:
            yield repeating
            draft = repeating
        if settings.offload_dir.value is not None:
            for states in choices(draft):
                yield offloaded_states(draft, states)

    @property
    def programs(self) -> Iterator[Program]:
        """The ways to run the draft, made as they are asked for."""
        yield from self._programs
        for draft in self._drafts:
            graph = task_graph(draft, self.target, self.threads, Work(draft, draft.values, self._work))
            before = self._programs[-1].planner if self._programs else None
            self._programs.append(Program(draft, MemoryPlanner(graph, before), self._fixed(draft)))
            yield self._programs[-1]

    @property
    def seconds(self) -> float:
        """How long the kernels are predicted to take, each once."""
        return sum(task.seconds for task in next(self.programs).planner.graph.tasks)

    def plan(self, budget: int) -> Planned:
        """Return the quickest plan within a budget. Raises: DoesNotFit."""
        found: list[Planned] = []
        for program in self.programs:
            if found and self._least_seconds(program) >= min(p.seconds for p in found):
                continue
            schedule = fitting(program.draft, program.planner, budget - sum(program.fixed))
            if schedule is not None:
                found.append(self._planned(program, schedule, budget))
                if found[-1].seconds <= ENOUGH * self.seconds:
                    break
        return min(found, key=lambda p: p.seconds) if found else self._smallest(budget)

    def _least_seconds(self, program: Program) -> float:
        """Return what a program takes at least: its kernels once, and a processor for its copies."""
        return self.seconds + sum(task.seconds for task in program.planner.graph.tasks if task.copies)

    def _planned(self, program: Program, schedule: Schedule, budget: int) -> Planned:
        """Return a program in the order of a schedule that fits a budget, its copies beside kernels."""
        draft, graph = program.draft, program.planner.graph
        made = scheduled(draft, schedule)
        if not offloaded(draft.commands, draft.inputs):
            return Planned(program, schedule, made, sum(graph.tasks[k].seconds for k in schedule))
        room = budget - sum(program.fixed)
        tried = (overlapped(made, graph, schedule, int(share * room)) for share in OVERLAPS)
        overlapping = next((d for d in tried if arena_bytes(d) <= room), None) or waited_at_once(made)
        work = Work(overlapping, overlapping.values, self._work)
        waits = copy_waits(
            overlapping.commands, overlapping.values, lambda c: work.seconds(c, self.target, self.threads)
        )
        computing, waiting = (sum(column) for column in zip(*waits, strict=True))
        return Planned(program, schedule, overlapping, computing, waiting)

    def _smallest(self, budget: int) -> Planned:
        """Return the smallest plan there is. Raises: DoesNotFit where it is larger than the budget."""
        programs = list(self.programs)
        plans = [smallest_draft(p.draft, p.planner) for p in programs]
        needed = [sum(p.fixed) + arena for p, (arena, _) in zip(programs, plans, strict=True)]
        at = needed.index(min(needed))
        if needed[at] > budget:
            raise does_not_fit(programs[at], needed[at], budget)
        return self._planned(programs[at], plans[at][1], budget)


def fitting(draft: Draft, planner: MemoryPlanner, room: int) -> Schedule | None:
    """Return a schedule whose arena has at most so many bytes; None where none is found.

    Blocks of memory may leave gaps between them: plans are sought for less until the arena fits, too.
    """
    aim = room
    for _ in range(TRIES):
        plan = planner.fitted(aim) if aim > 0 else None
        if plan is None:
            return None
        arena = arena_bytes(waited_at_once(scheduled(draft, plan.schedule)))
        if arena <= room:
            return plan.schedule
        aim = min(aim - (arena - room), room - (arena - plan.peak_bytes))
    return None


def smallest_draft(draft: Draft, planner: MemoryPlanner) -> tuple[int, Schedule]:
    """Return the fewest bytes of an arena that some schedule is known to need, and that schedule."""
    graph = planner.graph
    best = arena_bytes(waited_at_once(scheduled(draft, graph.order))), graph.order
    for plan in planner.smallest:  # fewest bytes first; an arena is never smaller than what lives in it
        if plan.peak_bytes >= best[0]:
            break
        best = min(best, (arena_bytes(waited_at_once(scheduled(draft, plan.schedule))), plan.schedule))
    for _ in range(TRIES):  # a budget of one byte less is to be refused
        schedule = fitting(draft, planner, best[0] - 1)
        if schedule is None:
            break
        best = arena_bytes(waited_at_once(scheduled(draft, schedule))), schedule
    return best


def arena_bytes(draft: Draft) -> int:
    """Return the bytes of the arena that a draft gets, leaving the draft as it is."""
    made = replace(draft, values=[replace(v) for v in draft.values])
    share_memory(made)
    return arrange(made.values, made.commands, outputs=made.outputs, compact=made.compact).arena_bytes


# -- tasks ---------------------------------------------------------------------------------------------------
def task_graph(draft: Draft, target: Target, threads: int, work: Work) -> TaskGraph:
    """Return a draft as tasks: one for each command at the top, loops and branches as wholes."""
    values = [replace(v) for v in draft.values]
    live = analyse(draft.commands, rows(values))
    made_in = dict(choose_in_place(draft, values, live))  # sources of copies, by what they are made in
    home_of = {v.id: values[made_in.get(v.id, v.id)].home for v in values}
    named = rows(draft.values)
    owners = set(named.values())

    def names(ids: Sequence[int]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(named.get(i, i) for i in ids))

    commands = draft.commands
    accessed = [(names(all_reads(command)), names(all_writes(command))) for command in commands]
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
    if instance.keys().isdisjoint(all_reads(command)):
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
    draft, graph = planned.program.draft, planned.program.planner.graph
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


def does_not_fit(program: Program, least: int, budget: int) -> DoesNotFit:
    """Return the error for a budget below the least that a program is known to need."""
    draft, graph, fixed = program.draft, program.planner.graph, program.fixed
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
    if not settings.micro_batches.value:
        hint += ", or micro_batches=True where results may differ by rounding"
    return DoesNotFit(
        f"memory: the program needs at least {format_bytes(least)} ({least} bytes)",
        got=f"a budget of {format_bytes(budget)}; {parts} are fixed; largest values: {shown}",
        hint=hint, least_bytes=least, where=draft.values[largest[0]].where if largest else (),
    )  # fmt: skip
