"""Ops that compute on elements, and along axes, on values whose sizes are known only at run time."""

from __future__ import annotations

from stratal.base.dims import Sym, product
from stratal.base.dtypes import DType, int64
from stratal.base.types import TensorType
from stratal.graph.node import Node
from stratal.graph.op import REGISTRY
from stratal.ops.families import Elementwise
from stratal.ops.linear.window import highest, lowest
from stratal.optimize.sized.table import RULES, rule
from stratal.optimize.sized.values import Sized, Sizes


def elementwise(s: Sizes, node: Node, *operands: Sized) -> Sized:
    """Hold all operands in the way the most divided one is held."""
    axes = tuple(max((x.axes[k] for x in operands), key=len) for k in range(node.aval.ndim))
    nodes = [s.held(x, axes).node for x in operands]
    return Sized(s.b.op(node.op.name, *nodes, **node.op.attributes), axes)


for _name, _record in REGISTRY.items():
    if issubclass(_record, Elementwise):
        RULES[_name] = elementwise
for _name in ("select", "cast", "bitcast", "stop_gradient", "barrier", "constrain", "exp_within"):
    RULES[_name] = elementwise


def identity(name: str, dtype: DType) -> object:
    """Return what changes nothing where an op, or a kind of scatter, combines elements."""
    if name in ("reduce_max", "argmax", "cummax", "max"):
        return lowest(dtype)
    if name in ("reduce_min", "argmin", "cummin", "min"):
        return highest(dtype)
    return {"prod": 1, "cumprod": 1, "mul": 1, "all": True}.get(name, 0)


@rule("sum", "prod", "reduce_max", "reduce_min", "any", "all")
def reduce(s: Sizes, node: Node, x: Sized) -> Sized:
    """Give places that do not count the value that changes nothing."""
    axes: tuple[int, ...] = node.op.axes  # type: ignore[attr-defined]
    masked = s.masked(x, axes, identity(node.op.name, x.node.dtype))
    places = tuple(p for k in axes for p in x.places(k))
    kept = tuple(f for k, f in enumerate(x.axes) if k not in axes)
    return Sized(s.b.op(node.op.name, masked, axes=places), kept)


@rule("argmax", "argmin")
def arg_extreme(s: Sizes, node: Node, x: Sized) -> Sized:
    """The first of equal elements wins, and those that count are the first."""
    axis: int = node.op.axis  # type: ignore[attr-defined]
    x = s.prefix(x, axis)
    masked = s.masked(x, [axis], identity(node.op.name, x.node.dtype))
    found = s.b.op(node.op.name, masked, axis=x.places(axis)[0])
    return Sized(found, tuple(f for k, f in enumerate(x.axes) if k != axis))


@rule("cumsum", "cumprod", "cummax", "cummin", "linear_recurrence")
def running(s: Sizes, node: Node, *operands: Sized) -> Sized:
    """From the front nothing changes; from the end the places that do not count must not."""
    axis: int = node.op.axis  # type: ignore[attr-defined]
    axes = tuple(max((x.axes[k] for x in operands), key=len) for k in range(node.aval.ndim))
    held = [s.prefix(s.held(x, axes), axis) for x in operands]
    nodes = [x.node for x in held]
    if node.op.reverse:  # type: ignore[attr-defined]
        nodes = [s.masked(x, [axis], identity(node.op.name, x.node.dtype)) for x in held]
    place = held[0].places(axis)[0]
    attributes = node.op.attributes | {"axis": place}
    return Sized(s.b.op(node.op.name, *nodes, **attributes), held[0].axes)


@rule("iota")
def iota(s: Sizes, node: Node) -> Sized:
    """Numbers count from the front."""
    op = node.op
    axes = tuple((n,) for n in node.aval.shape)
    shape = tuple(map(_room, node.aval.shape))
    return Sized(s.b.iota(shape=shape, axis=op.axis, dtype=op.dtype), axes)  # type: ignore[attr-defined]


@rule("random_bits")
def random_bits(s: Sizes, node: Node, keys: Sized, *indices: Sized) -> Sized:
    """Every element that counts draws at the index it has among those that count."""
    b, shape = s.b, node.op.shape  # type: ignore[attr-defined]
    axes = tuple((n,) for n in shape)
    room = tuple(map(_room, shape))
    if not all(len(f) == 1 for f in keys.axes):
        keys = s.held(keys, [(product(f),) for f in keys.axes])
    if indices:
        place = s.held(indices[0], axes).node
    else:
        place = b.full(TensorType(int64, room), 0)
        for k in range(len(shape)):
            index = b.iota(shape=room, axis=k, dtype=int64)
            stride = b.broadcast(s.count(product(shape[k + 1 :])), shape=room, axes=())
            place = b.add(place, b.mul(index, stride))
    made = b.op("random_bits", keys.node, place, shape=room, dtype=node.op.dtype)  # type: ignore[attr-defined]
    return Sized(made, (*keys.axes, *axes))


def _room(size: object) -> int:
    return size.range()[1] if isinstance(size, Sym) else size  # type: ignore[return-value]


@rule("size")
def size(s: Sizes, node: Node, x: Sized) -> Sized:
    """A number of the run."""
    return Sized(s.count(product(x.axes[node.op.axis])), ())  # type: ignore[attr-defined]
