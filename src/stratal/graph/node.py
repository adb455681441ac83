"""Nodes: one application of an op. Immutable and hash-consed, so equal expressions are one object."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, final

from stratal.base.errors import StratalError, VerifyError
from stratal.base.source import SourceLine, merge
from stratal.base.types import TensorType, TupleType, Type
from stratal.base.weak import WeakTable
from stratal.graph.literal import Literal
from stratal.graph.op import Array, Op, record

_TABLE: WeakTable[Node] = WeakTable()  # by op and ids of inputs
_UIDS = itertools.count()


@final
class Node:
    """One value. Make it with `make`, `constant` or `graph_input`; compare with `is`."""

    __slots__ = ("__weakref__", "inputs", "op", "type", "where")

    def __init__(self, op: Op, inputs: tuple[Node, ...], type_: Type, where: tuple[SourceLine, ...]) -> None:
        self.op: Final = op
        self.inputs: Final = inputs
        self.type: Final = type_
        self.where = where  # grows when rewrites or hash-consing merge two values; never part of identity

    @property
    def aval(self) -> TensorType:
        """The type of a node with a single result."""
        if isinstance(self.type, TupleType):
            raise VerifyError(f"{self.op.name}: has several results; take one with item", got=str(self.type))
        return self.type

    @property
    def shape(self) -> tuple[Any, ...]:
        return self.aval.shape

    @property
    def dtype(self) -> Any:
        return self.aval.dtype

    def __repr__(self) -> str:
        return f"<{self.op.name}: {self.type}>"


def make(op: Op, *inputs: Node, where: tuple[SourceLine, ...] = (), type_: Type | None = None) -> Node:
    """Return the node `op(*inputs)`: an existing equal one, or a new one after its type rule passed, which is
    spared where the type is known.
    """
    key = (op, *map(id, inputs))
    found = None if op.effects else _TABLE.get(key)
    if found is not None:
        if where and where != found.where:
            found.where = merge(found.where, where)
        return found
    if type_ is None:
        op.check_arity(len(inputs))
        try:
            type_ = op.infer(*[i.aval for i in inputs])
        except StratalError as error:
            error.at(where)
            raise
    node = Node(op, inputs, type_, where)
    return node if op.effects else _TABLE.add(key, node)


@record
class Input(Op):
    """A graph input. `uid` makes two inputs of one type different values.

    One that is `frozen` seldom changes from one run to the next, such as a weight in inference.
    """

    label: str
    type: TensorType
    uid: int
    frozen: bool = False
    name = "input"
    arity = 0
    foldable = False
    not_differentiable = "an input is where derivatives end"
    not_lowered = "an input is a buffer, not work"

    def infer(self, *types: TensorType) -> Type:
        return self.type


@record
class Const(Op):
    """A value known at compile time."""

    value: Literal
    name = "const"
    arity = 0
    not_differentiable = "a constant has no derivative"
    not_lowered = "a constant is a buffer or an immediate, not work"

    def infer(self, *types: TensorType) -> Type:
        return self.value.type

    def ref(self, *arrays: Array) -> Array:
        return self.value.array


@record
class Item(Op):
    """Result number `index` of an op with several results."""

    index: int
    name = "item"
    arity = 1
    not_lowered = "an item names a buffer its producer wrote"

    def infer(self, *types: TensorType) -> Type:
        raise VerifyError("item: built by take_item only")


def graph_input(
    label: str, type_: TensorType, where: tuple[SourceLine, ...] = (), *, frozen: bool = False
) -> Node:
    """Return a fresh input, different from every other: there is no equal one to look for."""
    return Node(Input(label, type_, next(_UIDS), frozen), (), type_, where)


def label_of(node: Node) -> str:
    """Return the label of an input; nothing for other nodes."""
    return node.op.label if isinstance(node.op, Input) else ""


def is_frozen(node: Node) -> bool:
    """Return whether a node is an input that seldom changes from one run to the next."""
    return isinstance(node.op, Input) and node.op.frozen


def constant(value: object, where: tuple[SourceLine, ...] = ()) -> Node:
    """Return the constant node of a NumPy array (or Literal)."""
    return make(Const(value if isinstance(value, Literal) else Literal(value)), where=where)  # type: ignore[arg-type]


def take_item(node: Node, index: int) -> Node:
    """Return result `index` of a node of tuple type; a node with a single result is its own item 0."""
    if not isinstance(node.type, TupleType):
        return node
    op = Item(index)
    key = (op, id(node))
    found = _TABLE.get(key)
    if found is None:
        found = _TABLE.add(key, Node(op, (node,), node.type.elements[index], node.where))
    return found


def items(node: Node) -> list[Node]:
    """Return the results of a node, one node each."""
    count = len(node.type.elements) if isinstance(node.type, TupleType) else 1
    return [take_item(node, k) for k in range(count)]


def owner(node: Node) -> Node:
    """Return the node that computes a value: results of a node with several are taken from it."""
    return node.inputs[0] if isinstance(node.op, Item) else node


def rebuild(node: Node, inputs: Iterable[Node]) -> Node:
    """Return `node` with other inputs and the same provenance."""
    operands = tuple(inputs)
    if operands == node.inputs:  # nodes are equal only where identical
        return node
    if isinstance(node.op, Item):
        return take_item(operands[0], node.op.index)
    same = all(a.type is b.type for a, b in zip(operands, node.inputs, strict=True))
    return make(node.op, *operands, where=node.where, type_=node.type if same else None)


def topological(roots: Iterable[Node], stop: Callable[[Node], bool] | None = None) -> list[Node]:
    """Return every node the roots need, inputs before users, in a stable order; iterative, any depth.

    Nodes for which `stop` holds are listed but not looked into.
    """
    order: list[Node] = []
    seen: set[Node] = set()
    for root in roots:
        if root in seen:
            continue
        seen.add(root)
        stack: list[tuple[Node, Iterator[Node]]] = [(root, iter(() if stop and stop(root) else root.inputs))]
        while stack:
            node, rest = stack[-1]
            for child in rest:
                if child not in seen:
                    seen.add(child)
                    stack.append((child, iter(() if stop and stop(child) else child.inputs)))
                    break
            else:
                order.append(node)
                stack.pop()
    return order
