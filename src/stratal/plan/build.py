"""From a linked program to its plan."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from stratal.base import settings, tuning
from stratal.base.artifact import (
    Command,
    Copy,
    CopyDone,
    CopyStart,
    Executable,
    Host,
    Launch,
    Loop,
    Once,
    Value,
    While,
    bodies,
    offloaded,
)
from stratal.base.source import SourceLine
from stratal.base.target import Target
from stratal.base.tuning import UNTUNED, Records
from stratal.graph.graph import Graph
from stratal.graph.node import Node
from stratal.memory.plan import live_minimum, round_up
from stratal.plan.commands import copy_name
from stratal.plan.fallback import Fallback
from stratal.plan.offload import copy_waits
from stratal.plan.record import FORMAT, JSON, Plan
from stratal.plan.text import nested
from stratal.plan.work import Work, anchored
from stratal.schedule.draft import Draft
from stratal.schedule.result import Scheduled

MOST_LINES = 4


class Compilation(NamedTuple):
    """How a program came about, beside what it is."""

    target: Target
    seconds: float
    chosen: Mapping[str, Any]  # settings that shape programs, by name
    num_cached: int = 0  # kernels that came from the cache
    overrides: tuple[str, ...] = ()
    fused: bool = True
    records: Records = UNTUNED  # measurements that decided
    fallbacks: tuple[Fallback, ...] = ()  # what failed and was compiled with less ambition

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Decide inside of the block as this compilation did."""
        with settings.using(**self.chosen), tuning.using(self.records):
            yield


def make_plan(graph: Graph, draft: Draft, executable: Executable, made: Compilation) -> Plan:
    """Return the plan of a program."""
    commands = _Commands(draft, executable, made.target).of(executable.commands, 1)
    host_calls = sum(1 for c, _ in nested(commands) if c["do"] == "host")
    states = [executable.inputs[k] for k in executable.states]
    failed = [
        {"stage": f.stage, "error": f.error, "outcome": f.outcome, **_from(f.where)} for f in made.fallbacks
    ]
    return Plan({
        "format": FORMAT,
        "name": graph.name,
        "graph": graph.digest,
        "target": made.target.name,
        "threads": executable.threads,
        "overrides": list(made.overrides),
        **({"fallbacks": failed} if failed else {}),
        "inputs": list(executable.inputs),
        "states": states,
        "outputs": list(executable.outputs),
        "values": [_value(v) for v in executable.values],
        "constants": [hashlib.sha256(c).hexdigest()[:32] for c in executable.constants],
        "commands": commands,
        "memory": memory_of(executable),
        "calls": {"native": 1, "host": host_calls},
        "compile": {"seconds": made.seconds, "kernels": len(executable.kernels), "cached": made.num_cached},
    })  # fmt: skip


class FixedBytes(NamedTuple):
    """What a program needs beside its arena, by purpose. Inputs and states are the caller's, and counted."""

    states: int
    inputs: int
    outputs: int
    scratch: int
    constants: int
    persistent: int


def fixed_bytes(program: Draft | Executable, threads: int, persistent: int) -> FixedBytes:
    """Return what a program needs beside its arena and `persistent` bytes that last from run to run.

    What it offloads lies elsewhere.
    """
    values = program.values
    elsewhere = {program.inputs[k] for k in offloaded(program.commands, program.inputs)}
    states = {program.inputs[k] for k in program.states}
    return FixedBytes(
        sum(values[i].nbytes for i in states - elsewhere),
        sum(values[i].nbytes for i in program.inputs if i not in states | elsewhere),
        sum(values[i].nbytes for i in program.outputs),
        round_up(program.scratch_bytes) * threads,
        sum(round_up(len(c)) for c in program.constants),
        persistent,
    )


