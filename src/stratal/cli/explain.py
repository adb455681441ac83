"""`stratal explain`: run a script, then show how everything it computed was compiled.

Given a stage of a compilation instead (a .graph, .kernel or .ll file), it takes that one further.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from stratal.base import settings
from stratal.cli import plans
from stratal.cli.report import add_json_option, console, write_json
from stratal.cli.script import run_script
from stratal.compiler import Program, compile_graph
from stratal.formats.files import write_atomically
from stratal.inspect import stage_file
from stratal.inspect.graph_picture import kernels_to_dot
from stratal.inspect.memory_map import save_memory_map
from stratal.tensor import programs

SECTIONS: Final = {
    "plan": plans.show_plan,
    "decisions": plans.show_decisions,
    "memory": plans.show_memory,
    "loops": plans.show_loops,
    "graph": plans.show_graph,
}


def configure(parser: argparse.ArgumentParser) -> None:
    add_json_option(parser, "every section of every program")
    add = parser.add_argument
    add("script", type=Path, metavar="FILE", help="the script to run, or a .graph, .kernel or .ll stage")
    add("arguments", nargs=argparse.REMAINDER, metavar="...", help="arguments of the script")
    add("--only", metavar="NAME", default="", help="show only programs whose name contains NAME")
    add("--show", metavar="SECTIONS", type=_sections, default=["plan", "decisions", "memory"],
        help=f"which of {','.join(SECTIONS)}, or all; plan,decisions,memory where left out")  # fmt: skip
    add("--kernel", metavar="N", type=int, help="show kernel N alone: expression, schedule, loops")
    add("--llvm", action="store_true", help="with --kernel: its LLVM text and assembly, too")
    add("--svg", metavar="FILE", type=Path, help="draw the memory of the largest program, .svg or .png")
    add("--dot", metavar="FILE", type=Path, help="draw its kernels and what passes between, for Graphviz")


def _sections(text: str) -> list[str]:
    asked = list(SECTIONS) if text == "all" else text.split(",")
    if not set(asked) <= set(SECTIONS):
        raise argparse.ArgumentTypeError(f"takes some of {','.join(SECTIONS)}, or all; got {text!r}")
    return asked


def run(args: argparse.Namespace) -> int:
    out = console()
    if args.script.suffix in stage_file.SUFFIXES and args.script.suffix != ".graph":
        out.print(Text(stage_file.code_of_stage(args.script)), soft_wrap=True)
        return 0
    if args.script.suffix == ".graph":
        with settings.verify(True):  # and so from the start, not from the cache
            status, found = 0, [compile_graph(stage_file.parse_stage(args.script))]
    else:
        status = run_script(args.script, args.arguments)
        found = compiled_here()
    shown = [p for p in found if args.only in p.graph.name]
    write_json(args.json, [plans.program_json(p) for p in shown])
    _draw(shown, args)
    for program in shown:
        _show(out, program, args)
    count = len(shown)
    out.print(f"\n{count} program{'s' * (count != 1)} compiled; --show all adds the loops and the graph.")
    return status


def _show(out: Console, program: Program, args: argparse.Namespace) -> None:
    if args.kernel is None:
        for section in args.show:
            out.print()
            SECTIONS[section](out, program)
    elif args.kernel <= len(program.plan.kernels):
        text = program.explain(kernel=args.kernel, llvm=args.llvm, assembly=args.llvm)
        out.print(Text(f"\n{program.graph.name}", "bold"))
        out.print(Text(text), soft_wrap=True)


def _draw(shown: list[Program], args: argparse.Namespace) -> None:
    """Draw the program that needs most memory: of a training script, its step."""
    if not shown or not (args.svg or args.dot):
        return
    largest = max(shown, key=lambda p: p.plan.planned_peak_bytes)
    if args.svg:
        save_memory_map(largest, args.svg)
    if args.dot:
        write_atomically(args.dot, [kernels_to_dot(largest).encode()])


def compiled_here() -> list[Program]:
    """Return every program this process has compiled and still remembers, in order."""
    return programs.remembered()
