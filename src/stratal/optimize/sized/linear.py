"""Products and windows on values whose sizes are known only at run time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from string import ascii_letters

from stratal.base.dims import Dim, Sym, divides, known_equal
from stratal.base.dtypes import bool_
from stratal.base.errors import ShapeError
from stratal.base.types import TensorType
from stratal.graph.node import Node, items
from stratal.loops.compute import lowest
from stratal.ops.linear.contract import parse_spec
from stratal.optimize.sized.values import Factors, Sized, Sizes, capacities, no_rule, plain, rule

no_rule("its stages follow from the length", "dft")
no_rule(
    "a factorisation of what lies beyond the true size fails, or is part of the result",
    "cholesky", "det", "eig", "eigh", "lstsq", "lu", "matrix_exp", "pinv", "qr", "slogdet", "solve", "svd",
    "triangular_solve",
)  # fmt: skip


@rule("contract")
def contract(s: Sizes, node: Node, x: Sized, y: Sized) -> Sized:
    """Give every physical axis a letter of its own; where sums run, positions that are not valid become 0."""
    op = node.op
    spec = parse_spec(op.spec)  # type: ignore[attr-defined]
    factored: dict[str, Factors] = dict(zip(spec.left, x.axes, strict=True))
    for letter, factors in zip(spec.right, y.axes, strict=True):
        factored[letter] = max(factored.get(letter, ()), factors, key=len)
    x, y = s.factored(x, [factored[c] for c in spec.left]), s.factored(y, [factored[c] for c in spec.right])
    summed = [
        s.masked(v, [k for k, c in enumerate(letters) if c in spec.contracted], 0)
        for v, letters in ((x, spec.left), (y, spec.right))
    ]
    unused = iter(ascii_letters)
    names = {c: "".join(next(unused) for _ in factors) for c, factors in factored.items()}
    left, right, out = ("".join(names[c] for c in letters) for letters in (spec.left, spec.right, spec.out))
    attributes = op.attributes | {"spec": f"{left},{right}->{out}"}
    return Sized(s.b.op("contract", *summed, **attributes), tuple(factored[c] for c in spec.out))


@rule("attention")
def attention(s: Sizes, node: Node, *operands: Sized) -> list[Sized]:
    """Keys that are not valid are masked, and zero, so that nothing comes of them but zeros."""
    q, k, v, *mask = (s.factored(x, plain(old.aval)) for x, old in zip(operands, node.inputs, strict=True))
    features = len(q.axes) - 1
    summed = ((q, [features]), (k, [features - 1, features]), (v, [features - 1]))
    zeroed = [s.masked(x, axes, 0) for x, axes in summed]
    made = s.b.op("attention", *zeroed, *_hidden(s, node, q, k, mask), **node.op.attributes)
    return [Sized(n, plain(old.aval)) for n, old in zip(items(made), items(node), strict=True)]


@rule("attention_grad")
def attention_grad(s: Sizes, node: Node, *operands: Sized) -> list[Sized]:
    """Queries that are not valid are zero too, with all that is known of their rows."""
    factored = [s.factored(x, plain(old.aval)) for x, old in zip(operands, node.inputs, strict=True)]
    last = len(factored[0].axes) - 2  # of queries or keys; features after it, except in statistics of rows
    zeroed = [s.masked(x, range(last, len(x.axes)), 0) for x in factored[:6]]
    hidden = _hidden(s, node, factored[0], factored[1], factored[6:])
    made = s.b.op("attention_grad", *zeroed, *hidden, **node.op.attributes)
    return [Sized(n, plain(old.aval)) for n, old in zip(items(made), items(node), strict=True)]


def _hidden(s: Sizes, node: Node, q: Sized, k: Sized, mask: Sequence[Sized]) -> list[Node]:
    """Return the mask of attention without invalid keys; none where causality hides them."""
    last = len(q.axes) - 1
    keys = k.axes[last - 1]
    causal: bool = node.op.causal  # type: ignore[attr-defined]
    if not isinstance(keys[0], Sym) or (causal and known_equal(q.axes[last - 1][0], keys[0])):
        return [m.node for m in mask]
    shape = capacities((*q.flat[:last], *keys))
    inside = s.inside(Sized(s.b.full(TensorType(bool_, shape), True), (*q.axes[:last], keys)), [last])
    assert inside is not None
    return [s.b.op("and", mask[0].node, inside) if mask else inside]


@rule("conv")
def conv(s: Sizes, node: Node, x: Sized, w: Sized) -> Sized:
    """An image is followed by zeros, as it would be by padding; windows beyond its end are not valid.

    Which group a channel is of follows from its number, so channels are factored as groups times their own.
    """
    groups: int = node.op.groups  # type: ignore[attr-defined]
    image, (filters, inputs, *window) = node.inputs[0].aval, node.inputs[1].aval.shape
    if not divides(groups, filters):
        raise ShapeError("conv: groups of an unknown number of filters", got=f"{filters} in {groups} groups")
    channels, outputs = _grouped(groups, inputs), _grouped(groups, filters // groups)
    x = s.factored(x, ((image.shape[0],), channels, *plain(image)[2:]))
    w = s.factored(w, (outputs, (inputs,), *((n,) for n in window)))
    counted = []
    for v in (x, w):  # with one axis for each of the value's
        shape = (math.prod(capacities(f)) for f in v.axes)
        counted.append(s.shaped(s.masked(v, range(1, image.ndim), 0), shape))
    made = _windows(s, node, counted, 2)
    axes = ((image.shape[0],), outputs, *plain(node.aval)[2:])
    return Sized(s.shaped(made, (n for f in axes for n in f)), axes)


def _grouped(groups: int, size: Dim) -> Factors:
    return (groups, size) if groups > 1 and isinstance(size, Sym) else (groups * size,)


def _windows(s: Sizes, node: Node, operands: Sequence[Node], first: int = 0) -> Node:
    """Apply an op of windows, and cut each axis from `first` on to the windows of the largest size.

    Raises: ShapeError where those are fewer than the bound of their number, which is known less exactly.
    """
    made: Node = s.b.op(node.op.name, *operands, **node.op.attributes)
    room = (*made.shape[:first], *capacities(node.aval.shape[first:]))
    if any(have < wanted for have, wanted in zip(made.shape, room, strict=True)):
        raise ShapeError("sizes: the largest size has fewer windows than bounded", got=str(node.aval))
    return s.front(made, room)


@rule("window_reduce")
def window_reduce(s: Sizes, node: Node, x: Sized) -> Sized:
    """Behind an image stands what changes no window."""
    return _pooled(s, node, x, node.op.identity(x.node.dtype))  # type: ignore[attr-defined]


@rule("window_argmax")
def window_argmax(s: Sizes, node: Node, x: Sized) -> Sized:
    """Behind an image stands the least value, which no window prefers to what it has before."""
    return _pooled(s, node, x, lowest(x.node.dtype))


def _pooled(s: Sizes, node: Node, x: Sized, fill: object) -> Sized:
    x = s.factored(x, plain(node.inputs[0].aval))
    return Sized(_windows(s, node, [s.masked(x, range(len(x.axes)), fill)]), plain(node.aval))
