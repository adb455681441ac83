"""A compiled program in print: kernels with their costs, decisions, memory, loops, graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from rich.console import Console
from rich.text import Text

from stratal.base.artifact import Command, Host, Launch, flat
from stratal.base.cost import Cost
from stratal.base.log import duration
from stratal.base.target import Bound, current_target
from stratal.base.types import TupleType
from stratal.cli.report import cell, table
from stratal.compiler import Program
from stratal.graph.node import Node
from stratal.memory.plan import arrange, round_up
from stratal.memory.render import format_bytes, render, to_json


class KernelRow(NamedTuple):
    """One command that does work: a kernel launch, or a host call where `tactic` is `host`."""

    label: str
    tactic: str
    where: tuple[str, ...]
    chunks: int
    flops: float
    bytes: float
    seconds: float
    bound: Bound


def launches(program: Program) -> Iterator[Launch | Host]:
    """Yield the commands that do work, those of loops and branches included."""
    for command in flat(program.draft.commands):
        if isinstance(command, (Launch, Host)):
            yield command


def kernel_rows(program: Program) -> list[KernelRow]:
    """Return what each command does and what it should cost."""
    target, threads = current_target(), program.executable.threads
    rows = []
    for command in launches(program):
        cost = _cost(program, command)
        estimate = target.estimate(cost, threads)
        tactic = "host" if isinstance(command, Host) else program.draft.kernels[command.kernel].tactic
        rows.append(
            KernelRow(
                command.label or "kernel",
                tactic,
                tuple(dict.fromkeys(map(str, command.where))),
                command.chunks if isinstance(command, Launch) else 1,
                cost.flops,
                cost.bytes,
                estimate.seconds,
                estimate.bound,
            )
        )
    return rows


def _cost(program: Program, command: Command) -> Cost:
    """Estimate a command: the operations of its ops, the bytes of what it reads and writes."""
    assert isinstance(command, (Launch, Host))
    values = program.executable.values
    read = float(sum(values[v].type.nbytes for v in dict.fromkeys(command.reads)))
    written = float(sum(values[v].type.nbytes for v in dict.fromkeys(command.writes)))
    group = program.draft.groups.get(id(command))
    packing = isinstance(command, Launch) and program.draft.kernels[command.kernel].tactic == "pack"
    nodes: tuple[Node, ...] = () if group is None or packing else tuple(group.members)
    return Cost(sum(_flops(node) for node in nodes), read, written)


def _flops(node: Node) -> float:
    types = [i.type for i in node.inputs]
    if any(isinstance(t, TupleType) for t in types):
        return 0.0
    return node.op.cost(*types).flops  # type: ignore[arg-type]


def memory_figures(program: Program) -> dict[str, int]:
    """Return the bytes a program plans for, by what they are for, and what it holds once loaded.

    `observed_bytes` counts the arena, scratch and constants that were in fact allocated. Inputs and one set
    of outputs belong to the caller and are counted by type in both sums.
    """
    made, held = program.executable, program.loaded.memory.nbytes
    inputs = sum(made.values[i].nbytes for i in made.inputs)
    outputs = sum(made.values[o].nbytes for o in made.outputs)
    parts = {
        "arena_bytes": made.arena_bytes,
        "scratch_bytes": round_up(made.scratch_bytes) * made.threads,
        "constant_bytes": sum(round_up(len(c)) for c in made.constants),
        "output_bytes": outputs,
        "state_and_input_bytes": inputs,
    }
    arena = arrange(made.values, made.commands, outputs=made.outputs)
    return {
        **parts,
        "planned_bytes": sum(parts.values()),
        "observed_bytes": inputs + outputs + sum(held.values()),
        "live_minimum_bytes": arena.live_minimum,
    }


def show_head(out: Console, program: Program) -> None:
    """Print the one line that says what a program is."""
    graph, made = program.graph, program.executable
    inputs = ", ".join(map(str, graph.input_types[:4])) + (", ..." if len(graph.inputs) > 4 else "")
    outputs = ", ".join(map(str, graph.output_types)) or "nothing"
    memory = memory_figures(program)
    count = sum(1 for _ in launches(program))
    out.print(Text(f"{graph.name}({inputs}) -> {outputs}", "bold"))
    out.print(
        f"  {count} kernels in 1 native call, {made.threads} threads; {len(graph.nodes)} ops, "
        f"graph {graph.digest[:8]}; compiled in {duration(program.compile_seconds)}"
    )
    out.print(
        f"  arena {format_bytes(made.arena_bytes)} "
        f"(live minimum {format_bytes(memory['live_minimum_bytes'])}), "
        f"inputs and state {format_bytes(memory['state_and_input_bytes'])}, "
        f"outputs {format_bytes(memory['output_bytes'])}"
    )


def show_kernels(out: Console, program: Program, limit: int | None = None) -> None:
    """Print the kernels in order, or only the `limit` that should take longest."""
    rows = kernel_rows(program)
    total = sum(r.seconds for r in rows) or 1.0
    shown = sorted(range(len(rows)), key=lambda k: -rows[k].seconds)[:limit] if limit else range(len(rows))
    title = f"the {limit} kernels estimated to take longest" if limit and limit < len(rows) else "kernels"
    columns = ("#", "ops", "tactic", "from", "work", "bytes", "estimated", "share", "bound")
    made = table(title, *columns, right=(0, 4, 5, 6, 7))
    for k in sorted(shown):
        row = rows[k]
        made.add_row(
            str(k + 1),
            cell(row.label),
            cell(row.tactic),
            cell(", ".join(row.where[:2]), "dim"),
            f"{row.flops / 1e6:.2f} MF" if row.flops else "-",
            format_bytes(int(row.bytes)),
            duration(row.seconds),
            f"{row.seconds / total:.0%}",
            cell(row.bound),
        )
    out.print(made)


def show_decisions(out: Console, program: Program) -> None:
    """Print what the passes chose and why."""
    out.print(Text("decisions", "bold"))
    out.print(Text(str(program.log)), soft_wrap=True)


def show_memory(out: Console, program: Program) -> None:
    """Print the arena as a map of offsets over time, and what lies where."""
    made = program.executable
    out.print(Text("memory", "bold"))
    arena = arrange(made.values, made.commands, outputs=made.outputs)
    out.print(Text(render(arena, made.values)), soft_wrap=True)


def show_memory_map(out: Console, program: Program, height: int = 8) -> None:
    """Print the map alone, in a few rows."""
    made = program.executable
    arena = arrange(made.values, made.commands, outputs=made.outputs)
    if arena.blocks:
        out.print(Text("the arena: time runs right, offsets run down, one mark is one buffer", "bold"))
        drawn = render(arena, made.values, width=72, height=height).split("\n")
        out.print(Text("\n".join(line for line in drawn[1:] if line.startswith(("  +", "  |")))))


def show_loops(out: Console, program: Program) -> None:
    """Print the schedule and the generated loops of each distinct kernel."""
    for name, scheduled in program.draft.kernels.items():
        out.print(Text(f"kernel {name}, tactic {scheduled.tactic}", "bold"))
        for step in scheduled.steps:
            out.print(Text(f"  {step}"), soft_wrap=True)
        out.print(Text(str(scheduled.kernel)), soft_wrap=True)


def show_graph(out: Console, program: Program) -> None:
    """Print the graph with the user's lines."""
    out.print(Text("graph", "bold"))
    out.print(Text(str(program.graph)), soft_wrap=True)


def program_json(program: Program) -> dict[str, Any]:
    """Return all of it as JSON values."""
    made = program.executable
    arena = arrange(made.values, made.commands, outputs=made.outputs)
    return {
        "name": program.graph.name,
        "digest": program.graph.digest,
        "graph": str(program.graph),
        "compile_seconds": program.compile_seconds,
        "threads": made.threads,
        "kernels": [row._asdict() for row in kernel_rows(program)],
        "loops": {name: str(s.kernel) for name, s in program.draft.kernels.items()},
        "decisions": program.log.to_json(),
        "memory": {**memory_figures(program), "arena": to_json(arena, made.values)},
    }
