"""Partitions: which nodes of a graph run together as one kernel, and which values are stored.

    Partition := groups in execution order, the group of each node, the values kept in memory
    Group     := kind, members in order, iteration space
Kinds: `pointwise` (one loop nest, several outputs), `rows` (element-wise stages and reductions over trailing
axes), `columns` (reductions over other axes and what follows on the kept ones), `contract` (a sum of products
and its epilogue), `body` (loops the record wrote), `bytes` (an operand under another type: nothing runs),
`host` (the reference runs), `region` (control flow), `alias` (a result that is an input or a constant: a
copy).
"""

from __future__ import annotations

from typing import Final, final

from stratal.base.dims import Shape
from stratal.graph.node import Node


@final
class Group:
    """Nodes that run as one kernel. `members` are in execution order and never include views."""

    __slots__ = ("kind", "members", "num_rows", "position", "reduced", "space", "why")

    def __init__(self, kind: str, node: Node, space: Shape, position: int) -> None:
        self.kind = kind
        self.members: Final = [node]
        self.space = space  # shape every element-wise member iterates over
        self.num_rows = 0  # for `rows`: leading axes of the space that reductions keep
        self.reduced: tuple[int, ...] = ()  # for `columns`: axes of the space that are reduced
        self.position = position
        self.why = ""

    def __repr__(self) -> str:
        return f"<{self.kind} {'+'.join(m.op.name for m in self.members)}>"


@final
class Partition:
    """The result of fusion.

    `stored` values have a buffer of their own; every other member is computed where it is read.
    """

    __slots__ = ("group_of", "groups", "stored")

    def __init__(self, groups: list[Group], group_of: dict[Node, Group], stored: dict[Node, None]) -> None:
        self.groups: Final = groups
        self.group_of: Final = group_of
        self.stored: Final = stored

    def __str__(self) -> str:
        return "\n".join(f"{k:4} {g!r}" for k, g in enumerate(self.groups))
