"""Stratal against what people use today: the same tasks, each system in its own process, taking turns.

examples:
    python -m benchmarks run                             train and forward, against all that is installed
    python -m benchmarks run --suite kernels --against torch --rounds 9 --json rows.json
    python -m benchmarks run --only mlp,gpt --python peers=/path/to/python
    python -m benchmarks run --against before --python before=PATH   beside another commit
    python -m benchmarks sizes --only mlp,gpt            training steps at odd sizes and with twice the work
    python -m benchmarks random --against torch,jax      random products and convolutions: right, and how fast
    python -m benchmarks explorer                        the tuner's cost model against random draws
    python -m benchmarks tuned --only lenet              schedules chosen by estimate beside tuned ones
    python -m benchmarks everyday                        calls, data, steps and texts that nobody compiled
    python -m benchmarks parallel --part training        several ranks beside one, PyTorch's and MPI's
    python -m benchmarks optimiser --json rows.json      what rewrites of graphs are worth
    python -m benchmarks memory --only gpt               training within budgets, beside PyTorch
    python -m benchmarks price --json rows.json          prices of kernels beside their times
    python -m benchmarks product --json rows.json        fit beside loops and fits, files into batches
    python -m benchmarks serve --json rows.json          the server under load, beside greedy batchers
    python -m benchmarks surface                         every public function beside NumPy and PyTorch
    python -m benchmarks names linalg.                   public names: what a call is made of, and its test
    python -m benchmarks vendor                          generated products beside those of NumPy's OpenBLAS
    python -m benchmarks list                            the tasks, with their work and their gates
    python -m benchmarks report rows.json                docs/performance.md with its plot
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import (
    compare_explorers,
    compare_random,
    compare_sizes,
    compare_surface,
    compare_tuned,
    compare_vendor,
    everyday,
    memory,
    optimiser,
    parallel,
    price,
    product,
    serve,
    show,
)
from benchmarks.cases import draw_cases
from benchmarks.compare import OWN, measure, table_rows
from benchmarks.process import PYTHON_VARIABLE, Settings, interpreters, version
from benchmarks.report import PAGE, write
from benchmarks.surface import manifest
from benchmarks.systems import BEFORE, SYSTEMS
from benchmarks.task import Task
from benchmarks.tasks import SUITES, TASKS, of_suites
from stratal.base.errors import StratalError
from stratal.tune.model import MODELS

PEERS = [name for name in SYSTEMS if name != OWN]
DOCS = Path(__file__).parents[1] / "docs"


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = ("run", "sizes", "random", "explorer", "tuned", "everyday", "parallel", "memory", "price",
             "optimiser", "product", "serve", "surface", "names", "vendor", "list", "report")  # fmt: skip
    commands = parser.add_subparsers(dest="command", metavar=" | ".join(kinds), required=True)
    _configure_run(commands.add_parser("run", help="measure"))
    _configure_sizes(commands.add_parser("sizes", help="odd sizes and twice the work of the training steps"))
    _configure_random(commands.add_parser("random", help="random products and convolutions"))
    explorer = commands.add_parser("explorer", help="the tuner's cost model against random draws")
    explorer.add_argument("--trials", type=int, default=32, metavar="N", help="of each (default: 32)")
    explorer.add_argument("--seed", type=int, default=0, metavar="N")
    _configure_tuned(commands.add_parser("tuned", help="schedules chosen by estimate beside tuned ones"))
    everyday.configure(commands.add_parser("everyday", help="what nobody compiled, beside PyTorch"))
    parallel.configure(commands.add_parser("parallel", help="several ranks beside one, PyTorch's and MPI's"))
    memory.configure(commands.add_parser("memory", help="training within budgets, beside PyTorch"))
    price.configure(commands.add_parser("price", help="prices of kernels beside their times"))
    optimiser.configure(commands.add_parser("optimiser", help="what rewrites of graphs are worth"))
    product.configure(commands.add_parser("product", help="fit and input, beside what people use"))
    serve.configure(commands.add_parser("serve", help="the server under load, beside greedy batchers"))
    _configure_surface(commands.add_parser("surface", help="every public function beside NumPy and PyTorch"))
    names = commands.add_parser("names", help="every public name: what a call is made of, and its test")
    names.add_argument("names", nargs="*", metavar="NAME", help="only names that contain NAME")
    names.add_argument("--json", type=Path, metavar="FILE", help="write the list to FILE")
    commands.add_parser("vendor", help="generated products beside those of the vendor's library")
    commands.add_parser("list", help="list the tasks with their work, gate and aim")
    report = commands.add_parser("report", help=f"write docs/{PAGE} and its plot from the rows of a run")
    report.add_argument("rows", type=Path, metavar="FILE", help="what `run --json FILE` wrote")
    report.add_argument("--docs", type=Path, default=DOCS, help="folder to write to (default: docs)")
    arguments = parser.parse_args(argv)
    measured = {
        "run": run, "sizes": run_sizes, "random": run_random, "explorer": run_explorer,
        "tuned": run_tuned, "everyday": everyday.run, "parallel": parallel.run, "memory": memory.run,
        "price": price.run, "optimiser": optimiser.run, "product": product.run, "serve": serve.run,
        "surface": run_surface, "names": run_names, "vendor": run_vendor,
    }.get(arguments.command)  # fmt: skip
    if measured is not None:
        return measured(parser, arguments)
    print(
        listing(list(TASKS.values()))
        if arguments.command == "list"
        else written(arguments.rows, arguments.docs)
    )
    return 0


def written(rows: Path, docs: Path) -> str:
    """Write the report; return where it is."""
    try:
        return f"wrote {write(rows, docs)} and its plot"
    except (OSError, ValueError, KeyError) as error:
        raise SystemExit(f"{rows}: not rows that `run --json` wrote: {error}") from None


def _configure_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--suite", default="train,forward", metavar="LIST",
                        help=f"comma-separated, of {', '.join(SUITES)} (default: train,forward)")  # fmt: skip
    parser.add_argument(
        "--only", default="", metavar="LIST", help="only these tasks, comma-separated, of any suite"
    )
    parser.add_argument("--against", default="all", metavar="LIST",
                        help=f"all, none, or some of {', '.join(PEERS)} (default: all)")  # fmt: skip
    _configure_measuring(parser)
    parser.add_argument("--list", action="store_true", help="list the chosen tasks and end")
    parser.add_argument("--report", action="store_true", help=f"write docs/{PAGE} at the end; needs --json")
    parser.add_argument("--no-floor", action="store_true", help="do not measure the machine's peaks")


def _configure_measuring(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="rounds of turns (default: 5)")
    parser.add_argument(
        "--threads", type=int, default=2, metavar="N", help="threads and cores each (default: 2)"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the rows to FILE, renewed after every task"
    )
    parser.add_argument("--python", action="append", default=[], metavar="SYSTEM=PATH",
                        help="interpreter of a system, or of all peers with peers=PATH; may be repeated; "
                        f"also from the environment variable {PYTHON_VARIABLE}")  # fmt: skip
    parser.add_argument("--patience", type=float, default=300.0, metavar="S",
                        help="seconds to wait for an answer, then give up (default: 300)")  # fmt: skip
    parser.add_argument("--keep", type=Path, default=Path("~/.cache/stratal-benchmarks"), metavar="DIR",
                        help="where slow compilers and exported models are kept between runs; delete it to "
                        "measure their cold first calls again (default: %(default)s)")  # fmt: skip


def _configure_sizes(parser: argparse.ArgumentParser) -> None:
    names = ", ".join(compare_sizes.NAMES)
    parser.add_argument("--only", default="", metavar="LIST", help=f"only these, of {names}")
    parser.add_argument("--system", default=OWN, choices=SYSTEMS, help="the system that is measured")
    _configure_measuring(parser)


def _configure_random(parser: argparse.ArgumentParser) -> None:
    for name, default in (("contractions", 500), ("convolutions", 200), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"(default: {default})")
    parser.add_argument("--cases", default=":", metavar="A:B", help="only these of the drawn cases")
    parser.add_argument("--groups", default="", metavar="LIST", help="only these groups of cases")
    parser.add_argument("--against", default="torch,jax,numpy", metavar="LIST",
                        help="none, or some of torch, jax, numpy (default: all of them)")  # fmt: skip
    _configure_measuring(parser)


def _configure_tuned(parser: argparse.ArgumentParser) -> None:
    names = ", ".join(compare_tuned.LECTURE)
    parser.add_argument("--only", default="", metavar="LIST", help=f"only these tasks, or {names}")
    parser.add_argument("--trials", type=int, default=16, metavar="N", help="per kernel (default: 16)")
    parser.add_argument("--seconds", type=float, default=60.0, metavar="S", help="per task (default: 60)")
    parser.add_argument("--model", choices=MODELS, default=MODELS[0], help="what proposes candidates")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to FILE")


def _configure_surface(parser: argparse.ArgumentParser) -> None:
    families = ", ".join(compare_surface.SPACES)
    parser.add_argument("--only", default="", metavar="LIST", help="only names that contain one of these")
    parser.add_argument("--families", default="", metavar="LIST", help=f"some of {families} (default: all)")
    parser.add_argument("--cases", default=":", metavar="A:B", help="only these of the functions")
    parser.add_argument("--sizes", default="1000,1000000", metavar="LIST", help="elements (default: both)")
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="threads each (default: 2)")
    parser.add_argument("--seconds", type=float, default=0.3, metavar="S", help="per function and system")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to FILE")


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Measure and print; return 0 unless Stratal failed a task or gave other results than its peers."""
    tasks = chosen_tasks(parser, arguments)
    if arguments.list:
        print(listing(tasks))
        return 0
    if arguments.report and not arguments.json:
        parser.error("--report needs --json FILE")
    settings = _settings(parser, arguments)
    _check_writable(parser, arguments.json)
    versions = available(chosen_systems(parser, arguments.against, settings), settings)
    peaks = None if arguments.no_floor else _peaks(settings.threads)
    about = {
        "versions": versions, "threads": settings.threads, "rounds": settings.rounds,
        "command": command(arguments), "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": peaks.to_json() if peaks else None,
    }  # fmt: skip
    settings = dataclasses.replace(settings, versions=versions)
    rows = run_tasks(tasks, settings, peaks, about, arguments.json)
    print("\n" + show.summary(rows))
    if arguments.report:
        print(written(arguments.json, DOCS))
    own = [row for row in rows if row["system"] == OWN and row["workload"] in TASKS]
    return 0 if own and all("error" not in r and r["outputs_agree"] is not False for r in own) else 1


