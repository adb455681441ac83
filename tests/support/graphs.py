"""Random graphs for differential tests: the same seed gives the same graph and inputs, on every machine.

    graph, inputs = random_graph(seed)
    assert not disagreements(graph, inputs, got, want)

Every value is computed while the graph grows, and a step whose result is not finite or is large is taken
back. So two correct implementations agree closely: nothing here turns a last-bit difference into a large one.
What jumps (comparisons, floor, argmax, casts to integers, sort) reads only values that are the same to the
bit in any correct implementation: inputs, views, integers, random bits and correctly rounded arithmetic on
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

import stratal.ops  # noqa: F401  fills the registry
from stratal.autodiff import vjp
from stratal.base.dtypes import (
    DType,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int32,
    int64,
    uint8,
    uint32,
    uint64,
)  # fmt: skip
from stratal.base.errors import StratalError
from stratal.base.types import TensorType, TupleType
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph
from stratal.graph.interpret import apply, interpret
from stratal.graph.node import Const, Item, Node, graph_input, items, topological

Array = np.ndarray[Any, Any]

FLOATS = (float32, float32, float32, float32, float64, float64, float16, bfloat16)
OTHERS = (int32, int64, uint8, bool_)
SIZES = (1, 2, 3, 4, 5, 7, 8, 16, 17, 33)
LARGE = {float16: 60.0, bfloat16: 60.0, float32: 1e3, float64: 1e4}
_NAMES = """
    add sub mul div neg abs max min sqrt select cast and or xor not floor round sign shl shr eq ne lt le gt ge
    reshape permute broadcast slice pad flip concatenate iota random_bits gather
    reduce_max reduce_min any all argmax argmin sort cummax stop_gradient barrier item
