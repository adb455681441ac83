"""A tour of Stratal: its core idea rebuilt from nothing in one file, to be read from top to bottom.

The idea is this. A training step (forward, backward, update) is a *value*: a graph that functions can take
apart and put together again. So the gradient is a function from graphs to graphs, and so is the simplifier.
Fusion decides which nodes share a loop nest. Loop nests are values, too: schedules rewrite them, and code
generation spells them out for the processor. In the end the whole step is one native function whose memory
was laid out before it first ran. Nothing here imports Stratal; each chapter names the modules in which the
real thing lives, and what they add. Run it:

    python docs/tour.py

Only float32 tensors, one thread, and a dozen operations. Every chapter ends with its own check.
"""

from __future__ import annotations

import ctypes
import itertools
import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Union

import llvmlite.binding as llvm
import numpy as np

Shape = tuple[int, ...]
Array = np.ndarray[Any, Any]


# ============================================================================================================
# 1. Nodes and records
# ============================================================================================================
# A node is one application of an operation. Nodes never change, and equal nodes are one object
# ("hash-consing"): asking twice for `x + y` gives the same node, so common sub-expressions never arise, and
# comparing two values is `is`. Whatever else one might want to know about a node (where it is stored, which
# kernel computes it) stands in tables beside the graph, made by the pass that needs it.
#
# In Stratal: graph/node.py. It adds dtypes, operations with several results, and on every node the lines of
# the user's program it came from.


class Node:
    """One value of the graph. Made by `make`."""

    __slots__ = ("inputs", "op", "shape")

    def __init__(self, op: Op, inputs: tuple[Node, ...], shape: Shape) -> None:
        self.op, self.inputs, self.shape = op, inputs, shape

    def __add__(self, other: Node | float) -> Node:
        return elementwise("add", self, like(other, self.shape))

    def __sub__(self, other: Node | float) -> Node:
        return elementwise("sub", self, like(other, self.shape))

    def __mul__(self, other: Node | float) -> Node:
        return elementwise("mul", self, like(other, self.shape))

    def __truediv__(self, other: Node | float) -> Node:
        return elementwise("div", self, like(other, self.shape))

    def __neg__(self) -> Node:
        return elementwise("neg", self)

    def __matmul__(self, other: Node) -> Node:
        return make(Matmul(), self, other)

    @property
    def T(self) -> Node:
        return make(Transpose(), self)

    def sum(self, axis: int) -> Node:
        return make(Reduce("add", axis), self)


_NODES: dict[tuple[object, ...], Node] = {}


def make(op: Op, *inputs: Node) -> Node:
    """Return the node `op(*inputs)`: the one there is, or a new one once its shape rule has passed."""
    key = (op, *inputs)
    if key not in _NODES:
        _NODES[key] = Node(op, inputs, op.infer(*(i.shape for i in inputs)))
    return _NODES[key]


def elementwise(fn: str, *inputs: Node) -> Node:
    return make(Elementwise(fn), *inputs)


def like(value: Node | float, shape: Shape) -> Node:
    """Return a value as a tensor of `shape`: a number, or a tensor of its trailing axes, is broadcast."""
    node = value if isinstance(value, Node) else make(Const(float(value)))
    missing = len(shape) - len(node.shape)
    return make(Broadcast(shape, tuple(range(missing, len(shape)))), node) if missing else node


# Operations are *records*: one place holds all that the system knows about one operation. Here that is its
# shape rule (`infer`), its meaning in NumPy (`ref`), its derivative (`vjp`), and its lowering, which says
# what one element of the result is (`element`) or which terms are combined into it (`terms`). No pass below
# has a list of operations of its own: a new operation is a new record and nothing else.
#
# In Stratal: graph/op.py is the protocol, ops/ has a record per primitive. Those also have forward mode,
# costs, error bounds, sample calls and calls to refuse, from which the tests are made that every record
# passes.


