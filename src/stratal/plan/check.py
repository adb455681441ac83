"""What each stage must obey beyond its own grammar; run between passes where verification is on."""

from __future__ import annotations

from collections.abc import Sequence

from stratal.base.artifact import Executable, Launch, Value, flat
from stratal.base.errors import VerifyError
from stratal.graph.node import Item, Node
from stratal.graph.partition import Partition
from stratal.loops.stmt import Kernel
from stratal.loops.verify import verify_kernel
from stratal.memory.plan import arranged
from stratal.schedule.draft import Draft


def partition(found: Partition) -> None:
    """Check that each group runs after those whose stored values it reads. Raises: VerifyError."""
    for position, group in enumerate(found.groups):
        if group.position != position:
            raise VerifyError(f"partition: group {position} says it is {group.position}", got=repr(group))
        members = set(group.members)  # some computed in other groups too
        for member in group.members:
            for value in _read_by(member, found):
                owner = found.group_of[value]
                early = owner.kind == "alias" or value in members  # an alias names an input, there all along
                if owner.position > position and not early:
                    rule = f"partition: group {position} reads what group {owner.position} computes"
                    raise VerifyError(rule, got=f"{group!r} reads {value!r}", where=member.where)


def _read_by(node: Node, found: Partition) -> list[Node]:
    """Return the members of groups a node reads, through views."""
    read: dict[Node, None] = {}
    seen: set[Node] = set()
    stack = list(node.inputs)
    while stack:
        value = stack.pop()
        if value in seen:
            continue
        seen.add(value)
        owner = value.inputs[0] if isinstance(value.op, Item) else value
        if owner in found.group_of:
            read[owner] = None
        else:
            stack.extend(value.inputs)
    return list(read)


def draft(found: Draft) -> None:
    """Check every kernel and that launches pass what kernels expect. Raises: VerifyError."""
    for scheduled in found.kernels.values():
        verify_kernel(scheduled.kernel)
    for command in flat(found.commands):
        if isinstance(command, Launch):
            _fits(command, found.kernels[command.kernel].kernel, found.values)


def _fits(launch: Launch, kernel: Kernel, values: Sequence[Value]) -> None:
    passed = [values[i] for i in (*launch.reads, *launch.writes)]
    counts = (len(launch.reads), len(launch.writes)), (len(kernel.reads), len(kernel.writes))
    if counts[0] != counts[1]:
        got = f"{counts[0]} buffers for {counts[1]} parameters"
        raise VerifyError(f"program: a launch of {launch.kernel} passes too much or too little", got=got)
    for value, buffer in zip(passed, kernel.parameters, strict=True):
        if value.type.dtype.real is not buffer.dtype.real or value.nbytes < buffer.nbytes:
            got = f"{value.type} for {buffer}"
            raise VerifyError(f"program: {launch.kernel} is passed a value that does not fit", got=got)


def executable(found: Executable) -> None:
    """Check that blocks alive at one moment never overlap in the arena. Raises: VerifyError."""
    plan = arranged(found.values, found.commands, found.outputs)
    placed = sorted(
        (found.values[b.root].offset, found.values[b.root].offset + b.nbytes, b)
        for b in plan.blocks
        if b.nbytes
    )
    for k, (_, end, block) in enumerate(placed):
        if end > found.arena_bytes:
            raise VerifyError("memory: a block leaves the arena", got=f"{block} ends at {end}")
        for start, _, other in placed[k + 1 :]:
            if start >= end:
                break
            if block.life.meets(other.life):
                raise VerifyError("memory: two blocks alive at one time overlap", got=f"{block} and {other}")
