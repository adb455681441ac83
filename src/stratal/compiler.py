"""Graph to Program: the whole pipeline on one page. Each step is a function with a name and a contract."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any, NamedTuple

from stratal.base import fallback, settings, tuning
from stratal.base.artifact import (
    Executable,
    KernelObject,
    Once,
    flat,
    own_reads,
)
from stratal.base.collector import collector_paused
from stratal.base.fallback import Fallbacks
from stratal.base.faults import is_fault
from stratal.base.interrupts import DEFERRED, interruptible
from stratal.base.log import DecisionLog, collect
from stratal.base.target import Target
from stratal.base.tuning import Records
from stratal.codegen.assemble import toolchain_digest
from stratal.graph.graph import Graph, verify
from stratal.loops import index
from stratal.loops.stmt import Kernel
from stratal.memory.plan import plan_arena, plan_home
from stratal.optimize.canonical import choose_algorithms
from stratal.optimize.micro_batches import counts, micro_batched
from stratal.optimize.online import use_online_forms
from stratal.optimize.prologue import Hoisted, hoist
from stratal.optimize.simplify import simplify
from stratal.plan.budget import InParts, within_budget
from stratal.plan.build import Compilation, make_plan
from stratal.plan.caching import CachedProgram, digest_of
from stratal.plan.explain import Text, explain
from stratal.plan.fallback import report
from stratal.plan.front import Front, front
from stratal.plan.generation import Generation, blame, driver_object, drop_driver
from stratal.plan.host import runnable_target
from stratal.plan.memory_text import memory_text
from stratal.plan.partitioning import Lowerings, cut_into_kernels
from stratal.plan.record import Plan
from stratal.plan.sharing import share_memory
from stratal.plan.stages import recording, stage, strict
from stratal.runtime.prefault import ArenaPrefault
from stratal.runtime.program import LoadedProgram
from stratal.runtime.workspace import Workspace
from stratal.schedule.draft import Draft
from stratal.schedule.on_host import on_host
from stratal.schedule.program import Planned, ProgramLowering
from stratal.schedule.tactics import convolutions


def no_matter(news: Kernel | int) -> None:
    """Hear of a kernel, or of memory, and do nothing."""


class Rewritten(NamedTuple):
    """A graph before and after all passes that rewrite it, then in two parts, and the decisions so far."""

    captured: Graph
    parts: Hoisted
    log: DecisionLog


class Drafted(NamedTuple):
    """What is decided before code is generated, and the decisions."""

    draft: Draft
    log: DecisionLog


class Built(NamedTuple):
    """A program that can run, its draft if it has one, and how many of its kernels the cache had."""

    loaded: LoadedProgram
    drafted: Drafted | None
    num_cached: int


class Program:
    """A compiled graph.

    `run` takes one Storage per graph input and returns one per output; states are written in place.

    One that came from the cache has made no decisions: they are made again, the same, when somebody asks.
    """

    def __init__(
        self, graph: Graph, loaded: LoadedProgram, made: Compilation, drafted: Drafted | None = None
    ) -> None:
        self.graph = graph
        self.loaded = loaded
        self.made = made
        self.run, self.run_in_section = loaded.run, loaded.run_in_section
        if drafted is not None:
            self._drafted = drafted

    @cached_property
    def _drafted(self) -> Drafted:
        with self.made.in_force():
            draft, log = decided(self.graph, self.made.target, fused=self.made.fused)
        return Drafted(draft.of_commands(self.executable.commands), log)

    @property
    def draft(self) -> Draft:
        return self._drafted.draft

    @property
    def log(self) -> DecisionLog:
        return self._drafted.log

    @property
    def compile_seconds(self) -> float:
        return self.made.seconds

    @property
    def kernels_from_cache(self) -> int:
        return self.made.num_cached

    @cached_property
    def plan(self) -> Plan:
        """What a run does: kernels, memory and cost; made when first asked for."""
        return make_plan(self.graph, self.draft, self.executable, self.made)

    @cached_property
    def digest(self) -> str:
        """A digest of what decides the results, to the bit: equal for a program that came from the cache."""
        return digest_of(self.executable)

    @property
    def memory(self) -> Text:
        """Bytes by purpose, what lives at the peak, and what is computed again."""
        return memory_text(self)

    def explain(self, about: str | int = "", **options: Any) -> Text:
        """Say why it is what it is: see `plan.explain` for topics and options."""
        return explain(self, about, **options)

    @property
    def executable(self) -> Executable:
        return self.loaded.executable


def compile_graph(graph: Graph, *, fused: bool = True, workspace: Workspace | None = None) -> Program:
    """Compile a graph for the current target and settings.

    Raises: SettingError where its code cannot run here.

    `fused=False` gives every op a kernel of its own; in a `workspace` it computes where others did before.
    What fails is compiled again with less ambition: a pass is left out, a kernel goes down the levels of
    `base.fallback`.
    """
    started = time.perf_counter()
    target = runnable_target()
    records = tuning.records_for(target.digest, lambda: toolchain_digest("schedule"))
    fallbacks = Fallbacks(allowed=not strict())
    with (
        DEFERRED, interruptible(), collector_paused(), recording(graph) as record, tuning.using(records),
        ArenaPrefault(workspace) as memory, fallbacks.active(),
    ):  # fmt: skip
        cached = CachedProgram(graph, target, fused=fused)
        built = restored(cached, target, memory)
        if built is None:
            parts = rewritten(graph, target)
            built = fallbacks.attempts(partial(build, parts, target, fused, memory, cached))
        if built.drafted is not None and not fallbacks.lasting:
            cached.keep(built.loaded.executable)
    index.forget()
    seconds = time.perf_counter() - started
    made = Compilation(
        target, seconds, settings.shaping(), built.num_cached, tuple(record.overrides), fused, records,
        report(graph, fallbacks),
    )  # fmt: skip
    return record.finished(Program(graph, built.loaded, made, built.drafted))


def restored(cached: CachedProgram, target: Target, memory: ArenaPrefault) -> Built | None:
    """Return the program the cache holds, or None; what cannot be loaded is dropped and compiled anew."""
    executable = cached.find()
    if executable is None:
        return None
    try:
        loaded = LoadedProgram(executable, driver_object(target), new=memory.source(executable))
    except Exception as error:
        if not is_fault(error):
            raise
        drop(executable, cached, target)
        return None
    return Built(loaded, None, len(executable.kernels))


def drop(executable: Executable, cached: CachedProgram, target: Target) -> None:
    """Remove all code of a program from the cache: some of it does not load."""
    cached.drop(executable)
    drop_driver(target)


def build(graph: Rewritten, target: Target, fused: bool, memory: ArenaPrefault, at: CachedProgram) -> Built:
    """Compile a rewritten graph: kernels, memory, code. Code that does not load is made once more."""

    def built(first: bool) -> Built:
        with Generation(target, len(graph.captured.nodes)) as generation:
            drafted = decide(graph, target, fused, generation.add, memory.expect)
            kernels, num_cached = generation.finish(drafted.draft)
        executable = stage("linked", link(graph.captured, drafted.draft, kernels))
        try:
            loaded = LoadedProgram(executable, driver_object(target), new=memory.source(executable))
        except Exception as error:
            if not is_fault(error):
                raise
            drop(executable, at, target)
            if first:
                return built(first=False)
            blame(drafted.draft, executable)
            raise
        return Built(loaded, drafted, num_cached)

    return built(first=True)


def decided(
    graph: Graph, target: Target, *, fused: bool = True, foreseen: Callable[[int], None] = no_matter
) -> Drafted:
    """Take every decision: rewrites, partition, layouts, schedules and shared memory."""
    return decide(rewritten(graph, target), target, fused, foreseen=foreseen)


def planned(graph: Graph) -> tuple[Executable, Plan, DecisionLog]:
    """Return the program of a graph with its offsets and without code, its plan, and all decisions."""
    with planning() as (target, records, fallbacks):
        parts = rewritten(graph, target)
        drafted = fallbacks.attempts(partial(decide, parts, target))
        executable = link(graph, drafted.draft, {})
    made = Compilation(target, 0.0, settings.shaping(), records=records)
    return executable, make_plan(graph, drafted.draft, executable, made), drafted.log


def memory_front(graph: Graph, points: int) -> Front:
    """Return what plans of a graph need less memory, and what time they are predicted to take."""
    with planning() as (target, _, fallbacks):
        parts = rewritten(graph, target).parts
        draft = fallbacks.attempts(partial(lower, parts, target))
        return front(graph.name, draft, target, points, in_parts(graph, target))


@contextmanager
def planning() -> Iterator[tuple[Target, Records, Fallbacks]]:
    """Decide inside what a compilation would, without code: yield what decides, and what may fail."""
    target = runnable_target()
    records = tuning.records_for(target.digest, lambda: toolchain_digest("schedule"))
    fallbacks = Fallbacks(allowed=not strict())
    with DEFERRED, interruptible(), collector_paused(), tuning.using(records), fallbacks.active():
        yield target, records, fallbacks
    index.forget()


def rewritten(graph: Graph, target: Target) -> Rewritten:
    """Return a graph after all passes that rewrite it, and apart what is computed once for many runs."""
    with collect() as log:
        tuning.in_force().report()
        prepared = stage("simplified", prepare(stage("captured", graph), target))
        return Rewritten(graph, hoist(prepared, Lowerings()), log)


def prepare(graph: Graph, target: Target) -> Graph:
    """Simplify a graph by rules, rewrite it where that pays and make the algorithm choices that are graph
    rewrites.
    """
    simple = simplify(verify(graph))
    if settings.math.value != "exact":
        from stratal.plan.rewrites import rewritten_where_it_pays  # few programs need a search and a prover

        simple = rewritten_where_it_pays(simple, target)
    simple = use_online_forms(simple)
    return fallback.optional(
        "algorithm choices", lambda: verify(choose_algorithms(simple, Lowerings(), target, convolutions)),
        lambda: simple,
    )  # fmt: skip


def decide(
    graph: Rewritten,
    target: Target,
    fused: bool = True,
    scheduled: Callable[[Kernel], None] = no_matter,
    foreseen: Callable[[int], None] = no_matter,
) -> Drafted:
    """Decide what is left after the rewrites: partition, layouts, schedules and shared memory.

    `scheduled` is told of each kernel as soon as it is final, `foreseen` about how many bytes will be needed.
    """
    with collect(DecisionLog(list(graph.log))) as log:
        if fallback.floor() == fallback.HOST:
            return Drafted(on_host(graph.captured), log)
        budget = settings.memory.value
        heard = foreseen if budget is None else lambda nbytes: foreseen(min(nbytes, budget))
        draft = stage("commands", lower(graph.parts, target, fused, scheduled, heard))
        fallback.settle()
        if budget is not None:
            others = in_parts(graph.captured, target, fused, scheduled)
            draft, decisions = within_budget(draft, budget, target, others)
            log = decisions or log
        share_memory(draft)
    return Drafted(draft, log)


def in_parts(
    graph: Graph, target: Target, fused: bool = True, scheduled: Callable[[Kernel], None] = no_matter
) -> Iterator[InParts]:
    """Yield drafts of a graph that compute its batch in parts, fewest first, where a budget may do that.

    Raises: NotSplit.
    """
    if not settings.micro_batches.value:
        return
    simple = simplify(verify(graph))
    for count in counts(simple):
        with collect() as log:
            parts = rewritten(micro_batched(simple, count, Lowerings()), target)
            draft = lower(parts.parts, target, fused, scheduled)
        yield InParts(count, draft, DecisionLog([*parts.log, *log]))


def lower(
    parts: Hoisted,
    target: Target,
    fused: bool = True,
    scheduled: Callable[[Kernel], None] = no_matter,
    foreseen: Callable[[int], None] = no_matter,
) -> Draft:
    """Partition, lay out and schedule a graph, regions included: values and commands, no code yet.

    What frozen inputs decide alone becomes commands that run once.
    """
    lower_of = Lowerings()

    def plan(part: Graph) -> Planned:
        planned = cut_into_kernels(part, lower_of, target, fused)
        return planned._replace(partition=stage("partition", planned.partition))

    lowering = ProgramLowering(plan, lower_of, target, scheduled, foreseen)
    return lowering.program(parts.rest, parts.prologue)


def generate(draft: Draft, target: Target) -> tuple[dict[str, KernelObject], int]:
    """Compile every distinct kernel the cache does not have; return all, and how many it had."""
    with Generation(target) as generation:
        return generation.finish(draft)


def link(graph: Graph, draft: Draft, kernels: dict[str, KernelObject]) -> Executable:
    """Plan the arena and put everything into one artifact."""
    arena = plan_arena(draft.values, draft.commands, outputs=draft.outputs, compact=draft.compact)
    persistent = plan_home(draft.values, "persistent")
    return Executable(
        graph.name, kernels, draft.values, draft.commands, draft.inputs, draft.outputs, draft.states,
        draft.constants, arena, draft.scratch_bytes, settings.threads.value, draft.calls,
        persistent_bytes=persistent, frozen=prepared_from(draft),
    )  # fmt: skip


def prepared_from(draft: Draft) -> tuple[int, ...]:
    """Return the positions of the inputs that commands read which run once."""
    once = tuple(command for command in draft.commands if isinstance(command, Once))
    read = {id_ for command in flat(once) for id_ in own_reads(command)}
    return tuple(k for k, id_ in enumerate(draft.inputs) if id_ in read)
