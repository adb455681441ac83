"""`stratal memory`: run a script and say what memory its programs take, and whether a budget suffices."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final, NamedTuple

from rich.console import Console
from rich.text import Text

from stratal.base.byte_sizes import parse_bytes
from stratal.cli.plans import arena_of
from stratal.cli.report import (
    NOTHING,
    add_json_option,
    cell,
    console,
    named,
    run_script,
    table,
    whole,
    write_json,
)
from stratal.compiler import Program
from stratal.memory.plan import at_peak
from stratal.memory.render import format_bytes
from stratal.tensor.lazy import program_cache

EPILOG: Final = """\
Options stand before the script; what follows it is the script's own. Sizes are decimal, as in "8GB" or
"512 MB"; "512 MiB" counts in powers of two. A program's planned peak counts everything a run needs: inputs
and state of the caller, the arena, results, scratch memory and constants. What Python, NumPy and the
libraries take is not in it. The exit status is 1 where a program does not fit into the budget."""
PURPOSES: Final = {
    "state_bytes": "state", "arena_bytes": "arena", "input_bytes": "inputs", "output_bytes": "results",
    "scratch_bytes": "scratch", "constant_bytes": "constants", "persistent_bytes": "prepared",
}  # fmt: skip


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    add_json_option(parser, "what was found")
    add = parser.add_argument
    add("script", type=Path, metavar="SCRIPT", help="the script to run")
    add("arguments", nargs=argparse.REMAINDER, metavar="...", help="arguments of the script")
    add("--budget", metavar="SIZE", help='the memory there is, such as "8GB": say what fits, and exit with 1 '
        "where something does not")  # fmt: skip
    add("--only", metavar="NAME", default="", help="show only programs whose name contains NAME")
    add("--programs", metavar="N", type=whole(1), default=3, help="show the N largest programs (3)")
    add("--values", metavar="N", type=whole(1), default=3, help="show the N largest values of each (3)")


class Held(NamedTuple):
    """A value that takes memory at the peak of a program: state, an input, a result, a block of the arena."""

    nbytes: int
    type: str
    home: str
    label: str
    lines: list[str]  # of the user's that made it; of an input, those that use it first


class ProgramMemory(NamedTuple):
    """What one program takes: bytes by purpose, and the largest values at its peak, those first."""

    name: str
    peak_bytes: int
    purposes: dict[str, int]
    held: list[Held]

    def to_json(self, most: int, budget_bytes: int | None) -> dict[str, Any]:
        found: dict[str, Any] = {"name": self.name, "peak_bytes": self.peak_bytes, **self.purposes}
        found["largest"] = [h._asdict() for h in self.held[:most]]
        missing = {} if budget_bytes is None else {"missing_bytes": max(0, self.peak_bytes - budget_bytes)}
        return found | missing


def run(args: argparse.Namespace) -> int:
    budget_bytes = None if args.budget is None else parse_bytes(args.budget, "--budget")
    out = console()
    status = run_script(args.script, args.arguments, pending=True)
    programs = program_cache.remembered()
    asked = named([p.graph.name for p in programs], [args.only], "program")
    found = [memory_of_program(p) for p in programs if p.graph.name in asked]
    found.sort(key=lambda m: -m.peak_bytes)
    over = [m for m in found if budget_bytes is not None and m.peak_bytes > budget_bytes]
    shown = found[: max(args.programs, len(over))]
    out.print()
    if status:
        ended = f"The script ended with status {status}"
        out.print(Text(f"{ended}: what was compiled until then follows.", "yellow"))
    for program in shown:
        show(out, program, args.values, budget_bytes)
    if hidden := len(found) - len(shown):
        out.print(f"{hidden} smaller program{'s' * (hidden != 1)}: --programs N shows more.")
    if not found:
        out.print(NOTHING)
    write_json(args.json, [m.to_json(args.values, budget_bytes) for m in found])
    return status or int(bool(over))


def memory_of_program(program: Program) -> ProgramMemory:
    """Return what a program takes, from its plan."""
    memory = program.plan.memory
    purposes = {key: memory[key] for key in PURPOSES if memory.get(key)}
    held = sorted(values_at_peak(program), key=lambda h: -h.nbytes)
    return ProgramMemory(program.graph.name, memory["planned_peak_bytes"], purposes, held)


def values_at_peak(program: Program) -> list[Held]:
    """Return what takes memory at the moment at which the arena holds most: its blocks, inputs, results."""
    made, arena = program.executable, arena_of(program)
    by_id = {value.id: value for value in made.values}
    states = {made.inputs[k] for k in made.states}
    used: dict[int, list[str]] = {}
    for kernel in program.plan.kernels:
        for k in kernel["reads"]:
            used.setdefault(k, kernel.get("from", []))

    def held(id_: int, nbytes: int, home: str) -> Held:
        value = by_id[id_]
        lines = [str(line) for line in value.where] or used.get(id_, [])
        return Held(nbytes, str(value.type), home, value.label, lines)

    _, peak = at_peak(arena.blocks, arena.num_moments)
    return [
        *(held(k, by_id[k].nbytes, "state" if k in states else "input") for k in made.inputs),
        *(held(k, by_id[k].nbytes, "result") for k in made.outputs),
        *(held(b.root, b.nbytes, "arena") for b in peak),
    ]


def show(out: Console, program: ProgramMemory, most: int, budget_bytes: int | None) -> None:
    """Print what a program takes, what of it is largest, and whether it fits."""
    out.print(Text(f"{program.name}: planned peak {format_bytes(program.peak_bytes)}", "bold"))
    parts = (f"{PURPOSES[key]} {format_bytes(nbytes)}" for key, nbytes in program.purposes.items())
    out.print(Text(f"  {', '.join(parts)}"), soft_wrap=True)
    rows = table("", "  largest", "type", "what", "from", right=(0,))
    for h in program.held[:most]:
        what = cell(f"{h.home} {h.label}".rstrip())
        rows.add_row(f"  {format_bytes(h.nbytes)}", h.type, what, cell(", ".join(h.lines[:2]), "dim"))
    out.print(rows)
    if budget_bytes is not None:
        missing, limit = program.peak_bytes - budget_bytes, format_bytes(budget_bytes)
        lacks = f"  does not fit into {limit}: {format_bytes(max(0, missing))} are missing"
        out.print(Text(lacks, "red") if missing > 0 else Text(f"  fits into {limit}", "green"))
    out.print()
