"""`stratal tune`: run a script, search for faster schedules of its kernels, keep the verdicts."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from stratal.base import settings, tuning
from stratal.base.errors import SettingError
from stratal.base.log import duration
from stratal.base.target import Target
from stratal.cli import INTERRUPTED
from stratal.cli.report import (
    add_json_option,
    cell,
    check_script,
    console,
    run_script,
    seconds,
    table,
    whole,
    write_json,
)
from stratal.memory.render import format_bytes
from stratal.plan.host import runnable_target
from stratal.plan.text import plural
from stratal.tune.explore import Attempt, Explorer, Verdict
from stratal.tune.fusion import FusionVerdict, compare_fusion, fused_kernels
from stratal.tune.measure import Measurer
from stratal.tune.model import MODELS, strategy
from stratal.tune.rewrites import RewriteVerdict, compare_rewrites, rewrites_of
from stratal.tune.session import Task, Watch, known_records, tasks_of, toolchain, tune

V = TypeVar("V", FusionVerdict, RewriteVerdict)

EPILOG: Final = """\
Options stand before the script; what follows it is the script's own. The script runs once as it is. Then
every distinct kernel there is a choice for is scheduled in other ways, the heaviest kernel first. Each way
runs in a process of its own, on random inputs, in turns with the default: one that crashes, hangs or computes
other numbers is dropped. A way replaces the default only if it wins by more than 2 % with 95 % confidence, so
nothing gets slower. Verdicts are records in a file that later compilations read on the same machine and
compiler; `stratal explain` shows which schedules were measured. Ctrl-C keeps what was found until then."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    add_json_option(parser, "every candidate with its times")
    add = parser.add_argument
    add("script", type=Path, metavar="SCRIPT", help="the script to run")
    add("arguments", nargs=argparse.REMAINDER, metavar="...", help="arguments of the script")
    add("--trials", metavar="N", type=whole(1), default=64, help="candidates per kernel, at most (64)")
    add("--seconds", metavar="S", type=seconds, default=300.0, help="time for the search, in seconds (300)")
    add("--kernels", metavar="N", type=whole(1), default=0, help="tune the N heaviest kernels (all)")
    add("--db", metavar="FILE", type=Path, help="the file of records (tuning.json in the cache directory)")
    add("--objective", choices=settings.OBJECTIVES, default=settings.objective.value,
        help="what to optimise: time, memory beside operands, or operations per second (time)")  # fmt: skip
    add("--model", choices=MODELS, default=MODELS[0],
        help="what proposes candidates: a learned cost model, or none, at random (lightgbm)")  # fmt: skip
    add("--limit", metavar="S", type=seconds, default=20.0, help="seconds one candidate may take (20)")
    add("--seed", metavar="N", type=whole(0), default=0, help="seed of the search (0)")
    add(
        "--fusion",
        action="store_true",
        help="time fused kernels beside their parts, too; losers are taken apart",
    )
    add(
        "--graph",
        action="store_true",
        help='search rewrites of whole graphs, as math="real" does, and time each beside what was written',
    )
    add("--again", action="store_true", help="tune kernels that have a record, too")


def run(args: argparse.Namespace) -> int:
    out = console()
    check_script(args.script)
    path = _file(args.db)
    if args.db is not None:
        tuning.check_file(path)
    proposer = strategy(args.model, args.seed)
    with settings.tuning("off"), Watch() as watch:  # what runs now is what the search starts from
        status = run_script(args.script, args.arguments, pending=True)
    if status:
        out.print(Text(f"The script ended with status {status}: what ran until then is tuned.", "yellow"))
    tasks = tasks_of(watch.programs)
    known = {} if args.again else known_records(path, args.objective)
    target = runnable_target()
    open_tasks = [
        t for t in tasks if t.problem.digest not in known or known[t.problem.digest].target != target.digest
    ]
    chosen = open_tasks[: args.kernels or None]
    out.print(_overview(len(watch.programs), len(tasks), len(tasks) - len(open_tasks), len(chosen)))
    with Measurer(target, limit_seconds=args.limit) as measurer:
        explorer = Explorer(measurer, proposer, args.objective, args.seed)
        found = _search(out, chosen, explorer, path, args)
        _show(out, found, args.objective)
        stopped = any(v.interrupted for _, v in found)
        fusions = _fusions(out, watch, measurer, path) if args.fusion and not stopped else []
        graphs = _rewrites(out, watch, measurer, path, args) if args.graph and not stopped else []
    if found or fusions or graphs:
        out.print(f"\nRecords in {path}" + _how_to_use(args))
    rows = [*(_json(*pair) for pair in found), *map(_fusion_json, fusions), *map(_rewrite_json, graphs)]
    write_json(args.json, rows)
    return INTERRUPTED if stopped else status


