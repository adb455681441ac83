"""Profile what compiled functions do: the bottleneck first, then every kernel beside the roofline.

print(st.profile(step, x, y))          run a step some twenty times; its state is updated each time

with inspect.Profiler() as profiler:   or whatever runs in a block
    train()
print(profiler.profile())
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from stratal.base import settings
from stratal.base.errors import AttributeValueError, StratalError
from stratal.base.log import duration
from stratal.inspect.explored import explored
from stratal.inspect.kernel_times import KernelTime, ProgramProfile, most_expensive
from stratal.inspect.machine import MachinePeaks, machine_peaks
from stratal.inspect.recorder import Recorder
from stratal.plan.text import shorten
from stratal.tensor.lazy import flushing

MOST_ROWS: Final = 12
WARM_UP: Final = 3  # runs before those that count


class Profile:
    """What a recorder saw: programs in falling order of time, the bottleneck of all in one sentence."""

    def __init__(self, recorder: Recorder, peaks: MachinePeaks | None = None) -> None:
        self.recorder: Final = recorder
        self.peaks = peaks or machine_peaks(settings.threads.value)
        self._measured: Final = peaks is None

    @cached_property
    def programs(self) -> list[ProgramProfile]:
        """The programs that ran, the one that took most time in all first.

        A kernel above the roofline shows that the machine was busy when its peaks were measured: once more.
        """
        found = most_expensive(self.recorder.programs, self.peaks)
        if self._measured and any(row.of_roofline > 1 for p in found for row in p.kernels):
            self.peaks = machine_peaks(self.peaks.threads, measure_again=True)
            found = most_expensive(self.recorder.programs, self.peaks)
        return list(found)

    @property
    def seconds(self) -> float:
        """The time of the whole block."""
        return self.recorder.seconds

    @property
    def native_seconds(self) -> float:
        """The time inside of compiled programs."""
        return sum(p.total_seconds for p in self.programs)

    @property
    def compile_seconds(self) -> float:
        """The time in which programs were compiled or loaded from the cache."""
        return sum(end - start for _, start, end in self.recorder.compiled_spans) / 1e9

    @property
    def python_seconds(self) -> float:
        """All other time: the script's own Python, imports, captures."""
        return max(self.seconds - self.native_seconds - self.compile_seconds, 0.0)

    @property
    def bottleneck(self) -> str:
        """What to look at first, in one sentence: the most expensive kernel, or what is slower than all."""
        if not self.programs:
            return "Nothing compiled ran."
        top = self.programs[0]
        period = top.period_seconds
        if period is not None and top.num_runs > 2 and top.seconds < period / 2:
            return (
                f"Python between two runs of {top.name} is the bottleneck: it takes "
                f"{1 - top.seconds / period:.0%} of the {duration(period)} from one run to the next; "
                f"in the run itself, {top.bottleneck}"
            )
        return top.bottleneck

    def of_plan(self, hash_: str) -> dict[str, Any] | None:
        """Return what the explorer shows of the program with this plan; None where it did not run."""
        found = next((p for p in self.programs if p.program.plan.hash == hash_), None)
        return None if found is None else explored(found)

    def save_trace(self, path: str | Path) -> None:
        """Write a Chrome trace, which Perfetto and chrome://tracing show. Raises: FileWriteError.

        Which thread ran which chunk is in it where the recorder kept a trace.
        """
        from stratal.inspect.chrome_trace import save_trace  # what is not asked for is not imported

        save_trace(self, path)

    def save_roofline(self, path: str | Path, program: ProgramProfile | None = None) -> None:
        """Draw the most expensive program's kernels under the machine's roofline, as .png or .svg.

        Raises: MissingExtraError without matplotlib.
        """
        from stratal.inspect.roofline_picture import save_roofline

        if program is None and not self.programs:
            raise StratalError("roofline: there is nothing to draw", got="nothing compiled ran")
        save_roofline(program or self.programs[0], path)

    def to_json(self) -> dict[str, Any]:
        """Return everything measured as JSON values."""
        names = ("bottleneck", "seconds", "native_seconds", "compile_seconds", "python_seconds")
        found = {name: getattr(self, name) for name in names}
        return found | {"peaks": self.peaks.to_json(), "programs": [p.to_json() for p in self.programs]}

    def __str__(self) -> str:
        if not self.programs:
            return self.bottleneck
        return "\n".join([self.bottleneck, "", *_program_text(self.programs[0])])

    __repr__ = __str__


class Profiler(Recorder):
    """A recorder that makes its profile: use it as a block, then ask for `profile()`."""

    def profile(self) -> Profile:
        """Return what was measured so far."""
        return Profile(self)


def profile(
    function: Callable[..., Any], *args: Any, repeats: int = 20, trace: bool = False, **kwargs: Any
) -> Profile:
    """Call a function some times and return the profile of the compiled programs it ran.

    It is called for real: a training step trains. The first calls, which compile and warm caches up, are
    not counted. `trace` keeps which thread ran which chunk, for `save_trace`.

    Raises: AttributeValueError for `repeats` below one; StratalError where the function runs no program.
    """
    if repeats < 1:
        raise AttributeValueError("profile: at least one run is needed", got=f"repeats={repeats}")
    for _ in range(WARM_UP):
        _call(function, args, kwargs)
    with Profiler(trace=trace) as profiler:
        for _ in range(repeats + 1):  # the recorder counts a program's first run apart
            _call(function, args, kwargs)
    found = profiler.profile()
    if not found.programs:
        raise StratalError(
            "profile: the function ran no compiled program",
            got=getattr(function, "__name__", repr(function))[:100],
            hint="pass what st.compile returned, or a function of tensors outside st.eager()",
        )
    return found


def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Call a function and compute what it returns: a lazy result that nobody holds is never computed."""
    result = function(*args, **kwargs)
    flushing.flush_all()
    del result


def _program_text(program: ProgramProfile) -> Iterator[str]:
    run = program.run_time
    yield (
        f"{program.name}: {duration(run.median)} a run (median of {program.num_samples}, 95 %: "
        f"{duration(run.low)} to {duration(run.high)}), {program.of_roofline:.0%} of the roofline"
    )
    yield "      time share  GFLOP/s   GB/s  bound    of roof       # kernel"
    rows = program.kinds
    yield from map(_kernel_text, rows[:MOST_ROWS])
    if len(rows) > MOST_ROWS:
        rest = rows[MOST_ROWS:]
        share = sum(r.share for r in rest)
        yield f"  {duration(sum(r.seconds for r in rest)):>8} {share:5.0%} in {len(rest)} more rows"
    for row in program.classes():
        yield f"  {row.name:13} {row.flops_share:7.2%} of operations {row.time_share:6.1%} of time"


def _kernel_text(row: KernelTime) -> str:
    name = shorten(row.name, 48) + (f"  [{row.lines[0]}]" if row.lines else "")
    return (
        f"  {duration(row.seconds):>8} {row.share:5.0%} {row.gflops:8.1f} {row.gbs:6.1f}  {row.bound:8} "
        f"{row.of_roofline:7.0%}  {row.numbers:>6} {name}"
    )