class Op:
    """Base of all records. `read(k, where)` stands for the element of operand number k at an index."""

    def infer(self, *shapes: Shape) -> Shape:
        raise NotImplementedError

    def ref(self, *arrays: Array) -> Array:
        raise NotImplementedError

    def vjp(self, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        """Return the cotangent of each input, given that of the output; None means zero."""
        return [None] * len(inputs)

    def element(self, read: Read, where: Index) -> Expr:
        raise NotImplementedError


@dataclass(frozen=True)
class Input(Op):
    label: str
    of: Shape
    uid: int

    def infer(self, *shapes: Shape) -> Shape:
        return self.of


@dataclass(frozen=True)
class Const(Op):
    value: float

    def infer(self, *shapes: Shape) -> Shape:
        return ()

    def ref(self, *arrays: Array) -> Array:
        return np.asarray(self.value)

    def element(self, read: Read, where: Index) -> Expr:
        return Num(self.value)


class Scalar(NamedTuple):
    """The part of an element-wise record that differs: NumPy's function, the vjp rule, how to expand it."""

    ref: Callable[..., Array]
    vjp: Callable[..., Sequence[Node | None]]
    expand: Callable[..., Expr] | None = None  # where processors have no instruction for it


SCALARS: Final = {
    "add": Scalar(np.add, lambda ct, out, x, y: (ct, ct)),
    "sub": Scalar(np.subtract, lambda ct, out, x, y: (ct, -ct)),
    "mul": Scalar(np.multiply, lambda ct, out, x, y: (ct * y, ct * x)),
    "div": Scalar(np.divide, lambda ct, out, x, y: (ct / y, -(ct * out / y))),
    "neg": Scalar(np.negative, lambda ct, out, x: (-ct,)),
    "exp": Scalar(np.exp, lambda ct, out, x: (ct * out,), lambda x: exp_expression(x)),
    "log": Scalar(np.log, lambda ct, out, x: (ct / x,)),
    "max": Scalar(
        np.maximum, lambda ct, out, x, y: (ct * elementwise("gt", x, y), ct * elementwise("gt", y, x))
    ),
    "gt": Scalar(lambda x, y: np.greater(x, y).astype(x.dtype), lambda ct, out, x, y: (None, None)),
}


@dataclass(frozen=True)
class Elementwise(Op):
    """out[i] = fn(x[i], ...)."""

    fn: str

    def infer(self, *shapes: Shape) -> Shape:
        if len(set(shapes)) != 1:
            raise ValueError(f"{self.fn}: shapes differ: {shapes}")
        return shapes[0]

    def ref(self, *arrays: Array) -> Array:
        return np.asarray(SCALARS[self.fn].ref(*arrays))

    def vjp(self, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return SCALARS[self.fn].vjp(ct, out, *inputs)

    def element(self, read: Read, where: Index) -> Expr:
        arity = SCALARS[self.fn].vjp.__code__.co_argcount - 2
        args = tuple(read(k, where) for k in range(arity))
        expand = SCALARS[self.fn].expand
        return expand(*args) if expand else Call(self.fn, args)


class View(Op):
    """Moves elements and computes nothing: it is its operand, read at another index."""

    def source(self, where: Index) -> Index:
        return where

    def element(self, read: Read, where: Index) -> Expr:
        return read(0, self.source(where))


@dataclass(frozen=True)
class Stop(View):
    """The identity, with derivative zero."""

    def infer(self, *shapes: Shape) -> Shape:
        return shapes[0]

    def ref(self, *arrays: Array) -> Array:
        return arrays[0]


@dataclass(frozen=True)
class Broadcast(View):
    """Operand axis number k becomes axis `axes[k]` of shape `to`; the operand repeats along the others."""

    to: Shape
    axes: tuple[int, ...]

    def infer(self, *shapes: Shape) -> Shape:
        if tuple(self.to[a] for a in self.axes) != shapes[0]:
            raise ValueError(f"broadcast: {shapes[0]} does not fit axes {self.axes} of {self.to}")
        return self.to

    def ref(self, *arrays: Array) -> Array:
        kept = [n if a in self.axes else 1 for a, n in enumerate(self.to)]
        return np.broadcast_to(arrays[0].reshape(kept), self.to)

    def vjp(self, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        for axis in reversed([a for a in range(len(self.to)) if a not in self.axes]):
            ct = ct.sum(axis)
        return [ct]

    def source(self, where: Index) -> Index:
        return tuple(where[a] for a in self.axes)


@dataclass(frozen=True)
class Transpose(View):
    def infer(self, *shapes: Shape) -> Shape:
        return shapes[0][::-1]

    def ref(self, *arrays: Array) -> Array:
        return arrays[0].T

    def vjp(self, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [ct.T]

    def source(self, where: Index) -> Index:
        return where[::-1]


class Reduction(Op):
    """out[where] = the combination, over all k, of terms(where, k)."""

    fn: str

    def extent(self, *shapes: Shape) -> int:
        raise NotImplementedError

    def terms(self, read: Read, where: Index, k: Affine) -> tuple[Expr, ...]:
        raise NotImplementedError


@dataclass(frozen=True)
class Reduce(Reduction):
    """Sum (`add`) or largest element (`max`) along one axis."""

    fn: str
    axis: int

    def infer(self, *shapes: Shape) -> Shape:
        return shapes[0][: self.axis] + shapes[0][self.axis + 1 :]

    def ref(self, *arrays: Array) -> Array:
        return np.asarray((np.sum if self.fn == "add" else np.max)(arrays[0], axis=self.axis))

    def vjp(self, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        if self.fn != "add":
            raise ValueError("the largest element is used under Stop only: it has no derivative here")
        kept = tuple(a for a in range(len(inputs[0].shape)) if a != self.axis)
        return [make(Broadcast(inputs[0].shape, kept), ct)]

    def extent(self, *shapes: Shape) -> int:
        return shapes[0][self.axis]

    def terms(self, read: Read, where: Index, k: Affine) -> tuple[Expr, ...]:
        return (read(0, (*where[: self.axis], k, *where[self.axis :])),)


@dataclass(frozen=True)
class Matmul(Reduction):
    fn = "fma"

    def infer(self, *shapes: Shape) -> Shape:
        (m, k), (inner, n) = shapes
        if k != inner:
            raise ValueError(f"matmul: inner sizes differ: {shapes[0]} @ {shapes[1]}")
        return (m, n)

    def ref(self, *arrays: Array) -> Array:
        return np.asarray(arrays[0] @ arrays[1])

    def vjp(self, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [ct @ inputs[1].T, inputs[0].T @ ct]

    def extent(self, *shapes: Shape) -> int:
        return shapes[0][1]

    def terms(self, read: Read, where: Index, k: Affine) -> tuple[Expr, ...]:
        return (read(0, (where[0], k)), read(1, (k, where[1])))


_uids = itertools.count()


def tensor(label: str, *shape: int) -> Node:
    """Return a graph input, different from every other."""
    return make(Input(label, shape, next(_uids)))


def relu(x: Node) -> Node:
    return elementwise("max", x, like(0.0, x.shape))


def softmax_parts(z: Node) -> tuple[Node, Node]:
    """Return z less the largest element of its row, a shift that cannot overflow, and exp of that."""
    largest = make(Stop(), make(Reduce("max", 1), z))
    shifted = z - make(Broadcast(z.shape, (0,)), largest)
    return shifted, elementwise("exp", shifted)


def cross_entropy(z: Node, y: Node) -> Node:
    """Return the mean of -log softmax(z) at the labels; `y` has a 1 at each row's label and 0 elsewhere."""
    shifted, exps = softmax_parts(z)
    per_row = elementwise("log", exps.sum(1)) - (shifted * y).sum(1)
    return per_row.sum(0) * (1 / z.shape[0])


# ============================================================================================================
# 2. Graphs and the reference interpreter
# ============================================================================================================
# A graph is a function: inputs, outputs, and `updates`, pairs of an input that holds state and the value it
# has after the run. There is no "assign" node, so nothing in a graph has an order beyond "operands first".
#
# The interpreter runs a graph with each record's NumPy reference: slow, obviously right, and the oracle for
# all that follows.
#
# In Stratal: graph/graph.py (with a verifier and a hash), graph/text.py (a text form that parses back),
# graph/interpret.py.


class Graph(NamedTuple):
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    updates: tuple[tuple[Node, Node], ...] = ()

    @property
    def roots(self) -> tuple[Node, ...]:
        return self.outputs + tuple(new for _, new in self.updates)

    @property
    def nodes(self) -> list[Node]:
        return topological(self.roots)

    def __str__(self) -> str:
        number = {node: k for k, node in enumerate(dict.fromkeys((*self.inputs, *self.nodes)))}
        rows = []
        for node, k in number.items():
            operands = ", ".join(f"%{number[i]}" for i in node.inputs)
            rows.append(f"  %{k} = {node.op}({operands}) : f32{list(node.shape)}")
        rows.append("  return " + ", ".join(f"%{number[o]}" for o in self.outputs))
        return "\n".join(rows + [f"  update %{number[s]} <- %{number[v]}" for s, v in self.updates])


def topological(roots: Iterable[Node]) -> list[Node]:
    """Return all nodes the roots need, operands first. The stack is explicit: graphs outgrow Python's."""
    order: dict[Node, None] = {}
    stack = list(roots)[::-1]
    while stack:
        waiting = [i for i in stack[-1].inputs if i not in order]
        if waiting:
            stack += waiting[::-1]
        else:
            order[stack.pop()] = None
    return list(order)


def interpret(graph: Graph, arrays: Sequence[Array]) -> tuple[list[Array], list[Array]]:
    """Run a graph with NumPy in the dtype of the arrays; return outputs and new states."""
    values = dict(zip(graph.inputs, arrays, strict=True))
    for node in graph.nodes:
        if node not in values:
            values[node] = node.op.ref(*(values[i] for i in node.inputs)).astype(arrays[0].dtype)
            assert values[node].shape == node.shape, node.op
    return [values[o] for o in graph.outputs], [values[v] for _, v in graph.updates]


def check_graphs() -> None:
    x, y = tensor("x", 4, 3), tensor("y", 4, 3)
    assert x + y is x + y, "equal nodes are one node"
    graph = Graph((x, y), (cross_entropy(x, y),))
    z = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    labels = np.eye(3, dtype=np.float32)[[0, 2, 1, 1]]
    (loss,), _ = interpret(graph, [z, labels])
    by_hand = -np.log((np.exp(z) / np.exp(z).sum(1, keepdims=True))[range(4), [0, 2, 1, 1]]).mean()
    np.testing.assert_allclose(loss, by_hand, rtol=1e-5)
    print(f"2. cross-entropy is a graph of {len(graph.nodes)} nodes; its last lines:")
    print("\n".join(str(graph).split("\n")[-4:]))


# ============================================================================================================
# 3. Gradients, graph to graph
# ============================================================================================================
# Reverse mode walks the nodes backwards once. Each node hands its cotangent to its record's `vjp`, which
# answers with new nodes; where a value is read several times the answers add up. The result is an ordinary
# graph: it can be differentiated again, simplified, fused and compiled, and nothing after this chapter
# knows of gradients.
#
# In Stratal: autodiff/vjp.py, autodiff/jvp.py, autodiff/check.py; control flow and complex numbers
# included.


def gradients(loss: Node, wrt: Sequence[Node]) -> list[Node]:
    """Return d loss / d w for each w. What no w leads to is never differentiated."""
    order = topological([loss])
    active = set(wrt)
    for node in order:
        if not active.isdisjoint(node.inputs):
            active.add(node)
    cotangents = {loss: like(1.0, loss.shape)}
    for node in reversed(order):
        if node not in active or node not in cotangents or not node.inputs:
            continue
        for operand, ct in zip(node.inputs, node.op.vjp(cotangents[node], node, *node.inputs), strict=True):
            if ct is not None and operand in active:
                known = cotangents.get(operand)
                cotangents[operand] = ct if known is None else known + ct
    return [cotangents.get(w, like(0.0, w.shape)) for w in wrt]


def finite_difference(graph: Graph, arrays: Sequence[Array], position: int, step: float = 1e-5) -> Array:
    """Return the gradient of output 0 by input number `position`, one element at a time, in float64."""
    result = np.zeros_like(arrays[position])
    for at in np.ndindex(result.shape):
        for sign in (1, -1):
            moved = [a.copy() for a in arrays]
            moved[position][at] += sign * step
            result[at] += sign * float(interpret(graph, moved)[0][0]) / (2 * step)
    return result


def check_gradients() -> None:
    x, w, y = tensor("x", 3, 5), tensor("w", 5, 4), tensor("y", 3, 4)
    loss = cross_entropy(relu(x @ w) / 1.5 + x.sum(0).sum(0), y)
    forward, backward = (Graph((x, w, y), roots) for roots in ((loss,), tuple(gradients(loss, (x, w)))))
    rng = np.random.default_rng(1)
    arrays = [rng.normal(size=(3, 5)), rng.normal(size=(5, 4)), np.eye(4)[[1, 0, 3]]]
    pairs = [(g, finite_difference(forward, arrays, k)) for k, g in enumerate(interpret(backward, arrays)[0])]
    worst = max(float(np.abs(got - want).max()) for got, want in pairs)
    assert worst < 1e-8, worst
    print(f"3. gradients are a graph of {len(backward.nodes)} nodes; finite differences agree to {worst:.0e}")


# ============================================================================================================
# 4. Rules as data
# ============================================================================================================
# Differentiation leaves work behind: products with one, minus of minus, transposes of transposes. Rules
# remove it, and a rule is data: two expressions with variables in them. Data can be tested by machine:
# build both sides, run both where floating point bites (-0.0, infinities, NaN), and compare bits. That test
# is stricter than intuition. It refuses `x + 0 -> x`, because -0.0 + 0.0 is 0.0.
#
# In Stratal: graph/pattern.py (rules, matching indexed by operation), optimize/rules_arithmetic.py and its
# neighbours, optimize/simplify.py. Rules that hold for real numbers only are marked and wait for
# `fast_math`.

Pattern = Any  # a variable's name; a number: a constant, or one broadcast; or (operation, pattern, ...)


class Rule(NamedTuple):
    name: str
    lhs: Pattern
    rhs: Pattern


RULES: Final = (
    Rule("mul_one", ("mul", "x", 1.0), "x"),
    Rule("one_mul", ("mul", 1.0, "x"), "x"),
    Rule("div_one", ("div", "x", 1.0), "x"),
    Rule("sub_zero", ("sub", "x", 0.0), "x"),
    Rule("neg_neg", ("neg", ("neg", "x")), "x"),
    Rule("add_neg", ("add", "x", ("neg", "y")), ("sub", "x", "y")),
    Rule("sub_neg", ("sub", "x", ("neg", "y")), ("add", "x", "y")),
    Rule("mul_neg_neg", ("mul", ("neg", "x"), ("neg", "y")), ("mul", "x", "y")),
    Rule("transpose_twice", (Transpose(), (Transpose(), "x")), "x"),
)


def operation(name: str | Op) -> Op:
    return Elementwise(name) if isinstance(name, str) else name


def uniform(node: Node) -> float | None:
    """Return the number a constant repeats everywhere, or None."""
    while isinstance(node.op, Broadcast):
        node = node.inputs[0]
    return node.op.value if isinstance(node.op, Const) else None


def matches(pattern: Pattern, node: Node, found: dict[str, Node]) -> bool:
    """Return whether a node is what the pattern says; `found` learns what its variables stand for."""
    if isinstance(pattern, str):
        return found.setdefault(pattern, node) is node
    if isinstance(pattern, float):
        number = uniform(node)
        return number is not None and struct.pack("d", number) == struct.pack("d", pattern)  # -0.0 is not 0.0
    same = node.op == operation(pattern[0])
    return same and all(matches(p, i, found) for p, i in zip(pattern[1:], node.inputs, strict=True))


def build(pattern: Pattern, values: Mapping[str, Node], shape: Shape) -> Node:
    """Return the expression a pattern stands for."""
    if isinstance(pattern, (str, float)):
        return values[pattern] if isinstance(pattern, str) else like(pattern, shape)
    return make(operation(pattern[0]), *(build(p, values, shape) for p in pattern[1:]))


def simplify(graph: Graph, rules: Sequence[Rule] = RULES) -> Graph:
    """Return a graph to which no rule applies, with arithmetic on constants done: same bits, less work."""
    final: dict[Node, Node] = {}
    for node in graph.nodes:
        new: Node | None = make(node.op, *(final[i] for i in node.inputs))
        while new is not None:
            final[node], new = new, rewritten(new, rules)
    updates = tuple((state, final[new]) for state, new in graph.updates)
    return Graph(graph.inputs, tuple(final[o] for o in graph.outputs), updates)


def rewritten(node: Node, rules: Sequence[Rule]) -> Node | None:
    """Return what the first rule that applies makes of a node, or None."""
    numbers = [uniform(i) for i in node.inputs]
    if isinstance(node.op, Elementwise) and None not in numbers:
        return like(float(node.op.ref(*(np.asarray(n, np.float32) for n in numbers))), node.shape)
    for rule in rules:
        values: dict[str, Node] = {}
        if matches(rule.lhs, node, values):
            return build(rule.rhs, values, node.shape)
    return None


SPECIAL: Final = np.array([0.0, -0.0, 1.0, -1.0, 1.5, -3e38, 1e-40, np.inf, -np.inf, np.nan], np.float32)


def is_exact(rule: Rule) -> bool:
    """Run both sides of a rule on every pair of special values and compare bits (any NaN is NaN)."""
    x, y = (tensor(name, len(SPECIAL), len(SPECIAL)) for name in "xy")
    sides = Graph((x, y), tuple(build(side, {"x": x, "y": y}, x.shape) for side in (rule.lhs, rule.rhs)))
    with np.errstate(all="ignore"):
        left, right = interpret(sides, list(np.meshgrid(SPECIAL, SPECIAL)))[0]
    return bool(np.all((np.isnan(left) & np.isnan(right)) | (left.view(np.int32) == right.view(np.int32))))


def check_rules() -> None:
    assert all(map(is_exact, RULES))
    tempting = [Rule("add_zero", ("add", "x", 0.0), "x"), Rule("mul_zero", ("mul", "x", 0.0), 0.0)]
    refused = [rule.name for rule in tempting if not is_exact(rule)]
    assert refused == ["add_zero", "mul_zero"]
    x = tensor("x", 2, 3)
    assert simplify(Graph((x,), (-(-(x * 1.0)).T.T,))).outputs == (x,)
    print(f"4. {len(RULES)} rules, exact to the bit; the test refuses {' and '.join(refused)}")


# ============================================================================================================
# 5. Fusion
# ============================================================================================================
# One kernel per node would send every intermediate value through memory. Fusion partitions the nodes into
# groups, each of which becomes one loop nest. A single pass is enough: a node joins the *latest* group
# among those it reads from, if their loops agree. All else it reads was computed earlier, so no cycle can
# arise.
#
#   pointwise   element-wise nodes over one shape
#   rows        element-wise nodes and reductions over the last axis, one row at a time
#   contract    a reduction over another axis or a matrix product, and what follows element by element
#
# Views belong to no group: who reads a transpose reads the value behind it at another index. Here lowering
# pays off for the first time: to learn where a node reads, ask its record for an element and watch.
#
# In Stratal: optimize/fuse.py and graph/partition.py, with more kinds (loops that records write themselves,
# control flow, host calls), bounds on the size of a kernel, and a note of the reason for each decision.


class Group:
    def __init__(self, kind: str, node: Node, space: Shape, position: int) -> None:
        self.kind, self.members, self.space, self.position = kind, [node], space, position

    def __str__(self) -> str:
        names = "+".join(getattr(m.op, "fn", type(m.op).__name__) for m in self.members)
        return f"{self.kind:9} {names} over {list(self.space)}"


class Partition(NamedTuple):
    groups: list[Group]
    owner: dict[Node, Group]
    stored: set[Node]  # values with memory of their own: results, and what another group reads

    def reads(self, group: Group) -> list[Node]:
        """Return the graph inputs and the values of other groups that a group reads."""
        found = dict.fromkeys(value for m in group.members for value, _ in accesses(m))
        return [v for v in found if self.owner.get(v) is not group]


def resolve(node: Node, where: Index) -> tuple[Node, Index]:
    """Look through views: return the value that is really read, and where."""
    while isinstance(op := node.op, View):
        node, where = node.inputs[0], op.source(where)
    return node, where


_SPACES: dict[Node, tuple[Index, Affine]] = {}


def space_of(node: Node) -> tuple[Index, Affine]:
    """Return loop variables for a node's axes and for the axis it reduces (of extent 1 where it does not)."""
    if node not in _SPACES:
        extent = node.op.extent(*(i.shape for i in node.inputs)) if isinstance(node.op, Reduction) else 1
        axes = tuple(Affine.of(Var(f"i{a}", n)) for a, n in enumerate(node.shape))
        _SPACES[node] = (axes, Affine.of(Var("k", extent)))
    return _SPACES[node]


def accesses(node: Node) -> list[tuple[Node, Index]]:
    """Return every value a node reads and where, in its own loop variables."""
    found: list[tuple[Node, Index]] = []

    def read(k: int, where: Index) -> Expr:
        found.append(resolve(node.inputs[k], where))
        return Num(0.0)

    where, k = space_of(node)
    if isinstance(node.op, Reduction):
        node.op.terms(read, where, k)
    else:
        node.op.element(read, where)
    return [(value, at) for value, at in found if not isinstance(value.op, Const)]


def fuse(graph: Graph) -> Partition:
    """Partition a graph into kernels."""
    groups: list[Group] = []
    owner: dict[Node, Group] = {}
    roots = set(graph.roots)
    early: set[Node] = set()  # element-wise values of the inputs alone: placed first, they keep nothing apart
    for node in graph.nodes:
        if not isinstance(node.op, Reduction) and early.issuperset(node.inputs):
            early.add(node)
    for node in sorted(graph.nodes, key=lambda n: n not in early):
        if isinstance(node.op, (Input, Const)) or (isinstance(node.op, View) and node not in roots):
            continue
        reads = accesses(node)
        latest = max((owner[v] for v, _ in reads if v in owner), key=lambda g: g.position, default=None)
        if latest is not None and fits(latest, node, [(v, at) for v, at in reads if owner.get(v) is latest]):
            latest.members.append(node)
        else:
            latest = Group(*kind_of(node), len(groups))
            groups.append(latest)
        owner[node] = latest
    crossing = {v for node, g in owner.items() for v, _ in accesses(node) if owner.get(v, g) is not g}
    return Partition(groups, owner, crossing | {r for r in roots if r in owner})


def kind_of(node: Node) -> tuple[str, Node, Shape]:
    """Return the kind and the space of the group a node opens."""
    if isinstance(node.op, Reduce) and node.op.axis == len(node.shape):
        return "rows", node, node.inputs[0].shape
    return ("contract" if isinstance(node.op, Reduction) else "pointwise"), node, node.shape


def fits(group: Group, node: Node, inside: Sequence[tuple[Node, Index]]) -> bool:
    """Return whether a node can run in the loops of a group, given what it reads of the group's values."""
    where, k = space_of(node)
    if isinstance(node.op, Reduction):
        kind, _, space = kind_of(node)
        if kind != "rows" or space != group.space or group.kind == "contract":
            return False
        if all(at in ((*where, k), where) for _, at in inside):
            group.kind = "rows"
            return True
        return False
    if group.kind == "rows":  # whole rows, or one value per row, read in that row only
        aligned = all(at == where[: len(v.shape)] for v, at in inside)
        return aligned and node.shape in (group.space, group.space[:-1])
    return node.shape == group.space and all(at == where for _, at in inside)


def check_fusion() -> None:
    x, w, b, y = tensor("x", 16, 8), tensor("w", 8, 10), tensor("b", 10), tensor("y", 16, 10)
    loss = cross_entropy(relu(x @ w + b), y)
    graph = simplify(Graph((x, w, b, y), (loss, *gradients(loss, (w, b)))))
    groups = fuse(graph).groups
    print(f"5. a layer, its loss and its gradients: {len(graph.nodes)} nodes, {len(groups)} kernels")
    print("\n".join(f"     {group}" for group in groups))
    assert [g.kind for g in groups] == ["pointwise", "contract", "rows", "rows", "contract", "contract"]


# ============================================================================================================
# 6. Loops and schedules
# ============================================================================================================
# Below the tensors there is a second language: loops over scalar expressions. Indices are affine, sums of
# loop variables times constants, so that strides can be read off. Registers are buffers, too.
#
#   stmt := For(var, body, kind) | Store(buffer, index, value) | Seq(stmt ...)        kind := serial | vector
#   expr := Num | Load(buffer, index) | Call(fn, exprs) | Lanes(fn, register)
#
# Stores that follow one another happen at once: all values are computed before any is written. A schedule
# is a list of primitives, each a function from loops to loops that changes how, never what. `split` and
# `vectorize` give the same bits; `lanes` changes the order of a reduction, and then that order is part of
# the plan, the same in each run.
#
# In Stratal: loops/expr.py, loops/stmt.py, loops/index.py, loops/verify.py, loops/interpret.py;
# schedule/primitives.py (also reorder, fuse, merge, peel, branch, shrink, stage, parallel).


class Var:
    """A loop variable in [0, extent); equal to itself only."""

    def __init__(self, name: str, extent: int) -> None:
        self.name, self.extent = name, extent


@dataclass(frozen=True)
class Affine:
    """const + the sum of coefficient * variable."""

    terms: tuple[tuple[Var, int], ...]
    const: int = 0

    @staticmethod
    def of(var: Var, coefficient: int = 1, const: int = 0) -> Affine:
        return Affine(((var, coefficient),), const)

    def coefficient(self, var: Var | None) -> int:
        return dict(self.terms).get(var, 0) if var else 0

    def combine(self, other: Affine, times: int) -> Affine:
        """Return self + times * other."""
        total = dict(self.terms)
        for var, c in other.terms:
            total[var] = total.get(var, 0) + times * c
        kept = sorted(((v, c) for v, c in total.items() if c), key=lambda t: (t[0].name, id(t[0])))
        return Affine(tuple(kept), self.const + times * other.const)

    def replace(self, var: Var, by: Affine) -> Affine:
        rest = Affine(tuple(t for t in self.terms if t[0] is not var), self.const)
        return rest.combine(by, self.coefficient(var))

    def __str__(self) -> str:
        parts = [v.name if c == 1 else f"{c}*{v.name}" for v, c in self.terms]
        return "+".join(parts + [str(self.const)] * (self.const != 0 or not parts))


Index = tuple[Affine, ...]


class Buffer:
    def __init__(self, name: str, shape: Shape, register: bool = False) -> None:
        self.name, self.shape, self.register = name, shape, register

    def offset(self, index: Index) -> Affine:
        flat = Affine(())
        for i, n in zip(index, self.shape, strict=True):
            flat = Affine(()).combine(flat, n).combine(i, 1)
        return flat


@dataclass(frozen=True)
class Num:
    value: float

    def __str__(self) -> str:
        return f"{self.value:g}"


@dataclass(frozen=True)
class Load:
    buffer: Buffer
    index: Index

    def __str__(self) -> str:
        return f"{self.buffer.name}[{', '.join(map(str, self.index))}]"


@dataclass(frozen=True)
class Call:
    fn: str
    args: tuple[Expr, ...]

    def __str__(self) -> str:
        return f"{self.fn}({', '.join(map(str, self.args))})"


@dataclass(frozen=True)
class Lanes:
    """All lanes of a vector register combined: first half with second, and so on."""

    fn: str
    register: Buffer

    def __str__(self) -> str:
        return f"lanes.{self.fn}({self.register.name})"


Expr = Union[Num, Load, Call, Lanes]
Read = Callable[[int, Index], Expr]


@dataclass(frozen=True)
class Store:
    buffer: Buffer
    index: Index
    value: Expr


@dataclass(frozen=True)
class For:
    var: Var
    body: Stmt
    kind: str = "serial"


@dataclass(frozen=True)
class Seq:
    body: tuple[Stmt, ...]


Stmt = Union[Store, For, Seq]
IDENTITY: Final = {"add": 0.0, "max": float("-inf"), "fma": 0.0}
WIDTH: Final = 8  # lanes of a vector


def update(fn: str, acc: Load, terms: tuple[Expr, ...]) -> Store:
    """Return one step of a reduction: acc = fn(acc, term), or acc = a * b + acc."""
    return Store(acc.buffer, acc.index, Call(fn, (*terms, acc) if fn == "fma" else (acc, *terms)))


def moved(x: Any, var: Var, by: Affine) -> Any:
    """Return a statement or an expression with a loop variable replaced."""
    if isinstance(x, (Load, Store)):
        index = tuple(i.replace(var, by) for i in x.index)
        return (
            Load(x.buffer, index) if isinstance(x, Load) else Store(x.buffer, index, moved(x.value, var, by))
        )
    if isinstance(x, Call):
        return Call(x.fn, tuple(moved(a, var, by) for a in x.args))
    if isinstance(x, For):
        return For(x.var, moved(x.body, var, by), x.kind)
    return Seq(tuple(moved(s, var, by) for s in x.body)) if isinstance(x, Seq) else x


def change_loop(stmt: Stmt, var: Var, change: Callable[[For], Stmt]) -> Stmt:
    if isinstance(stmt, Seq):
        return Seq(tuple(change_loop(s, var, change) for s in stmt.body))
    if isinstance(stmt, For):
        return (
            change(stmt) if stmt.var is var else For(stmt.var, change_loop(stmt.body, var, change), stmt.kind)
        )
    return stmt


def split(stmt: Stmt, var: Var, factor: int) -> tuple[Stmt, Var]:
    """for i in 10: S[i]  ->  for io in 2: for ii in 4: S[4*io+ii]; for it in 2: S[8+it]. Returns ii, too."""
    outer, inner = Var(f"{var.name}o", var.extent // factor), Var(f"{var.name}i", factor)
    tail, done = Var(f"{var.name}t", var.extent % factor), outer.extent * factor

    def change(loop: For) -> Stmt:
        position = Affine.of(inner).combine(Affine.of(outer), factor)
        main = For(outer, For(inner, moved(loop.body, var, position)))
        rest = For(tail, moved(loop.body, var, Affine.of(tail, 1, done)))
        return Seq(tuple(s for s in (main, rest) if s.var.extent))

    return change_loop(stmt, var, change), inner


def vectorize(stmt: Stmt, var: Var) -> Stmt:
    """for i in 8: S[i]  ->  vector i in 8: S[i]. Legal where no iteration reads what another writes."""
    return change_loop(stmt, var, lambda loop: For(loop.var, loop.body, "vector"))


def by_lanes(stmt: Stmt, var: Var, fn: str, acc: Load) -> Stmt:
    """for k: acc = fn(acc, t[k])  ->  a partial result per lane, then the lanes combined, then the tail."""
    part, lane = Buffer(f"{acc.buffer.name}v", (WIDTH,), register=True), Var("l", WIDTH)
    merge = "add" if fn == "fma" else fn

    def change(loop: For) -> Stmt:
        main, inner = split(loop, var, WIDTH)
        assert isinstance(main, Seq) and isinstance(loop.body, Store) and isinstance(loop.body.value, Call)
        if var.extent < WIDTH:
            return main
        args = tuple(a for a in loop.body.value.args if a != acc)
        position = Affine.of(inner).combine(Affine.of(outer := main.body[0].var), WIDTH)  # type: ignore[union-attr]
        one = update(fn, Load(part, (Affine.of(inner),)), tuple(moved(a, var, position) for a in args))
        start = For(lane, Store(part, (Affine.of(lane),), Num(IDENTITY[fn])), "vector")
        joined = Store(acc.buffer, (), Call(merge, (acc, Lanes(merge, part))))
        return Seq((start, For(outer, For(inner, one, "vector")), joined, *main.body[1:]))

    return change_loop(stmt, var, change)


def text(stmt: Stmt, indent: str = "    ") -> str:
    if isinstance(stmt, Seq):
        return "\n".join(text(s, indent) for s in stmt.body)
    if isinstance(stmt, Store):
        return f"{indent}{Load(stmt.buffer, stmt.index)} = {stmt.value}"
    word = "for" if stmt.kind == "serial" else stmt.kind
    return f"{indent}{word} {stmt.var.name} in {stmt.var.extent}:\n{text(stmt.body, indent + '  ')}"


def runs(body: Iterable[Stmt]) -> list[list[Stmt]]:
    """Group stores that follow one another; every other statement stays alone."""
    grouped = itertools.groupby(enumerate(body), lambda e: -1 if isinstance(e[1], Store) else e[0])
    return [[s for _, s in group] for _, group in grouped]


F32: Final = np.float32
NUMPY: Final[dict[str, Callable[..., Any]]] = {
    **{fn: scalar.ref for fn, scalar in SCALARS.items()},
    "min": np.minimum,
    "floor": np.floor,
    "fma": lambda a, b, c: F32(float(a) * float(b) + float(c)),
    "pow2": lambda a: F32(2.0) ** a,
}


def run_loops(stmt: Stmt, memory: dict[Buffer, Array]) -> None:
    """Interpret a loop nest, one element at a time; vectors, too."""
    env: dict[Var, int] = {}

    def at(index: Index) -> tuple[int, ...]:
        return tuple(i.const + sum(c * env[v] for v, c in i.terms) for i in index)

    def value(e: Expr) -> Any:
        if isinstance(e, Num):
            return F32(e.value)
        if isinstance(e, Load):
            return memory[e.buffer][at(e.index)]
        if isinstance(e, Call):
            return F32(NUMPY[e.fn](*(value(a) for a in e.args)))
        lanes = memory[e.register]
        while len(lanes) > 1:
            lanes = NUMPY[e.fn](lanes[: len(lanes) // 2], lanes[len(lanes) // 2 :])
        return lanes[0]

    def run(s: Stmt) -> None:
        if isinstance(s, For):
            for k in range(s.var.extent):
                env[s.var] = k
                run(s.body)
            return
        for group in runs(s.body if isinstance(s, Seq) else (s,)):
            if not isinstance(group[0], Store):
                run(group[0])
                continue
            for store, result in [(g, value(g.value)) for g in group if isinstance(g, Store)]:
                memory.setdefault(store.buffer, np.zeros(store.buffer.shape, F32))[at(store.index)] = result

    run(stmt)


def exp_expression(x: Expr) -> Expr:
    """exp(x) in arithmetic: 2**n * exp(r) with x = n*log(2) + r, and a polynomial for the small r.

    So a chain of operations with exp in it stays one loop of vector instructions. Saturates at +-87.
    """
    x = Call("max", (Call("min", (x, Num(87.0))), Num(-87.0)))
    n = Call("floor", (Call("fma", (x, Num(1.4426950408889634), Num(0.5))),))
    r = Call("fma", (n, Num(-0.693359375), x))  # log(2) in two parts, so that n * the first is exact
    r = Call("fma", (n, Num(2.1219444005469057e-4), r))
    result: Expr = Num(1 / 5040)
    for divisor in (720, 120, 24, 6, 2, 1, 1):
        result = Call("fma", (result, r, Num(1 / divisor)))
    return Call("mul", (result, Call("pow2", (n,))))


def check_loops() -> None:
    x, y, i = Buffer("x", (19,)), Buffer("y", (19,)), Var("i", 19)
    where = (Affine.of(i),)
    plain: Stmt = For(i, Store(y, where, exp_expression(Call("neg", (Load(x, where),)))))
    halves, inner = split(plain, i, WIDTH)
    data = np.linspace(-3, 3, 19).astype(F32)
    first, second = {x: data}, {x: data}
    run_loops(plain, first)
    run_loops(vectorize(halves, inner), second)
    assert first[y].tobytes() == second[y].tobytes()
    np.testing.assert_allclose(first[y], np.exp(-data), rtol=3e-7)
    acc, k = Load(Buffer("acc", (), register=True), ()), Var("k", 19)
    total = For(k, update("add", acc, (Load(x, (Affine.of(k),)),)))
    print("6. a sum over 19 numbers, by lanes:\n" + text(by_lanes(total, k, "add", acc)))


# ============================================================================================================
# 7. From a group to a scheduled loop nest
# ============================================================================================================
# A group's members are written into one nest: where a member is read it is computed, unless it has a
# register, or memory of its own that another kernel filled. How the nest runs follows from the kind of the
# group; such a recipe is called a tactic.
#
# In Stratal: schedule/expressions.py, schedule/tactics/ (pointwise, rows, columns, contract),
# schedule/select.py. The contract tactic keeps a tile of results in registers, packs its operands and runs
# at most of the machine's peak; all of them split work over threads.


class Kernel(NamedTuple):
    values: tuple[Node, ...]  # what its parameters hold
    parameters: tuple[Buffer, ...]
    body: Stmt


class Lowering:
    """Turns one group into a kernel."""

    def __init__(self, group: Group, partition: Partition) -> None:
        self.group, self.members = group, set(group.members)
        self.results = [m for m in group.members if m in partition.stored]
        names = [*((v, "x") for v in partition.reads(group)), *((v, "y") for v in self.results)]
        self.buffers = {v: Buffer(f"{letter}{k}", v.shape) for k, (v, letter) in enumerate(names)}
        self.local: dict[Node, Expr] = {}

    def kernel(self) -> Kernel:
        body = {"pointwise": self.pointwise, "contract": self.contract, "rows": self.rows}[self.group.kind]()
        return Kernel(tuple(self.buffers), tuple(self.buffers.values()), body)

    def at(self, node: Node, where: Index) -> Expr:
        """Return a value at an index, as an expression of buffers and registers."""
        node, where = resolve(node, where)
        if node in self.local:
            return self.local[node]
        if node in self.members or isinstance(node.op, Const):
            return node.op.element(self.reader(node), where)
        return Load(self.buffers[node], where)

    def reader(self, node: Node) -> Read:
        return lambda k, where: self.at(node.inputs[k], where)

    def stores(self, where: Index, wanted: Iterable[Node]) -> Seq:
        found = [(m, self.local.get(m) or m.op.element(self.reader(m), where)) for m in wanted]
        return Seq(tuple(Store(self.buffers[m], where, value) for m, value in found))

    def pointwise(self) -> Stmt:
        where, _ = space_of(self.group.members[0])
        return in_vectors(self.stores(where, self.results), where)

    def reduction(self, node: Node, where: Index, k: Affine, name: str) -> tuple[Load, Stmt, For]:
        """Return a register, its initialisation, and the loop over k that accumulates in it."""
        assert isinstance(node.op, Reduction)
        acc = Load(Buffer(name, (), register=True), ())
        step = update(node.op.fn, acc, node.op.terms(self.reader(node), where, k))
        return acc, Store(acc.buffer, (), Num(IDENTITY[node.op.fn])), For(k.terms[0][0], step)

    def contract(self) -> Stmt:
        """Vectors of results: each lane accumulates one, and the rest of the group works on it there."""
        node = self.group.members[0]
        where, k = space_of(node)
        acc, start, loop = self.reduction(node, where, k, "acc")
        self.local[node] = acc
        return in_vectors(Seq((start, loop, *self.stores(where, self.results).body)), where)

    def rows(self) -> Stmt:
        """For each row: a pass over its elements per reduction, and one per result that needs them."""
        space = tuple(Affine.of(Var(f"i{a}", n)) for a, n in enumerate(self.group.space))
        row, (column, _) = space[:-1], space[-1].terms[0]
        parts: list[Stmt] = []
        for m in self.group.members:  # in order: what a member needs of earlier reductions is in registers
            if isinstance(m.op, Reduction):
                acc, start, loop = self.reduction(m, row, space[-1], f"acc{len(self.local)}")
                parts += [start, by_lanes(loop, column, m.op.fn, acc)]
                self.local[m] = acc
            elif m.shape == self.group.space:
                if m in self.results:
                    parts.append(in_vectors(self.stores(space, [m]), space[-1:]))
                continue
            else:
                register = Load(Buffer(f"t{len(self.local)}", (), register=True), ())
                parts.append(Store(register.buffer, (), m.op.element(self.reader(m), row)))
                self.local[m] = register
            if m in self.results:
                parts.append(self.stores(row, [m]))
        return nest(row, Seq(tuple(parts)))


def nest(where: Index, body: Stmt) -> Stmt:
    for axis in reversed(where):
        body = For(axis.terms[0][0], body)
    return body


def in_vectors(body: Stmt, where: Index) -> Stmt:
    """Return the nest over all axes with the last one in vectors."""
    if not where:
        return body
    stmt, inner = split(nest(where, body), where[-1].terms[0][0], WIDTH)
    return vectorize(stmt, inner)


def check_lowering() -> None:
    z, y = tensor("z", 3, 11), tensor("y", 3, 11)
    _, exps = softmax_parts(z)
    graph = Graph((z, y), (exps / make(Broadcast(exps.shape, (0,)), exps.sum(1)),))
    partition = fuse(graph)
    (group,) = partition.groups
    kernel = Lowering(group, partition).kernel()
    data = np.random.default_rng(2).normal(size=(3, 11)).astype(F32)
    memory = {b: data for v, b in zip(kernel.values, kernel.parameters, strict=True) if v is z}
    run_loops(kernel.body, memory)
    np.testing.assert_allclose(memory[kernel.parameters[-1]], interpret(graph, [data, data])[0][0], rtol=1e-6)
    print(f"7. softmax is one kernel ({group}) of {text(kernel.body).count('in ')} loops")


# ============================================================================================================
# 8. LLVM text
# ============================================================================================================
# Loops become LLVM's language as they stand: vectors are written out, registers are SSA values that loops
# carry in phi nodes, and nothing is left to an optimiser, which would take longer than all the rest of the
# compiler.
#
# In Stratal: codegen/kernel.py and codegen/scalar.py (every expression in the outermost loop it can be in,
# masks, more dtypes), codegen/assemble.py (compile workers), runtime/cache.py.

_BINARY: Final = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}


class Emitter:
    """Writes one kernel as an LLVM function of pointers."""

    def __init__(self, name: str, kernel: Kernel) -> None:
        self.kernel, self.name, self.count = kernel, name, itertools.count()
        self.lines: list[str] = []
        self.block = "entry"
        self.declared: set[str] = set()
        self.env: dict[Var, str] = {}
        self.lane: Var | None = None
        self.registers: dict[Buffer, tuple[str, bool]] = {}  # SSA name, whether it is a vector
        self.memo: dict[Expr, str] = {}

    def function(self) -> str:
        self.stmt(self.kernel.body)
        pointers = ", ".join(f"ptr %{b.name}" for b in self.kernel.parameters)
        return f"define void @{self.name}({pointers}) {{\nentry:\n" + "\n".join(
            [*self.lines, "  ret void", "}"]
        )

    def emit(self, instruction: str) -> str:
        name = f"%v{next(self.count)}"
        self.lines.append(f"  {name} = {instruction}")
        return name

    @property
    def type(self) -> str:
        return f"<{WIDTH} x float>" if self.lane else "float"

    def stmt(self, stmt: Stmt) -> None:
        for group in runs(stmt.body if isinstance(stmt, Seq) else (stmt,)):
            first = group[0]
            if isinstance(first, For) and first.kind == "vector":
                self.lane = first.var
                self.memo.clear()
                self.stmt(first.body)
                self.lane = None
                for buffer in stored_in(first.body):  # what each lane had for itself ends here
                    if buffer.shape == ():
                        self.registers.pop(buffer, None)
            elif isinstance(first, For):
                self.loop(first)
            elif isinstance(first, Store):
                values = [(s, self.value(s.value)) for s in group if isinstance(s, Store)]
                for store, value in values:
                    self.store(store, value)
            else:
                self.stmt(first)
            self.memo.clear()

    def store(self, store: Store, value: str) -> None:
        if store.buffer.register:
            self.registers[store.buffer] = (value, self.lane is not None)
            return
        place = store.buffer.offset(store.index)
        assert self.lane is None or place.coefficient(self.lane) == 1, "results are written in order"
        self.lines.append(f"  store {self.type} {value}, ptr {self.pointer(store.buffer, place)}, align 4")

    def loop(self, loop: For) -> None:
        """for var in n: the body runs at least once; registers it changes enter through phi nodes."""
        head, variable, before = f"head{next(self.count)}", f"%i{next(self.count)}", self.block
        changed = [b for b in stored_in(loop.body) if b in self.registers]
        start = {b: self.registers[b] for b in changed}
        self.lines += [f"  br label %{head}", f"{head}:"]
        hole = len(self.lines)
        self.lines.append("")
        self.block, self.env[loop.var] = head, variable
        self.registers.update({b: (f"%p{next(self.count)}", start[b][1]) for b in changed})
        phis = {b: self.registers[b][0] for b in changed}
        self.memo.clear()
        self.stmt(loop.body)
        following = self.emit(f"add i64 {variable}, 1")
        rows = [f"  {variable} = phi i64 [0, %{before}], [{following}, %{self.block}]"]
        for b in changed:
            kind = f"<{WIDTH} x float>" if start[b][1] else "float"
            last = self.registers[b][0]
            rows.append(f"  {phis[b]} = phi {kind} [{start[b][0]}, %{before}], [{last}, %{self.block}]")
        self.lines[hole] = "\n".join(rows)
        again, self.block = (
            self.emit(f"icmp ult i64 {following}, {loop.var.extent}"),
            f"exit{next(self.count)}",
        )
        self.lines += [f"  br i1 {again}, label %{head}, label %{self.block}", f"{self.block}:"]

    def pointer(self, buffer: Buffer, place: Affine) -> str:
        """Return the address of an access in lane 0."""
        offset = str(place.const)
        for var, c in place.terms:
            if var is not self.lane:
                offset = self.emit(f"add i64 {offset}, {self.emit(f'mul i64 {self.env[var]}, {c}')}")
        return self.emit(f"getelementptr float, ptr %{buffer.name}, i64 {offset}")

    def splat(self, scalar: str) -> str:
        first = self.emit(f"insertelement {self.type} poison, float {scalar}, i64 0")
        return self.emit(
            f"shufflevector {self.type} {first}, {self.type} poison, <{WIDTH} x i32> zeroinitializer"
        )

    def load(self, e: Load) -> str:
        if e.buffer.register:
            name, wide = self.registers[e.buffer]
            return self.splat(name) if self.lane and not wide else name
        place = e.buffer.offset(e.index)
        pointer, stride = self.pointer(e.buffer, place), place.coefficient(self.lane)
        if self.lane is None or stride == 0:
            scalar = self.emit(f"load float, ptr {pointer}, align 4")
            return self.splat(scalar) if self.lane else scalar
        if stride == 1:
            return self.emit(f"load {self.type}, ptr {pointer}, align 4")
        steps = ", ".join(f"i64 {k * stride}" for k in range(WIDTH))
        many = self.emit(f"getelementptr float, ptr {pointer}, <{WIDTH} x i64> <{steps}>")
        all_lanes = f"<{WIDTH} x i1> <{', '.join(['i1 true'] * WIDTH)}>"
        name = f"llvm.masked.gather.v{WIDTH}f32.v{WIDTH}p0"
        self.declared.add(f"declare {self.type} @{name}(<{WIDTH} x ptr>, i32, <{WIDTH} x i1>, {self.type})")
        return self.emit(
            f"call {self.type} @{name}(<{WIDTH} x ptr> {many}, i32 4, {all_lanes}, {self.type} poison)"
        )

    def value(self, e: Expr) -> str:
        if e not in self.memo:
            if isinstance(e, Num):
                bits = f"float 0x{struct.pack('>d', float(F32(e.value))).hex()}"
                self.memo[e] = f"<{', '.join([bits] * WIDTH)}>" if self.lane else bits[6:]
            elif isinstance(e, Load):
                self.memo[e] = self.load(e)
            elif isinstance(e, Call):
                self.memo[e] = self.call(e.fn, [self.value(a) for a in e.args], self.type)
            else:
                self.memo[e] = self.lanes(e)
        return self.memo[e]

    def lanes(self, e: Lanes) -> str:
        (value, _), wide, width = self.registers[e.register], f"<{WIDTH} x float>", WIDTH
        while width > 1:
            width //= 2
            picks = ", ".join(f"i32 {(k + width) % WIDTH}" for k in range(WIDTH))
            other = self.emit(f"shufflevector {wide} {value}, {wide} poison, <{WIDTH} x i32> <{picks}>")
            value = self.call(e.fn, [value, other], wide)
        return self.emit(f"extractelement {wide} {value}, i64 0")

    def call(self, fn: str, args: list[str], ty: str) -> str:
        suffix = f"v{WIDTH}f32" if ty != "float" else "f32"
        if fn in _BINARY:
            return self.emit(f"{_BINARY[fn]} {ty} {args[0]}, {args[1]}")
        if fn == "neg":
            return self.emit(f"fneg {ty} {args[0]}")
        mask, ints = ty.replace("float", "i1"), ty.replace("float", "i32")
        if fn == "gt":
            wins = self.emit(f"fcmp ogt {ty} {args[0]}, {args[1]}")
            return self.emit(f"uitofp {mask} {wins} to {ty}")
        if fn in ("max", "min"):  # NaN if b is NaN, as then no comparison holds; NaN if a is, by the second
            wins = self.emit(f"fcmp {'ogt' if fn == 'max' else 'olt'} {ty} {args[0]}, {args[1]}")
            chosen = self.emit(f"select {mask} {wins}, {ty} {args[0]}, {ty} {args[1]}")
            nan = self.emit(f"fcmp uno {ty} {args[0]}, {args[0]}")
            return self.emit(f"select {mask} {nan}, {ty} {args[0]}, {ty} {chosen}")
        if fn == "pow2":  # build the exponent's bits
            whole = self.intrinsic(f"llvm.fptosi.sat.{suffix.replace('f', 'i')}.{suffix}", ints, args, ty)
            one, bits = ("127", "23") if ty == "float" else (self.repeated(127), self.repeated(23))
            biased = self.emit(f"add {ints} {whole}, {one}")
            return self.emit(f"bitcast {ints} {self.emit(f'shl {ints} {biased}, {bits}')} to {ty}")
        return self.intrinsic(f"llvm.{fn}.{suffix}", ty, args, ty)  # fma, floor, log

    def repeated(self, value: int) -> str:
        return f"<{', '.join([f'i32 {value}'] * WIDTH)}>"

    def intrinsic(self, name: str, result: str, args: list[str], ty: str) -> str:
        self.declared.add(f"declare {result} @{name}({', '.join([ty] * len(args))})")
        return self.emit(f"call {result} @{name}({', '.join(f'{ty} {a}' for a in args)})")


def stored_in(stmt: Stmt) -> list[Buffer]:
    if isinstance(stmt, Store):
        return [stmt.buffer]
    body = stmt.body if isinstance(stmt, Seq) else (stmt.body,)
    return list(dict.fromkeys(b for s in body for b in stored_in(s)))


def assemble(module: str) -> Any:
    """Return an engine that holds the compiled module."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    host = llvm.Target.from_default_triple()
    features = llvm.get_host_cpu_features().flatten()
    machine = host.create_target_machine(cpu=llvm.get_host_cpu_name(), features=features, opt=2, jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(module), machine)
    engine.finalize_object()
    return engine


# ============================================================================================================
# 9. Memory and the program
# ============================================================================================================
# All kernels of a graph become one native function. Before it first runs every value has its place: inputs
# and outputs are the caller's; state is written where it stands, which asks that all who read the old value
# come first; everything else lies in one arena, and what does not live at the same time may share bytes.
#
# In Stratal: memory/liveness.py, memory/alias.py, memory/plan.py; schedule/program.py lowers a graph to
# commands, among them nested loops and branches; codegen/driver.py is the native interpreter of commands
# with its thread pool; runtime/program.py runs it; compiler.py is the whole way on one page.


class Block(NamedTuple):
    nbytes: int
    first: int
    last: int


def place(blocks: Mapping[Node, Block]) -> tuple[dict[Node, int], int]:
    """Return an offset for each block and the size of the arena: large first, each as low as it fits."""
    offsets: dict[Node, int] = {}
    for node, block in sorted(blocks.items(), key=lambda e: -e[1].nbytes):
        rivals = [n for n in offsets if blocks[n].first <= block.last and block.first <= blocks[n].last]
        at = 0
        for other in sorted(rivals, key=offsets.__getitem__):
            if at + block.nbytes <= offsets[other]:
                break
            at = max(at, offsets[other] + blocks[other].nbytes)
        offsets[node] = at
    return offsets, max((offsets[n] + b.nbytes for n, b in blocks.items()), default=0)


def in_order(graph: Graph, partition: Partition) -> list[Group]:
    """Return the groups in an order: operands first, and a state is written after all have read it."""
    needs = {
        g: [partition.owner[v] for v in partition.reads(g) if v in partition.owner] for g in partition.groups
    }
    for state, new in graph.updates:
        writer = partition.owner[new]
        needs[writer] += [g for g in partition.groups if g is not writer and state in partition.reads(g)]
        own = [at == space_of(m)[0] for m in writer.members for v, at in accesses(m) if v is state]
        if writer.kind == "rows" or not all(own):
            raise NotImplementedError("an update that cannot be made in place (Stratal makes a copy)")
    done: dict[Group, None] = {}

    def visit(group: Group, path: tuple[Group, ...]) -> None:
        if group in path:
            raise NotImplementedError("a state is read after it must be written (Stratal makes a copy)")
        for needed in needs[group]:
            if needed not in done:
                visit(needed, (*path, group))
        done[group] = None

    for group in partition.groups:
        if group not in done:
            visit(group, ())
    return list(done)


class Program:
    """A compiled graph: `run` is one native call; states among the inputs are updated where they stand."""

    def __init__(self, graph: Graph) -> None:
        self.graph = simplify(graph)
        partition = fuse(self.graph)
        groups = in_order(self.graph, partition)
        state_of = {new: state for state, new in self.graph.updates}
        self.blocks = {}
        for moment, group in enumerate(groups):
            for node in group.members:
                if node in partition.stored and node not in state_of and node not in self.graph.outputs:
                    last = max(k for k, g in enumerate(groups) if node in partition.reads(g))
                    self.blocks[node] = Block(-(-4 * int(np.prod(node.shape)) // 64) * 64, moment, last)
        offsets, self.arena_bytes = place(self.blocks)
        slots = {node: k for k, node in enumerate((*self.graph.inputs, *self.graph.outputs))}
        functions: dict[str, str] = {}  # text to name: equal kernels are one function
        declared: set[str] = set()
        main: list[str] = []
        for group in groups:
            kernel = Lowering(group, partition).kernel()
            pointers: list[str] = []
            for value in kernel.values:
                value = state_of.get(value, value)
                name = f"%a{len(main)}_{len(pointers)}"
                if value in slots:
                    main.append(f"  {name}s = getelementptr ptr, ptr %table, i64 {slots[value]}")
                    main.append(f"  {name} = load ptr, ptr {name}s")
                else:
                    main.append(f"  {name} = getelementptr i8, ptr %arena, i64 {offsets[value]}")
                pointers.append(f"ptr {name}")
            emitter = Emitter("kernel", kernel)
            name = functions.setdefault(emitter.function(), f"kernel{len(functions)}")
            declared |= emitter.declared
            main.append(f"  call void @{name}({', '.join(pointers)})")
        bodies = [function.replace("@kernel(", f"@{name}(") for function, name in functions.items()]
        head = ["define void @step(ptr %table, ptr %arena) {", "entry:", *main, "  ret void", "}"]
        self.llvm = "\n".join([*bodies, *head, *sorted(declared)])
        self.kernels = groups
        self._engine = assemble(self.llvm)
        self._call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(
            self._engine.get_function_address("step")
        )
        self._arena = np.zeros(self.arena_bytes, np.uint8)

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        outputs = [np.empty(o.shape, F32) for o in self.graph.outputs]
        for node, array in zip(self.graph.inputs, inputs, strict=True):
            if array.dtype != F32 or array.shape != node.shape or not array.flags.c_contiguous:
                raise ValueError(f"input {node.op}: expected dense f32{list(node.shape)}")
        table = (ctypes.c_void_p * (len(inputs) + len(outputs)))(
            *(a.ctypes.data for a in (*inputs, *outputs))
        )
        self._call(ctypes.addressof(table), self._arena.ctypes.data)
        return outputs


def check_programs() -> None:
    """Compare native code with the interpreter: odd sizes, transposes, a softmax, several outputs."""
    rng = np.random.default_rng(3)
    x, w, b = tensor("x", 13, 21), tensor("w", 21, 9), tensor("b", 9)
    _, exps = softmax_parts(x @ w + b)
    soft = exps / make(Broadcast(exps.shape, (0,)), exps.sum(1))
    roots = (soft, soft.T, x.T @ soft, elementwise("log", exps.sum(0)), (-x).sum(1).sum(0), soft @ w.T)
    program = Program(Graph((x, w, b), roots))
    arrays = [rng.normal(size=i.shape).astype(F32) for i in (x, w, b)]
    for got, want in zip(program.run(arrays), interpret(Graph((x, w, b), roots), arrays)[0], strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
    offsets, _ = place(program.blocks)
    for p, q in itertools.combinations(program.blocks.items(), 2):
        alive = p[1].first <= q[1].last and q[1].first <= p[1].last
        start, end = max(offsets[p[0]], offsets[q[0]]), min(offsets[n] + k.nbytes for n, k in (p, q))
        assert not alive or start >= end, "two live values share bytes"
    print(f"9. six results, {len(program.kernels)} kernels, one native call; equal to NumPy within rounding")


# ============================================================================================================
# 10. Training
# ============================================================================================================
# Everything together: three spirals, a network of three layers, momentum. The step is built once as a
# graph. Learning rate and momentum are states and inputs like all others, so a schedule of learning rates
# never recompiles.
#
# In Stratal: tensor/ (lazy tensors that build such graphs from ordinary Python, and `compile`), nn/,
# optim/.


def spirals(per_class: int, rng: np.random.Generator) -> tuple[Array, Array]:
    t = np.linspace(0.1, 1, per_class)
    arms = [4 * t + 2.1 * c + rng.normal(0, 0.08, per_class) for c in range(3)]
    points = np.concatenate([np.stack([t * np.cos(a), t * np.sin(a)], 1) for a in arms])
    return points.astype(F32), np.eye(3, dtype=F32)[np.repeat(np.arange(3), per_class)]


def training_step(sizes: Sequence[int], rows: int) -> tuple[Graph, Graph]:
    """Return the step (x, y, rate, parameters, momenta) -> loss and the network (x, parameters) -> logits."""
    x, y, rate = tensor("x", rows, sizes[0]), tensor("y", rows, sizes[-1]), tensor("rate")
    parameters, hidden = [], x
    for k, (n_in, n_out) in enumerate(itertools.pairwise(sizes)):
        w, b = tensor(f"w{k}", n_in, n_out), tensor(f"b{k}", n_out)
        parameters += [w, b]
        hidden = (relu(hidden) if k else hidden) @ w + b
    loss = cross_entropy(hidden, y)
    momenta = [tensor(f"m{k}", *p.shape) for k, p in enumerate(parameters)]
    updates = []
    for p, m, g in zip(parameters, momenta, gradients(loss, parameters), strict=True):
        moved_on = m * 0.9 + g
        updates += [(m, moved_on), (p, p - moved_on * like(rate, p.shape))]
    step = Graph((x, y, rate, *parameters, *momenta), (loss,), tuple(updates))
    return step, Graph((x, *parameters), (hidden,))


def train(num_steps: int = 400) -> None:
    rng = np.random.default_rng(4)
    x, y = spirals(100, rng)
    step, network = training_step((2, 32, 32, 3), len(x))
    began = time.perf_counter()
    program, predict = Program(step), Program(network)
    compiled = time.perf_counter() - began
    parameters = [
        rng.normal(0, (2 / n) ** 0.5, s).astype(F32) for n, s in ((2, (2, 32)), (32, (32, 32)), (32, (32, 3)))
    ]
    parameters = [p for w in parameters for p in (w, np.zeros(w.shape[1], F32))]
    state = [*parameters, *map(np.zeros_like, parameters)]
    rate = np.array(0.1, F32)
    by_numpy = [s.copy() for s in state]
    order = [step.inputs.index(s) - 3 for s, _ in step.updates]
    for _ in range(3):  # the first steps also by the interpreter, on a copy of the state
        (want,), new = interpret(step, [x, y, rate, *by_numpy])
        (got,) = program.run([x, y, rate, *state])
        by_numpy = [new[order.index(k)] for k in range(len(state))]
        np.testing.assert_allclose(got, want, rtol=1e-5)
        for ours, theirs in zip(state, by_numpy, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)
    began = time.perf_counter()
    for k in range(num_steps):
        rate[...] = 0.1 * 0.5 * (1 + np.cos(np.pi * k / num_steps))
        (loss,) = program.run([x, y, rate, *state])
    seconds = time.perf_counter() - began
    (logits,) = predict.run([x, *parameters])
    accuracy = float((logits.argmax(1) == y.argmax(1)).mean())
    total = sum(b.nbytes for b in program.blocks.values())
    print(
        f"10. a step is {len(program.graph.nodes)} nodes in {len(program.kernels)} kernels, "
        f"compiled in {compiled:.2f} s; arena {program.arena_bytes} bytes for {total} bytes of values\n"
        f"    {num_steps} steps, {num_steps / seconds:.0f} per second: "
        f"loss {float(loss):.4f}, accuracy {accuracy:.3f}"
    )
    assert accuracy > 0.95


def main() -> None:
    for check in (
        check_graphs,
        check_gradients,
        check_rules,
        check_fusion,
        check_loops,
        check_lowering,
        check_programs,
    ):
        check()
    train()
    print("the tour is over")


if __name__ == "__main__":
    main()