"""
ROUNDED = frozenset(_NAMES.split())  # correctly rounded or exact: the same bits everywhere


def random_graph(seed: int, floats: Sequence[DType] = FLOATS) -> tuple[Graph, list[Array]]:
    """Return a graph, mostly of 5 to 70 ops, and inputs for it. About one in eight contains its own gradient.

    `floats` are the float dtypes to draw from; each counts as often as it is named.
    """
    rng = np.random.default_rng(seed)
    maker = _Maker(rng, floats)
    for _ in range(rng.integers(2, 6)):
        maker.add_input()
    maker.grow(int(rng.integers(5, 32)), STEPS)
    outputs = maker.choose_outputs()
    if rng.random() < 0.125:
        outputs += maker.gradients(outputs)
    updates = maker.choose_updates()
    return Graph(maker.inputs, outputs, updates, f"random{seed}"), maker.arrays


RTOL = {float16: 2e-2, bfloat16: 1e-1, float32: 2e-5, float64: 1e-11}


def count_nodes(graph: Graph) -> int:
    """Return how many ops a graph runs, regions included; inputs, constants and items do not count."""
    total = 0
    for node in graph.nodes:
        total += bool(node.inputs) and not isinstance(node.op, Item)
        total += sum(count_nodes(v) for v in node.op.attributes.values() if isinstance(v, Graph))
    return total


def disagreements(
    graph: Graph, inputs: Sequence[Array], got: Sequence[Array], want: Sequence[Array]
) -> list[int]:
    """Return which results (outputs, then new states) differ by more than rounding.

    A result errs by the precision of the coarsest dtype on the way to it, in proportion to the largest value
    there.
    """
    scale = magnitude(graph, inputs)
    return [
        k
        for k, (root, a, b) in enumerate(zip(graph.roots, got, want, strict=True))
        if a.dtype != b.dtype or a.shape != b.shape or not _close(a, b, _precision(root), scale)
    ]


def _close(a: Array, b: Array, rtol: float, scale: float) -> bool:
    if a.dtype.kind in "iub":
        return np.array_equal(a, b)
    return np.allclose(a.astype(np.float64), b.astype(np.float64), rtol=rtol, atol=rtol * scale)


def _precision(root: Node) -> float:
    types = [t for n in topological([root]) for t in getattr(n.type, "elements", (n.type,))]
    return max((RTOL[t.dtype] for t in types if t.dtype.is_float), default=0.0)


def magnitude(graph: Graph, inputs: Sequence[Array]) -> float:
    """Return the largest absolute value a graph computes on the way, at least 1."""
    nodes = [n for n in graph.nodes if not isinstance(n.type, TupleType) and n.dtype.is_float]
    values, _ = interpret(Graph(graph.inputs, nodes), inputs)
    return max([1.0, *(float(np.max(np.abs(v.astype(np.float64)), initial=0.0)) for v in values if v.size)])


class _Skip(Exception):
    """The step does not fit what there is; try another."""


class _Value(NamedTuple):
    node: Node
    array: Array
    exact: bool


class _Maker:
    """A graph that grows: its values so far, with what they are for the inputs at hand."""

    def __init__(self, rng: np.random.Generator, floats: Sequence[DType]) -> None:
        self.rng, self.floats = rng, floats
        self.b = Builder()
        self.inputs: list[Node] = []
        self.arrays: list[Array] = []
        self.values: list[_Value] = []
        self.known: dict[Node, _Value] = {}

    # -- drawing -------------------------------------------------------------------------------------------
    def one_of(self, options: Sequence[Any]) -> Any:
        if not len(options):
            raise _Skip
        return options[int(self.rng.integers(len(options)))]

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def shape(self) -> tuple[int, ...]:
        ndim = int(self.rng.choice([0, 1, 1, 2, 2, 2, 3, 3, 4]))
        sizes = [int(self.one_of(SIZES)) for _ in range(ndim)]
        while np.prod(sizes, dtype=int) > 4000:
            sizes[int(np.argmax(sizes))] = 2
        if sizes and self.chance(0.02):
            sizes[int(self.rng.integers(ndim))] = 0
        return tuple(sizes)

    def draw(self, type_: TensorType) -> Array:
        shape, dtype = type_.ints, type_.dtype
        if dtype.is_bool:
            return np.asarray(self.rng.random(shape) < 0.5)
        if dtype.is_integer:
            low = 0 if dtype.kind == "u" else -9
            return np.asarray(self.rng.integers(low, 10, shape)).astype(dtype.np)
        return np.asarray(self.rng.uniform(-2, 2, shape)).astype(dtype.np)

    def add_input(self, type_: TensorType | None = None, array: Array | None = None) -> Node:
        if type_ is None:
            dtype = self.one_of(self.floats) if self.chance(0.7) or not self.inputs else self.one_of(OTHERS)
            type_ = TensorType(dtype, self.shape())
        node = graph_input(f"x{len(self.inputs)}", type_)
        self.inputs.append(node)
        self.arrays.append(self.draw(type_) if array is None else array)
        self.remember(_Value(node, self.arrays[-1], True))
        return node

    # -- values --------------------------------------------------------------------------------------------
    def remember(self, value: _Value) -> None:
        self.values.append(value)
        self.known[value.node] = value

    def pick(
        self,
        kinds: str = "f",
        *,
        exact: bool = False,
        ndim: int = 0,
        where: Callable[..., bool] | None = None,
    ) -> Node:
        """Return a value of a kind of dtype, later ones more often."""
        fits = [
            v.node
            for v in self.values
            if v.node.dtype.kind in kinds and v.node.aval.ndim >= ndim and (v.exact or not exact)
            and (where is None or where(v.node))
        ]  # fmt: skip
        if fits and self.chance(0.6):
            fits = fits[-4:]
        return self.one_of(fits)

    def like(self, node: Node) -> Node:
        """Return another value of the node's type: one there is, one broadcast to it, or a constant."""
        same = [v.node for v in self.values if v.node.type == node.type]
        if same and self.chance(0.6):
            return self.one_of(same)
        small = [
            v.node for v in self.values if v.node.dtype is node.dtype and _stretches(v.node.shape, node.shape)
        ]
        if small and self.chance(0.8):
            return self.stretched(self.one_of(small), node.shape)
        if self.chance(0.5) or not node.aval.ndim:
            return self.b.like(node, self.draw(TensorType(node.dtype)))
        axis = int(self.rng.integers(node.aval.ndim))
        row = self.b.const(self.draw(TensorType(node.dtype, (node.shape[axis],))))
        return self.b.broadcast(row, shape=node.shape, axes=(axis,))

    def stretched(self, node: Node, shape: Sequence[int]) -> Node:
        """Broadcast to a shape by NumPy's rule."""
        first = len(shape) - node.aval.ndim
        return self.b.broadcast(node, shape=tuple(shape), axes=tuple(range(first, len(shape))))

    def admit(self, nodes: Iterable[Node]) -> None:
        """Compute new nodes and keep them, unless one is not finite or too large."""
        found: dict[Node, _Value] = {}
        for root in nodes:
            for node in topological([root], stop=lambda n: n in self.known or n in found):
                if node not in self.known and node not in found:
                    found[node] = self.compute(node, found)
        self.known |= found
        self.values += [found[n] for n in nodes if n in found]

    def compute(self, node: Node, found: dict[Node, _Value]) -> _Value:
        operands = [found[i] if i in found else self.known[i] for i in node.inputs]
        if node.op.name == "item":
            array: Any = operands[0].array[node.op.index]
        else:
            array = apply(node.op, *(v.array for v in operands))
        exact = isinstance(node.op, Const) or (node.op.name in ROUNDED and all(v.exact for v in operands))
        for part in array if isinstance(array, tuple) else (array,):
            self.check(part)
        return _Value(node, array, exact)

    def check(self, array: Array) -> None:
        if array.dtype.kind in "iub" or not array.size:
            return
        values = np.abs(array) if array.dtype.kind == "c" else np.abs(array.astype(np.float64))
        limit = next((most for dtype, most in LARGE.items() if dtype.np == array.dtype), 1e3)
        if not np.all(values <= limit):
            raise _Skip
        if array.size > 20_000:
            raise _Skip

    def grow(self, count: int, steps: Sequence[tuple[float, Callable[..., Any]]]) -> None:
        weights = np.array([w for w, _ in steps])
        for _ in range(count):
            for _ in range(20):
                step = steps[int(self.rng.choice(len(steps), p=weights / weights.sum()))][1]
                try:
                    made = step(self)
                    self.admit([made] if isinstance(made, Node) else list(made))
                except _Skip:
                    continue
                break

    # -- ends ----------------------------------------------------------------------------------------------
    def choose_outputs(self) -> list[Node]:
        """Return some values nobody reads and some that others read too."""
        read = {i for n in self.known for i in n.inputs}
        made = [v.node for v in self.values if v.node not in self.inputs] or [v.node for v in self.values]
        loose = [n for n in made if n not in read] or made[-1:]
        chosen = list(loose[-int(self.rng.integers(1, 5)) :])
        if self.chance(0.5):
            chosen.append(self.one_of(made))  # shared: an output others read, or the same one twice
        if self.chance(0.1):
            chosen.append(self.one_of(self.inputs))
        return chosen

    def gradients(self, outputs: Sequence[Node]) -> list[Node]:
        """Return gradients of the sum of the float outputs, where they are tame."""
        wrt = [n for n in self.inputs if n.dtype.is_float]
        roots = [o for o in dict.fromkeys(outputs) if o.dtype.is_float]
        try:
            found = [g for g in vjp(roots, [self.b.like(o, 1) for o in roots], wrt) if g is not None]
            self.admit(found)
        except (_Skip, StratalError):
            return []
        return found

    def choose_updates(self) -> list[tuple[Node, Node]]:
        if self.chance(0.75):
            return []
        pairs = [
            (s, v.node) for s in self.inputs for v in self.values if v.node.type == s.type and v.node is not s
        ]
        return [self.one_of(pairs)] if pairs else []


