"""Ops that compute on elements, and along axes, on values whose sizes are known only at run time."""

from __future__ import annotations

from collections.abc import Iterable

from stratal.base.dims import Sym, product
from stratal.base.dtypes import DType, int64
from stratal.base.errors import ShapeError
from stratal.base.types import TensorType
from stratal.graph.node import Node, items
from stratal.graph.op import REGISTRY, Op
from stratal.loops.compute import highest, lowest
from stratal.ops.families import Elementwise
from stratal.optimize.sized.values import RULES, Sized, Sizes, capacities, plain, rule


def elementwise(s: Sizes, node: Node, *operands: Sized) -> Sized:
    """Hold all operands in the way the most divided one is factored."""
    axes = tuple(max((x.axes[k] for x in operands), key=len) for k in range(node.aval.ndim))
    nodes = [s.factored(x, axes).node for x in operands]
    return Sized(s.b.op(node.op.name, *nodes, **node.op.attributes), axes)


for _name, _record in REGISTRY.items():
    if issubclass(_record, Elementwise):
        RULES[_name] = elementwise
for _name in (
    "select", "cast", "bitcast", "stop_gradient", "straight_through", "barrier", "constrain", "exp_within",
):  # fmt: skip
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
    """Fill positions outside the valid region with the identity of the reduction."""
    axes: tuple[int, ...] = node.op.axes  # type: ignore[attr-defined]
    masked = s.masked(x, axes, identity(node.op.name, x.node.dtype))
    physical_axes = tuple(p for k in axes for p in x.physical_axes(k))
    kept = tuple(f for k, f in enumerate(x.axes) if k not in axes)
    return Sized(s.b.op(node.op.name, masked, axes=physical_axes), kept)


@rule("argmax", "argmin")
def arg_extreme(s: Sizes, node: Node, x: Sized) -> Sized:
    """The first of equal elements wins, and the valid ones are the first."""
    axis: int = node.op.axis  # type: ignore[attr-defined]
    x = s.prefix(x, axis)
    masked = s.masked(x, [axis], identity(node.op.name, x.node.dtype))
    found = s.b.op(node.op.name, masked, axis=x.physical_axes(axis)[0])
    return Sized(found, tuple(f for k, f in enumerate(x.axes) if k != axis))


@rule("cumsum", "cumprod", "cummax", "cummin", "linear_recurrence")
def running(s: Sizes, node: Node, *operands: Sized) -> Sized:
    """From the front nothing changes; from the end the invalid positions must not."""
    axis: int = node.op.axis  # type: ignore[attr-defined]
    axes = tuple(max((x.axes[k] for x in operands), key=len) for k in range(node.aval.ndim))
    factored = [s.prefix(s.factored(x, axes), axis) for x in operands]
    nodes = [x.node for x in factored]
    if node.op.reverse:  # type: ignore[attr-defined]
        nodes = [s.masked(x, [axis], identity(node.op.name, x.node.dtype)) for x in factored]
    physical = factored[0].physical_axes(axis)[0]
    attributes = node.op.attributes | {"axis": physical}
    return Sized(s.b.op(node.op.name, *nodes, **attributes), factored[0].axes)


@rule("iota")
def iota(s: Sizes, node: Node) -> Sized:
    """Numbers count from the front."""
    op, shape = node.op, capacities(node.aval.shape)
    made = s.b.iota(shape=shape, axis=op.axis, dtype=op.dtype)  # type: ignore[attr-defined]
    return Sized(made, plain(node.aval))


@rule("random_bits")
def random_bits(s: Sizes, node: Node, keys: Sized, *indices: Sized) -> Sized:
    """Every valid element draws at the index it has among the valid ones."""
    b, shape = s.b, node.op.shape  # type: ignore[attr-defined]
    axes = tuple((n,) for n in shape)
    room = capacities(shape)
    if not all(len(f) == 1 for f in keys.axes):
        keys = s.factored(keys, [(product(f),) for f in keys.axes])
    if indices:
        position = s.factored(indices[0], axes).node
    else:
        position = b.full(TensorType(int64, room), 0)
        for k in range(len(shape)):
            index = b.iota(shape=room, axis=k, dtype=int64)
            stride = b.broadcast(s.count(product(shape[k + 1 :])), shape=room, axes=())
            position = b.add(position, b.mul(index, stride))
    made = b.op("random_bits", keys.node, position, shape=room, dtype=node.op.dtype)  # type: ignore[attr-defined]
    return Sized(made, (*keys.axes, *axes))


@rule("require")
def require(s: Sizes, node: Node, x: Sized, index: Sized) -> Sized:
    """What lies beyond the true sizes need not hold."""
    axes = tuple(max(p, q, key=len) for p, q in zip(x.axes, index.axes, strict=True))
    x, index = s.factored(x, axes), s.factored(index, axes)
    valid = s.masked(index, range(len(axes)), 0)
    return Sized(s.b.op("require", x.node, valid, **node.op.attributes), axes)


@rule("size")
def size(s: Sizes, node: Node, x: Sized) -> Sized:
    """A number of the run."""
    return Sized(s.count(product(x.axes[node.op.axis])), ())  # type: ignore[attr-defined]


@rule("sort", "sort_values", "top")
def ordered(s: Sizes, node: Node, x: Sized) -> list[Sized]:
    """Fill what is invalid with what comes last: valid elements stand in front, so of equal ones they come
    first.
    """
    attributes = node.op.attributes
    axis, dtype = attributes["axis"], x.node.dtype
    if isinstance(node.inputs[0].aval.shape[axis], Sym):
        greatest = float("nan") if dtype.is_float else highest(dtype)
        x = s.prefix(x, axis)
        x = Sized(s.masked(x, [axis], lowest(dtype) if attributes["descending"] else greatest), x.axes)
    made = items(s.b.op(node.op.name, x.node, **attributes | {"axis": x.physical_axes(axis)[0]}))
    length = (items(node)[0].aval.shape[axis],)
    return [Sized(m, tuple(length if k == axis else f for k, f in enumerate(x.axes))) for m in made]


@rule("fft", "rfft", "irfft", "window_gather", "window_scatter")
def by_rows(s: Sizes, node: Node, *operands: Sized) -> list[Sized]:
    """Do it to invalid rows, too. Raises: ShapeError for an unknown size along a row."""
    for t in (*(x.aval for x in node.inputs), *(r.aval for r in items(node))):
        if any(isinstance(t.shape[k], Sym) for k in _own_axes(node.op)):
            raise ShapeError(f"{node.op.name}: needs a known size along a row", got=str(t))
    nodes = [s.factored(x, plain(i.aval)).node for x, i in zip(operands, node.inputs, strict=True)]
    attributes = node.op.attributes
    room = {name: capacities(attributes[name]) for name in node.op.dim_attributes}
    made = items(s.b.op(node.op.name, *nodes, **attributes | room))
    return [Sized(m, plain(r.aval)) for m, r in zip(made, items(node), strict=True)]


def _own_axes(op: Op) -> Iterable[int]:
    """Return the axes along which elements of a row meet."""
    attributes = op.attributes
    if "window" not in attributes:
        axes: tuple[int, ...] = attributes["axes"] if "axes" in attributes else (attributes["axis"],)
        return axes
    geometry = zip(attributes["window"], attributes["strides"], attributes["padding"], strict=True)
    return [k for k, (window, stride, pads) in enumerate(geometry) if (window, stride, *pads) != (1, 1, 0, 0)]