def _file(given: Path | None) -> Path:
    path = given.absolute() if given is not None else tuning.records_file()
    if path is None:
        raise SettingError(
            "tune: there is no file for the records", got="STRATAL_TUNING or STRATAL_CACHE_DIR is off",
            hint="name one: stratal tune --db FILE SCRIPT",
        )  # fmt: skip
    return path


def _how_to_use(args: argparse.Namespace) -> str:
    needed = [] if args.db is None else [f"STRATAL_TUNING={args.db}"]
    needed += [] if args.objective == "time" else [f"STRATAL_OBJECTIVE={args.objective}"]
    return f"; set {' and '.join(needed)} to use them." if needed else "; later compilations use them."


def _overview(num_programs: int, num_kernels: int, num_known: int, num_chosen: int) -> str:
    known = f", {num_known} tuned before" if num_known else ""
    return (
        f"\n{plural(num_programs, 'program')} with {plural(num_kernels, 'distinct kernel')} to choose "
        f"schedules for{known}: tuning {num_chosen}."
    )


def _search(
    out: Console, tasks: list[Task], explorer: Explorer, path: Path, args: argparse.Namespace
) -> list[tuple[Task, Verdict]]:
    found: list[tuple[Task, Verdict]] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
               TextColumn("{task.fields[note]}"))  # fmt: skip
    with Progress(*columns, console=out, transient=True) as progress:
        bar = progress.add_task("kernels", total=len(tasks) * args.trials, note="")
        best = [1.0]

        def started(task: Task) -> None:
            best[0] = 1.0
            progress.update(bar, description=task.name, completed=len(found) * args.trials)

        def seen(attempt: Attempt) -> None:
            if attempt.timing is not None:
                best[0] = min(best[0], attempt.timing.ratio.median)
            progress.update(bar, advance=1, note=f"best so far {best[0]:.2f} of the default's time")

        options: dict[str, Any] = {"trials": args.trials, "seconds": args.seconds}
        try:
            for task, verdict in tune(tasks, explorer, path, **options, started=started, seen=seen):
                found.append((task, verdict))
        except KeyboardInterrupt:
            out.print(Text("Interrupted: what was found until then is kept.", "yellow"))
    return found


def _show(out: Console, found: list[tuple[Task, Verdict]], objective: str) -> None:
    if not found:
        return
    right = (2, 3, 4, 5, 6)
    rows = table(
        "", "kernel", "from", "before", "after", "ratio", "workspace", "tried", "schedule", right=right
    )
    for task, v in found:
        ratio = "1" if v.timing is None else f"{v.timing.ratio.median:.2f}"
        rows.add_row(
            cell(task.name), cell(task.line, "dim"), duration(v.default_seconds),
            "as before" if v.timing is None else duration(v.seconds), ratio,
            format_bytes(v.workspace_bytes), str(len(v.attempts)), cell(str(v.chosen)),
        )  # fmt: skip
    out.print(rows)
    dropped = [a for _, v in found for a in v.attempts if a.dropped]
    wins = sum(v.timing is not None for _, v in found)
    tried = sum(len(v.attempts) for _, v in found)
    out.print(
        f"\n{wins} of {plural(len(found), 'kernel')} improved ({objective}); "
        f"{plural(tried, 'candidate')} tried, {len(dropped)} dropped."
    )
    for reason in dict.fromkeys(a.dropped.splitlines()[0] for a in dropped):
        out.print(Text(f"  dropped: {reason}", "dim"), soft_wrap=True)


