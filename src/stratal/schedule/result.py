"""What scheduling a group returns: a kernel, its operands as graph values, and how it came about."""

from __future__ import annotations

from typing import NamedTuple

from stratal.graph.node import Node
from stratal.loops.stmt import Kernel


class Scheduled(NamedTuple):
    """A kernel over values. `in_place` lists (read, write) values that may share memory."""

    kernel: Kernel
    reads: tuple[Node, ...]
    writes: tuple[Node, ...]
    tactic: str
    steps: tuple[str, ...]
    in_place: tuple[tuple[Node, Node], ...]
    flops: float