def _stretches(small: Sequence[int], large: Sequence[int]) -> bool:
    if len(small) > len(large):
        return False
    tail = large[len(large) - len(small) :]
    return all(s in (1, n) for s, n in zip(small, tail, strict=True))


# -- element-wise --------------------------------------------------------------------------------------------
def _unary(m: _Maker) -> Node:
    b, x = m.b, m.pick("f")
    name = m.one_of(
        (
            "neg",
            "abs",
            "tanh",
            "exp",
            "sin",
            "cos",
            "logistic",
            "erf",
            "square",
            "sqrt",
            "rsqrt",
            "log",
            "log1p",
        )
    )
    if name == "square":
        return b.mul(x, x)
    if name == "sqrt":
        return b.sqrt(b.add(b.abs(x), b.like(x, 0.25)))
    if name in ("rsqrt", "log", "log1p"):
        return b.op(name, b.add(b.mul(x, x), b.like(x, 0.5)))
    return b.op(name, x)


def _binary(m: _Maker) -> Node:
    x = m.pick("f")
    y = m.like(x)
    name = m.one_of(("add", "add", "sub", "mul", "mul", "max", "min", "div"))
    if name == "div":
        y = m.b.add(m.b.abs(y), m.b.like(y, 0.5))
    return m.b.op(name, *((x, y) if m.chance(0.5) or name == "div" else (y, x)))


