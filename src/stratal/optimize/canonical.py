"""Algorithm choices made on the graph before fusion: rewrites that give the tactics what they are good at."""

from __future__ import annotations

import math
from collections.abc import Callable
from string import ascii_letters

from stratal.base.fallback import skippable, unchanged
from stratal.base.lowered import Lowered
from stratal.base.target import Target
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph
from stratal.graph.node import Node
from stratal.ops.linear.contract import Contract, parse_spec
from stratal.ops.linear.conv import Conv
from stratal.ops.reduce.reductions import Extreme, Sum
from stratal.ops.views.shapes import Permute
from stratal.optimize.asked import ConvolutionTactics
from stratal.optimize.in_reals import use_reals
from stratal.optimize.padding import Kind, kind_of, leaving_out, padded_twice, permuted
from stratal.optimize.phases import split_phases
from stratal.optimize.pieces import multiply_pieces
from stratal.optimize.ranges import use_ranges
from stratal.optimize.rewrite import cut, reshaped, rewrite_graph
from stratal.optimize.sorted_sums import sort_scatters


@skippable(unchanged)
def pad_convolutions(
    graph: Graph, lower_of: Callable[[Node], Lowered | None], target: Target, tactics: ConvolutionTactics
) -> Graph:
    """Make padding and dilation of a convolution's operand a value of its own, and inner loops plain.

        conv(x, w, padding=p, lhs_dilation=d)  ->  conv(pad(x, 0, p, d - 1), w)
        conv(permute(x), ...)                  ->  conv(permute(pad(x, ...)), w)

    The second is for gradients of filters: one padded copy of x is read in both directions. Its channels lie
    together, as the tiles of Winograd's algorithm need them; direct sums over images are slower that way.
    One copy serves images a program is given, too, where these lie with the batch innermost both times.
    Convolutions that leave out the products with padding read images as they are.
    """
    spared, twice = leaving_out(graph, lower_of, target), padded_twice(graph, target)
    return rewrite_graph(graph, lambda node: _pad_convolution(node, spared, twice, tactics))


def _pad_convolution(
    node: Node, spared: frozenset[Kind], twice: frozenset[Node], tactics: ConvolutionTactics
) -> tuple[str, Node] | None:
    if not isinstance(node.op, Conv) or kind_of(node) in spared:
        return None
    op = node.op.attributes
    padding, dilation = op["padding"], op["lhs_dilation"]
    if all(p == (0, 0) for p in padding) and all(d == 1 for d in dilation):
        return None
    if any(low < 0 or high < 0 for low, high in padding):
        return None
    x, w = node.inputs
    b = Builder(node.where)
    zero = b.const(0, x.dtype)
    low = (0, 0, *(p[0] for p in padding))
    high = (0, 0, *(p[1] for p in padding))
    interior = (0, 0, *(d - 1 for d in dilation))
    shown, perm = permuted(x)
    if (x is not shown and shown in twice) or (isinstance(x.op, Permute) and tactics.gradient_by_tiles(node)):
        place = {axis: k for k, axis in enumerate(perm)}
        moved = [tuple(values[place[axis]] for axis in range(len(perm))) for values in (low, high, interior)]
        padded = b.permute(b.pad(shown, zero, low=moved[0], high=moved[1], interior=moved[2]), perm=perm)
    else:
        padded = b.pad(x, zero, low=low, high=high, interior=interior)
    attributes = op | {"padding": tuple((0, 0) for _ in padding), "lhs_dilation": tuple(1 for _ in dilation)}
    return "pad-convolution", b.conv(padded, w, **attributes)


LONG = 1 << 16  # elements a reduction must have to be worth two kernels
FEW = 256  # results beyond which threads find enough to do without splitting
PARTS = 16


@skippable(unchanged)
def split_reductions(graph: Graph) -> Graph:
    """Reduce a large tensor to a few elements in two steps, the first with something for every thread to do.

        sum(x[n, c, h, w], axes=(0, 2, 3))  ->  sum(sum(x, axes=(2, 3)), axes=(0,))
        sum(x[m, n], axes=(0,))             ->  sum(sum(reshape(x, [16, m/16, n]), axes=(1,)), axes=(0,))

    Where the reduction is split depends on shapes alone, so equal graphs keep equal bits.
    """
    return rewrite_graph(graph, _split_reduction)


