"""A compiled program in print: its plan, its decisions, its memory, its loops, its graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from stratal.base.log import duration
from stratal.cli.report import cell, table
from stratal.compiler import Program
from stratal.memory.plan import ArenaPlan, arranged
from stratal.memory.render import format_bytes, render, to_json

Section = Callable[[Console, Program], None]


def show_brief(out: Console, program: Program, limit: int = 6) -> None:
    """Print what matters first: size, memory, and the kernels estimated to take longest."""
    plan, memory = program.plan, program.plan.memory
    out.print(
        Text(f"{plan.name}: {len(plan.kernels)} kernels in one native call, plan {plan.hash[:8]}", "bold")
    )
    out.print(
        f"  planned memory {format_bytes(plan.planned_peak_bytes)}: "
        f"arena {format_bytes(memory['arena_bytes'])} "
        f"(live minimum {format_bytes(memory['live_minimum_bytes'])}), "
        f"state {format_bytes(memory['state_bytes'])}, input {format_bytes(memory['input_bytes'])}"
    )
    longest = sorted(plan.kernels, key=lambda k: -k["seconds"] * k["times"])[:limit]
    rows = table("the kernels estimated to take longest", "#", "kernel", "tactic", "from", "est.", "bound",
                 right=(0, 4))  # fmt: skip
    for kernel in sorted(longest, key=lambda k: k["number"]):
        lines = ", ".join(kernel.get("from", [])[:2])
        rows.add_row(
            str(kernel["number"]),
            cell(kernel["name"]),
            cell(kernel["tactic"]),
            cell(lines, "dim"),
            duration(kernel["seconds"]),
            cell(kernel["bound"]),
        )
    out.print(rows)


def show_memory_map(out: Console, program: Program, height: int = 8) -> None:
    """Print the map alone, in a few rows."""
    arena = arena_of(program)
    if arena.blocks:
        out.print(Text("the arena: time runs right, offsets run down, one mark is one buffer", "bold"))
        drawn = render(arena, program.executable.values, width=72, height=height).split("\n")
        out.print(Text("\n".join(line for line in drawn[1:] if line.startswith(("  +", "  |")))))


def arena_of(program: Program) -> ArenaPlan:
    """Return where each buffer of a program lies and when it lives."""
    made = program.executable
    return arranged(made.values, made.commands, made.outputs)


def observed_peak_bytes(program: Program) -> int:
    """Return the bytes in fact allocated for the arena, scratch and constants, with the caller's own.

    Inputs, states and one set of outputs belong to the caller and are counted by type, as the plan does.
    """
    memory = program.plan.memory
    callers = sum(memory[part] for part in ("state_bytes", "input_bytes", "output_bytes"))
    return callers + sum(program.loaded.memory.nbytes.values())


def show_loops(out: Console, program: Program) -> None:
    """Print the schedule and the generated loops of each distinct kernel."""
    for name, scheduled in program.draft.kernels.items():
        out.print(Text(f"kernel {name}, tactic {scheduled.tactic}", "bold"))
        for step in scheduled.steps:
            out.print(Text(f"  {step}"), soft_wrap=True)
        out.print(Text(str(scheduled.kernel)), soft_wrap=True)


def _titled(title: str, text: Callable[[Program], str]) -> Section:
    def show(out: Console, program: Program) -> None:
        if title:
            out.print(Text(title, "bold"))
        out.print(Text(text(program)), soft_wrap=True)

    return show


SECTIONS: Final[dict[str, Section]] = {
    "plan": _titled("", lambda program: str(program.plan)),
    "decisions": _titled("decisions", lambda program: program.explain()),
    "memory": _titled("memory", lambda program: render(arena_of(program), program.executable.values)),
    "loops": show_loops,
    "graph": _titled("graph", lambda program: str(program.graph)),
}
"""What `stratal explain --show` prints of a program."""


def program_json(program: Program) -> dict[str, Any]:
    """Return all of it as JSON values."""
    return {
        "name": program.plan.name,
        "plan": program.plan.to_json(),
        "graph": str(program.graph),
        "loops": {name: str(s.kernel) for name, s in program.draft.kernels.items()},
        "decisions": program.log.to_json(),
        "arena": to_json(arena_of(program), program.executable.values),
    }