def _integer(m: _Maker) -> Node:
    x = m.pick("iu")
    y, name = (
        m.like(x),
        m.one_of(("add", "sub", "mul", "and", "or", "xor", "max", "min", "shl", "shr", "rem", "floordiv")),
    )
    if name in ("shl", "shr"):
        y = m.b.like(x, int(m.rng.integers(0, 5)))
    if name in ("rem", "floordiv"):
        y = m.b.like(x, int(m.rng.integers(1, 6)))
    return m.b.op(name, x, y)


def _flag(m: _Maker) -> Node:
    """A comparison, of values that are exact, or logic on flags."""
    if m.chance(0.3):
        x = m.pick("b")
        return m.b.op(m.one_of(("and", "or", "xor")), x, m.like(x)) if m.chance(0.7) else m.b.op("not", x)
    x = m.pick("fiu", exact=True)
    y = m.like(x)
    m.admit([y])
    if not m.known[y].exact:
        raise _Skip
    return m.b.op(m.one_of(("eq", "ne", "lt", "le", "gt", "ge")), x, y)


def _select(m: _Maker) -> Node:
    c = m.pick("b")
    fits = [v.node for v in m.values if v.node.dtype.kind in "fiu" and v.node.shape == c.shape]
    x = m.one_of(fits) if fits else m.b.const(m.draw(TensorType(m.floats[0], c.shape)))
    return m.b.select(c, x, m.like(x))


def _cast(m: _Maker) -> Node:
    if m.chance(0.5):
        return m.b.cast(m.pick("fiub"), dtype=m.one_of(m.floats))
    return m.b.cast(m.pick("fiub", exact=True), dtype=m.one_of((int32, int64, uint8, bool_)))


def _rounding(m: _Maker) -> Node:
    return m.b.op(m.one_of(("floor", "round", "sign")), m.pick("f", exact=True))


# -- views ---------------------------------------------------------------------------------------------------
ANY = "fiub"


def _split(m: _Maker, size: int) -> tuple[int, ...]:
    """Return sizes whose product is `size`."""
    sizes: list[int] = []
    while size > 1 and len(sizes) < 3:
        factors = [d for d in range(2, size + 1) if size % d == 0]
        sizes.append(int(m.one_of(factors)))
        size //= sizes[-1]
    sizes += [size] if size != 1 or not sizes else []
    if m.chance(0.3):
        sizes.insert(int(m.rng.integers(len(sizes) + 1)), 1)
    return tuple(sizes)


def _reshape(m: _Maker) -> Node:
    x = m.pick(ANY)
    if x.aval.size == 0:
        raise _Skip
    return m.b.reshape(x, shape=_split(m, int(x.aval.size)))


