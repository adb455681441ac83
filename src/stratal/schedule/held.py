"""What is the same in every turn of a loop: its constants, what kernels make of them alone, and the commands
that therefore run once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from stratal.base.artifact import Branch, Command, Launch, Loop, While, flat
from stratal.graph.graph import Graph
from stratal.graph.node import Const, Node
from stratal.graph.partition import Partition

FEW_TURNS = 4  # of a loop, which do not repay a copy before it


def made_of(held: frozenset[Node], graph: Graph, partition: Partition) -> frozenset[Node]:
    """Return held inputs with what kernels make of them and of constants alone."""
    if not held:
        return held
    found = set(held)
    for node in graph.nodes:
        group = partition.group_of.get(node)
        parts = [node] if group is None else group.members
        read = (i for part in parts for i in part.inputs if i not in parts)
        if node.inputs and not node.op.effects and all(i in found or isinstance(i.op, Const) for i in read):
            found.add(node)
    return frozenset(found)


def _written(command: Command) -> tuple[int, ...]:
    if isinstance(command, Loop):
        return (command.counter,)
    return () if isinstance(command, (While, Branch)) else command.writes


def hoisted(body: list[Command], varying: Sequence[int]) -> tuple[list[Command], list[Command]]:
    """Return what of a loop's body does the same in every turn, such as packing a weight, and the rest.

    `varying` are the values that differ from turn to turn or must be made in each.
    """
    writers = Counter(id_ for command in flat(tuple(body)) for id_ in _written(command))
    changing = {*varying, *writers}
    first: list[Command] = []
    rest: list[Command] = []
    for command in body:
        plain = isinstance(command, Launch) and bool(command.writes) and not command.may_fail
        once = plain and all(writers[w] == 1 and w not in varying for w in command.writes)  # type: ignore[union-attr]
        if once and changing.isdisjoint(command.reads):  # type: ignore[union-attr]
            first.append(command)
            changing.difference_update(command.writes)  # type: ignore[union-attr]
        else:
            rest.append(command)
    return first, rest
