"""Which axes of its operands an op runs along with an axis of its result, and the law that follows.

    contract(x[m, k], w[n, k]), axis n      (None, 0)     x is read as a whole, w at n
    add(x[m, n], y[m, n]), axis n           (1, 1)        both at n
    conv(x[b, c, h, w], f[o, c, i, j]), o   (None, 0)

That is read off the tensor expression in the op's record, so it is known of every op that has one. Where it
is so, a part of the result is the op on parts of the operands,

    f(x, w)[.., s:e:t, ..]  =  f(x, w[.., s:e:t, ..])

which is proved for the op, the types and the part it is used for.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Final

from stratal.base.errors import StratalError
from stratal.base.source import SourceLine
from stratal.base.types import TensorType
from stratal.discover.canonical import text_of
from stratal.discover.matching import proof_of
from stratal.discover.normal_form import Reader
from stratal.discover.prove import Proof
from stratal.discover.terms import Unknown
from stratal.graph.builder import Builder
from stratal.graph.node import Const, Input, Item, Node, graph_input, make
from stratal.graph.op import Op
from stratal.loops.compute import Compute
from stratal.loops.expr import Load, Var, walk
from stratal.search.found import Step

MIXED: Final = -1  # read along an axis, and not by its index alone
Running = tuple["int | None", ...]
Part = tuple[int, int, int]  # start, stop, step
Parts = Mapping[int, Part]  # by axis; of other axes, all


class Axes:
    """Axes that ops run along, and laws that were proved."""

    def __init__(self, *, real: bool) -> None:
        self.real: Final = real
        self._places: Final[dict[object, Running | None]] = {}
        self._sums: Final[dict[object, bool]] = {}  # whether results are sums of products
        self._proofs: Final[dict[object, Proof]] = {}

    def running(self, node: Node, axis: int) -> Running | None:
        """Return at which axis of each operand an axis of the result is read, None for what is read as a
        whole; None where it is not as simple as that.
        """
        found = self.places(node, axis)
        return None if found is None or MIXED in found else found

    def places(self, node: Node, axis: int) -> Running | None:
        """Return at which axis of each operand an axis of the result is read, None for what is read as a
        whole, `MIXED` for what is read otherwise; None where the axis decides more than what is read.
        """
        key = node.op, *(i.type for i in node.inputs), axis
        if key not in self._places:
            self._places[key] = _places(node, axis)
        return self._places[key]

    def sums_products(self, node: Node) -> bool:
        """Return whether each element of a result is a sum of products of those of operands."""
        types = [i.type for i in node.inputs]
        if isinstance(node.op, (Input, Const, Item)) or not all(isinstance(t, TensorType) for t in types):
            return False
        key = node.op, *types
        if key not in self._sums:
            lowered = None if node.op.host_reason(*types) else node.op.lower(*types)  # type: ignore[arg-type]
            combiner = lowered.combiner if isinstance(lowered, Compute) else None
            self._sums[key] = combiner is not None and combiner.name in ("sum", "dot")
        return self._sums[key]

    def law(self, node: Node, parts: Parts) -> Step | None:
        """Return the step from a part of a node to the node on parts of its operands; None where that is
        not proved.
        """
        types = tuple(i.aval for i in node.inputs)
        key = node.op, types, tuple(sorted(parts.items()))
        proof = self._proofs.get(key)
        if proof is None:
            inputs = [graph_input("x", t) for t in types]
            whole = make(node.op, *inputs)
            other = self.applied_to_parts(whole, parts, inputs)
            proof = Proof(False)
            if other is not None:
                proof = proof_of([(part_of(whole, parts), other)], inputs)
            self._proofs[key] = proof
        name = node.op.name
        return self._step(proof, f"parts of {name}", f"part({name}(..))  =  {name}(part(..))")

    def parts_below(self, node: Node, parts: Parts) -> list[dict[int, Part]] | None:
        """Return the parts of the operands that decide parts of a result; None where that is not known."""
        below: list[dict[int, Part]] = [{} for _ in node.inputs]
        for axis, part in parts.items():
            running = self.running(node, axis)
            if running is None:
                return None
            for operand, at in zip(below, running, strict=True):
                if at is not None:
                    operand[at] = part
        return below

    def applied_to_parts(self, node: Node, parts: Parts, operands: Sequence[Node]) -> Node | None:
        """Return a node's op on parts of operands."""
        below = self.parts_below(node, parts)
        if below is None:
            return None
        return self.on_operands(node, parts, [part_of(x, p) for x, p in zip(operands, below, strict=True)])

    def on_operands(self, node: Node, parts: Parts, operands: Sequence[Node]) -> Node | None:
        """Return a node's op, its result as large as some parts, on other operands."""
        return remade(node, {axis: _count(part) for axis, part in parts.items()}, operands)

    def concatenated(self, nodes: Sequence[Node], axis: int) -> Step | None:
        """Return the step from values to parts of them side by side."""
        types = tuple(n.aval for n in nodes)
        key = "side by side", types, axis
        proof = self._proofs.get(key)
        if proof is None:
            proof = self._proofs[key] = _parts_are(types, axis)
        return self._step(proof, "side by side", "part(concatenate(x0, x1, ..))  =  x0")

    def _step(self, proof: Proof, name: str, text: str) -> Step | None:
        if not proof.proved or not (proof.exact or self.real):
            return None
        return Step(name, text, proof.exact, proof.certificate)


