"""Products too large to be stored, some rows at a time: a loop over blocks of rows, and sums over them all.

    logits = x W^T;  dlogits = f(logits, their maxima and sums)        [N, V], each block of rows by itself
    dx = dlogits W                                                     [N, D], a block of rows in each step
    dW = dlogits^T x                                                   [V, D], a sum that the loop carries

A *tile* is a product larger than its operands, or a value of about its size that is made of one. Where all
that reads tiles reduces them, and what they need of each other is found row by row, one loop computes loss
and gradients, and no product is made twice. Rows are proved to be independent by the index maps of ops, as
for micro-batches (`optimize/batch_parts`): a program that the proof does not reach keeps its tiles.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from stratal.base.log import decide
from stratal.base.lowered import Lowered
from stratal.base.types import TensorType
from stratal.graph.graph import Graph, inline, substitute
from stratal.graph.node import Const, Input, Node, graph_input, rebuild, topological
from stratal.loops.compute import Compute
from stratal.ops.linear.contract import parse_spec
from stratal.optimize.batch_parts import BatchParts, NotSplit
from stratal.optimize.micro_batches import in_parts
from stratal.optimize.online.picked import picked
from stratal.optimize.online.scores import GROWTH, Connected, follows
from stratal.optimize.rewrite import rewrite_graph, with_roots

FEWEST_ROWS: Final = 128  # of a block: below, sums over all rows are read and written too often
MOST_CARRIED: Final = 4  # times the bytes of products, that sums over rows may move: what stored ones move


class Region(NamedTuple):
    """Tiles, what they need of each other, and what reads them, as a graph of its own."""

    body: Graph
    operands: list[Node]
    results: list[Node]
    product: Node  # in the body
    tiles: list[Node]  # in the body


def in_row_blocks(graph: Graph, least: int) -> Graph:
    """Compute products of at least that many bytes in blocks of rows, wherever nothing needs them as a whole
    and a reduction of each row comes back to it.
    """
    before, repl = graph, dict[Node, Node]()
    graph = rewrite_graph(graph, picked)
    found = [_region(graph, tiles) for tiles in _connected(graph, least)]
    for region in _in_order([r for r in found if r is not None]):
        what, rows = f"products {list(region.product.shape)}", math.prod(region.product.aval.ints[:-1])
        try:
            count = _count(region.product, least)
            made = _by_rows(region, count)
        except NotSplit as refusal:
            decide("online", what, "stored", str(refusal))
            continue
        operands = substitute(region.operands, repl)
        repl |= zip(region.results, inline(made, operands), strict=True)
        decide(
            "online", what, f"{count} blocks of {rows // count} rows",
            "nothing needs them as a whole; sums over rows are added up block by block, as real arithmetic",
        )  # fmt: skip
    return with_roots(graph, substitute(graph.roots, repl)) if repl else before


def _in_order(regions: list[Region]) -> list[Region]:
    """Return regions after those whose results they read."""
    feeding = [set(topological(r.operands)) for r in regions]
    left, order = list(range(len(regions))), list[Region]()
    while left:
        waits = {k for k in left for n in left if n != k and not feeding[k].isdisjoint(regions[n].results)}
        first = next((k for k in left if k not in waits), left[0])
        left.remove(first)
        order.append(regions[first])
    return order


def _count(product: Node, least: int) -> int:
    """Return in how many equal parts a product is as small as its operands, or near. Raises: NotSplit."""
    first, rows = product.aval.ints[0], math.prod(product.aval.ints[:-1])
    most = max(least, *(i.aval.nbytes for i in product.inputs))
    equal = [n for n in range(2, min(first, rows // FEWEST_ROWS) + 1) if not first % n]
    if not equal:
        raise NotSplit(f"its {rows} rows have no equal parts of {FEWEST_ROWS} or more", product)
    return next((n for n in equal if product.aval.nbytes <= most * n), equal[-1])


def _connected(graph: Graph, least: int) -> list[list[Node]]:
    """Return tiles in groups: those that read each other."""
    tiles = Connected()
    for node in graph.nodes:
        read = [i for i in node.inputs if i in tiles]
        if _is_product(node, least) or (read and _is_tile(node, read)):
            tiles.add(node, read)
    return list(tiles.groups().values())


def _is_product(node: Node, least: int) -> bool:
    if node.op.name != "contract" or node.aval.ndim < 2 or node.aval.nbytes < least:
        return False
    return sum(i.aval.nbytes for i in node.inputs) * GROWTH <= node.aval.nbytes


def _is_tile(node: Node, read: Sequence[Node]) -> bool:
    """Return whether a reader of tiles is another: of about their size, and no reduction."""
    return node.op.name != "contract" and _is_large(node, max(math.prod(i.aval.ints) for i in read))


def _is_large(node: Node, size: int) -> bool:
    return isinstance(node.type, TensorType) and 2 * math.prod(node.aval.ints) >= size


def _region(graph: Graph, tiles: list[Node]) -> Region | None:
    """Return what is computed with tiles, None where they are needed as a whole or no reduction of theirs
    comes back to them.
    """
    inside = set(tiles)
    fed = _reached(graph.nodes, inside)
    sinks = [n for n in graph.nodes if n not in inside and any(i in inside for i in n.inputs)]
    comes_back = not inside.isdisjoint(topological([i for t in tiles for i in t.inputs if i in fed - inside]))
    feeding = set(topological([*tiles, *sinks]))
    between = [n for n in graph.nodes if n in fed and n in feeding and n not in inside]
    if not comes_back or any(n.op.name == "contract" and n not in sinks for n in between):
        return None
    inside |= {*between, *sinks}
    outer = {i for n in graph.nodes if n not in inside for i in n.inputs} | set(graph.roots)
    results = [n for n in graph.nodes if n in inside and n in outer]
    size = max(math.prod(t.aval.ints) for t in tiles)
    if any(n in tiles or _is_large(n, size) or not isinstance(n.type, TensorType) for n in results):
        return None
    inside |= _made_again(inside, size)
    members = [n for n in graph.nodes if n in inside]
    given: dict[tuple[Node, bool], Node] = {}
    new: dict[Node, Node] = {}
    for node in members:
        inputs = [
            new[x] if x in inside else given.setdefault((x, whole), graph_input(f"x{len(given)}", x.aval))
            for x, whole in zip(node.inputs, _whole(node, inside), strict=True)
        ]
        new[node] = rebuild(node, inputs)
    product = next(n for n in tiles if n.op.name == "contract")
    body = Graph(given.values(), [new[n] for n in results], name="rows")
    return Region(body, [x for x, _ in given], results, new[product], [new[n] for n in tiles])


def _whole(node: Node, inside: set[Node]) -> list[bool]:
    """Return which operands of a product all rows read: another one may read rows of the same value."""
    if node.op.name != "contract":
        return [False] * len(node.inputs)
    spec = parse_spec(node.op.attributes["spec"])
    sides = list(zip(node.inputs, (spec.left, spec.right), strict=True))
    row = next((letters for x, letters in sides if x in inside), spec.out)[0]
    return [row not in letters for _, letters in sides]


def _reached(nodes: Iterable[Node], start: set[Node]) -> set[Node]:
    found = set(start)
    for node in nodes:
        if any(i in found for i in node.inputs):
            found.add(node)
    return found


def _made_again(inside: set[Node], size: int) -> set[Node]:
    """Return what a region reads and can make: constants, and large values that follow from small ones."""
    found: set[Node] = set()
    stack = [i for n in inside for i in n.inputs]
    while stack:
        node = stack.pop()
        if node in inside or node in found or isinstance(node.op, Input):
            continue
        again = node.op.name == "broadcast" or follows(node)
        if node.op.name == "iota" or isinstance(node.op, Const) or (again and _is_large(node, size)):
            found.add(node)
            stack += node.inputs
    return found


def _by_rows(region: Region, count: int) -> Graph:
    """Return a region as a loop over equal parts of its rows. Raises: NotSplit."""
    spec = parse_spec(region.product.op.attributes["spec"])
    sides = zip(region.product.inputs, (spec.left, spec.right), strict=True)
    batch = [x for x, letters in sides if letters[0] == spec.out[0] and isinstance(x.op, Input)]
    if not batch:
        raise NotSplit("rows of a product are not those of an operand", region.product)
    while True:
        parts = BatchParts(region.body, batch, count, _lowered)
        more = dict.fromkeys(
            x
            for node, part in parts.parts.items()
            for k, axis in part.cuts.items()
            for x in _cut(node.inputs[k], axis)
            if x not in parts.batch
        )
        if not more:
            break
        batch += more
    whole = next((n for n in region.tiles if n not in parts.axis), None)
    if whole is not None:
        raise NotSplit(f"{whole.op.name} takes all rows", whole)
    carried = sum(n.aval.nbytes for n in parts.combined)
    products = sum(n.aval.nbytes for n in region.tiles if n.op.name == "contract")
    if 2 * count * carried > MOST_CARRIED * products:
        why = f"sums over rows, {carried} bytes, would be read and written {count} times"
        raise NotSplit(why, region.product)
    return in_parts(parts)


def _cut(node: Node, axis: int) -> list[Node]:
    """Return the inputs whose rows are those of a value along an axis."""
    if isinstance(node.op, Input):
        return [node] if axis == 0 else []
    if node.op.name == "broadcast":
        axes = node.op.attributes["axes"]
        return _cut(node.inputs[0], axes.index(axis)) if axis in axes else []
    if node.op.name == "reshape" and axis == 0 and node.inputs[0].aval.ndim:
        same = node.shape[0] == node.inputs[0].shape[0]
        return _cut(node.inputs[0], 0) if same else []
    return [x for i in node.inputs for x in _cut(i, axis)] if follows(node) else []


def _lowered(node: Node) -> Lowered | None:
    types = tuple(i.aval for i in node.inputs)
    if node.op.host_reason(*types):
        return None
    found = node.op.lower(*types)
    return found if isinstance(found, Compute) else None
