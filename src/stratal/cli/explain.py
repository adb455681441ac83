"""`stratal explain`: run a script, then show how everything it computed was compiled, a summary first.

Given a stage of a compilation instead, it takes that one further, which reproduces a failed compilation:

.graph    the text form of a graph, to be compiled whole
.kernel   a kernel's loops: verified, turned into LLVM text, assembled
.ll       LLVM text: assembled
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from stratal.base import settings
from stratal.base.errors import AttributeValueError, CompilerError, FormatError
from stratal.base.log import duration
from stratal.cli.plans import SECTIONS, program_json, show_brief
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
from stratal.codegen.assemble import assemble, emit_assembly
from stratal.codegen.module import kernel_module
from stratal.compiler import Program, compile_graph
from stratal.formats.files import write_atomically
from stratal.graph.text import parse_graph
from stratal.inspect.graph_picture import kernels_to_dot
from stratal.inspect.memory_map import save_memory_map
from stratal.loops.parse import parse_kernel
from stratal.loops.verify import verify_kernel
from stratal.memory.render import format_bytes
from stratal.plan.host import current_target
from stratal.plan.text import plural
from stratal.tensor.lazy import program_cache

USUAL: Final = ("plan", "decisions", "memory")
MOST_BRIEF: Final = 2  # programs of a summary with their kernels
MOST_LISTED: Final = 12  # and those in one line each


def configure(parser: argparse.ArgumentParser) -> None:
    add_json_option(parser, "every section of every program")
    add = parser.add_argument
    add("script", type=Path, metavar="FILE", help="the script to run, or a .graph, .kernel or .ll stage")
    add("arguments", nargs=argparse.REMAINDER, metavar="...", help="arguments of the script")
    add("--only", metavar="NAME", default="", help="show only programs whose name contains NAME")
    add("--show", metavar="SECTIONS", type=_sections, default=[],
        help=f"print which of {','.join(SECTIONS)}, or all; a summary where left out")  # fmt: skip
    add("--all", action="store_const", const=list(USUAL), dest="show", help=f"as --show {','.join(USUAL)}")
    add("--kernel", metavar="N", type=whole(1), help="show kernel N alone: expression, schedule, loops")
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
    if args.script.suffix in SUFFIXES and args.script.suffix != ".graph":
        out.print(Text(code_of_stage(args.script)), soft_wrap=True)
        return 0
    if args.script.suffix == ".graph":
        with settings.verify(True):  # and so from the start, not from the cache
            status, found = 0, [compile_graph(parse_graph(read_stage(args.script)))]
    else:
        status = run_script(args.script, args.arguments, pending=True)
        found = program_cache.remembered()
    asked = named([p.graph.name for p in found], [args.only], "program")
    shown = [p for p in found if p.graph.name in asked]
    most = max((len(p.plan.kernels) for p in shown), default=0)
    if args.kernel is not None and args.kernel > most:
        got = f"{args.kernel} of {most}"
        hint = "without --kernel, the summary lists the kernels"
        raise AttributeValueError("explain: no program shown has such a kernel", got=got, hint=hint)
    write_json(args.json, [program_json(p) for p in shown])
    _draw(shown, args)
    if not found:
        out.print(NOTHING)
    if args.kernel is None and not args.show:
        _summarise(out, shown)
        return status
    for program in shown:
        _show(out, program, args)
    out.print(f"\n{plural(len(shown), 'program')} compiled; --show all adds the loops and the graph.")
    return status


def _summarise(out: Console, shown: list[Program]) -> None:
    """Print the programs that take longest with their longest kernels, the others in a line each."""
    longest = sorted(shown, key=lambda p: -p.plan.estimated_seconds)
    for program in longest[:MOST_BRIEF]:
        out.print()
        show_brief(out, program)
    rest = longest[MOST_BRIEF:]
    if rest:
        out.print()
        rows = table("other programs", "kernels", "est.", "memory", "program", right=(0, 1, 2))
        for program in rest[:MOST_LISTED]:
            plan = program.plan
            memory = format_bytes(plan.planned_peak_bytes)
            rows.add_row(str(len(plan.kernels)), duration(plan.estimated_seconds), memory, cell(plan.name))
        out.print(rows)
    if len(rest) > MOST_LISTED:
        out.print(f"and {len(rest) - MOST_LISTED} more.")
    out.print(
        f"\n{plural(len(shown), 'program')} compiled. --kernel N explains a kernel, --only NAME one program, "
        "--all plans, decisions and memory; `stratal view` shows everything in a browser."
    )


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


# -- stages in files -----------------------------------------------------------------------------------------
SUFFIXES: Final = (".graph", ".kernel", ".ll")


def read_stage(path: Path) -> str:
    """Return the text of a stage. Raises: FormatError."""
    if path.suffix not in SUFFIXES:
        raise FormatError(f"stage: a file ending in {', '.join(SUFFIXES)}", got=str(path))
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError("stage: the file cannot be read", got=str(error)) from None


def code_of_stage(path: Path) -> str:
    """Return what code generation makes of a kernel or of LLVM text. Raises: VerifyError, CompilerError."""
    text, target = read_stage(path), current_target()
    parts = []
    if path.suffix == ".kernel":
        kernel = parse_kernel(text)
        verify_kernel(kernel)
        text = kernel_module(kernel, target)
        parts.append(text)
    try:
        parts.append(emit_assembly(text, target))
        parts.append(f"{len(assemble(text, target))} bytes of object code for {target.name}")
    except CompilerError as error:
        if path.suffix != ".ll":
            raise
        hint = "a stage that Stratal dumped and LLVM refuses is a fault of Stratal: report it"
        raise FormatError("stage: LLVM refuses this text", got=error.got, hint=hint) from error
    return "\n".join(parts)