def _parts_are(types: Sequence[TensorType], axis: int) -> Proof:
    """Return a proof, to the bit, that values are the parts of them side by side."""
    inputs = [graph_input("x", t) for t in types]
    whole = Builder().concatenate(*inputs, axis=axis)
    reader = Reader({x: f"x{k}" for k, x in enumerate(inputs)}, ring=False)
    try:
        texts = [text_of(reader.element(x)) for x in inputs]
        same = [text_of(reader.element(part)) for part in parts_along(whole, axis, inputs)] == texts
    except Unknown as unknown:
        return Proof(False, reason=f"unknown: {unknown}")
    return Proof(same, exact=same, certificate=texts[0])


def _places(node: Node, axis: int) -> Running | None:
    types = [i.type for i in node.inputs]
    if isinstance(node.op, (Input, Const, Item)) or node.op.effects or node.op.host_reason(*types):  # type: ignore[arg-type]
        return None
    if not all(isinstance(t, TensorType) and all(isinstance(n, int) for n in t.shape) for t in types):
        return None
    lowered = node.op.lower(*types)  # type: ignore[arg-type]
    if not isinstance(lowered, Compute) or lowered.checks:
        return None
    along = lowered.axes[axis]
    if any(e is along for e in walk(lowered.terms, lambda e: () if isinstance(e, Load) else e.parts)):
        return None
    found: dict[object, int | None] = {}
    for load in lowered.loads:
        at = _at(load, along)
        found[load.buffer] = at if found.setdefault(load.buffer, at) == at else MIXED
    return tuple(found.get(buffer) for buffer in lowered.args)


def _at(load: Load, along: Var) -> int | None:
    """Return the axis of a buffer that runs along an index, None for none, `MIXED` if it is not alone."""
    places = [k for k, index in enumerate(load.indices) if along in index.free]
    if not places:
        return None
    (place,) = places if len(places) == 1 else (MIXED,)
    if place != MIXED and load.indices[place] is along and load.buffer.shape[place] == along.extent:
        return place
    return MIXED


def _count(part: Part) -> int:
    start, stop, step = part
    return -(-(stop - start) // step)


def remade(node: Node, sizes: Mapping[int, int], operands: Sequence[Node]) -> Node | None:
    """Return a node's op on other operands, with other sizes of some axes of the result; None for no such."""
    shape = tuple(sizes.get(k, n) for k, n in enumerate(node.shape))
    try:
        made = make(resized(node.op, node.shape, shape), *operands, where=node.where)
    except StratalError:
        return None
    return made if isinstance(made.type, TensorType) and made.shape == shape else None


def resized(op: Op, old: tuple[int, ...], new: tuple[int, ...]) -> Op:
    """Return an op with attributes that say the result's shape saying another one."""
    named = {k: new for k in op.dim_attributes if op.attributes[k] == old}
    return type(op)(**{**op.attributes, **named}) if named and old != new else op


def part_of(x: Node, parts: Parts, where: tuple[SourceLine, ...] = ()) -> Node:
    """Return a part of a value."""
    shape = x.aval.ints
    taken = {k: p for k, p in parts.items() if p != (0, shape[k], 1)}
    if not taken:
        return x
    starts, stops, steps = zip(*(taken.get(k, (0, n, 1)) for k, n in enumerate(shape)), strict=True)
    made: Node = Builder(where).slice(x, start=starts, stop=stops, step=steps)
    return made


def parts_along(whole: Node, axis: int, nodes: Sequence[Node]) -> list[Node]:
    """Return the parts of a value that some values side by side are."""
    pairs = zip(nodes, side_by_side(nodes, axis), strict=True)
    return [part_of(whole, {axis: part}, node.where[:1]) for node, part in pairs]


def side_by_side(nodes: Sequence[Node], axis: int) -> list[Part]:
    """Return where each of some values lies in all of them side by side."""
    ends = [0, *itertools.accumulate(node.aval.ints[axis] for node in nodes)]
    return [(start, stop, 1) for start, stop in itertools.pairwise(ends)]