def _split_reduction(node: Node) -> tuple[str, Node] | None:
    if not isinstance(node.op, (Sum, Extreme)):
        return None
    (x,) = node.inputs
    axes = node.op.attributes["axes"]
    if not axes or math.prod(x.aval.ints) < LONG or math.prod(node.aval.ints) >= FEW:
        return None
    b, name = Builder(node.where), node.op.name
    first, rest = axes[0], axes[1:]
    if rest and x.shape[first] >= 2 and math.prod(node.aval.ints) * x.shape[first] < LONG:
        partial = b.op(name, x, axes=rest)
        place = first - sum(1 for a in rest if a < first)
        return "split-reduction", b.op(name, partial, axes=(place,))
    parts = next((p for p in range(PARTS, 3, -1) if x.shape[first] % p == 0), 0)
    rows = first == len(x.shape) - 1 > 0  # they are reduced one by one anyway
    if rest or not parts or x.shape[first] <= 2 * PARTS or rows:
        return None
    shape = (*x.shape[:first], parts, x.shape[first] // parts, *x.shape[first + 1 :])
    partial = b.op(name, b.reshape(x, shape=shape), axes=(first + 1,))
    return "split-reduction", b.op(name, partial, axes=(first,))


TALL = 1 << 12  # products an element of the result must be the sum of, to be summed in parts, and
SHORT = 1 << 9  # those of one part
SMALL = 1 << 14  # elements of a result that stays in the first cache next to its operands


@skippable(unchanged)
def split_products(graph: Graph) -> Graph:
    """Sum tall products in parts: there is something for every thread to do, and each part stays near.

        contract("km,kn->mn", x[k, m], y[k, n])
        ->  sum(contract("pkm,pkn->pmn", reshape(x, [16, k/16, m]), reshape(y, [16, k/16, n])), axes=(0,))

    The gradient of a small weight over many rows is such a product. What no number of parts divides leaves a
    rest, which is added last. Where it is split depends on shapes alone.
    """
    return rewrite_graph(graph, _split_product)


def _split_product(node: Node) -> tuple[str, Node] | None:
    if not isinstance(node.op, Contract) or node.dtype.compute is not node.dtype:
        return None
    s = parse_spec(node.op.attributes["spec"])
    letter = next((c for c in ascii_letters if c not in s.left + s.right), None)
    if s.batch or not s.contracted or not s.rows or not s.columns or letter is None:
        return None
    size = dict(zip(s.left + s.right, (n for i in node.inputs for n in i.aval.ints), strict=True))
    depth = math.prod(size[c] for c in s.contracted)
    if depth < TALL or math.prod(node.aval.ints) > SMALL:
        return None
    axis = s.contracted[0]
    b, dtype = Builder(node.where), node.op.attributes["dtype"]
    most = min(PARTS, depth // SHORT)
    parts = next((p for p in range(most, 3, -1) if size[axis] % p == 0), most)
    even = size[axis] // parts * parts
    if even < size[axis] < PARTS * PARTS:
        return None
    pairs = [(x, letters.index(axis)) for x, letters in zip(node.inputs, s[:2], strict=True)]
    x, y = (_in_parts(b, cut(b, x, k, 0, even), k, parts) for x, k in pairs)
    left, right = (letters.replace(axis, letter + axis) for letters in s[:2])
    total = b.sum(b.contract(x, y, spec=f"{left},{right}->{letter}{s.out}", dtype=dtype), axes=(0,))
    if even < size[axis]:
        rest = (cut(b, x, k, even, size[axis]) for x, k in pairs)
        total = b.add(total, b.contract(*rest, spec=node.op.attributes["spec"], dtype=dtype))
    return "split-product", total


def _in_parts(b: Builder, x: Node, axis: int, parts: int) -> Node:
    """Return an operand with one axis as two, the first over the parts."""
    shape = x.aval.ints
    return reshaped(b, x, (*shape[:axis], parts, shape[axis] // parts, *shape[axis + 1 :]))


@skippable(unchanged)
def choose_algorithms(
    graph: Graph, lower_of: Callable[[Node], Lowered | None], target: Target, tactics: ConvolutionTactics
) -> Graph:
    """Apply every choice of this file."""
    graph = use_reals(graph)
    convolved = pad_convolutions(split_phases(use_ranges(graph), tactics), lower_of, target, tactics)
    return split_reductions(split_products(multiply_pieces(sort_scatters(convolved))))