def memory_of(executable: Executable) -> dict[str, int]:
    """Return the bytes a program needs, by purpose."""
    fixed = fixed_bytes(executable, executable.threads, executable.persistent_bytes)
    parts = {
        "arena_bytes": executable.arena_bytes,
        "state_bytes": fixed.states,
        "input_bytes": fixed.inputs,
        "output_bytes": fixed.outputs,
        "scratch_bytes": fixed.scratch,
        "constant_bytes": fixed.constants,
    }
    if fixed.persistent:
        parts["persistent_bytes"] = fixed.persistent
    elsewhere = offloaded(executable.commands, executable.inputs)
    offloaded_bytes = sum(executable.values[executable.inputs[k]].nbytes for k in elsewhere)
    live = live_minimum(executable.values, executable.commands, executable.outputs)
    peak = sum(parts.values())
    if offloaded_bytes:
        parts["offloaded_bytes"] = offloaded_bytes
    return parts | {"planned_peak_bytes": peak, "live_minimum_bytes": live}


def _value(value: Value) -> JSON:
    row: JSON = {"type": str(value.type), "strides": list(value.strides), "home": value.home}
    planned = value.home in ("arena", "persistent")
    row |= {"offset": value.offset} if planned else {"index": value.index}
    return row | _given(alias=value.alias, row=value.row, label=value.label or None) | _from(value.where)


