"""A compiled program as JSON values: what the explorer shows of it.

    program := name, hash, plan, graphs (captured, optimised), kernels, code, memory, decisions, source
    kernels := one row per launch: why it is apart, its members in the optimised graph, source lines
    code    := by symbol: tactic, schedule steps, and loops, LLVM text and assembly, deflated, in base64

Equal kernels share their code. Code generation is asked again for the text of the costliest kernels; of the
others `stratal explain --kernel N --llvm` prints it.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, Final

from stratal.base.artifact import Launch
from stratal.base.errors import StratalError
from stratal.base.log import Decision
from stratal.base.target import Target
from stratal.codegen.assemble import emit_assembly
from stratal.codegen.module import kernel_module
from stratal.explorer.graphs import captured_graph, optimised_graph
from stratal.explorer.source_table import SourceTable
from stratal.memory.plan import arranged
from stratal.plan.arena_map import arena_map
from stratal.plan.explain import Explained, launches
from stratal.plan.memory_text import recomputations
from stratal.plan.record import Plan
from stratal.plan.text import signature
from stratal.schedule.result import Scheduled

JSON = dict[str, Any]
FORMAT: Final = 1
MOST_ASSEMBLED: Final = 40  # kernels whose LLVM text and assembly are in the page, costliest first
MOST_CODE_BYTES: Final = 2_500_000  # of all code together, as it is in the page


def describe(program: Explained, *, assembled: int = MOST_ASSEMBLED) -> JSON:
    """Return all that the explorer shows of a program; LLVM text of `assembled` kernels."""
    sources = SourceTable()
    plan = program.plan
    found = launches(program)
    numbers_of: dict[int, list[int]] = {}
    for number, launch in enumerate(found, 1):
        if launch.group >= 0:
            numbers_of.setdefault(launch.group, []).append(number)
    made = program.executable
    arena = arranged(made.values, made.commands, made.outputs)
    described = {
        **plan_fields(plan),
        "graphs": {
            "captured": captured_graph(program.graph, sources),
            "optimised": optimised_graph(program.draft, numbers_of, sources),
        },
        "kernels": _kernels(program, found, sources),
        "code": _code(program, assembled),
        "memory": arena_map(program, arena, sources.numbers),
        "decisions": [decision_row(d, sources) for d in program.log],
        "roofs": _roofs(program.made.target, made.threads),
    }
    return described | {"source": sources.to_json()}


def plan_fields(plan: Plan) -> JSON:
    """Return what the explorer shows of any program: its plan, and what it is called by."""
    return {
        "format": FORMAT, "name": plan.name, "hash": plan.hash, "signature": signature(plan.to_json()),
        "plan": plan.to_json(), "seconds": plan.estimated_seconds,
    }  # fmt: skip


def _kernels(program: Explained, found: Sequence[Launch], sources: SourceTable) -> list[JSON]:
    again = recomputations(program.executable)
    values = program.executable.values
    rows = []
    for number, launch in enumerate(found, 1):
        group = program.draft.group_of(launch)
        taken = dict.fromkeys(values[w].alias for w in launch.writes)
        row: JSON = {"lines": sources.numbers(launch.where), "kind": group.kind if group else "pack"}
        row |= {"why": group.why} if group and group.why else {}
        row |= {"again": True} if number in again else {}
        over = [values[a].label or f"%{a}" for a in taken if a is not None]
        rows.append(row | ({"over": over} if over else {}))
    return rows


def decision_row(d: Decision, sources: SourceTable) -> JSON:
    """Return a decision with its alternatives, each [name, seconds or None, why it was refused]."""
    row: JSON = {"stage": d.stage, "subject": d.subject, "choice": d.choice, "why": d.why}
    row |= {"lines": sources.numbers(d.where)}
    if d.seconds is not None:
        row |= {"seconds": d.seconds, "basis": d.basis}
    if d.alternatives:
        row["not"] = [[a.name, a.seconds, a.refused] for a in d.alternatives]
    return row


def _roofs(target: Target, threads: int) -> JSON:
    """Return the nominal roofs that the estimates rest on, in GFLOP/s and GB/s."""
    memory = target.bandwidth(float("inf"), threads)
    return {
        "basis": f"nominal, {target.name}",
        "compute": [["float32", target.peak_flops(threads) / 1e9]],
        "memory": [["memory", memory / 1e9], ["L2", target.cache_gbps * threads]],
    }


# -- code ----------------------------------------------------------------------------------------------------
def _code(program: Explained, assembled: int) -> dict[str, JSON]:
    """Return schedule and loops of every distinct kernel, and LLVM text and assembly of the costliest."""
    cost: dict[str, float] = {}
    for row in program.plan.kernels:
        cost[row["symbol"]] = cost.get(row["symbol"], 0.0) + row["seconds"] * max(row["times"], 1)
    left = MOST_CODE_BYTES
    code: dict[str, JSON] = {}
    for position, symbol in enumerate(sorted(cost, key=lambda s: -cost[s])):
        scheduled = program.draft.kernels[symbol]
        texts = {"loops": packed(str(scheduled.kernel))}
        if position < assembled:
            texts |= dict(_generated(scheduled, program.made.target))
        size = sum(map(len, texts.values()))
        if size > left:
            texts = {}
        left -= sum(map(len, texts.values()))
        code[symbol] = {"tactic": scheduled.tactic, "steps": list(scheduled.steps), **texts}
    return code


def _generated(scheduled: Scheduled, target: Target) -> Iterator[tuple[str, str]]:
    """Yield LLVM text and assembly; nothing where LLVM refuses the kernel, which compiled some other way."""
    try:
        text = kernel_module(scheduled.kernel, target)
        yield "llvm", packed(text)
        yield "assembly", packed(emit_assembly(text, target))
    except StratalError:
        return


def packed(text: str) -> str:
    """Return a text deflated (RFC 1950), in base64: browsers unpack it when it is looked at."""
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()
