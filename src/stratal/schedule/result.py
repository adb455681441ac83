"""What scheduling a group returns: a kernel, its operands as graph values, and how it came about."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import NamedTuple, Union

from stratal.graph.node import Node
from stratal.loops.compute import Stage
from stratal.loops.expr import Buffer
from stratal.loops.stmt import Kernel, Stmt, stored
from stratal.schedule.expressions import GroupExpressions

Operand = Union[Node, Buffer]  # a graph value, or a workspace that a packing kernel fills


class Pack(NamedTuple):
    """A kernel that runs first and fills a workspace, such as a copy of an operand in the order its reader
    wants.
    """

    workspace: Buffer
    body: Stmt
    steps: tuple[str, ...]
    local: tuple[Buffer, ...] = ()
    name: str = "pack"


class Scheduled(NamedTuple):
    """A kernel over values.

    `in_place` lists (read, write) values that may share memory; `before` are kernels to run first.
    """

    kernel: Kernel
    reads: tuple[Operand, ...]
    writes: tuple[Operand, ...]
    tactic: str
    steps: tuple[str, ...]
    in_place: tuple[tuple[Node, Node], ...] = ()
    before: tuple[Scheduled, ...] = ()


class Tactic(NamedTuple):
    """What a tactic returns: the scheduled body, its temporaries, its name and steps, pairs that may share
    memory, packing.
    """

    body: Stmt
    local: tuple[Buffer, ...]
    name: str
    steps: tuple[str, ...]
    in_place: tuple[tuple[Buffer, Buffer], ...] = ()
    packs: tuple[Pack, ...] = ()


def named_by_content(
    reads: Sequence[Buffer], writes: Sequence[Buffer], body: Stmt, local: Sequence[Buffer] = ()
) -> Kernel:
    """Return a kernel named by its text, so that equal kernels have one compiled form."""
    draft = Kernel("k", reads, writes, body, local)
    name = "k_" + hashlib.sha256(str(draft).encode()).hexdigest()[:24]
    return Kernel(name, reads, writes, body, local)


def of_stages(found: object, name: str, change: Callable[[Stmt], Stmt]) -> Tactic:
    """Return the kernel, or one per stage, of what a loop body's `build` returned, each body changed."""
    stages = found if isinstance(found, list) else [Stage(found)]
    *first, (last, local) = ((change(s.body), s.local) for s in stages)  # type: ignore[arg-type]
    packs = tuple(Pack(stored(body)[0], body, (), own, name) for body, own in first)
    return Tactic(last, local, name, (), packs=packs)


class Candidate(NamedTuple):
    """One way to make a kernel of a group: an algorithm and its parameters.

    `seconds` is what it should take on one core, from sizes and the target's description alone; `operations`
    the arithmetic of its products, a multiply-add counted as two: algorithms differ in it. Algorithm and
    parameters say all: `tactics.candidate_of` makes the candidate again from them.
    """

    algorithm: str
    seconds: float
    make: Callable[[GroupExpressions], Tactic]
    parameters: tuple[tuple[str, int], ...] = ()
    operations: float = 0.0

    def __str__(self) -> str:
        return f"{self.algorithm}({', '.join(f'{k}={v}' for k, v in self.parameters)})"