def _settings(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> Settings:
    return Settings(
        threads=arguments.threads, rounds=arguments.rounds, patience_s=arguments.patience,
        keep=arguments.keep.expanduser().absolute(), pythons=interpreters(parser, arguments.python),
    )  # fmt: skip


def run_sizes(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Measure the training steps at other sizes; return 0 if every gate is met."""
    settings, names = _settings(parser, arguments), _names(arguments.only) or list(compare_sizes.NAMES)
    if unknown := [name for name in names if name not in compare_sizes.NAMES]:
        parser.error(f"unknown training step {unknown[0]!r}; there are {', '.join(compare_sizes.NAMES)}")
    _check_writable(parser, arguments.json)
    floor_s = partial(floor_seconds, peaks=_peaks(settings.threads))
    rows: list[dict[str, Any]] = []
    for name in names:
        with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
            found = compare_sizes.measure(name, arguments.system, settings, Path(folder), floor_s, say)
        print(f"{name}: {TASKS[name].title}\n{compare_sizes.text(found)}\n", flush=True)
        rows += found
        _write(arguments.json, rows)
    return 0 if all("error" not in row and row.get("met", True) for row in rows) else 1


def run_random(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Check and time random cases; return 0 if all are right and the bounds of their ratios are kept."""
    settings = _settings(parser, arguments)
    _check_writable(parser, arguments.json)
    settings = dataclasses.replace(
        settings, versions=available(chosen_systems(parser, arguments.against, settings), settings)
    )
    cases = draw_cases(arguments.contractions, arguments.convolutions, arguments.seed)
    first, _, last = arguments.cases.partition(":")
    chosen, groups = cases[int(first or 0) : int(last or len(cases))], _names(arguments.groups)
    chosen = [case for case in chosen if not groups or case.group in groups]
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        cache = Path(os.environ.get("STRATAL_CACHE_DIR", folder))
        rows = compare_random.check(chosen, settings, cache, say)
        if len(settings.versions) > 1:
            compare_random.measure(rows, list(settings.versions), settings, cache, say)
    print(compare_random.text(rows))
    _write(arguments.json, rows)
    return 0 if compare_random.met(rows) else 1


def run_explorer(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Tune products with and without the cost model; return 0 if the model finds what is as fast."""
    rows = compare_explorers.measure(arguments.trials, arguments.seed)
    print(compare_explorers.text(rows))
    return 0 if compare_explorers.met(rows) else 1


def run_tuned(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Tune tasks and time them beside their defaults; return 0 if no default is more than 10 % behind."""
    names = _names(arguments.only) or list(compare_tuned.NAMES)
    if unknown := [name for name in names if name not in compare_tuned.NAMES]:
        parser.error(f"unknown task {unknown[0]!r}; there are {', '.join(compare_tuned.NAMES)}")
    _check_writable(parser, arguments.json)
    search = arguments.trials, arguments.seconds, arguments.model
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        for name in names:
            rows.append(compare_tuned.measure(name, *search, Path(folder), say))
            _write(arguments.json, rows)
    print(compare_tuned.text(rows))
    return 0 if compare_tuned.met(rows) else 1


def run_surface(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Time every public function; return 0 if all agree and few are three times slower than the best peer."""
    _check_writable(parser, arguments.json)
    first, _, last = arguments.cases.partition(":")
    found = compare_surface.chosen(_names(arguments.only), _names(arguments.families))
    found = found[int(first or 0) : int(last or len(found))]
    sizes = [int(n) for n in _names(arguments.sizes)]
    rows = compare_surface.measure(found, sizes, arguments.threads, arguments.seconds, say)
    print(compare_surface.text(rows))
    _write(arguments.json, rows)
    return 0 if compare_surface.met(rows) else 1


def run_names(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """List every public name; return 0 if every family has as many as it owes."""
    try:
        return manifest.show(arguments.names, arguments.json)
    except StratalError as error:
        parser.error(str(error))


def run_vendor(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Time products of generated kernels beside the vendor's library; whichever wins, nothing has failed."""
    print(compare_vendor.text(compare_vendor.measure()))
    return 0


def run_tasks(
    tasks: list[Task], settings: Settings, peaks: Any, about: dict[str, Any], file: Path | None
) -> list[dict[str, Any]]:
    """Measure tasks one after the other and renew the file after each; return all rows, the tables' last."""
    rows: list[dict[str, Any]] = []
    for task in tasks:
        rows += run_task(task, list(settings.versions), settings, peaks)
        _write(file, {"about": about, "rows": [*rows, *table_rows(rows)]})
    return [*rows, *table_rows(rows)]


def _write(file: Path | None, document: Any) -> None:
    """Write rows where they are wanted, if they are."""
    if file:
        file.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")


def _check_writable(parser: argparse.ArgumentParser, file: Path | None) -> None:
    """Refuse a file that cannot be written before anything is measured."""
    if file is None:
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.open("a").close()
    except OSError as error:
        parser.error(f"--json: {error}")


def command(arguments: argparse.Namespace) -> str:
    """Return the command that repeats a run, less what is of this machine."""
    what = f"--only {arguments.only}" if arguments.only else f"--suite {arguments.suite}"
    numbers = f"--rounds {arguments.rounds} --threads {arguments.threads}"
    return f"run {what} --against {arguments.against} {numbers} --json rows.json"


def run_task(task: Task, systems: list[str], settings: Settings, peaks: Any) -> list[dict[str, Any]]:
    """Measure one task, print its block and return its rows."""
    able = [s for s in systems if task.suite in SYSTEMS[s].suites]
    able = [s for s in able if s == OWN or task.peers is None or s in task.peers]
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        rows = measure(task, able, settings, Path(folder), say)
    for row in rows:
        if peaks is not None:
            row["floor_ms"] = 1e3 * floor_seconds(task, peaks)
            if "median_ms" in row:
                row["ratio_to_floor"] = row["median_ms"] / row["floor_ms"]
    print(show.block(task, rows) + "\n", flush=True)
    return rows


def floor_seconds(task: Task, peaks: Any) -> float:
    """Return the roofline of a task on this machine."""
    from stratal.base.dtypes import as_dtype

    operations = {as_dtype(name): count for name, count in task.work.operations.items()}
    return float(peaks.seconds(operations, task.work.nbytes, task.work.working_set))


def _peaks(threads: int) -> Any:
    from stratal.inspect.machine import machine_peaks

    say("measuring the machine's peaks")
    return machine_peaks(threads, measure_again=True)


def say(message: str) -> None:
    """Report progress on stderr."""
    print(message, file=sys.stderr, flush=True)


# -- what was asked for ----------------------------------------------------------------------------
def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def chosen_tasks(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> list[Task]:
    suites, only = _names(arguments.suite), _names(arguments.only)
    for name in suites:
        if name not in SUITES:
            parser.error(f"unknown suite {name!r}; there are {', '.join(SUITES)}")
    for name in only:
        if name not in TASKS:
            parser.error(f"unknown task {name!r}; `python -m benchmarks list` shows them")
    return [TASKS[name] for name in only] if only else of_suites(suites)


def chosen_systems(parser: argparse.ArgumentParser, against: str, settings: Settings) -> list[str]:
    if against in ("all", "none"):
        return [OWN, *(p for p in PEERS if against == "all" and p != BEFORE)]
    if BEFORE in _names(against) and BEFORE not in settings.pythons:
        parser.error(f"{BEFORE} needs --python {BEFORE}=PATH, an interpreter with another commit")
    for name in _names(against):
        if name not in PEERS:
            parser.error(f"unknown peer {name!r}; there are {', '.join(PEERS)}")
    return [OWN, *_names(against)]


def available(systems: list[str], settings: Settings) -> dict[str, str]:
    """Return the versions of the systems that are installed; say which are not."""
    found = {}
    for system in systems:
        what = version(system, settings)
        if what is None:
            library = SYSTEMS[system].library
            say(f"{system} is skipped: {settings.python(system)} has no package {library}")
        else:
            found[system] = what
    return found


def listing(tasks: list[Task]) -> str:
    """Return tasks as text."""
    lines = [f"{'task':24}{'suite':9}{'GFLOP':>9}{'MB':>8}{'gate':>6}{'aim':>6}  what"]
    for task in tasks:
        work = task.work
        gate, aim = (f"{x:.2f}" if x else "-" for x in (task.gate, task.aim))
        lines.append(
            f"{task.name:24}{task.suite:9}{sum(work.operations.values()) / 1e9:>9.3f}"
            f"{work.nbytes / 1e6:>8.1f}"
            f"{gate:>6}{aim:>6}  {task.title}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
