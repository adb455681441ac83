"""What one program spent its time on: measured times of its commands beside what the machine would allow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from stratal.base.artifact import Copy, CopyDone, CopyStart, Host, Launch, flat
from stratal.base.log import duration
from stratal.base.source import SourceLine
from stratal.graph.node import Node
from stratal.inspect.intervals import Interval, median_interval
from stratal.inspect.machine import MachinePeaks
from stratal.inspect.recorder import ProgramTimes
from stratal.inspect.roofline import Bound, CommandWork, Floor, command_work
from stratal.ops.linear.window import Windowed
from stratal.plan.text import nested
from stratal.plan.work import flops
from stratal.runtime.encode import OutputCopy

NEAR_ROOF: Final = 0.7  # from here on only less work makes a kernel much faster


@dataclass(frozen=True, slots=True)
class KernelTime:
    """One command of a program: what it does, how long it took, how long it must take.

    Times are seconds of one run of the program, all calls of the command in that run together; `seconds` is
    the median over runs. `number` is the kernel's in the plan, 0 for copies and host calls. `floor_seconds`
    is the roofline's. Operations and bytes are those of one call. A row for several kernels of one code and
    one source line adds up their times and calls; `alike` is how many there are besides `number`.
    """

    number: int
    name: str
    tactic: str
    kernel_class: KernelClass
    lines: tuple[str, ...]
    calls: float
    seconds: float
    share: float
    flops: float
    read_bytes: float
    written_bytes: float
    floor_seconds: float
    bound: Bound
    symbol: str = ""
    alike: int = 0

    @property
    def nbytes(self) -> float:
        return self.read_bytes + self.written_bytes

    @property
    def gflops(self) -> float:
        """1e9 operations per second."""
        return self.flops * self.calls / self.seconds / 1e9 if self.seconds else 0.0

    @property
    def gbs(self) -> float:
        """1e9 bytes per second, each byte a kernel touches counted once."""
        return self.nbytes * self.calls / self.seconds / 1e9 if self.seconds else 0.0

    @property
    def of_roofline(self) -> float:
        """The roofline's time over the measured one: 1 is as fast as this machine can be."""
        return self.floor_seconds / self.seconds if self.seconds else 0.0

    @property
    def numbers(self) -> str:
        """Which kernel of the plan it is: `14`, or `14 +5` for a row of six."""
        if not self.number:
            return ""
        return f"{self.number} +{self.alike}" if self.alike else f"{self.number}"

    def sentence(self) -> str:
        """Say in one sentence what the command costs, what bounds it and how near to that it is."""
        place = f" at {self.lines[0]}" if self.lines else ""
        alike = f" and {self.alike} alike" if self.alike else ""
        number = f" (kernel {self.number}{alike})" if self.number else ""
        cost = f"takes {self.share:.0%} of each run, {duration(self.seconds)}"
        return f"{self.name}{place}{number} {cost}: {self._verdict()}"

    def merged(self, others: Sequence[KernelTime]) -> KernelTime:
        """Return one row for this command and others that run the same code."""
        rows = (self, *others)
        return replace(
            self, alike=len(others), calls=sum(r.calls for r in rows), seconds=sum(r.seconds for r in rows),
            share=sum(r.share for r in rows), floor_seconds=sum(r.floor_seconds for r in rows),
        )  # fmt: skip

    def _verdict(self) -> str:
        near = f"{self.of_roofline:.0%} of the roofline"
        if self.bound == "host":
            return "it runs Python, which nothing else waits for."
        if self.bound == "overhead":
            return (
                f"it is bound by overhead, {duration(self.seconds / max(self.calls, 1))} for each of "
                f"{self.calls:.0f} calls with {duration(self.floor_seconds / max(self.calls, 1))} of work."
            )
        rate = f"{self.gflops:.0f} GFLOP/s" if self.bound == "compute" else f"{self.gbs:.1f} GB/s"
        what = "arithmetic" if self.bound == "compute" else "memory"
        if self.of_roofline >= NEAR_ROOF:
            less = "operations" if self.bound == "compute" else "bytes"
            return f"it is bound by {what}, {rate}, {near}; only fewer {less} would help much."
        return f"it is bound by {what}, {rate}, only {near}; a better schedule could save time."

    def to_json(self) -> dict[str, Any]:
        """Return fields and rates as JSON values."""
        names = [*self.__slots__, "nbytes", "gflops", "gbs", "of_roofline"]
        return {name: getattr(self, name) for name in names} | {"lines": list(self.lines)}