def _permute(m: _Maker) -> Node:
    x = m.pick(ANY, ndim=2)
    return m.b.permute(x, perm=tuple(int(k) for k in m.rng.permutation(x.aval.ndim)))


def _shuffle(m: _Maker, x: Node | None = None) -> Node:
    """A permute-reshape chain: the view maps with floor division and remainder."""
    x = m.pick(ANY, ndim=1, where=lambda n: n.aval.size > 1) if x is None else x
    for _ in range(int(m.rng.integers(1, 4))):
        x = m.b.reshape(x, shape=_split(m, int(x.aval.size)))
        x = m.b.permute(x, perm=tuple(int(k) for k in m.rng.permutation(x.aval.ndim)))
    return m.b.reshape(x, shape=_split(m, int(x.aval.size))) if m.chance(0.5) else x


def _broadcast(m: _Maker) -> Node:
    x = m.pick(ANY, where=lambda n: n.aval.size <= 200 and n.aval.ndim <= 3)
    shape = [int(m.one_of((2, 3, 5))) if n == 1 and m.chance(0.5) else n for n in x.shape]
    axes = list(range(len(shape)))
    for _ in range(int(m.rng.integers(0, 3))):
        at = int(m.rng.integers(len(shape) + 1))
        shape.insert(at, int(m.one_of((1, 2, 3, 8))))
        axes = [a + (a >= at) for a in axes]
    return m.b.broadcast(x, shape=tuple(shape), axes=tuple(axes))


def _slice(m: _Maker, x: Node | None = None) -> Node:
    x = m.pick(ANY, ndim=1) if x is None else x
    bounds = [sorted(int(v) for v in m.rng.integers(0, n + 1, 2)) for n in x.shape]
    whole = [m.chance(0.4) or (a == c and m.chance(0.9)) for a, c in bounds]
    start = tuple(0 if w else a for w, (a, _) in zip(whole, bounds, strict=True))
    stop = tuple(n if w else c for w, (_, c), n in zip(whole, bounds, x.shape, strict=True))
    step = tuple(int(m.one_of((1, 1, 1, 2, 3))) for _ in x.shape)
    return m.b.slice(x, start=start, stop=stop, step=step)


def _pad(m: _Maker) -> Node:
    x = m.pick(ANY, ndim=1)
    value = m.b.const(m.draw(TensorType(x.dtype)) if m.chance(0.5) else np.zeros((), x.dtype.np))
    low, high = (tuple(int(v) for v in m.rng.choice([0, 0, 1, 2], x.aval.ndim)) for _ in range(2))
    interior = tuple(int(v) for v in m.rng.choice([0, 0, 0, 1], x.aval.ndim))
    return m.b.pad(x, value, low=low, high=high, interior=interior)


def _flip(m: _Maker) -> Node:
    x = m.pick(ANY, ndim=1)
    axes = tuple(a for a in range(x.aval.ndim) if m.chance(0.5))
    return m.b.flip(x, axes=axes)


def _concatenate(m: _Maker) -> Node:
    x = m.pick(ANY, ndim=1)
    axis = int(m.rng.integers(x.aval.ndim))

    def joins(n: Node) -> bool:
        return (
            n.dtype is x.dtype
            and n.aval.ndim == x.aval.ndim
            and all(a == c for k, (a, c) in enumerate(zip(n.shape, x.shape, strict=True)) if k != axis)
        )

    fits = [v.node for v in m.values if joins(v.node)]
    return m.b.concatenate(*(m.one_of(fits) for _ in range(int(m.rng.integers(1, 4)))), axis=axis)


# -- reductions, products, indexing --------------------------------------------------------------------------
def _axes(m: _Maker, x: Node) -> tuple[int, ...]:
    axes = tuple(a for a in range(x.aval.ndim) if m.chance(0.5))
    return axes or (int(m.rng.integers(x.aval.ndim)),)


