"""A part of a result, computed from parts of the operands: what nobody reads is not computed.

    y = f(norm(x) @ w)                           y = f(norm(x[:, -1:]) @ w)
    return y[:, -1:]                     ->      return y

From a slice towards the inputs, as far as ops run along the axes that are cut (`axes`) and nobody needs the
whole: what is read elsewhere, or by an op that reads all of it, stays.
"""

from __future__ import annotations

from collections.abc import Iterator

from stratal.graph.node import Node
from stratal.search.axes import Axes, Part, Parts, part_of
from stratal.search.found import Replaced, Step, distinct
from stratal.search.moves import Context


def pushed_slices(context: Context, axes: Axes) -> Iterator[tuple[Replaced, tuple[Step, ...]]]:
    """Yield, for each slice of what a run computes, the way to compute no more than it reads."""
    for node in reversed(context.graph.nodes):
        if node.op.name == "slice" and node not in context.frozen:
            pushed = _Pushed(node, context, axes)
            made = pushed.of(node.inputs[0], _parts(node))
            if pushed.less:
                yield {node: made}, distinct(pushed.steps)


def _parts(node: Node) -> Parts:
    op = node.op.attributes
    cuts = enumerate(zip(op["start"], op["stop"], op["step"], strict=True))
    return {k: cut for k, cut in cuts if cut != (0, node.inputs[0].shape[k], 1)}


class _Pushed:
    """Parts of the values that a slice needs, from parts of their operands."""

    def __init__(self, site: Node, context: Context, axes: Axes) -> None:
        self.context, self.axes = context, axes
        self.steps: list[Step] = []
        self.less = False  # whether an op that starts a kernel of its own has less to compute
        self._cut = self._nodes_cut(site)
        self._made: dict[object, Node] = {}

    def _nodes_cut(self, site: Node) -> dict[Node, Parts]:
        """Return the nodes of which all readers need the same parts alone, and these."""
        wanted: dict[Node, Parts] = {site.inputs[0]: _parts(site)}
        cut: dict[Node, Parts] = {}
        readers, pending = self.context.readers, 1
        for node in reversed(self.context.graph.nodes[: self.context.number[site]]):
            if not pending:
                break
            if node not in wanted:
                continue
            pending -= 1
            parts = wanted[node]
            whole = node in self.context.roots or any(r is not site and r not in cut for r in readers[node])
            below = None if whole or not parts else self._below(node, parts)
            if below is None:
                continue
            cut[node] = parts
            for operand, part in zip(node.inputs, below, strict=True):
                pending += operand not in wanted
                known = wanted.setdefault(operand, part)
                wanted[operand] = part if part == known else {}  # other parts for others: the whole
        return cut

    def _below(self, node: Node, parts: Parts) -> list[dict[int, Part]] | None:
        below = self.axes.parts_below(node, parts)
        return below if below is not None and self.axes.law(node, parts) is not None else None

    def of(self, node: Node, parts: Parts) -> Node:
        """Return parts of a value, computed from parts of its operands as far as that goes."""
        if not parts:
            return node
        key = node, tuple(sorted(parts.items()))
        if key not in self._made:
            self._made[key] = self._of(node, parts)
        return self._made[key]

    def _of(self, node: Node, parts: Parts) -> Node:
        cut = self._cut.get(node) == parts
        below = self._below(node, parts) if cut or self.context.moves(node) else None
        step = None if below is None else self.axes.law(node, parts)
        if below is None or step is None:
            return part_of(node, parts, node.where[:1])
        operands = [self.of(x, p) for x, p in zip(node.inputs, below, strict=True)]
        made = self.axes.on_operands(node, parts, operands)
        if made is None:
            return part_of(node, parts, node.where[:1])
        self.steps.append(step)
        self.less |= cut and not node.op.pointwise and not self.context.moves(node)
        return made
