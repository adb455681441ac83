"""Why a program is what it is: decisions by subject, one kernel in depth, memory over time, the graph.

explain()              what takes longest; kernels, what they compute and why; memory; layouts; host calls
explain(3)             kernel 3: expression, schedule steps and loops; llvm=True, assembly=True for the rest
explain("memory")      the arena as a map of offsets over time
explain("rewrites")    rewrites that were searched: chosen, rejected, and what real arithmetic would gain
explain("graph")       the graph with the user's lines
explain("decisions")   every decision, in the order it was made
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol

from stratal.base.artifact import Executable, Launch, flat
from stratal.base.errors import AttributeValueError, StratalError
from stratal.base.log import Decision, DecisionLog, duration
from stratal.base.source import SourceLine
from stratal.codegen.assemble import emit_assembly
from stratal.codegen.module import kernel_module
from stratal.graph.graph import Graph
from stratal.graph.node import Const, Node
from stratal.loops.compute import Compute
from stratal.memory.plan import arranged
from stratal.memory.render import render
from stratal.plan.build import Compilation
from stratal.plan.record import JSON, Plan
from stratal.plan.text import count, plural, shorten, signature, size
from stratal.schedule.draft import Draft

TOPICS: Final = ("kernels", "memory", "rewrites", "graph", "decisions")
STAGES: Final = {
    "fuse": "fused and kept apart",
    "simplify": "graph rewrites",
    "online": "scores in blocks",
    "search": "rewrites that were searched",
    "override": "overridden by hand",
    "layout": "layouts other than row-major",
    "pack": "operands packed for their readers",
    "in place": "memory shared, copies left",
}
_NOT_GROUPS: Final = ("stored", "computed in its only reader")  # kernels tell why they are apart themselves
MOST_SHOWN: Final = 40
MOST_BOTTLENECKS: Final = 3
BOUNDS: Final = {"compute": "arithmetic", "memory": "memory traffic", "latency": "the launch itself"}
LONG: Final = 200  # characters of an expression; its loops have all of it


class Explained(Protocol):
    """A compiled program."""

    graph: Graph
    made: Compilation

    @property
    def draft(self) -> Draft: ...
    @property
    def log(self) -> DecisionLog: ...
    @property
    def executable(self) -> Executable: ...
    @property
    def plan(self) -> Plan: ...


class Text(str):
    """A text that shows as it is where Python echoes it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def explain(
    program: Explained, about: str | int = "", *, kernel: int | None = None, llvm: bool = False,
    assembly: bool = False
) -> Text:
    """Explain a program, a topic of it, or one kernel by its number in the plan (also `kernel=3`).

    Raises: AttributeValueError for a topic or a kernel there is not.
    """
    kernel = about if isinstance(about, int) else kernel
    if kernel is not None:
        return Text(explain_kernel(program, kernel, llvm=llvm, assembly=assembly))
    if about == "memory":
        code = program.executable
        return Text(render(arranged(code.values, code.commands, code.outputs), code.values))
    if about == "rewrites":
        from stratal.plan.rewrites import explain_rewrites  # few programs need a search and a prover

        made = program.made
        with made.in_force():
            return Text("\n".join(explain_rewrites(program.graph, made.target, made.chosen["math"])))
    if about == "graph":
        return Text(program.graph)
    if about == "decisions":
        return Text(program.log)
    if about not in ("", "kernels"):
        raise AttributeValueError(
            "explain: there is no such topic",
            got=repr(about) if isinstance(about, str) else type(about).__name__,
            hint=f"one of {', '.join(TOPICS)}",
        )
    return Text("\n".join(_program(program)))


def _program(program: Explained) -> Iterator[str]:
    plan = program.plan
    yield f"{signature(plan.to_json())}   plan {plan.hash[:8]}"
    yield ""
    yield "takes longest, estimated"
    yield from _bottlenecks(plan)
    yield ""
    yield "kernels"
    for row, launch in zip(plan.kernels, launches(program), strict=True):
        yield from _kernel_lines(program, row, launch)
    host = plan.host_calls
    if host:
        yield ""
        yield "run by Python"
        yield from (f"  {c['op']}: {c.get('why') or 'as asked'}{_from(c)}" for c in host)
    for stage, title in STAGES.items():
        found = [d for d in program.log.of(stage) if stage != "fuse" or d.choice in _NOT_GROUPS]
        if found:
            yield ""
            yield title
            yield from _decisions(found)


def _bottlenecks(plan: Plan) -> Iterator[str]:
    """Yield the kernels that should take longest, and what bounds them."""
    whole = plan.estimated_seconds or 1.0
    longest = sorted(plan.kernels, key=lambda row: -row["seconds"] * row["times"])[:MOST_BOTTLENECKS]
    for row in longest:
        seconds = row["seconds"] * row["times"]
        head = f"  {seconds / whole:>4.0%}  {row['number']} {row['name']}, {duration(seconds)}"
        yield f"{head}: bound by {BOUNDS[row['bound']]}{_from(row)}"


