"""Products and windows on values whose sizes are known only at run time."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_letters

from stratal.base.dims import Sym, known_equal, upper_bound
from stratal.base.dtypes import bool_
from stratal.base.errors import ShapeError
from stratal.base.types import TensorType
from stratal.graph.node import Node, items
from stratal.ops.linear.contract import parse_spec
from stratal.ops.linear.window import lowest
from stratal.optimize.sized.table import rule
from stratal.optimize.sized.values import Factors, Sized, Sizes, capacities, plain


@rule("contract")
def contract(s: Sizes, node: Node, x: Sized, y: Sized) -> Sized:
    """Give every physical axis a letter of its own; where sums run, places that do not count become 0."""
    op = node.op
    spec = parse_spec(op.spec)  # type: ignore[attr-defined]
    held: dict[str, Factors] = dict(zip(spec.left, x.axes, strict=True))
    for letter, factors in zip(spec.right, y.axes, strict=True):
        held[letter] = max(held.get(letter, ()), factors, key=len)
    x, y = s.held(x, [held[c] for c in spec.left]), s.held(y, [held[c] for c in spec.right])
    summed = [
        s.masked(v, [k for k, c in enumerate(letters) if c in spec.contracted], 0)
        for v, letters in ((x, spec.left), (y, spec.right))
    ]
    unused = iter(ascii_letters)
    names = {c: "".join(next(unused) for _ in factors) for c, factors in held.items()}
    left, right, out = ("".join(names[c] for c in letters) for letters in (spec.left, spec.right, spec.out))
    attributes = op.attributes | {"spec": f"{left},{right}->{out}"}
    return Sized(s.b.op("contract", *summed, **attributes), tuple(held[c] for c in spec.out))


@rule("attention")
def attention(s: Sizes, node: Node, *operands: Sized) -> list[Sized]:
    """Keys that do not count are hidden, and zero, so that nothing comes of them but zeros."""
    q, k, v, *mask = (s.held(x, plain(old.aval)) for x, old in zip(operands, node.inputs, strict=True))
    last = len(q.axes) - 2
    zeroed = [s.masked(x, [last], 0) for x in (k, v)]
    made = s.b.op("attention", q.node, *zeroed, *_hidden(s, node, q, k, mask), **node.op.attributes)
    return [Sized(n, plain(old.aval)) for n, old in zip(items(made), items(node), strict=True)]


@rule("attention_grad")
def attention_grad(s: Sizes, node: Node, *operands: Sized) -> list[Sized]:
    """Queries that do not count are zero too, with all that is known of their rows."""
    held = [s.held(x, plain(old.aval)) for x, old in zip(operands, node.inputs, strict=True)]
    last = len(held[0].axes) - 2
    zeroed = [s.masked(x, [last], 0) for x in held[:6]]
    hidden = _hidden(s, node, held[0], held[1], held[6:])
    made = s.b.op("attention_grad", *zeroed, *hidden, **node.op.attributes)
    return [Sized(n, plain(old.aval)) for n, old in zip(items(made), items(node), strict=True)]


def _hidden(s: Sizes, node: Node, q: Sized, k: Sized, mask: Sequence[Sized]) -> list[Node]:
    """Return the mask of attention without keys that do not count; none where causality hides them."""
    last = len(q.axes) - 1
    keys = k.axes[last - 1]
    causal: bool = node.op.causal  # type: ignore[attr-defined]
    if not isinstance(keys[0], Sym) or (causal and known_equal(q.axes[last - 1][0], keys[0])):
        return [m.node for m in mask]
    shape = capacities((*q.flat[:last], *keys))
    inside = s.inside(Sized(s.b.full(TensorType(bool_, shape), True), (*q.axes[:last], keys)), [last])
    assert inside is not None
    return [s.b.op("and", mask[0].node, inside) if mask else inside]


def _spatial(s: Sizes, x: Sized, first: int, fill: object) -> Sized:
    """Return an image whose axes from `first` on are each held as one, with a value beyond their ends."""
    for k in range(first, len(x.axes)):
        x = s.prefix(x, k)
    return Sized(s.masked(x, range(first, len(x.axes)), fill), x.axes)


def _batch(s: Sizes, x: Sized, first: int) -> Sized:
    for k in range(first):
        x = s.prefix(x, k)
    return x


@rule("conv")
def conv(s: Sizes, node: Node, x: Sized, w: Sized) -> Sized:
    """An image is followed by zeros, as it would be by padding; windows beyond its end do not count."""
    x = _spatial(s, _batch(s, x, 2), 2, 0)
    w = _spatial(s, _batch(s, w, 2), 2, 0)
    if x.symbolic(1):
        x = Sized(s.masked(x, [1], 0), x.axes)
        w = Sized(s.masked(w, [1], 0), w.axes)
    return _windows(s, node, [x.node, w.node])


def _windows(s: Sizes, node: Node, nodes: list[Node]) -> Sized:
    """Apply an op of windows, with as much padding behind as gives all places there is room for."""
    axes = plain(node.aval)
    made = s.b.op(node.op.name, *nodes, **node.op.attributes)
    for k, n in enumerate(node.aval.shape):
        if made.shape[k] < upper_bound(n):
            raise ShapeError("sizes: the largest size has fewer windows than bounded", got=str(node.aval))
    return Sized(s.front(made, capacities(node.aval.shape)), axes)


@rule("window_reduce")
def window_reduce(s: Sizes, node: Node, x: Sized) -> Sized:
    """Behind an image stands what changes no window."""
    fill = node.op.identity(x.node.dtype)  # type: ignore[attr-defined]
    return _windows(s, node, [_spatial(s, x, 0, fill).node])


@rule("window_argmax")
def window_argmax(s: Sizes, node: Node, x: Sized) -> Sized:
    """Behind an image stands the least value, which no window prefers to what it has before."""
    return _windows(s, node, [_spatial(s, x, 0, lowest(x.node.dtype)).node])