def _fusions(out: Console, watch: Watch, measurer: Measurer, path: Path) -> list[FusionVerdict]:
    """Time fused kernels beside their parts, keep the verdicts, print them."""
    kernels = fused_kernels(program for program, _ in watch.programs)
    verdicts = compare_fusion(kernels, measurer)
    found = _compared(out, verdicts, len(kernels), "fused kernels", measurer.target, path)
    rows = table("", "fused kernel", "from", "fused", "its parts", "verdict", right=(2, 3))
    for v in found:
        verdict = "taken apart" if v.unfused else "stays"
        rows.add_row(cell(v.kernel.name), cell(v.kernel.line, "dim"), *_outcome(v, verdict))
    out.print(rows)
    return found


def _rewrites(
    out: Console, watch: Watch, measurer: Measurer, path: Path, args: argparse.Namespace
) -> list[RewriteVerdict]:
    """Search rewrites, time each beside what was written, keep the verdicts, print them with both times."""
    programs = [program for program, _ in watch.programs if not program.made.fallbacks]
    known = {} if args.again else known_records(path, "time")
    rewrites = rewrites_of(programs, args.seconds / max(1, len(programs)), known)
    verdicts = compare_rewrites(rewrites, measurer)
    found = _compared(out, verdicts, len(rewrites), "rewrites", measurer.target, path)
    rows = table("", "rewrite", "from", "as written", "rewritten", "verdict", right=(2, 3))
    for v in found:
        verdict = "kept" if v.won else "not taken again"
        rows.add_row(cell(str(v.rewrite)), cell(v.line, "dim"), *_outcome(v, verdict))
    out.print(rows)
    return found


def _compared(
    out: Console, verdicts: Iterable[V], count: int, what: str, target: Target, path: Path
) -> list[V]:
    """Take verdicts as they come, behind a bar, and keep the record of each that was timed."""
    found: list[V] = []
    with Progress(console=out, transient=True) as progress:
        bar = progress.add_task(what, total=count)
        for verdict in verdicts:
            found.append(verdict)
            progress.update(bar, advance=1)
            if verdict.timing is not None:
                tuning.write_file(path, [verdict.record(target, toolchain())])
    return found


def _outcome(v: FusionVerdict | RewriteVerdict, verdict: str) -> tuple[str, str, Text]:
    """Return both times, and the verdict or why there is none."""
    before, after = (
        ("-", "-") if v.timing is None else (duration(v.timing.base_seconds), duration(v.timing.seconds))
    )
    return before, after, cell(v.dropped.splitlines()[0] if v.dropped else verdict)


def _rewrite_json(v: RewriteVerdict) -> dict[str, Any]:
    row = {"rewrite": str(v.rewrite), "from": v.line, "dropped": v.dropped, "kept": v.won}
    if v.timing is None:
        return row
    return row | {"seconds": v.timing.base_seconds, "rewritten_seconds": v.timing.seconds}


def _fusion_json(v: FusionVerdict) -> dict[str, Any]:
    row = {"fused": v.kernel.name, "from": v.kernel.line, "dropped": v.dropped, "taken_apart": v.unfused}
    if v.timing is None:
        return row
    return row | {"seconds": v.timing.base_seconds, "parts_seconds": v.timing.seconds}


def _json(task: Task, v: Verdict) -> dict[str, Any]:
    return {
        "kernel": task.name, "digest": task.problem.digest, "from": task.line, "default": str(v.default),
        "default_seconds": v.default_seconds, "chosen": str(v.chosen), "seconds": v.seconds,
        "workspace_bytes": v.workspace_bytes, "default_workspace_bytes": v.default_workspace_bytes,
        "attempts": [
            {"schedule": str(a.candidate), "dropped": a.dropped, "workspace_bytes": a.workspace_bytes}
            | ({} if a.timing is None else {"seconds": a.timing.seconds, "ratio": a.timing.ratio._asdict()})
            for a in v.attempts
        ],
    }  # fmt: skip
