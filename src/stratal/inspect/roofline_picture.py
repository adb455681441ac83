"""The roofline as a picture: every kernel at its intensity and rate, under what the machine can do.

Both axes are logarithmic: operations per byte to the right, GFLOP/s up. The slanted lines are the measured
bandwidths of memory and caches, the flat ones the measured arithmetic peaks of the dtypes the program uses.
The area of a dot is the kernel's share of the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from stratal.base.dtypes import DType, float32
from stratal.base.errors import MissingExtraError, StratalError
from stratal.base.log import duration
from stratal.formats.files import writing
from stratal.inspect.kernel_times import CLASSES, KernelTime, ProgramProfile
from stratal.inspect.machine import MachinePeaks
from stratal.plan.text import shorten

COLOURS: Final = dict(zip(CLASSES, ("#4e79a7", "#e15759", "#59a14f"), strict=True))
SUFFIXES: Final = (".png", ".svg", ".pdf")
MOST_NAMED: Final = 12
APART: Final = 0.25  # decades between labels
SEEN: Final = 0.01  # of all operations: a dtype with fewer has no roof of its own
MOST_AREA: Final = 900.0  # of a dot, in square points, for a kernel that takes the whole run


def save_roofline(program: ProgramProfile, path: str | Path) -> None:
    """Draw a program's kernels under the roofline. Raises: MissingExtraError, StratalError."""
    target = Path(path)
    if target.suffix not in SUFFIXES:
        raise StratalError(f"roofline: a file ending in one of {', '.join(SUFFIXES)}", got=target.name)
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError(
            "roofline: the picture is drawn by matplotlib, which is not installed",
            hint="pip install 'stratal[viz]'",
        ) from None
    rows = [r for r in program.kinds if r.flops and r.nbytes and r.seconds]
    if not rows:
        raise StratalError("roofline: no kernel of the program computes", got=program.name)
    figure = Figure(figsize=(11.0, 5.6), dpi=120)
    axes = figure.add_axes((0.07, 0.1, 0.62, 0.78))
    intensities = [row.flops / row.nbytes for row in rows]
    span = (min(0.05, *intensities) / 2, max(100.0, *intensities) * 3)
    _roofs(axes, program, span)
    _dots(axes, rows)
    axes.set(
        xscale="log", yscale="log", xlim=span, xlabel="operations per byte", ylabel="GFLOP/s",
        ylim=_vertical(rows, program),
    )  # fmt: skip
    axes.set_title(
        f"{program.name}: {duration(program.seconds)} a run, {program.of_roofline:.0%} of the roofline\n"
        f"{program.peaks.cpu}, {program.peaks.threads} threads",
        loc="left", fontsize=11,
    )  # fmt: skip
    axes.grid(True, which="major", color="#e4e6ea", linewidth=0.6)
    legend: Any = axes.legend(loc="upper left", bbox_to_anchor=(1.02, 0.35), fontsize=8, frameon=False)
    for handle in legend.legend_handles:
        handle.set_sizes([60.0])
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    with writing(target.name):
        figure.savefig(target)


def _dtypes(program: ProgramProfile) -> list[DType]:
    """Return the dtypes that matter to the program, float32 for those the machine has no peak of."""
    counts: dict[DType, float] = {}
    for work in program.work.values():
        for dtype, number in work.operations.items():
            known = dtype if dtype in program.peaks.flops else float32
            counts[known] = counts.get(known, 0.0) + number
    least = SEEN * sum(counts.values())
    return sorted((d for d, n in counts.items() if n >= least), key=lambda d: d.name) or [float32]


def _roofs(axes: Any, program: ProgramProfile, span: tuple[float, float]) -> None:
    peaks = program.peaks
    dtypes = _dtypes(program)
    top = max(peaks.flops_of(d) for d in dtypes)
    x = np.geomspace(*span, 200)
    for name, rate, colour in _levels(peaks):
        axes.plot(x, np.minimum(rate * x, top), color=colour, linewidth=1.1, zorder=1)
        axes.text(
            span[0] * 1.3, rate * span[0] * 1.4, f"{name} {rate:.0f} GB/s", fontsize=7.5, color=colour,
            rotation=np.degrees(np.arctan(rate)), rotation_mode="anchor", transform_rotates_text=True,
        )  # fmt: skip
    for dtype in dtypes:
        peak = peaks.flops_of(dtype)
        axes.axhline(peak, color="#333", linewidth=1.1, linestyle=(0, (4, 2)), zorder=1)
        axes.annotate(
            f"{dtype.name} peak {peak:.0f} GFLOP/s", (span[0] * 1.1, peak * 1.03), fontsize=7.5, va="bottom"
        )


def _levels(peaks: MachinePeaks) -> list[tuple[str, float, str]]:
    rates = (peaks.l1_gbs, peaks.l2_gbs, peaks.l3_gbs, max(peaks.read_gbs, peaks.copy_gbs))
    return list(
        zip(("L1", "L2", "L3", "memory"), rates, ("#c7c9cf", "#9a9daa", "#6c7080", "#222"), strict=True)
    )


def _dots(axes: Any, rows: Sequence[KernelTime]) -> None:
    for name in CLASSES:
        own = [r for r in rows if r.kernel_class == name]
        if own:
            axes.scatter(
                [r.flops / r.nbytes for r in own], [r.gflops for r in own],
                s=[max(MOST_AREA * r.share, 8.0) for r in own], color=COLOURS[name], alpha=0.65,
                edgecolors="white", linewidths=0.8, zorder=3,
                label=f"{name}, {sum(r.share for r in own):.0%} of the run",
            )  # fmt: skip
    labelled: list[tuple[float, float]] = []
    for row in rows[:MOST_NAMED]:
        x, y = row.flops / row.nbytes, row.gflops
        if any(abs(np.log10(x / a)) < APART and abs(np.log10(y / b)) < APART / 2 for a, b in labelled):
            continue  # the list beside the picture has it
        labelled.append((x, y))
        axes.annotate(
            row.numbers, (x, y), xytext=(0, 6 + 14 * row.share**0.5), textcoords="offset points",
            ha="center", fontsize=8, zorder=4,
        )  # fmt: skip
    lines = (
        f"{row.numbers:>7}  {row.share:4.0%} {row.of_roofline:5.0%}  {shorten(row.name, 26)}"
        for row in rows[:MOST_NAMED]
    )
    text = "\n".join(["      #  time  roof  kernel", *lines])
    axes.text(1.02, 1, text, transform=axes.transAxes, va="top", fontsize=7.5, family="monospace")


def _vertical(rows: Sequence[KernelTime], program: ProgramProfile) -> tuple[float, float]:
    slow = min(max(r.gflops, 1e-3) for r in rows[:20])
    return slow / 3, max(program.peaks.flops_of(d) for d in _dtypes(program)) * 1.8