class LineTime(NamedTuple):
    """What one line of the user's program costs in a run."""

    line: str
    num_kernels: int
    seconds: float
    share: float


class ProgramProfile:
    """The measured times of one program, most expensive command first in `kernels`."""

    def __init__(self, times: ProgramTimes, peaks: MachinePeaks) -> None:
        self.times: Final = times
        self.peaks: Final = peaks
        self.program: Final[Any] = times.program
        self.name: Final[str] = times.program.graph.name
        self.num_runs: Final = times.num_runs
        self.warm: Final = times.warm
        samples = times.samples / 1e9
        self.run_time: Final[Interval] = median_interval(samples[:, -1].tolist())
        self.best_seconds: Final = float(samples[:, -1].min())
        self.total_seconds: Final = float(times.total_ns[-1]) / 1e9
        self.num_samples: Final = len(samples)
        self._medians: Final = np.median(samples, axis=0)
        self._calls: Final = times.calls / max(times.num_runs, 1)

    @cached_property
    def kernels(self) -> list[KernelTime]:
        """Every command that ran, in falling order of time."""
        return sorted(self.by_step.values(), key=lambda row: -row.seconds)

    @cached_property
    def work(self) -> dict[int, CommandWork]:
        """Operations and bytes of each command, by its id."""
        made = self.program.executable
        return command_work(self.program.draft, made.values, made.commands)

    @cached_property
    def kinds(self) -> list[KernelTime]:
        """The commands in falling order of time, those of one code and one source line merged into one row.

        Layers of one shape share their kernels: where they stand apart, each looks harmless.
        """
        alike: dict[tuple[str, ...], list[KernelTime]] = {}
        for row in self.by_step.values():
            alike.setdefault((row.symbol or row.name, *row.lines[:1]), []).append(row)
        return sorted((rows[0].merged(rows[1:]) for rows in alike.values()), key=lambda row: -row.seconds)

    @cached_property
    def by_step(self) -> dict[int, KernelTime]:
        """The commands that ran, by their number in `times.timed.steps`."""
        made = self.program.executable
        plan = {
            id(command): row
            for command, (row, _) in zip(flat(made.commands), nested(self.program.plan.commands), strict=True)
        }
        rows = {}
        for index, step in enumerate(self.times.timed.steps):
            if not self._calls[index]:
                continue
            if isinstance(step, (Launch, Copy, Host)):
                rows[index] = self._row(index, step, plan[id(step)])
            elif isinstance(step, OutputCopy):
                rows[index] = self._output_copy(index, step)
        return rows

    def _row(self, index: int, step: Launch | Copy | Host, plan: Mapping[str, Any]) -> KernelTime:
        work = self.work[id(step)]
        if isinstance(step, (CopyStart, CopyDone)):  # a thread of its own copies; these begin it and wait
            floor = Floor(0.0, 0.0, "overhead")
        else:
            floor = work.floor(self.peaks, host=isinstance(step, Host))
        target = plan["writes"][0] if plan["writes"] else None
        label = self.program.executable.values[target].label if target is not None else ""
        names = {
            "kernel": plan.get("name"),
            "host": f"host call {plan.get('op')}",
            "copy": f"copy to {label}",
            "copy-start": f"begin to copy {label}",
            "copy-done": f"wait for the copy of {label}",
        }
        return KernelTime(
            number=plan.get("number", 0), name=str(names[plan["do"]]), tactic=str(plan.get("tactic", "")),
            kernel_class=class_of_kernel(work.members, work.tactic), lines=tuple(plan.get("from", ())),
            flops=work.flops, read_bytes=work.read_bytes, written_bytes=work.written_bytes, bound=floor.bound,
            symbol=plan.get("symbol", ""), **self._timed(index, floor.seconds),
        )  # fmt: skip

    def _output_copy(self, index: int, step: OutputCopy) -> KernelTime:
        nbytes = float(self.program.executable.values[step.value].nbytes)
        floor = self.peaks.traffic_seconds([(2 * nbytes, 2 * nbytes)])
        return KernelTime(
            number=0, name="copy to an output", tactic="", kernel_class="element-wise", lines=(), flops=0.0,
            read_bytes=nbytes, written_bytes=nbytes, bound="memory", **self._timed(index, floor),
        )  # fmt: skip

    def _timed(self, index: int, floor_of_call: float) -> dict[str, Any]:
        seconds, calls = float(self._medians[index]), float(self._calls[index])
        share = seconds / self.run_time.median if self.run_time.median else 0.0
        return {"seconds": seconds, "calls": calls, "share": share, "floor_seconds": floor_of_call * calls}

    @property
    def seconds(self) -> float:
        """The median time of a run."""
        return self.run_time.median

    @property
    def flops(self) -> float:
        """Operations of one run."""
        return sum(row.flops * row.calls for row in self.kernels)

    @property
    def floor_seconds(self) -> float:
        """The least time of a run: every command at its roofline, one after another."""
        return sum(row.floor_seconds for row in self.kernels)

    @property
    def of_roofline(self) -> float:
        return self.floor_seconds / self.seconds if self.seconds else 0.0

    @property
    def gap_seconds(self) -> float:
        """What a run spends between its commands."""
        leaves = list(self.by_step)
        samples = self.times.samples
        return max(float(np.median(samples[:, -1] - samples[:, leaves].sum(axis=1))) / 1e9, 0.0)

    @property
    def bottleneck(self) -> str:
        """What takes most of a run, in one sentence."""
        if not self.kinds:
            return f"{self.name} runs nothing."
        top = self.kinds[0]
        line = next((g for g in self.lines() if top.lines and g.line == top.lines[0]), None)
        if line is None or line.num_kernels == 1 + top.alike:
            return top.sentence()
        together = f"all {line.num_kernels} kernels of {line.line} together take {line.share:.0%}."
        return f"{top.sentence()[:-1]}; {together}"

    def lines(self) -> list[LineTime]:
        """Return what each of the user's lines costs in a run, in falling order.

        A kernel that computes several lines counts for the first, where its main work was written.
        """
        found: dict[str, list[KernelTime]] = {}
        for row in self.kernels:
            if row.lines:
                found.setdefault(row.lines[0], []).append(row)
        rows = [
            LineTime(line, len(own), sum(r.seconds for r in own), sum(r.share for r in own))
            for line, own in found.items()
        ]
        return sorted(rows, key=lambda row: -row.seconds)

    @property
    def period_seconds(self) -> float | None:
        """The median time from the start of a warm run to that of the next; None where there is none."""
        starts = [start for start, _ in self.times.spans][1:]
        gaps = np.diff(starts)
        return float(np.median(gaps)) / 1e9 if len(gaps) else None

    def callers(self) -> list[tuple[SourceLine | None, int]]:
        """Return the user's lines that ran the program, most often first, and how often."""
        return self.times.callers.most_common()

    def classes(self) -> list[ClassShare]:
        """Return the table of contraction, normalisation and element-wise work.

        Operations count for the class of their op, time for the class of the kernel that holds them.
        """
        rows = []
        for index, step in enumerate(self.times.timed.steps):
            work = self.work.get(id(step))
            if work is None or not self._calls[index]:
                continue
            counted: dict[KernelClass, float] = {}
            for node in work.members:
                name = class_of_op(node)
                counted[name] = counted.get(name, 0.0) + work.share * flops(node) * float(self._calls[index])
            rows.append((class_of_kernel(work.members, work.tactic), counted, float(self._medians[index])))
        return shares(rows)

    def to_json(self) -> dict[str, Any]:
        """Return everything measured as JSON values."""
        figures = (
            "name", "warm", "seconds", "best_seconds", "total_seconds", "period_seconds", "gap_seconds",
            "flops", "floor_seconds", "of_roofline", "bottleneck",
        )  # fmt: skip
        return {name: getattr(self, name) for name in figures} | {
            "runs": self.num_runs, "plan": self.program.plan.hash,
            "seconds_low": self.run_time.low, "seconds_high": self.run_time.high,
            "kernels": [row.to_json() for row in self.kernels],
            "kinds": [row.to_json() for row in self.kinds],
            "lines": [line._asdict() for line in self.lines()],
            "classes": [c._asdict() for c in self.classes()],
            "callers": [[str(line) if line else "", count] for line, count in self.callers()],
        }  # fmt: skip