def _reduce(m: _Maker) -> Node:
    name = m.one_of(("sum", "sum", "mean", "reduce_max", "reduce_min", "any", "all", "integer_sum"))
    kinds = {"any": "b", "all": "b", "integer_sum": "iu"}.get(name, "f")
    x = m.pick(kinds, ndim=1)
    axes = _axes(m, x)
    if any(x.shape[a] == 0 for a in axes):
        raise _Skip
    if name == "mean":
        total = m.b.sum(x, axes=axes)
        return m.b.mul(total, m.b.like(total, 1 / np.prod([x.shape[a] for a in axes])))
    return m.b.op("sum" if name == "integer_sum" else name, x, axes=axes)


def _normalised(m: _Maker) -> Node:
    """A softmax or a layer norm along one axis: reductions whose results go back to every element."""
    x = m.pick("f", ndim=1, where=lambda n: n.aval.size > 0)
    axis = int(m.rng.integers(x.aval.ndim))
    kept = tuple(a for a in range(x.aval.ndim) if a != axis)

    def back(node: Node) -> Node:
        return m.b.broadcast(node, shape=x.shape, axes=kept)

    if m.chance(0.5):
        e = m.b.exp(m.b.sub(x, back(m.b.reduce_max(x, axes=(axis,)))))
        return m.b.div(e, back(m.b.sum(e, axes=(axis,))))
    scale = 1 / x.shape[axis]
    total = m.b.sum(x, axes=(axis,))
    centred = m.b.sub(x, back(m.b.mul(total, m.b.like(total, scale))))
    variance = m.b.sum(m.b.mul(centred, centred), axes=(axis,))
    spread = m.b.rsqrt(m.b.add(m.b.mul(variance, m.b.like(variance, scale)), m.b.like(variance, 0.1)))
    return m.b.mul(centred, back(spread))


def _along(m: _Maker) -> Node:
    x = m.pick("f", exact=True, ndim=1, where=lambda n: n.aval.size > 0)
    axis = int(m.rng.integers(x.aval.ndim))
    name = m.one_of(("argmax", "argmin", "sort", "cummax"))
    if name == "sort":
        return items(m.b.sort(x, axis=axis, descending=m.chance(0.5)))[int(m.rng.integers(2))]
    return m.b.op(name, x, axis=axis)


def _cumulative(m: _Maker) -> Node:
    x = m.pick("fi", ndim=1, where=lambda n: n.aval.size > 0)
    return m.b.cumsum(x, axis=int(m.rng.integers(x.aval.ndim)), reverse=m.chance(0.3))


def _contract(m: _Maker) -> Node:
    """A product of matrices, vectors or batches, by letters in random order."""
    x = m.pick("f", ndim=1, where=lambda n: n.aval.ndim <= 3 and n.aval.size > 0)
    letters = "abc"[: x.aval.ndim]
    summed = m.one_of(letters)
    batch = [c for c in letters if c != summed and m.chance(0.3)]
    size = dict(zip(letters, x.shape, strict=True)) | {"n": int(m.one_of((1, 3, 8, 17)))}
    right = [*batch, summed, *(["n"] if m.chance(0.8) else [])]
    m.rng.shuffle(right)
    shape = tuple(size[c] for c in right)
    same = [v.node for v in m.values if v.node.dtype is x.dtype and v.node.shape == shape]
    y = m.one_of(same) if same else m.b.const(m.draw(TensorType(x.dtype, shape)))
    out = [c for c in dict.fromkeys([*letters, *right]) if c != summed]
    m.rng.shuffle(out)
    spec = (letters, "".join(right))
    operands, spec = ((x, y), spec) if m.chance(0.5) else ((y, x), spec[::-1])
    product = m.b.contract(*operands, spec=f"{spec[0]},{spec[1]}->{''.join(out)}")
    return m.b.mul(product, m.b.like(product, 1 / np.sqrt(size[summed])))


