"""The page docs/performance.md and its plot, from the rows of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.show import BUSY, number, verdict_of
from benchmarks.systems import SYSTEMS
from benchmarks.tasks import SUITES, TASKS

Row = dict[str, Any]
PAGE, PLOT = "performance.md", "performance.svg"
TITLES = {
    "train": "Training steps",
    "mixed": "Training steps in mixed precision",
    "forward": "Forward only",
    "kernels": "Kernels",
}


def write(rows_file: Path, docs: Path) -> Path:
    """Write the page and the plot into a folder; return the page's path.

    Raises: SystemExit without matplotlib.
    """
    document = json.loads(rows_file.read_text())
    page = docs / PAGE
    page.write_text(text(document["about"], document["rows"]))
    plot(document["rows"], docs / PLOT)
    return page


def text(about: Row, rows: list[Row]) -> str:
    """Return the page."""
    systems = [name for name in SYSTEMS if name in about["versions"]]
    parts = [_opening(about, _busy(rows)), f"![Stratal's time over the best peer's]({PLOT})"]
    for suite in SUITES:
        own = [r for r in rows if r["system"] == "stratal" and _suite(r["workload"]) == suite]
        if own:
            parts += [f"## {TITLES[suite]}", _times(own, rows, systems), _first_calls(own, rows, systems)]
    return "\n\n".join(parts) + "\n"


def _busy(rows: list[Row]) -> str:
    """Return a sentence on how busy the machine was with other work."""
    shares = [row["others_busy"] for row in rows if "others_busy" in row]
    if not shares or max(shares) <= BUSY:
        return ""
    doubtful = len({r["workload"] for r in rows if r.get("others_busy", 0.0) > BUSY})
    return (
        f"Other processes took up to {max(shares):.0%} of the machine during {doubtful} of the workloads.\n"
    )


def _suite(workload: str) -> str:
    return TASKS[workload].suite if workload in TASKS else "kernels"  # a table's mean


def _opening(about: Row, busy: str) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    machine = ""
    if about["machine"]:
        m = about["machine"]
        flops = ", ".join(f"{dtype} {rate:.0f}" for dtype, rate in m["flops"].items())
        machine = (
            f"The machine: {m['cpu']}, {about['threads']} threads. Its measured peaks: GFLOP/s {flops};\n"
            f"memory {m['read_gbs']:.0f} GB/s read, {m['copy_gbs']:.0f} GB/s copied (read and written).\n"
        )
    return f"""# Performance

How long Stratal takes beside what people use today: each system in a process of its own, at its best
settings, taking turns, float32 unless said otherwise. Measured on {about["date"]}; measure again with

<!-- not run: takes an hour, and other systems -->
```sh
python -m benchmarks {about["command"]}
python -m benchmarks report rows.json
```

{machine}{busy}Versions: {versions}.

A ratio is Stratal's time over the fastest other system's: the median over {about["rounds"]} rounds, below 1
is faster. The floor is the roofline of the arithmetic and of the bytes that must move, at the machine's
measured peaks. Times are medians in ms. Gates and aims are the project's own; what misses them is listed like
the rest."""


def _times(own: list[Row], rows: list[Row], systems: list[str]) -> str:
    head = ["workload", "floor", *systems, "ratio", "gate", "aim", ""]
    lines = [_line(head), _line(["---"] + ["---:"] * (len(head) - 2) + ["---"])]
    for row in own:
        name = row["workload"]
        times = [_time(name, system, rows) for system in systems]
        ratio = row.get("ratio_to_best_peer")
        limits = [_two(x) for x in (ratio, row.get("gate"), row.get("aim"))]
        note = row.get("error", "") if ratio is None else verdict_of(row)
        floor = number(row["floor_ms"]) if row.get("floor_ms") else ""
        lines.append(_line([TASKS[name].title if name in TASKS else name, floor, *times, *limits, note]))
    return "\n".join(lines)


def _time(workload: str, system: str, rows: list[Row]) -> str:
    for row in rows:
        if row["workload"] == workload and row["system"] == system:
            if "median_ms" not in row:
                return "failed" if "error" in row else ""
            return number(row["median_ms"]) + ("" if row["outputs_agree"] is not False else " (differs)")
    return ""


def _first_calls(own: list[Row], rows: list[Row], systems: list[str]) -> str:
    """Return first calls (cold / warm, s) and peak memory (MB) of every system."""
    head = ["first call cold / warm, s; peak MB", *systems]
    lines = [_line(head), _line(["---"] + ["---:"] * len(systems))]
    for row in own:
        if row["workload"] in TASKS:
            cells = [_first_call(row["workload"], system, rows) for system in systems]
            lines.append(_line([row["workload"], *cells]))
    return "\n".join(lines)


def _first_call(workload: str, system: str, rows: list[Row]) -> str:
    for row in rows:
        if row["workload"] == workload and row["system"] == system and "median_ms" in row:
            return f"{row['first_call_s']:.2f} / {row['warm_call_s']:.2f}; {row['peak_rss_mb']:.0f}"
    return ""


def _two(x: float | None) -> str:
    return "" if x is None else f"{x:.2f}"


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in cells) + " |"


def plot(rows: list[Row], file: Path) -> None:
    """Draw Stratal's ratio of every workload, with its gate and aim."""
    try:
        import matplotlib
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ImportError:
        raise SystemExit("the plot is drawn by matplotlib: pip install 'stratal[viz]'") from None
    shown = [r for r in rows if r["system"] == "stratal" and r.get("ratio_to_best_peer") is not None][::-1]
    with matplotlib.rc_context({"svg.hashsalt": "stratal", "font.size": 9}):
        figure = Figure(figsize=(8, 1.2 + 0.24 * len(shown)), layout="constrained")
        FigureCanvasSVG(figure)
        _bars(figure.add_subplot(), shown)
        figure.savefig(file, metadata={"Date": None})


def _bars(axes: Any, rows: list[Row]) -> None:
    places = range(len(rows))
    colours = ["#2a9d5c" if r["ratio_to_best_peer"] <= 1 else "#c8553d" for r in rows]
    ratios = [r["ratio_to_best_peer"] for r in rows]
    axes.barh(places, [r - 1 for r in ratios], left=1, color=colours, height=0.7)
    for kind, marker in (("gate", "|"), ("aim", ".")):
        points = [(r[kind], y) for y, r in zip(places, rows, strict=True) if r[kind] is not None]
        axes.plot(
            [x for x, _ in points], [y for _, y in points], marker, color="black", markersize=8, label=kind
        )
    axes.set_xscale("log", base=2)
    axes.set_yticks(places, [r["workload"] for r in rows])
    axes.axvline(1, color="black", linewidth=0.8)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    axes.set_xlabel("time over the best peer's (left of 1: Stratal is faster)")
    axes.legend(loc="lower right", frameon=False)


__all__ = ["plot", "text", "write"]
