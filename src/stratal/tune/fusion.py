"""Never slower by fusion: each fused kernel beside the same operations in kernels of their own."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from stratal.base import settings, tuning
from stratal.base.target import Target
from stratal.compiler import Program, lower, prepare, share_memory
from stratal.graph.graph import Graph
from stratal.optimize.grouping import fused_groups, fusion_key, kernel_graph, named
from stratal.optimize.prologue import Hoisted
from stratal.plan.partitioning import Lowerings, cut_into_kernels
from stratal.tune.explore import FINAL_SECONDS, MARGIN
from stratal.tune.measure import FINAL_ROUNDS, Dropped, Measurer, Timing
from stratal.tune.trial import Trial, trial_program


class FusedKernel(NamedTuple):
    """A fused kernel of some program, as a graph of its own; `line` is the user's."""

    graph: Graph
    name: str
    line: str


class FusionVerdict(NamedTuple):
    """A fused kernel beside its parts: `timing.ratio` is the parts' time over the fused kernel's."""

    kernel: FusedKernel
    timing: Timing | None
    dropped: str = ""

    @property
    def unfused(self) -> bool:
        """Whether the parts are faster, with confidence and by a margin."""
        return self.timing is not None and self.timing.ratio.high < 1 - MARGIN

    def record(self, target: Target, toolchain: str) -> tuning.Record:
        """Return the verdict as later compilations read it. Call where there is a timing."""
        assert self.timing is not None
        times = self.timing.base_seconds, self.timing.seconds
        fused, parts = times if not self.unfused else times[::-1]
        return tuning.Record(
            fusion_key(self.kernel.graph), target.digest, toolchain, "time",
            tuning.UNFUSED if self.unfused else tuning.FUSED, (), fused, 0,
            tuning.FUSED if self.unfused else tuning.UNFUSED, parts, 0, 1, settings.threads.value,
            datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), self.kernel.name,
        )  # fmt: skip


def fused_kernels(programs: Iterable[Program]) -> list[FusedKernel]:
    """Return the distinct kernels of programs that compute several ops; those inside loops are left out."""
    found: dict[str, FusedKernel] = {}
    for program in programs:
        lower_of, target = Lowerings(), program.made.target
        graph = prepare(program.graph, target)
        partition = cut_into_kernels(graph, lower_of, target, program.made.fused).partition
        for group in fused_groups(partition):
            kernel = kernel_graph(group, partition)
            line = next((str(w) for w in group.members[0].where), "")
            found.setdefault(kernel.digest, FusedKernel(kernel, named(group), line))
    return list(found.values())


def compare_fusion(kernels: Iterable[FusedKernel], measurer: Measurer) -> Iterator[FusionVerdict]:
    """Time each fused kernel and its parts in turns. Raises: MeasurementError."""
    for kernel in kernels:
        fused, parts = (_trial(kernel.graph, measurer.target, fused=way) for way in (True, False))
        found = measurer.compare(fused, parts, seconds=FINAL_SECONDS, rounds=FINAL_ROUNDS)
        if isinstance(found, Dropped):
            yield FusionVerdict(kernel, None, found.reason)
        else:
            yield FusionVerdict(kernel, found)


def _trial(graph: Graph, target: Target, *, fused: bool) -> Trial:
    draft = lower(Hoisted(None, graph), target, fused=fused)
    share_memory(draft)
    return trial_program(draft, target, settings.threads.value)