def most_expensive(found: Iterable[ProgramTimes], peaks: MachinePeaks) -> Sequence[ProgramProfile]:
    """Return the profiles of programs, the one that took most time in all first."""
    return sorted((ProgramProfile(times, peaks) for times in found), key=lambda p: -p.total_seconds)


# -- classes of work -----------------------------------------------------------------------------------------
# The classes of Ivanov et al., "Data Movement Is All You Need" (MLSys 2021): contractions hold nearly all
# operations of a Transformer and much less of its time. An op is of the class of its record; a kernel is of
# the first class among its members: what is fused into a product counts as part of that product's time.


KernelClass = Literal["contraction", "normalisation", "element-wise"]
CLASSES: Final[tuple[KernelClass, ...]] = ("contraction", "normalisation", "element-wise")
MEANING: Final[dict[KernelClass, str]] = {
    "contraction": "sums of products: matrix products and convolutions",
    "normalisation": "reductions and what is fused with them: norms, softmax, pooling, losses",
    "element-wise": "activations, residuals, updates, and all that only moves data",
}


class ClassShare(NamedTuple):
    """One class of a program: kernels, operations, seconds, and its share of both."""

    name: KernelClass
    num_kernels: int
    flops: float
    seconds: float
    flops_share: float
    time_share: float