def _decisions(found: Sequence[Decision]) -> Iterator[str]:
    """Yield one line per decision; equal ones together."""
    merged: dict[tuple[str, str, str], list[SourceLine]] = {}
    times: dict[tuple[str, str, str], int] = {}
    for d in found:
        key = (d.subject, d.choice, d.why)
        merged.setdefault(key, []).extend(d.where)
        times[key] = times.get(key, 0) + 1
    for key in list(merged)[:MOST_SHOWN]:
        subject, choice, why = key
        often = f" ({times[key]} times)" if times[key] > 1 else ""
        yield f"  {subject} -> {choice}{often}: {why}{_at(merged[key])}"
    if len(merged) > MOST_SHOWN:
        yield f"  .. and {len(merged) - MOST_SHOWN} more: explain('decisions') has them all"


def _at(where: Iterable[SourceLine]) -> str:
    lines = list(dict.fromkeys(map(str, where)))
    return f"  [{', '.join(lines[:3])}]" if lines else ""


def _from(row: JSON) -> str:
    return f"  [{', '.join(row['from'][:3])}]" if row.get("from") else ""


def launches(program: Explained) -> list[Launch]:
    """Return every kernel launch in the order the plan numbers them."""
    return [c for c in flat(program.executable.commands) if isinstance(c, Launch)]


def _kernel_lines(program: Explained, row: JSON, launch: Launch) -> Iterator[str]:
    scheduled = program.draft.kernels[launch.kernel]
    group = program.draft.group_of(launch)
    yield f"  {row['number']:>3}  {row['name']}{_from(row)}"
    if row["ops"]:
        counts = Counter[str](row["ops"]).items()
        yield f"       computes {', '.join(op if n == 1 else f'{op} x{n}' for op, n in counts)}"
    if group is not None and group.why and row["ops"]:
        yield f"       apart because {group.why}"
    traffic = f"{count(row['flops'])}, reads {size(row['read_bytes'])}, writes {size(row['written_bytes'])}"
    steps = plural(len(scheduled.steps), "schedule step") if scheduled.steps else "no schedule"
    yield f"       {row['tactic']}, {plural(row['chunks'], 'chunk')}; {traffic}; {steps}"
    over = _taken_over(program, launch)
    if over:
        yield f"       writes over {', '.join(over)}"


def _taken_over(program: Explained, launch: Launch) -> list[str]:
    """Return the values whose memory the writes of a launch take over."""
    values = program.executable.values
    taken = (values[w].alias for w in launch.writes)
    return [values[a].label or f"%{a}" for a in dict.fromkeys(taken) if a is not None]


# -- one kernel ------------------------------------------------------------------------------------
def explain_kernel(program: Explained, number: int, *, llvm: bool = False, assembly: bool = False) -> str:
    """Return all there is to know about one kernel, `number` counting as in the plan."""
    found = launches(program)
    if not 1 <= number <= len(found):
        raise AttributeValueError(
            "explain: there is no such kernel", got=str(number), hint=f"1 to {len(found)}"
        )
    launch, row = found[number - 1], program.plan.kernels[number - 1]
    scheduled = program.draft.kernels[launch.kernel]
    group = program.draft.group_of(launch)
    parts = ["\n".join(_kernel_lines(program, row, launch))]
    if group is not None and row["ops"]:
        parts.append("expression\n" + "\n".join(_expression(group.members)))
    buffers = [*scheduled.kernel.reads, *scheduled.kernel.writes]
    passed = zip(buffers, (*launch.reads, *launch.writes), strict=True)
    parts.append("buffers\n" + "\n".join(f"  {b} is {_value(program, v)}" for b, v in passed))
    parts.append("schedule\n" + ("\n".join(f"  {s}" for s in scheduled.steps) or "  none"))
    parts.append(f"loops\n{scheduled.kernel}")
    if llvm or assembly:
        target = program.made.target
        text = kernel_module(scheduled.kernel, target)
        if llvm:
            parts.append(f"LLVM text\n{text}")
        if assembly:
            parts.append(f"assembly for {target.name}\n{emit_assembly(text, target)}")
    return "\n\n".join(parts)


def _value(program: Explained, id_: int) -> str:
    value = program.executable.values[id_]
    planned = value.home in ("arena", "persistent")
    home = f"{value.home} +{value.offset}" if planned else value.home
    return f"%{id_} {value.label or value.type} in {home}{_at(value.where)}"


def _expression(members: Sequence[Node]) -> Iterator[str]:
    """Yield each member as the graph has it, and the tensor expression it stands for."""
    number: dict[Node, str] = {}
    for m in members:
        for operand in m.inputs:
            if operand not in number:
                number[operand] = _scalar(operand) or f"%{len(number)}"
        operands = ", ".join(f"{number[i]}" for i in m.inputs)
        number[m] = f"%{len(number)}"
        yield f"  {number[m]} = {m.op}({operands}) : {m.type}{_at(m.where)}"
        expression = _computed(m)
        if expression:
            yield f"      {shorten(expression, LONG)}"


def _scalar(node: Node) -> str:
    if isinstance(node.op, Const) and node.shape == ():
        return str(node.op.value.array.item())
    return ""


def _computed(node: Node) -> str:
    types = [i.aval for i in node.inputs]
    try:
        lowered = None if node.op.host_reason(*types) else node.op.lower(*types)
    except StratalError:
        return ""
    return str(lowered) if isinstance(lowered, Compute) else ""
