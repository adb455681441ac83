"""Child-sum tree-LSTM: the state of a node is made of the sum of its children's, with a gate for each child.

A tree runs node by node (`TreeLSTM.forward` of a `Tree`), which follows any shape and is new Python each
time. Many trees run level by level, from the deepest to the roots (of `Levels`): a scan, one program for
trees of all shapes. See: Tai, Socher and Manning 2015, equations 2 to 8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from stratal import nn
from stratal.base.errors import ShapeError
from stratal.tensor.api.explained import explained
from stratal.tensor.functions.creation import zeros
from stratal.tensor.functions.indexing import index_add, take
from stratal.tensor.functions.shapes import concat
from stratal.tensor.tensor import Tensor, tensor
from stratal.tensor.transformations.control import scan

F = nn.functional


@dataclass(frozen=True)
class Tree:
    """A node with a token and any number of children."""

    token: int
    children: tuple[Tree, ...] = ()


class Levels(NamedTuple):
    """Trees by distance from the root, D levels of W places, all int64.

    `tokens` [D, W], 0 where no node stands. `owners` [D, W]: for each place of the level below, the place in
    this level whose child stands there; W for none. `roots` [R]: the places of the roots in level 0.
    """

    tokens: Tensor
    owners: Tensor
    roots: Tensor


@explained
def levels_of(trees: Sequence[Tree]) -> Levels:
    """Return trees side by side, level by level. Raises: ShapeError where there are none."""
    if not trees:
        raise ShapeError("levels_of: takes at least one tree", got="none")
    tokens: list[list[int]] = []
    owners: list[list[int]] = []
    level = list(trees)
    while level:
        tokens.append([node.token for node in level])
        owners.append([place for place, node in enumerate(level) for _ in node.children])
        level = [child for node in level for child in node.children]
    width = max(map(len, tokens))

    def table(rows: list[list[int]], fill: int) -> Tensor:
        filled = np.full((len(rows), width), fill, np.int64)
        for k, row in enumerate(rows):
            filled[k, : len(row)] = row
        return tensor(filled)

    return Levels(table(tokens, 0), table(owners, width), tensor(np.arange(len(trees))))


class ChildSumTreeLSTM(nn.Module):
    """The cell: inputs x [N, in_dim] and states of children to states h, c [N, mem_dim].

    State dicts are those of the usual PyTorch form: ioux, iouh, fx, fh.
    """

    def __init__(self, in_dim: int, mem_dim: int) -> None:
        super().__init__()
        self.in_dim, self.mem_dim = in_dim, mem_dim
        self.ioux, self.iouh = nn.Linear(in_dim, 3 * mem_dim), nn.Linear(mem_dim, 3 * mem_dim)
        self.fx, self.fh = nn.Linear(in_dim, mem_dim), nn.Linear(mem_dim, mem_dim)

    def forward(
        self, iou: Tensor, f: Tensor, child_h: Tensor, child_c: Tensor, owner: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return h and c of N nodes.

        Shapes: iou [N, 3 * mem_dim] and f [N, mem_dim], what inputs give to the gates (`gates`), child_h and
        child_c [K, mem_dim], owner [K]: which node each child belongs to, N for none.
        """
        nodes = iou.shape[0]
        nothing = zeros((nodes + 1, self.mem_dim), dtype=iou.dtype)  # the last row takes what belongs to none
        gates = iou + self.iouh(index_add(nothing, 0, owner, child_h)[:nodes])
        i, o, u = (gates[:, k * self.mem_dim : (k + 1) * self.mem_dim] for k in range(3))
        of_owner = take(concat([f, nothing[:1]]), owner, axis=0)
        kept = index_add(nothing, 0, owner, F.sigmoid(of_owner + self.fh(child_h)) * child_c)[:nodes]
        c = F.sigmoid(i) * F.tanh(u) + kept
        return F.sigmoid(o) * F.tanh(c), c

    def gates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return what inputs [..., in_dim] give to the gates of a node, and to those of its children."""
        return self.ioux(x), self.fx(x)


class TreeLSTM(nn.Module):
    """Classes of trees of tokens, by the state of their root.

    Shapes: a Tree -> [num_classes]; Levels of R trees -> [R, num_classes].
    """

    def __init__(self, vocab_size: int, in_dim: int, mem_dim: int, num_classes: int) -> None:
        super().__init__()
        self.emb = nn.Embedding(vocab_size, in_dim)
        self.childsumtreelstm = ChildSumTreeLSTM(in_dim, mem_dim)
        self.out = nn.Linear(mem_dim, num_classes)

    def forward(self, trees: Tree | Levels) -> Tensor:
        if isinstance(trees, Tree):
            return self.out(self.node(trees)[0])[0]
        return self.out(self.levels(trees))

    def node(self, tree: Tree) -> tuple[Tensor, Tensor]:
        """Return the states h and c of a tree's root, [1, mem_dim]; its children's come first."""
        cell = self.childsumtreelstm
        states = [self.node(child) for child in tree.children]
        iou, f = cell.gates(self.emb(tensor([tree.token])))
        if not states:
            none = zeros((0, cell.mem_dim), dtype=iou.dtype)
            return cell(iou, f, none, none, tensor(np.zeros(0, np.int64)))
        h, c = (concat(parts) for parts in zip(*states, strict=True))
        return cell(iou, f, h, c, tensor(np.zeros(len(states), np.int64)))

    def levels(self, trees: Levels) -> Tensor:
        """Return the states h of the roots, [R, mem_dim]."""
        cell = self.childsumtreelstm
        iou, f = cell.gates(self.emb(trees.tokens))

        def step(below: tuple[Tensor, Tensor], row: tuple[Tensor, ...]) -> tuple[tuple[Tensor, Tensor], None]:
            return cell(row[0], row[1], *below, row[2]), None

        empty = zeros((trees.tokens.shape[1], cell.mem_dim), dtype=iou.dtype)
        (h, _), _ = scan(step, (empty, empty), (iou, f, trees.owners), reverse=True)
        return take(h, trees.roots, axis=0)


__all__ = ["ChildSumTreeLSTM", "Levels", "Tree", "TreeLSTM", "levels_of"]