def class_of_op(node: Node) -> KernelClass:
    """Return the class of a node, by where its record stands and what it is made of."""
    folder = type(node.op).__module__.removeprefix("stratal.ops.").split(".")[0]
    if folder == "reduce" or isinstance(node.op, Windowed):
        return "normalisation"
    return "contraction" if folder == "linear" else "element-wise"


def class_of_kernel(members: Iterable[Node], tactic: str) -> KernelClass:
    """Return the class of a kernel; what packs an operand works for the product that reads it."""
    found = {class_of_op(m) for m in members}
    if tactic == "pack":
        return "contraction"
    return next((c for c in CLASSES if c in found), "element-wise")


def shares(rows: Sequence[tuple[KernelClass, dict[KernelClass, float], float]]) -> list[ClassShare]:
    """Return the table of classes from kernels given as (class, operations by class, seconds)."""
    total_flops = sum(sum(flops.values()) for _, flops, _ in rows)
    total_seconds = sum(seconds for _, _, seconds in rows)
    table = []
    for name in CLASSES:
        flops = sum(f.get(name, 0.0) for _, f, _ in rows)
        seconds = sum(s for c, _, s in rows if c == name)
        count = sum(c == name for c, _, _ in rows)
        table.append(
            ClassShare(
                name, count, flops, seconds,
                flops / total_flops if total_flops else 0.0,
                seconds / total_seconds if total_seconds else 0.0,
            )
        )  # fmt: skip
    return table