def _part_of_product(m: _Maker) -> Node:
    """A product and views of it, which a kernel may store from the loops of the product."""
    x = _contract(m)
    if m.chance(0.5):
        x = x.inputs[0]  # not scaled
    for _ in range(int(m.rng.integers(1, 4))):
        if x.aval.ndim and x.aval.size > 1:
            x = m.one_of((_slice, _shuffle, _diagonal))(m, x)
    return x


def _diagonal(m: _Maker, x: Node) -> Node:
    """Every so-manieth element, among others a diagonal."""
    count = int(x.aval.size)
    step = x.shape[-1] + int(m.one_of((1, 1, 1, 0, -1)))
    start = int(m.one_of((0, 0, 1)))
    flat = m.b.reshape(x, shape=(count,))
    return m.b.slice(flat, start=(start,), stop=(count,), step=(max(int(step), 1),))


def _complex(m: _Maker) -> Node:
    """Arithmetic on complex numbers, back among the real ones."""
    x = m.pick("f", where=lambda n: n.dtype in (float32, float64))
    z = m.b.op("complex", x, m.like(x))
    for _ in range(int(m.rng.integers(1, 4))):
        name = m.one_of(("conj", "neg", "mul", "add", "sum", "permute"))
        if name in ("mul", "add"):
            z = m.b.op(name, z, m.b.op("complex", m.like(m.b.real(z)), m.b.imag(z)))
        elif name == "sum":
            z = m.b.sum(z, axes=tuple(range(z.aval.ndim))[:1])
        elif name == "permute":
            z = m.b.permute(z, perm=tuple(range(z.aval.ndim))[::-1])
        else:
            z = m.b.op(name, z)
    return m.b.op(m.one_of(("real", "imag", "abs")), z)


def _gather(m: _Maker) -> Node:
    x = m.pick(ANY, ndim=1, where=lambda n: n.aval.size > 0)
    axis = int(m.rng.integers(x.aval.ndim))
    where = np.asarray(m.rng.integers(0, x.shape[axis], m.one_of(((), (3,), (2, 2), (6,)))))
    return m.b.gather(x, m.b.const(where), axis=axis)


def _scatter(m: _Maker) -> Node:
    x = m.pick("f", ndim=1, where=lambda n: n.aval.size > 0)
    axis = int(m.rng.integers(x.aval.ndim))
    where = np.asarray(m.rng.integers(0, x.shape[axis], 3))
    shape = (*x.shape[:axis], 3, *x.shape[axis + 1 :])
    updates = m.b.const(m.draw(TensorType(x.dtype, shape)))
    return m.b.scatter(x, m.b.const(where), updates, kind=m.one_of(("add", "set", "max")), axis=axis)


def _random(m: _Maker) -> Node:
    """Random bits as uniform floats, or a dropout of a value with them."""
    keys = [v.node for v in m.values if v.node.type == TensorType(uint64)]
    key = m.one_of(keys) if keys else m.b.const(np.uint64(m.rng.integers(1 << 40)))
    if m.chance(0.3):
        bits = m.b.random_bits(key, shape=m.shape(), dtype=uint32)
        uniform = m.b.cast(m.b.shr(bits, m.b.like(bits, 8)), dtype=m.floats[0])
        return m.b.mul(uniform, m.b.like(uniform, 2.0**-24))
    x = m.pick("f")
    bits = m.b.random_bits(key, shape=x.shape, dtype=uint32)
    keep = m.b.lt(bits, m.b.like(bits, 3 << 30))
    return m.b.select(keep, m.b.mul(x, m.b.like(x, 4 / 3)), m.b.like(x, 0))


def _mark(m: _Maker) -> Node:
    x = m.pick(ANY)
    return m.b.barrier(x, id=int(m.rng.integers(100))) if m.chance(0.5) else m.b.stop_gradient(x)


# -- control flow --------------------------------------------------------------------------------------------
def _region(m: _Maker, given: Sequence[tuple[TensorType, Array]], results: Sequence[TensorType]) -> Graph:
    """Return a region on values like these whose first results have the given types."""
    inner = _Maker(m.rng, m.floats)
    for type_, array in given:
        inner.add_input(type_, array)
    inner.grow(int(m.rng.integers(2, 7)), INNER_STEPS)
    return Graph(inner.inputs, [_of_type(inner, t) for t in results], name="region")