def _given(**fields: Any) -> JSON:
    """Return the fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def _from(where: Iterable[SourceLine]) -> JSON:
    lines = list(dict.fromkeys(map(str, where)))[:MOST_LINES]
    return {"from": lines} if lines else {}


class _Commands:
    """Turns command lists into JSON; kernels are numbered from 1 in order."""

    def __init__(self, draft: Draft, executable: Executable, target: Target) -> None:
        self.draft = draft
        self.executable = executable
        self.target = target
        self.work = Work(draft, executable.values)
        self.states = {executable.inputs[k] for k in executable.states}
        self.number = 0
        self.waits: dict[tuple[int, int], float] = {}  # for copies, by source and target
        if offloaded(executable.commands, executable.inputs):
            found = copy_waits(executable.commands, executable.values, self._seconds)
            self.waits = {
                (c.source, c.target): computing + waiting
                for c, (computing, waiting) in zip(executable.commands, found, strict=True)
                if isinstance(c, CopyDone)
            }

    def _seconds(self, command: Command) -> float:
        return self.work.seconds(command, self.target, self.executable.threads)

    def of(self, commands: Sequence[Command], times: int) -> list[JSON]:
        return [self._command(c, times) for c in commands]

    def _command(self, command: Command, times: int) -> JSON:
        if isinstance(command, Launch):
            return self._kernel(command, times)
        if isinstance(command, Host):
            return self._host(command, times)
        if isinstance(command, Copy):
            moved = {"reads": [command.source], "writes": [command.target], "label": command.label}
            return {"do": copy_name(command), **moved, **self._cost(command, times)}
        if isinstance(command, Loop):
            row = {"do": "loop", "label": command.label, "trips": command.trips, "counter": command.counter}
            row |= _given(trips_value=command.trips_value, reverse=command.reverse or None)
            return {**row, "body": self.of(command.body, times * max(command.trips, 1))}
        if isinstance(command, Once):  # a run that finds it done takes no time for it
            frozen = [self.executable.inputs[k] for k in self.executable.frozen]
            return {"do": "once", "frozen": frozen, "body": self.of(command.body, 0)}
        kind = "while" if isinstance(command, While) else "branch"
        held = {name: self.of(body, times) for name, body in bodies(command).items()}
        return {"do": kind, "predicate": command.predicate, "label": command.label, **held}

    def _kernel(self, launch: Launch, times: int) -> JSON:
        self.number += 1
        scheduled = self.draft.kernels[launch.kernel]
        members = anchored(self.draft.group_of(launch), scheduled.tactic)
        row = {
            "do": "kernel",
            "number": self.number,
            "name": self._name(launch),
            "tactic": tactic_name(scheduled, members),
            "ops": [m.op.name for m in members],
            "symbol": launch.kernel,
            "reads": list(launch.reads),
            "writes": list(launch.writes),
            "chunks": launch.chunks,
        }
        row |= _given(ints=list(launch.ints) or None, floats=list(launch.floats) or None)
        return row | _from(launch.where) | self._cost(launch, times)

    def _name(self, launch: Launch) -> str:
        group = self.draft.group_of(launch)
        members = group.members if group is not None else ()
        if self.draft.kernels[launch.kernel].tactic == "pack":
            return f"pack for {kernel_name('', members, ())}"
        return kernel_name(launch.label, members, self._updated(launch))

    def _updated(self, launch: Launch) -> list[Value]:
        """Return the states whose memory a launch writes."""
        values = self.executable.values
        return [values[r] for r in dict.fromkeys(self._root(w) for w in launch.writes) if r in self.states]

    def _root(self, id_: int) -> int:
        while (alias := self.executable.values[id_].alias) is not None:
            id_ = alias
        return id_

    def _host(self, host: Host, times: int) -> JSON:
        group = self.draft.group_of(host)
        row: JSON = {"do": "host", "op": host.label, "reads": list(host.reads), "writes": list(host.writes)}
        if group is None:
            row["why"] = "what compiles it failed"
        else:
            (node,) = group.members
            row["op"] = str(node.op).split(" at 0x")[0]  # addresses differ between processes
            row["why"] = node.op.host_reason(*(i.aval for i in node.inputs)) or group.why
        return row | _from(host.where) | self._cost(host, times)

    def _cost(self, command: Command, times: int) -> JSON:
        cost = self.work.of(command)
        estimate = self.target.estimate(cost, self.executable.threads)
        bound = "host" if isinstance(command, Host) else estimate.bound
        if isinstance(command, (CopyStart, CopyDone)):  # kernels go on meanwhile: only what they wait counts
            seconds = self.waits[command.source, command.target] if isinstance(command, CopyDone) else 0.0
            moved = 0 if isinstance(command, CopyDone) else self.executable.values[command.source].nbytes
            return {
                "flops": 0.0, "read_bytes": moved, "written_bytes": moved, "seconds": seconds,
                "bound": "file", "of_bound": 1.0, "times": times,
            }  # fmt: skip
        limit = max(estimate.compute_seconds, estimate.memory_seconds)
        figures: dict[str, Any] = {
            "flops": cost.flops,
            "read_bytes": int(cost.read_bytes),
            "written_bytes": int(cost.written_bytes),
            "seconds": estimate.seconds,
            "bound": bound,
            "of_bound": limit / estimate.seconds,
            "times": times,
        }
        return figures


# -- names ---------------------------------------------------------------------------------------------------
MOST_PARTS = 4


def kernel_name(label: str, members: Sequence[Node], updated: Sequence[Value]) -> str:
    """Return a short name: composites and single ops in order, then the states written."""
    parts = list(dict.fromkeys(_part(m) for m in members)) or [label or "kernel"]
    if updated and len(parts) > 1:
        scoped = {_part(m): any(line.scope for line in m.where) for m in members}
        parts = [p for p, is_composite in scoped.items() if is_composite] or parts[:1]
    shown = (
        parts
        if len(parts) <= MOST_PARTS
        else [*parts[: MOST_PARTS - 1], f"{len(parts) - MOST_PARTS + 1} more"]
    )
    return "+".join(shown) + _updates(updated)


def _part(node: Node) -> str:
    """Return the outermost composite a node was built in, or its op."""
    return next((line.scope[0] for line in node.where if line.scope), node.op.name)


def _updates(updated: Sequence[Value]) -> str:
    if not updated:
        return ""
    plain = [v.label for v in updated if v.label and "[" not in v.label and v.label != "grad"]
    first = plain[0] if plain else updated[0].label or "state"
    rest = f" +{len(updated) - 1}" if len(updated) > 1 else ""
    return f" -> {first}{rest}"


def tactic_name(scheduled: Scheduled, members: Sequence[Node]) -> str:
    """Return the tactic with its parameters; of a contraction, the anchor op and the register tile."""
    kernel = scheduled.kernel
    if scheduled.tactic == "contract":
        tile = next((b for b in kernel.local if b.name == "acc"), None)
        sizes = [str(n) for n in tile.shape if n > 1] if tile is not None else []
        anchor = members[0].op.name if members else "contract"
        return f"{anchor} {'x'.join(sizes) or '1'}"
    for step in reversed(scheduled.steps):
        if step.startswith("lanes("):
            return f"{scheduled.tactic} {step.removeprefix('lanes(').replace(')', '')}"
        if step.startswith("kept axis in "):
            return f"{scheduled.tactic} {step.removeprefix('kept axis in ')}"
    return scheduled.tactic
