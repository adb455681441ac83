"""Which values are tiles of scores, and whether what reads them are reductions alone."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, NamedTuple

from stratal.base.dtypes import float32
from stratal.graph.graph import Graph
from stratal.graph.node import Node
from stratal.ops.control.blockwise import product_of
from stratal.ops.families import Elementwise
from stratal.ops.linear.contract import parse_spec

FEWEST: Final = 16  # rows and columns below which a block is mostly empty
FEWEST_HEADS: Final = 2  # that are worth a pass in which each is one worker's
MOST_WIDTH: Final = 256  # of a product that is computed again
GROWTH: Final = 2  # times its operands that a product must have to be worth computing again
MOST_WORKER_BYTES: Final = 16 << 20  # of the operands that a worker lays out for itself
AXES: Final = "abcdefgh"  # of tiles, in specs
OWN: Final = "z"


class Scores(NamedTuple):
    """Tiles of one shape that follow from each other, and the reductions that read them."""

    shape: tuple[int, ...]
    tiles: frozenset[Node]
    sinks: list[Node]


class Connected:
    """Nodes in groups, of those that read each other (union-find)."""

    def __init__(self) -> None:
        self._next: dict[Node, Node] = {}  # towards the one that was added last, which leads to itself

    def __contains__(self, node: Node) -> bool:
        return node in self._next

    def add(self, node: Node, read: Iterable[Node] = ()) -> None:
        """Add a node to the groups of those that it reads, which are one group then."""
        self._next[node] = node
        for i in read:
            self._next[self.last(i)] = node

    def last(self, node: Node) -> Node:
        """Return the node that was added last to the group of a node."""
        following = self._next
        while following[node] is not node:
            following[node] = node = following[following[node]]
        return node

    def groups(self) -> dict[Node, list[Node]]:
        """Return the nodes of each group, by the last one."""
        found: dict[Node, list[Node]] = {}
        for node in self._next:
            found.setdefault(self.last(node), []).append(node)
        return found


def scores_of(graph: Graph, least: int) -> list[Scores]:
    """Return the connected tiles that nothing needs as a whole, where there is a reduction of rows among what
    reads them.
    """
    tiles = Connected()
    spoiled: set[Node] = set(graph.roots)
    sinks: dict[Node, Node] = {}  # to the tile it reduces
    for node in graph.nodes:
        read = [i for i in node.inputs if i in tiles]
        if _is_product(node, least) and not read:
            tiles.add(node)
        elif not read:
            continue
        elif follows(node) and all(i.shape == node.shape for i in read):
            tiles.add(node, read)
        elif len(read) == 1 and reduction(node, read[0]) is not None:
            sinks[node] = read[0]
        else:
            spoiled.update(read)
    wholes = {tiles.last(node) for node in spoiled if node in tiles}
    found: dict[Node, list[Node]] = {}
    for sink, tile in sinks.items():
        found.setdefault(tiles.last(tile), []).append(sink)
    return [
        Scores(last.aval.ints, frozenset(nodes), ends)
        for last, nodes in tiles.groups().items()
        if last not in wholes and _is_cascade(last.aval.ints, ends := found.get(last, []), sinks)
    ]


def _is_cascade(shape: tuple[int, ...], ends: list[Node], tile_of: dict[Node, Node]) -> bool:
    """Return whether rows are reduced to single values, as in a softmax, and threads find enough to do.

    What is summed over rows is made by one worker per head.
    """
    along = {(n.op.name, how.along) for n in ends if (how := reduction(n, tile_of[n])) is not None}
    over_rows = any(where == -2 for _, where in along)
    rows = {("sum", -1), ("reduce_max", -1)} & along
    return bool(rows) and (not over_rows or math.prod(shape[:-2]) >= FEWEST_HEADS)


def _is_product(node: Node, least: int) -> bool:
    """Return whether a node is a product large enough to be computed again rather than stored."""
    if node.op.name != "contract" or {node.dtype, *(i.dtype for i in node.inputs)} != {float32}:
        return False
    product = product_of(node)
    if product is None or node.aval.nbytes < least or node.aval.ndim > len(AXES):
        return False
    *_, rows, columns = node.aval.ints
    width = product.rows.width
    small = sum(i.aval.nbytes for i in node.inputs) * GROWTH <= node.aval.nbytes and width <= MOST_WIDTH
    return small and min(rows, columns) >= FEWEST and columns * width * 4 <= MOST_WORKER_BYTES


def follows(node: Node) -> bool:
    """Return whether an op goes element by element."""
    return isinstance(node.op, Elementwise) or node.op.name in ("select", "cast")


class Reduction(NamedTuple):
    """A reduction of a tile as one along columns (`along` is -1) or rows (-2), and what follows on it.

    One over tiles (0) is as it is.

    With `other` it is a product, with a value whose axes are `letters`. `rest` are axes of the result that
    are summed then; `order` is how what is left is laid out.
    """

    op: str
    along: int
    rest: tuple[int, ...]
    other: Node | None = None
    letters: str = ""
    order: tuple[int, ...] = ()


def reduction(node: Node, tile: Node) -> Reduction | None:
    """Return how a node reduces a tile, None where it does something else with it."""
    ndim, name = tile.aval.ndim, node.op.name
    if name not in ("sum", "reduce_max", "contract") or {node.dtype, tile.dtype} != {float32}:
        return None
    if name != "contract":
        axes = node.op.attributes["axes"]
        along = -1 if ndim - 1 in axes else -2 if ndim - 2 in axes else 0
        if along != -1 and name != "sum":
            return None
        if not along:
            return Reduction(name, along, ())
        return Reduction(name, along, tuple(a for a in axes if a != ndim + along))
    return _product_with(node, tile)


def _product_with(node: Node, tile: Node) -> Reduction | None:
    left = node.inputs[0] is tile
    other = node.inputs[1] if left else node.inputs[0]
    spec = parse_spec(node.op.attributes["spec"])
    of_tile, of_other = (spec.left, spec.right) if left else (spec.right, spec.left)
    row, column = of_tile[-2], of_tile[-1]
    own = [c for c in of_other if c not in of_tile]
    if other is tile or len(own) != 1 or (row in spec.contracted) == (column in spec.contracted):
        return None
    along, letter, kept = (-1, column, row) if column in spec.contracted else (-2, row, column)
    if kept in of_other or letter not in of_other or other.dtype is not float32:
        return None
    names = {c: AXES[k] for k, c in enumerate(of_tile)} | {own[0]: OWN}
    made = [c for c in of_tile if c != letter] + own
    left_over = [c for c in made if c in spec.out]
    rest = tuple(k for k, c in enumerate(made) if c not in spec.out)
    order = tuple(left_over.index(c) for c in spec.out)
    return Reduction("contract", along, rest, other, "".join(names[c] for c in of_other), order)
