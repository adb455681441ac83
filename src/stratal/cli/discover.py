"""`stratal discover`: find rewrites from op records, or prove those that ship again."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Final

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

import stratal.discover
from stratal.cli.ops import primitives
from stratal.cli.report import add_json_option, cell, console, seconds, table, whole, write_json
from stratal.discover.discovery import Discovery, discover
from stratal.discover.enumerate import records
from stratal.discover.families import found_and_given
from stratal.discover.rules import FoundRule, check
from stratal.discover.rules_file import read_rules, text_of_rules
from stratal.formats.files import write_atomically

OTHERS: Final = {"TensorFlow": 53_000, "TASO": 1_400}  # lines of rules, and of operator specifications


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--check", action="store_true", help="prove the rules again that ship")
    parser.add_argument("--ops", metavar="OP,..", help="search these ops; without it all families")
    parser.add_argument("--size", type=whole(1), default=2, help="ops in a graph, at most (2)")
    parser.add_argument("--inputs", type=whole(1), default=3, help="inputs of a graph, at most (3)")
    parser.add_argument("--seconds", type=seconds, default=60.0, help="how long to search (60)")
    parser.add_argument("--once", metavar="OP,..", default="", help="ops that do not stand on themselves")
    parser.add_argument("--rules", type=Path, metavar="FILE", help="check the rules of FILE")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the rules to FILE")
    add_json_option(parser, "counts")


def run(args: argparse.Namespace) -> int:
    return _check(args) if args.check else _search(args)


def _check(args: argparse.Namespace) -> int:
    rules, counts = read_rules(args.rules)
    begun = time.perf_counter()
    failed = [(rule.name, found.reason) for rule in rules if not (found := check(rule)).proved]
    took = time.perf_counter() - begun
    counts = {
        "ops specified": sum(op.not_lowered == "" for op in primitives()),
        "pairs enumerated": counts.get("pairs", 0),
        "rules proved": len(rules) - len(failed),
        "exact": sum(r.exact for r in rules),
        "given": sum(bool(r.given) for r in rules),
        "tested": counts.get("tested", 0),
        "dropped": counts.get("dropped", 0),
        "failed": len(failed),
        "lines of the search and the prover": lines(),
    }
    out = console()
    shown = table("", "what", "how many", right=(1,))
    for name, number in {**counts, **{f"lines of rules in {n}": k for n, k in OTHERS.items()}}.items():
        shown.add_row(name, f"{number:,}")
    out.print(shown)
    for name, reason in failed:
        out.print(cell(f"{name}: {reason}", "red"))
    out.print(f"{len(failed)} rules fail" if failed else f"{len(rules)} rules proved again in {took:.1f} s")
    write_json(args.json, {**counts, "seconds": took})
    return 1 if failed else 0


def lines() -> int:
    """Return the lines of the package that finds and proves rules."""
    folder = Path(stratal.discover.__file__).parent
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in folder.glob("*.py"))


def _search(args: argparse.Namespace) -> int:
    out = console()
    names = [] if args.ops is None else args.ops.split(",")
    ops = records(names)
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as bar:
        task = bar.add_task("enumerating")

        def shown(found: Discovery) -> None:
            words = ", ".join(f"{k} {v:,}" for k, v in found.counts.items() if v)
            bar.update(task, description=words)

        if names:
            found = discover(
                ops, args.size, inputs=args.inputs, seconds=args.seconds,
                once=args.once.split(","), progress=shown,
            )  # fmt: skip
        else:
            found = found_and_given(args.seconds, shown)
    for rule in found.rules:
        out.print(cell(_line(rule)), soft_wrap=True)
    words = ", ".join(f"{k} {v:,}" for k, v in found.counts.items())
    out.print(f"\n{words}{'' if found.finished else '; the time was up before all graphs were built'}")
    if args.out is not None:
        write_atomically(args.out, [text_of_rules(found.rules, found.counts).encode()])
    write_json(args.json, found.counts)
    return 0


def _line(rule: FoundRule) -> str:
    return f"{'exact' if rule.exact else 'real ':5}  {rule}"
