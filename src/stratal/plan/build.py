"""From a linked program to its plan."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from stratal.base.artifact import (
    Branch,
    Command,
    Copy,
    Executable,
    Host,
    Launch,
    Loop,
    Once,
    Value,
    While,
)
from stratal.base.source import SourceLine
from stratal.base.target import Target
from stratal.base.tuning import UNTUNED, Records
from stratal.graph.graph import Graph
from stratal.memory.plan import live_minimum, round_up
from stratal.plan.names import kernel_name, tactic_name
from stratal.plan.record import FORMAT, JSON, Plan
from stratal.plan.text import nested
from stratal.plan.work import Work, anchored
from stratal.schedule.draft import Draft

MOST_LINES = 4


class Compilation(NamedTuple):
    """How a program came about, beside what it is."""

    target: Target
    seconds: float
    num_cached: int = 0  # kernels that came from the cache
    overrides: tuple[str, ...] = ()
    fused: bool = True
    winograd: bool = True  # whether convolutions could use that algorithm
    records: Records = UNTUNED  # measurements that decided


def make_plan(graph: Graph, draft: Draft, executable: Executable, made: Compilation) -> Plan:
    """Return the plan of a program."""
    commands = _Commands(draft, executable, made.target).of(executable.commands, 1)
    host_calls = sum(1 for c, _ in nested(commands) if c["do"] == "host")
    states = [executable.inputs[k] for k in executable.states]
    return Plan({
        "format": FORMAT,
        "name": graph.name,
        "graph": graph.digest,
        "target": made.target.name,
        "threads": executable.threads,
        "overrides": list(made.overrides),
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


def memory_of(executable: Executable) -> dict[str, int]:
    """Return the bytes a program needs, by purpose. Inputs and states are the caller's, and counted."""
    values = executable.values
    states = {executable.inputs[k] for k in executable.states}
    parts = {
        "arena_bytes": executable.arena_bytes,
        "state_bytes": sum(values[i].nbytes for i in states),
        "input_bytes": sum(values[i].nbytes for i in executable.inputs if i not in states),
        "output_bytes": sum(values[i].nbytes for i in executable.outputs),
        "scratch_bytes": round_up(executable.scratch_bytes) * executable.threads,
        "constant_bytes": sum(round_up(len(c)) for c in executable.constants),
    }
    if executable.kept_bytes:
        parts["kept_bytes"] = executable.kept_bytes
    live = live_minimum(values, executable.commands, executable.outputs)
    return parts | {"planned_peak_bytes": sum(parts.values()), "live_minimum_bytes": live}


def _value(value: Value) -> JSON:
    row: JSON = {"type": str(value.type), "strides": list(value.strides), "home": value.home}
    if value.home in ("arena", "kept"):
        row["offset"] = value.offset
    else:
        row["index"] = value.index
    if value.alias is not None:
        row["alias"] = value.alias
    if value.row is not None:
        row["row"] = value.row
    if value.label:
        row["label"] = value.label
    return row | _from(value.where)


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

    def of(self, commands: Sequence[Command], times: int) -> list[JSON]:
        return [self._command(c, times) for c in commands]

    def _command(self, command: Command, times: int) -> JSON:
        if isinstance(command, Launch):
            return self._kernel(command, times)
        if isinstance(command, Host):
            return self._host(command, times)
        if isinstance(command, Copy):
            moved = {"reads": [command.source], "writes": [command.target], "label": command.label}
            return {"do": "copy", **moved, **self._cost(command, times)}
        if isinstance(command, Loop):
            row: JSON = {
                "do": "loop",
                "label": command.label,
                "trips": command.trips,
                "counter": command.counter,
            }
            if command.trips_value is not None:
                row["trips_value"] = command.trips_value
            if command.reverse:
                row["reverse"] = True
            return {**row, "body": self.of(command.body, times * max(command.trips, 1))}
        if isinstance(command, Once):  # a run that finds it done takes no time for it
            held = [self.executable.inputs[k] for k in self.executable.held]
            return {"do": "once", "held": held, "body": self.of(command.body, 0)}
        row = {"do": "while" if isinstance(command, While) else "branch", "predicate": command.predicate}
        row["label"] = command.label
        if isinstance(command, While):
            return {
                **row,
                "condition": self.of(command.condition, times),
                "body": self.of(command.body, times),
            }
        assert isinstance(command, Branch)
        return {**row, "then": self.of(command.then, times), "otherwise": self.of(command.otherwise, times)}

    def _kernel(self, launch: Launch, times: int) -> JSON:
        self.number += 1
        scheduled = self.draft.kernels[launch.kernel]
        members = anchored(self.draft.groups.get(id(launch)), scheduled.tactic)
        row: JSON = {
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
        if launch.ints:
            row["ints"] = list(launch.ints)
        if launch.floats:
            row["floats"] = list(launch.floats)
        return row | _from(launch.where) | self._cost(launch, times)

    def _name(self, launch: Launch) -> str:
        group = self.draft.groups.get(id(launch))
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
        group = self.draft.groups.get(id(host))
        row: JSON = {"do": "host", "op": host.label, "reads": list(host.reads), "writes": list(host.writes)}
        if group is not None:
            (node,) = group.members
            row["op"] = _operation(str(node.op))
            row["why"] = node.op.host_reason(*(i.aval for i in node.inputs))
        return row | _from(host.where) | self._cost(host, times)

    def _cost(self, command: Command, times: int) -> JSON:
        cost = self.work.of(command)
        estimate = self.target.estimate(cost, self.executable.threads)
        bound = "host" if isinstance(command, Host) else estimate.bound
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


def _operation(text: str) -> str:
    """Return an op's text without the addresses of Python objects, which differ between processes."""
    return text.split(" at 0x")[0] if " at 0x" in text else text
