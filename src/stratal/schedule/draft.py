"""A program while it is being decided on: what is computed in which order, with no memory and no code yet."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

from stratal.base.artifact import Command, Host, Launch, Value, flat
from stratal.base.errors import VerifyError
from stratal.base.types import TensorType
from stratal.graph.node import Node
from stratal.graph.partition import Group
from stratal.loops.expr import row_major
from stratal.schedule.result import Scheduled


@dataclass
class Draft:
    """A program before memory is planned and code is generated."""

    values: list[Value] = field(default_factory=list)
    commands: tuple[Command, ...] = ()
    kernels: dict[str, Scheduled] = field(default_factory=dict)
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    states: tuple[int, ...] = ()
    constants: list[bytes] = field(default_factory=list)
    calls: list[object] = field(default_factory=list)
    made_for: dict[str, set[Node]] = field(default_factory=dict)  # by kernel: the nodes that need it
    groups: list[Group] = field(default_factory=list)  # by the number that a command has
    compact: bool = False  # whether memory matters more than which cache a value lies in

    def value(self, type_: TensorType, strides: tuple[int, ...] | None = None, **rest: Any) -> int:
        """Add a value and return its id."""
        self.values.append(Value(len(self.values), type_, strides or row_major(type_.ints), **rest))
        return len(self.values) - 1

    def of_commands(self, commands: tuple[Command, ...]) -> Draft:
        """Return this draft for commands that do the same. Raises: VerifyError where they do not."""
        pairs = zip_longest(flat(self.commands), flat(commands))
        if any(_done(mine) != _done(theirs) for mine, theirs in pairs):
            raise VerifyError("program: planned again, it came out otherwise")
        return replace(self, commands=commands)

    @property
    def scratch_bytes(self) -> int:
        """Bytes that one thread needs beside values, for the kernel that needs most."""
        return max((s.kernel.scratch_bytes for s in self.kernels.values()), default=0)

    def number(self, group: Group) -> int:
        """Add a group and return its number."""
        self.groups.append(group)
        return len(self.groups) - 1

    def group_of(self, command: Command) -> Group | None:
        """Return the group that a command computes; None where it only moves what others make."""
        number = command.group if isinstance(command, (Launch, Host)) else -1
        return self.groups[number] if number >= 0 else None


def _done(command: Command | None) -> object:
    """Return what a command does, its parts left out."""
    if isinstance(command, Launch):
        return command.kernel, command.reads, command.writes, command.chunks
    return type(command), getattr(command, "reads", ()), getattr(command, "writes", ())
