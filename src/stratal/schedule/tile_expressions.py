"""Elements of the values of a region of tiles, where some of them are in blocks."""

from __future__ import annotations

from collections.abc import Sequence

from stratal.base.errors import VerifyError
from stratal.graph.node import Node
from stratal.graph.partition import Group
from stratal.loops.expr import Buffer, Expr, Load
from stratal.loops.rebuild import transform
from stratal.ops.control.blockwise import Operand
from stratal.schedule.expressions import GroupExpressions


class TileExpressions:
    """Elements of a region's values, as expressions of blocks in scratch and of operands in memory."""

    def __init__(self, x: GroupExpressions, node: Node) -> None:
        body = node.op.attributes["body"]
        inside = Group("blockwise", node, (), 0)
        inside.members[:] = [n for n in body.nodes if n not in body.inputs]
        arguments = {n: Buffer(f"a{k}", n.dtype, n.aval.ints) for k, n in enumerate(body.inputs)}
        self._outside = x
        self._operand = {arguments[n]: node.inputs[k] for k, n in enumerate(body.inputs)}
        self._given = dict(zip(body.inputs, node.inputs, strict=True))
        self._inner = GroupExpressions(inside, x.lower_of, arguments.__getitem__, lambda n: False)
        self._blocks: dict[Buffer, Buffer] = {}

    def hold(self, node: Node, block: Buffer) -> None:
        """Read a tile from a block from now on."""
        known = self._inner.local.get(node)
        if known is None:
            known = self._inner.local[node] = Buffer(f"t{len(self._blocks)}", node.dtype, node.aval.ints)
            self._inner.forget()
        self._blocks[known] = block

    def at(self, node: Node, where: tuple[Expr, ...], row: Expr, column: Expr) -> Expr:
        """Return a tile's element: `where` of the whole value, `row` and `column` of the block."""

        def outside(e: Expr) -> Expr | None:
            if not isinstance(e, Load):
                return None
            if e.buffer in self._blocks:
                if e.indices != where:
                    raise VerifyError("blockwise: a tile is read at another place than its own")
                return self._blocks[e.buffer][row, column]
            if e.buffer in self._operand:
                return self._outside.at(self._operand[e.buffer], e.indices)
            return None

        return transform([self._inner.at(node, where)], outside)[0]

    def operand(self, operand: Operand, head: Sequence[Expr], axis: Expr, own: Expr) -> Expr:
        """Return an element of one side of a product: `axis` is that of tiles, `own` its own."""
        last = len(head)
        where = tuple(own if k == -1 else axis if k >= last else head[k] for k in operand.axes)
        return self._outside.at(self._given[operand.node], where)
