"""Loop-invariant and run-invariant code motion: what constants and frozen inputs decide is computed once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from stratal.base.artifact import Command, Launch, Once, Value, all_reads, all_writes, own_reads, own_writes
from stratal.base.fallback import skippable
from stratal.graph.graph import Graph
from stratal.graph.node import Const, Node
from stratal.graph.partition import Partition

FEW_TURNS = 4  # of a loop, which do not repay a copy before it


@skippable(lambda frozen, *_: frozenset())
def made_of(frozen: frozenset[Node], graph: Graph, partition: Partition) -> frozenset[Node]:
    """Return frozen inputs with what kernels make of them and of constants alone."""
    if not frozen:
        return frozen
    found = set(frozen)
    for node in graph.nodes:
        group = partition.group_of.get(node)
        parts = [node] if group is None else group.members
        read = (i for part in parts for i in part.inputs if i not in parts)
        if node.inputs and not node.op.effects and all(i in found or isinstance(i.op, Const) for i in read):
            found.add(node)
    return frozenset(found)


@skippable(lambda body, *_: ([], body))
def hoisted(
    body: list[Command], varying: Sequence[int], rows: Mapping[int, int]
) -> tuple[list[Command], list[Command]]:
    """Return what of a loop's body does the same in every turn, such as packing a weight, and the rest.

    `varying` are the values that differ from turn to turn or must be made in each; `rows` says whose memory
    those lie in that are rows of others. What reads nothing stays: it makes what others then change.
    """
    written = [id_ for command in body for id_ in all_writes(command)]
    writers = Counter(rows.get(id_, id_) for id_ in written)
    changing = {*varying, *written, *writers}
    first: list[Command] = []
    rest: list[Command] = []
    for command in body:
        plain = isinstance(command, Launch) and command.reads and not command.may_fail
        once = plain and all(writers[w] == 1 and w not in varying for w in own_writes(command))
        looked_at = {id_ for r in own_reads(command) for id_ in (r, rows.get(r, r))}
        if once and own_writes(command) and changing.isdisjoint(looked_at):
            first.append(command)
            changing.difference_update(own_writes(command))
        else:
            rest.append(command)
    return first, rest


def in_every_run(
    commands: list[Command], _: Sequence[Command], values: Sequence[Value], __: object
) -> list[Command]:
    """Return the commands as they are, and their results to the arena."""
    for value in values:
        value.home = "arena" if value.home == "persistent" else value.home
    return commands


@skippable(in_every_run)
def once(
    commands: list[Command], rest: Sequence[Command], values: Sequence[Value], rows: Mapping[int, int]
) -> list[Command]:
    """Return the command that prepares what the rest reads; that gets memory which lasts from run to run."""
    read = {rows.get(id_, id_) for command in rest for id_ in all_reads(command)}
    for id_ in {rows.get(w, w) for command in commands for w in all_writes(command)}:
        if id_ in read:
            values[id_].home = "persistent"
    return [Once(tuple(near_readers(commands, rows)))] if commands else []


def near_readers(commands: Sequence[Command], rows: Mapping[int, int]) -> list[Command]:
    """Return commands in an order in which what one makes is soon read: a scaled weight, then its packed
    copy, and not all scaled weights at once.
    """
    needs: list[set[int]] = []  # positions of the commands before which one cannot run
    writer: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    for k, command in enumerate(commands):
        reads = {rows.get(i, i) for i in all_reads(command)}
        writes = {rows.get(i, i) for i in all_writes(command)}
        after = {writer[i] for i in reads | writes if i in writer}
        needs.append(after | {j for i in writes for j in readers.get(i, ())})
        for i in reads:
            readers.setdefault(i, []).append(k)
        writer.update(dict.fromkeys(writes, k))
    needed = {j for before in needs for j in before}
    order: dict[int, Command] = {}
    for last in (k for k in range(len(commands)) if k not in needed):
        stack = [last]
        while stack:
            missing = [j for j in sorted(needs[stack[-1]], reverse=True) if j not in order]
            stack += missing
            if not missing:
                k = stack.pop()
                order.setdefault(k, commands[k])
    return list(order.values())
