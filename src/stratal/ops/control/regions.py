"""What control flow shares: signatures of regions, which values move, and what a derivative must save."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from stratal.base.cost import Cost
from stratal.base.dims import Dim
from stratal.base.errors import ShapeError
from stratal.base.lowered import Lowered
from stratal.base.types import TensorType, TupleType
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph, substitute
from stratal.graph.interpret import interpret
from stratal.graph.node import Const, Node, topological
from stratal.graph.op import Array, Op
from stratal.loops.compute import Region
from stratal.ops.annotations import AGAIN, Barrier

# Recomputed in the backward pass rather than saved: they cost nothing, or only repeat what they read.
_REMADE = frozenset({"broadcast", "reshape", "permute", "flip", "iota"})
_CHEAP = frozenset({"add", "sub", "mul", "neg"})  # computed again where all they read is saved anyway


def check_region(name: str, role: str, region: Graph, given: Sequence[TensorType]) -> None:
    """Refuse a region whose inputs are not of the types the op hands it. Raises: ShapeError."""
    if region.updates:
        raise ShapeError(
            f"{name}: the {role} must not update state",
            got=f"{len(region.updates)} updates",
            hint="thread it as a carry",
        )
    wanted = region.input_types
    if len(wanted) != len(given):
        raise ShapeError(f"{name}: the {role} takes {len(wanted)} values", got=f"{len(given)}")
    for k, (want, got) in enumerate(zip(wanted, given, strict=True)):
        if want != got:
            raise ShapeError(
                f"{name}: value {k} of the {role} has another type", got=f"{got}, it takes {want}"
            )


def check_same(name: str, role: str, got: Sequence[TensorType], want: Sequence[TensorType]) -> None:
    """Refuse results that differ from what they must be. Raises: ShapeError."""
    if tuple(got) != tuple(want):
        shown = f"({', '.join(map(str, got))}) for ({', '.join(map(str, want))})"
        raise ShapeError(f"{name}: {role}", got=shown)


class Regional(Op):
    """What control flow shares: attributes that are graphs are its regions."""

    foldable = False

    @property
    def effects(self) -> bool:  # type: ignore[override]
        return any(has_effects(value) for value in self.attributes.values() if isinstance(value, Graph))

    def lower(self, *types: TensorType) -> Lowered:
        return Region(self.name)


def has_effects(region: Graph) -> bool:
    """Return whether running a region can be noticed from outside."""
    return any(node.op.effects for node in region.nodes)


def run(region: Graph, arrays: Iterable[Array]) -> tuple[Array, ...]:
    """Return the outputs of a region, by the reference interpreter; copied, so that none is an input."""
    return tuple(np.array(a) for a in interpret(region, list(arrays))[0])


def region_cost(region: Graph, times: float = 1.0) -> Cost:
    """Return the summed cost of a region's nodes, `times` over."""
    total = Cost()
    for node in region.nodes:
        if node.inputs and node.op.name != "item":
            total = total + node.op.cost(*[i.aval for i in node.inputs])
    return Cost(*(part * times for part in total))


def moving(region: Graph, active: Sequence[bool]) -> list[bool]:
    """Return which outputs have a derivative with respect to the marked inputs."""
    live = {node for node, is_active in zip(region.inputs, active, strict=True) if is_active}
    for node in region.nodes:
        if any(child in live for child in node.inputs) and _is_inexact(node):
            live.add(node)
    return [o in live for o in region.outputs]


def _is_inexact(node: Node) -> bool:
    types = node.type.elements if isinstance(node.type, TupleType) else (node.type,)
    return any(t.dtype.is_inexact for t in types)


def moving_carries(body: Graph, active: Sequence[bool], num_carries: int) -> list[bool]:
    """Return `active` and every carry that depends on an active input after some number of steps."""
    known = list(active)
    while True:
        after = moving(body, known)
        carries = [is_active or after[k] for k, is_active in enumerate(known[:num_carries])]
        grown = carries + known[num_carries:]
        if grown == known:
            return known
        known = grown


def is_zero(node: Node) -> bool:
    """Return whether a node is visibly a tensor of zeros."""
    while node.op.name == "broadcast":
        node = node.inputs[0]
    return isinstance(node.op, Const) and not node.op.value.array.any()


class Backward(NamedTuple):
    """The roots of a derivative cut off from the primal's intermediate values."""

    saved: list[Node]  # values of the primal the roots read; to be kept by an augmented primal
    hoisted: list[Node]  # values that are the same in every step; to be computed once, outside
    remade: list[Node]  # inputs of the primal the roots still read
    roots: list[Node]


def cut(
    roots: Sequence[Node],
    unknown: Sequence[Node],
    at_hand: Iterable[Node],
    constant: Iterable[Node] | None = None,
) -> Backward:
    """Find what `roots` need of the primal, where `unknown` are the cotangents.

    `at_hand` are primal inputs the backward pass has anyway; what depends on `constant` alone, or on nothing,
    is hoisted where `constant` is given.
    """
    order = topological(roots)
    later = set(unknown)
    for node in order:
        if any(child in later for child in node.inputs):
            later.add(node)
    have, fixed = set(at_hand), set() if constant is None else _depends_only(order, set(constant))
    wanted = list(_read_by(later, order, roots))
    anew = _behind_checkpoints(order)
    found = _sorted_out(wanted, have, fixed, anew)
    again = _made_of(found["saved"], have) | anew
    if again != anew:
        found = _sorted_out(wanted, have, fixed, again)
    return Backward(list(found["saved"]), list(found["hoisted"]), list(found["remade"]), list(roots))


