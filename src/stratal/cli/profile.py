"""`stratal profile`: run a script and say what its time goes into, the bottleneck first."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from stratal.base.log import duration
from stratal.cli import INTERRUPTED
from stratal.cli.report import add_json_option, cell, console, named, run_script, table, whole, write_json
from stratal.inspect.kernel_times import MEANING, NEAR_ROOF, KernelTime, ProgramProfile
from stratal.inspect.profiler import Profile, Profiler
from stratal.plan.text import plural

STYLES: Final = {"compute": "blue", "memory": "magenta", "overhead": "yellow", "host": "red"}
EPILOG: Final = """\
Options stand before the script; what follows it is the script's own. The script runs as it would without the
profiler, on the same code, memory and threads; reading the clock adds about 0.1 us to each kernel and nothing
to scripts that are not profiled. The first run of a program, which warms caches up, is not counted. A row "14
+5" is kernel 14 and five more of the same code and source line. "of roofline" is the least time this machine
needs for a kernel's operations and bytes, over the time it took. Ctrl-C ends the script and shows what was
measured until then."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    add_json_option(parser, "everything that was measured")
    add = parser.add_argument
    add("script", type=Path, metavar="SCRIPT", help="the script to run")
    add("arguments", nargs=argparse.REMAINDER, metavar="...", help="arguments of the script")
    add("--only", metavar="NAME", default="", help="show only programs whose name contains NAME")
    add("--programs", metavar="N", type=whole(1), default=2, help="show the N most expensive programs (2)")
    add("--top", metavar="N", type=whole(1), default=12, help="show the N most expensive rows of each (12)")
    add(
        "--trace", metavar="FILE", type=Path, help="write a Chrome trace with each thread's chunks (Perfetto)"
    )
    add("--roofline", metavar="FILE", type=Path, help="draw the roofline: .png, .svg or .pdf (extra viz)")


def run(args: argparse.Namespace) -> int:
    out = console()
    interrupted = False
    status = 0
    with Profiler(trace=args.trace is not None) as profiler:
        try:
            status = run_script(args.script, args.arguments, pending=True)
        except KeyboardInterrupt:
            interrupted, status = True, INTERRUPTED
    found = profiler.profile()
    asked = named([p.name for p in found.programs], [args.only], "program")
    found.programs[:] = [p for p in found.programs if p.name in asked]
    out.print()
    if interrupted:
        out.print(Text("Interrupted: what was measured until then follows.", "yellow"))
    elif status:
        ended = f"The script ended with status {status}"
        out.print(Text(f"{ended}: what was measured until then follows.", "yellow"))
    show(out, found, args)
    _write(out, found, args)
    return status


def _write(out: Console, found: Profile, args: argparse.Namespace) -> None:
    write_json(args.json, found.to_json())
    if not found.programs:
        return
    if args.trace:
        found.save_trace(args.trace)
        out.print(f"\nTrace in {args.trace}: open it at ui.perfetto.dev or chrome://tracing.")
    if args.roofline:
        found.save_roofline(args.roofline)
        out.print(f"\nRoofline of {found.programs[0].name} in {args.roofline}.")


def show(out: Console, found: Profile, args: argparse.Namespace) -> None:
    """Print a profile: one sentence on what to look at, where the script's time went, then each program."""
    out.print(Panel(Text(found.bottleneck), title="bottleneck", title_align="left", border_style="bold"))
    if not found.programs:
        return
    runs = sum(p.num_runs for p in found.programs)
    out.print(
        f"{duration(found.seconds)} in all: {duration(found.native_seconds)} in {plural(runs, 'run')} of "
        f"{plural(len(found.programs), 'program')}, {duration(found.compile_seconds)} compiling, "
        f"{duration(found.python_seconds)} in Python (imports and captures included)."
    )
    for program in found.programs[: args.programs]:
        out.print()
        show_program(out, program, args.top)
    hidden = found.programs[args.programs :]
    if hidden:
        rest = sum(p.total_seconds for p in hidden)
        out.print(
            f"\n{plural(len(hidden), 'more program')}, {duration(rest)} in all: --programs N shows them."
        )


def show_program(out: Console, program: ProgramProfile, top: int) -> None:
    """Print one program: its time, its kernels beside the roofline, its classes of work."""
    time = program.run_time
    out.print(Text(f"{program.name}: {duration(time.median)} a run", "bold"), end="")
    out.print(Text(f"  {_certainty(program)}", "dim"))
    callers = ", ".join(f"{line or 'inside'} x{n}" for line, n in program.callers()[:3])
    out.print(
        f"{duration(program.total_seconds)} in all, started at {callers}; "
        f"{program.flops / max(program.seconds, 1e-12) / 1e9:.1f} GFLOP/s, "
        f"{program.of_roofline:.0%} of the roofline, {duration(program.gap_seconds)} between kernels.",
        soft_wrap=True,
    )
    shown = table("", "#", "kernel", "from", "time", "share", "GFLOP/s", "GB/s", "bound", "of roofline",
                  right=(0, 3, 4, 5, 6, 8))  # fmt: skip
    for row in program.kinds[:top]:
        shown.add_row(*_cells(row))
    out.print(shown)
    rest = program.kinds[top:]
    if rest:
        seconds = sum(r.seconds for r in rest)
        share = sum(r.share for r in rest)
        hint = f"{plural(len(rest), 'more row')} with {duration(seconds)}, {share:.0%}: --top N shows them."
        out.print(Text(hint, "dim"))
    lines = program.lines()
    if len(lines) > 1 and len(program.kinds) > top:
        most = (f"{g.line} {g.share:.0%} ({plural(g.num_kernels, 'kernel')})" for g in lines[:6])
        out.print(Text(f"by line: {', '.join(most)}"), soft_wrap=True)
    _show_classes(out, program)


def _certainty(program: ProgramProfile) -> str:
    if not program.warm:
        return "the only run, not warmed up: run it more often for a time to rely on"
    time = program.run_time
    within = f"{duration(time.low)} to {duration(time.high)}"
    best = duration(program.best_seconds)
    return f"median of {program.num_samples} warm runs (95 %: {within}; best {best})"


def _cells(row: KernelTime) -> list[Any]:
    calls = f" x{row.calls:.0f}" if row.calls > 1 + row.alike else ""
    return [
        row.numbers,
        cell(row.name),
        cell(", ".join(row.lines[:2]), "dim"),
        duration(row.seconds) + calls,
        f"{row.share:.1%}",
        f"{row.gflops:.1f}" if row.flops else "-",
        f"{row.gbs:.1f}",
        cell(row.bound, STYLES[row.bound]),
        Text(f"{row.of_roofline:.0%}", "green" if row.of_roofline >= NEAR_ROOF else ""),
    ]


def _show_classes(out: Console, program: ProgramProfile) -> None:
    rows = table("", "class", "kernels", "operations", "time", "what it is", right=(1, 2, 3))
    for share in program.classes():
        rows.add_row(
            share.name, str(share.num_kernels), f"{share.flops_share:.2%}", f"{share.time_share:.1%}",
            cell(MEANING[share.name], "dim"),
        )  # fmt: skip
    out.print(rows)