def _of_type(m: _Maker, type_: TensorType) -> Node:
    """Return a value of a type, the latest as a rule, bounded where it is a float."""
    same = [v.node for v in m.values if v.node.type == type_]
    node = same[-1] if same and m.chance(0.7) else m.one_of(same)
    return m.b.tanh(node) if type_.dtype.is_float else node


def _cond(m: _Maker) -> list[Node]:
    flags = [v.node for v in m.values if v.node.type == TensorType(bool_) and v.exact]
    if flags and m.chance(0.7):
        flag = m.one_of(flags)
    else:
        x = m.pick("fi", exact=True, where=lambda n: n.aval.size > 0)
        top = m.b.reduce_max(x, axes=tuple(range(x.aval.ndim)))
        flag = m.b.gt(top, m.b.like(top, 1))
    operands = [m.pick(ANY) for _ in range(int(m.rng.integers(1, 4)))]
    given = [(n.aval, m.known[n].array) for n in operands]
    results = [n.aval for n in operands if m.chance(0.6)] or [operands[0].aval]
    sides = [_region(m, given, results) for _ in range(2)]
    return items(m.b.cond(flag, *operands, then=sides[0], otherwise=sides[1]))


def _scan(m: _Maker) -> list[Node]:
    stacked = [m.pick("f", ndim=1, where=lambda n: 0 < n.shape[0] <= 8)]
    length = stacked[0].shape[0]
    also = [
        v.node for v in m.values if v.node.aval.ndim and v.node.shape[0] == length and v.node not in stacked
    ]
    if also and m.chance(0.5):
        stacked.append(m.one_of(also))
    carries = [m.pick("f", where=lambda n: n.aval.size <= 300) for _ in range(int(m.rng.integers(0, 3)))]
    consts = [m.pick(ANY) for _ in range(int(m.rng.integers(0, 2)))]
    rows = [(n.aval.with_shape(n.shape[1:]), m.known[n].array[0]) for n in stacked]
    whole = [[(n.aval, m.known[n].array) for n in group] for group in (carries, consts)]
    given = [*whole[0], *rows, *whole[1], (TensorType(int64), np.asarray(0))]
    ys = [t for t, _ in (*whole[0], *rows) if m.chance(0.5)] or [rows[0][0]]
    body = _region(m, given, [*(n.aval for n in carries), *ys])
    dynamic = m.chance(0.3)
    steps = [m.b.const(np.asarray(m.rng.integers(0, length + 2)))] if dynamic else []
    return items(m.b.scan(
        *carries, *stacked, *consts, *steps, body=body, length=length, num_carries=len(carries),
        num_xs=len(stacked), reverse=m.chance(0.3), dynamic_length=dynamic,
    ))  # fmt: skip


POINTWISE = [
    (5.0, _unary),
    (7.0, _binary),
    (2.0, _integer),
    (2.0, _flag),
    (1.5, _select),
    (1.5, _cast),
    (0.5, _rounding),
]
VIEWS = [(1.5, _reshape), (1.5, _permute), (2.0, _shuffle), (1.5, _broadcast), (1.5, _slice), (1.5, _pad),
         (0.7, _flip), (1.2, _concatenate)]  # fmt: skip
SUMS = [
    (3.0, _reduce),
    (1.2, _normalised),
    (0.7, _along),
    (0.5, _cumulative),
    (1.5, _contract),
    (1.0, _part_of_product),
    (0.3, _complex),
]
INDEXING = [(0.6, _gather), (0.4, _scatter), (0.8, _random), (0.2, _mark)]
INNER_STEPS: list[tuple[float, Callable[..., Any]]] = [*POINTWISE, *VIEWS, *SUMS, *INDEXING]
STEPS: list[tuple[float, Callable[..., Any]]] = [*INNER_STEPS, (1.2, _cond), (1.2, _scan)]