def _sorted_out(
    wanted: Iterable[Node], have: set[Node], fixed: set[Node], again: set[Node]
) -> dict[str, dict[Node, None]]:
    """Return the values of each list that `wanted` are made of, by what happens to them."""
    found: dict[str, dict[Node, None]] = {"saved": {}, "hoisted": {}, "remade": {}}
    for node in wanted:
        stack = [node]
        while stack:
            value = stack.pop()
            kind = "" if value in again else _kind(value, have, fixed)
            if kind:
                found[kind][value] = None
            else:
                stack.extend(reversed(value.inputs))
    return found


def _behind_checkpoints(order: Sequence[Node]) -> set[Node]:
    """Return the nodes that a checkpoint computes anew, from the barriers on."""
    found: set[Node] = set()
    for node in order:
        if node.op == Barrier(AGAIN) or any(child in found for child in node.inputs):
            found.add(node)
    return found


def _made_of(saved: Iterable[Node], have: set[Node]) -> set[Node]:
    """Return saved values, and what lies between, that cheap ops make of other saved values alone.

    s = logistic(x), t = s * (1 - s)   of which both are read   ->   t is made of s again
    """
    kept = set(saved)
    known: dict[Node, bool] = {}

    def at_hand(node: Node) -> bool:
        return node in kept or node in have or isinstance(node.op, Const)

    def makes(node: Node) -> bool:
        if node not in known:
            cheap = node.op.name in _CHEAP or (node.op.name in _REMADE and bool(node.inputs))
            known[node] = cheap and all(at_hand(i) or makes(i) for i in node.inputs)
        return known[node]

    def between(node: Node) -> Iterator[Node]:
        for child in node.inputs:
            if not at_hand(child):
                yield child
                yield from between(child)

    found = [node for node in kept if node.op.name in _CHEAP and makes(node)]
    return {*found, *(n for node in found for n in between(node))}


def _read_by(later: set[Node], order: Sequence[Node], roots: Sequence[Node]) -> Iterator[Node]:
    """Yield the values computed before any cotangent that are read after one, or are roots."""
    for node in order:
        if node in later:
            yield from (child for child in node.inputs if child not in later)
    yield from (root for root in roots if root not in later)


def _kind(value: Node, have: set[Node], fixed: set[Node]) -> str:
    """Return the list a value belongs to, or nothing when it is made again from its operands."""
    if value in have:
        return "remade"
    if value.op.name in _REMADE or isinstance(value.op, Const):
        return ""
    return "hoisted" if value in fixed else "saved"


def _depends_only(order: Sequence[Node], constant: set[Node]) -> set[Node]:
    """Return the nodes that depend on `constant` and on nothing else, without effects."""
    fixed: set[Node] = set()
    free: set[Node] = set(constant)  # also nodes that depend on nothing at all
    for node in order:
        if node in free:
            continue
        if node.op.name != "input" and not node.op.effects and all(child in free for child in node.inputs):
            free.add(node)
            fixed.add(node)
    return fixed


def fed(backward: Backward, inputs: Sequence[Node]) -> list[Node]:
    """Return the roots with saved and hoisted values replaced by `inputs`, in that order."""
    return substitute(backward.roots, dict(zip([*backward.saved, *backward.hoisted], inputs, strict=True)))


def pick(values: Sequence[Any], active: Sequence[bool]) -> list[Any]:
    """Return the marked values."""
    return [v for v, is_active in zip(values, active, strict=True) if is_active]


def unpick(picked: Iterable[Any], active: Iterable[bool]) -> list[Any]:
    """Return picked values in the places that are marked, None in the others."""
    rest = iter(picked)
    return [next(rest) if is_active else None for is_active in active]


# -- batches -------------------------------------------------------------------------------------------------
def gained(before: Graph, after: Graph) -> list[bool]:
    """Return which outputs of the batch of a region have the axis."""
    return [a.aval.ndim > o.aval.ndim for o, a in zip(before.outputs, after.outputs, strict=True)]


def batched_step(
    b: Builder, step: Graph, size: Dim, active: Sequence[bool], num_carries: int, wanted: Sequence[bool] = ()
) -> tuple[Graph, list[bool]]:
    """Return the batch of a loop's body and `active`, with every carry that comes to differ from row to row.

    Carries have the axis at the end of a step where they have it at its start. `wanted` outputs have it, too.
    """
    known = list(active)
    others = list(wanted) or [False] * (len(step.outputs) - num_carries)
    while True:
        after = b.batch_graph(step, size, known, [*known[:num_carries], *others])
        grown = [*gained(step, after)[:num_carries], *known[num_carries:]]
        if grown == known:
            return after, known
        known = grown


def chosen(b: Builder, condition: Node, yes: Node, no: Node) -> Node:
    """Return `yes` in the rows where the condition [rows] holds, else `no`."""
    if yes is no:
        return yes
    return b.select(b.broadcast(condition, shape=yes.shape, axes=(0,)), yes, no)
