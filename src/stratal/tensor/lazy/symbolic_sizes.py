"""Work that came before with other sizes: one program serves all sizes up to a bound, as for compiled
functions.

Two graphs that differ in sizes alone say how every size follows from those of the inputs. That is a guess
from two examples; so a graph is served only if the guess, at its sizes, is that very graph.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from stratal.base.dims import Dim, Sym, evaluate, narrowed, product
from stratal.base.dtypes import DType, int64
from stratal.base.errors import StratalError, UndecidedError
from stratal.base.lru import LRU
from stratal.base.session import SESSION
from stratal.base.types import TensorType, Type
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph
from stratal.graph.literal import Literal
from stratal.graph.node import Const, Item, Node, graph_input, is_frozen, label_of, make, take_item
from stratal.graph.op import Op
from stratal.optimize.sized import bounded
from stratal.runtime.pool import LOCK
from stratal.runtime.storage import Storage

_LEAST_OPS: Final = 48  # smaller work is compiled soon: it must have come with several sizes, of little data
_SEVERAL: Final = 2
_LITTLE_BYTES: Final = 1 << 22
_LEAST, _GROWTH = 16, 4  # capacities
_MOST: Final = 1 << 24  # whole numbers that a float holds exactly
_CAPACITY: Final = 256  # families
_MOST_FAILURES: Final = 3
_SIZE: Final = TensorType(int64)
Compile = Callable[[Graph], Any]
Number = Callable[["Size", Sequence[Node], Node], Node]


class Size(NamedTuple):
    """A size as it follows from others: factor * the product of some + offset."""

    factor: int
    of: tuple[int, ...]
    offset: int

    def at(self, sizes: Sequence[Dim]) -> Dim:
        return self.factor * product(sizes[k] for k in self.of) + self.offset


class Row(NamedTuple):
    """A node: its op, with `sizes` that follow from others, and graphs of such, in place of some attributes,
    and its operands. A constant may be a size itself, `number`.
    """

    op: Op
    sizes: dict[str, tuple[Size, ...]]
    graphs: dict[str, Rows]
    operands: tuple[int, ...]
    number: Size | None = None

    def at(self, sizes: Sequence[Dim]) -> Op:
        """Return the op for some sizes. Raises: StratalError."""
        if self.number is not None:
            return Const(Literal(np.asarray(self.number.at(sizes), _dtype(self.op).np)))
        found: dict[str, Any] = {name: tuple(s.at(sizes) for s in row) for name, row in self.sizes.items()}
        found |= {name: rows.graph(getattr(self.op, name), sizes)[0] for name, rows in self.graphs.items()}
        return dataclasses.replace(self.op, **found) if found else self.op  # type: ignore[type-var]


class Rows(NamedTuple):
    """The sizes of a graph's inputs, and its other nodes, as they follow from some sizes."""

    inputs: list[tuple[Size, ...]]
    nodes: list[Row]

    def graph(
        self, like: Graph, sizes: Sequence[Dim], number: Number | None = None
    ) -> tuple[Graph, list[Node]]:
        """Return a graph like another for some sizes, and its nodes, inputs first.

        Constants that are sizes are made by `number`. Raises: StratalError where an op refuses.
        """
        known: list[Node] = []
        for node, shape in zip(like.inputs, self.inputs, strict=True):
            type_ = node.aval.with_shape([s.at(sizes) for s in shape])
            known.append(graph_input(label_of(node), type_, node.where, frozen=is_frozen(node)))
        numbers, inner = _numbered(like)
        for node, row in zip(inner, self.nodes, strict=True):
            operands = [known[k] for k in row.operands]
            if row.number is not None and number is not None:
                known.append(number(row.number, known, node))
            elif isinstance(node.op, Item):
                known.append(take_item(operands[0], node.op.index))
            else:
                known.append(make(row.at(sizes), *operands, where=node.where))
        updates = [(known[numbers[s]], known[numbers[v]]) for s, v in like.updates]
        outputs = [known[numbers[o]] for o in like.outputs]
        return Graph(known[: len(like.inputs)], outputs, updates, like.name), known


def _numbered(graph: Graph) -> tuple[dict[Node, int], list[Node]]:
    """Return numbers for all nodes, the inputs first, and the nodes that are none."""
    given = set(graph.inputs)
    inner = [node for node in graph.nodes if node not in given]
    return {node: k for k, node in enumerate([*graph.inputs, *inner])}, inner


def skeleton(graph: Graph) -> Any:
    """Return what graphs that differ in sizes alone have in common."""
    numbers, inner = _numbered(graph)
    rows = []
    for node in inner:
        op = node.op
        static = [getattr(op, name) for name in op._fields if name not in op.dim_attributes]
        static = [skeleton(value) if isinstance(value, Graph) else value for value in static]
        static += [len(getattr(op, name)) for name in op.dim_attributes]
        if _whole(op) is not None:
            static = [_dtype(op)]
        rows.append((op.name, *static, *[numbers[i] for i in node.inputs]))
    ends = [numbers[n] for n in graph.outputs], [(numbers[s], numbers[v]) for s, v in graph.updates]
    return tuple((i.aval.dtype, i.aval.ndim) for i in graph.inputs), tuple(rows), str(ends)


def _whole(op: Op) -> int | None:
    """Return the whole number that a constant is, which may be a size."""
    if not isinstance(op, Const) or op.value.type.ndim:
        return None
    array = op.value.array
    number = array.item() if array.dtype.kind in "iuf" else 0
    return int(number) if 1 < number < _MOST and number == int(number) else None


def _dtype(op: Op) -> DType:
    assert isinstance(op, Const)
    return op.value.type.dtype


class SizedProgram:
    """A program for all sizes up to a bound, at some sizes."""

    def __init__(self, room: PaddedProgram, sizes: Sequence[int]) -> None:
        self.room, self.sizes = room, tuple(sizes)
        names = dict(zip(room.names, sizes, strict=True))
        self._sizes = [Storage.copy_of(np.asarray(names[name]), _SIZE) for name in room.symbols]
        self._shapes = {k: tuple(evaluate(n, names) for n in t.shape) for k, t in room.outputs.items()}

    @property
    def inner(self) -> Any:
        """The program for the largest sizes."""
        return self.room.program

    def run(
        self, inputs: Sequence[Storage], inner: Callable[[list[Storage]], list[Storage]]
    ) -> list[Storage]:
        """Run once, where `inner` runs the program for the largest sizes: all sizes share its memory."""
        with LOCK:
            return self._outputs(inner(self._inputs(inputs)))

    def _inputs(self, given: Sequence[Storage]) -> list[Storage]:
        """Return the inputs of the program for the largest sizes."""
        found = [*self._sizes, *given]
        for k, place in self.room.places.items():
            array = given[k].array
            place.array[tuple(map(slice, array.shape))] = array
            found[len(self._sizes) + k] = place
        return found

    def _outputs(self, made: list[Storage]) -> list[Storage]:
        """Return the valid regions of results."""
        for k, shape in self._shapes.items():
            part = made[k].array[tuple(map(slice, shape))]
            type_ = self.room.outputs[k].with_shape(shape)
            fits = part.flags.c_contiguous and part.size
            made[k] = Storage(type_, part) if fits else Storage.copy_of(part, type_)
        return made


class PaddedProgram:
    """A program for all sizes up to a bound, with memory for inputs of the largest."""

    def __init__(self, graph: Graph, names: Sequence[str], compile_: Compile) -> None:
        made, self.symbols = bounded(graph)
        self.names = names
        self.program = compile_(made)
        shift = len(self.symbols)
        self.places = {
            k: Storage.copy_of(np.zeros(made.inputs[k + shift].aval.ints), made.inputs[k + shift].aval)
            for k, node in enumerate(graph.inputs) if _is_symbolic(node.aval)
        }  # fmt: skip
        self.outputs = {k: o.aval for k, o in enumerate(graph.outputs) if _is_symbolic(o.aval)}


def _is_symbolic(type_: TensorType) -> bool:
    return any(isinstance(n, Sym) for n in type_.shape)


class GraphFamily:
    """Graphs that differ in sizes alone: the one that came first, and what was made of it and another."""

    def __init__(self, graph: Graph) -> None:
        self.first = graph
        self.general: Generalization | None = None
        self.failures = 0
        self.came = 1  # with how many sizes

    def program(self, graph: Graph, compile_: Compile) -> SizedProgram | None:
        """Return a program for a graph; None where it takes one of its own."""
        if graph.digest == self.first.digest:  # its program was forgotten, or made under other settings
            return None
        self.came += 1
        if self.failures >= _MOST_FAILURES or (_is_little(graph) and self.came <= _SEVERAL):
            return None
        sizes = self.general.sizes_of(graph) if self.general is not None else None
        try:
            if sizes is None:
                self.general = Generalization(self.first, graph)
                sizes = self.general.sizes_of(graph)
            if sizes is not None:
                assert self.general is not None
                return SizedProgram(self.general.room(sizes, graph, compile_), sizes)
        except StratalError:  # a size is asked for that has no answer, or an op needs to know it
            pass
        self.general, self.first = None, graph
        self.failures += 1
        return None


class _Source(NamedTuple):
    """Where a size is found that follows from no other: an axis of an input, or an entry of an attribute."""

    number: int  # of the input, or among the others
    entry: int
    attribute: str = ""

    def of(self, inputs: Sequence[Node], inner: Sequence[Node]) -> int:
        if self.attribute:
            found: int = getattr(inner[self.number].op, self.attribute)[self.entry]
            return found
        return inputs[self.number].aval.ints[self.entry]


class Generalization:
    """What two graphs are, with sizes that follow from those of the inputs."""

    def __init__(self, one: Graph, other: Graph) -> None:
        self._symbols: list[_Source] = []
        self._pairs: list[tuple[int, int]] = []  # what they are in the two graphs
        self._whole = self._rows(one, other)
        self._rooms: dict[tuple[tuple[int, int], ...], PaddedProgram] = {}  # by bounds of sizes

    def _rows(self, one: Graph, other: Graph, outermost: bool = True) -> Rows:
        """Return what two graphs are; only sizes of the outermost may follow from no others."""
        inputs = []
        for k, (x, y) in enumerate(zip(one.inputs, other.inputs, strict=True)):
            pairs = enumerate(zip(x.aval.ints, y.aval.ints, strict=True))
            inputs.append(tuple(self._size(pair, _Source(k, n) if outermost else None) for n, pair in pairs))
        rows = []
        numbers, inner = _numbered(one)
        for row, (a, b) in enumerate(zip(inner, _numbered(other)[1], strict=True)):
            pair = _whole(a.op), _whole(b.op)
            number = None if pair[0] is None or pair[0] == pair[1] else self._size(pair)  # type: ignore[arg-type]
            sizes, graphs = {}, {}
            for name in a.op._fields:
                mine, theirs = getattr(a.op, name), getattr(b.op, name)
                if isinstance(mine, Graph) and mine != theirs:
                    graphs[name] = self._rows(mine, theirs, outermost=False)
                elif name in a.op.dim_attributes and mine != theirs:
                    sources = [_Source(row, k, name) if outermost else None for k in range(len(mine))]
                    sizes[name] = tuple(map(self._size, zip(mine, theirs, strict=True), sources))
            rows.append(Row(a.op, sizes, graphs, tuple(numbers[i] for i in a.inputs), number))
        return Rows(inputs, rows)

    def _size(self, pair: tuple[int, int], source: _Source | None = None) -> Size:
        """Return a size that is the two of a pair in the two graphs, as it follows from those before."""
        first, second = pair
        if first == second:
            return Size(0, (), first)
        for k, (a, b) in enumerate(self._pairs):
            factor, rest = divmod(second - first, b - a)
            if not rest and (factor == 1 or source is None or source.attribute):
                return Size(factor, (k,), first - factor * a)
        for k, (a, b) in enumerate(self._pairs):
            for j, (c, d) in enumerate(self._pairs[k + 1 :], k + 1):
                if first % (a * c) == 0 and first // (a * c) * b * d == second:
                    return Size(first // (a * c), (k, j), 0)
        if source is None or 0 in pair:
            raise StratalError("flush: a size follows from no other", got=str(pair))
        self._symbols.append(source)
        self._pairs.append(pair)
        return Size(1, (len(self._pairs) - 1,), 0)

    def sizes_of(self, graph: Graph) -> list[int] | None:
        """Return the sizes at which this is a graph; None where it is another."""
        numbers, inner = _numbered(graph)
        sizes = [source.of(graph.inputs, inner) for source in self._symbols]
        for node, shape in zip(graph.inputs, self._whole.inputs, strict=True):
            if node.aval.ints != tuple(s.at(sizes) for s in shape):
                return None
        for node, row in zip(inner, self._whole.nodes, strict=True):
            if node.op != row.at(sizes) or tuple(numbers[i] for i in node.inputs) != row.operands:
                return None
        return sizes if min(sizes, default=0) > 1 else None

    def room(self, sizes: Sequence[int], graph: Graph, compile_: Compile) -> PaddedProgram:
        """Return a program that has room for the sizes of a graph. Raises: StratalError."""
        for bounds, room in self._rooms.items():
            if all(low <= n <= high <= _capacity(n) for n, (low, high) in zip(sizes, bounds, strict=True)):
                return room
        bounds = tuple((2, _capacity(n)) for n in sizes)
        while True:
            names = [f"n{k}({low}..{high})" for k, (low, high) in enumerate(bounds)]
            symbols = [Sym.named(name, low, high) for name, (low, high) in zip(names, bounds, strict=True)]
            values = dict(zip(names, sizes, strict=True))
            try:
                self._rooms[bounds] = PaddedProgram(self._symbolic(graph, symbols, values), names, compile_)
                return self._rooms[bounds]
            except UndecidedError as error:  # it is answered for the sizes at hand
                known = dict(zip(names, bounds, strict=True))
                size, verdict = error.size, error.verdict
                found = narrowed(size, verdict, values, known) if isinstance(size, Sym) and verdict else None
                if found is None or known[found[0]] == found[1]:
                    raise
                bounds = tuple((known | dict([found])).values())

    def at(self, graph: Graph, sizes: Sequence[int]) -> Graph:
        """Return a graph like one of the two, at other sizes. Raises: StratalError."""
        return self._whole.graph(graph, sizes)[0]

    def _symbolic(self, graph: Graph, symbols: Sequence[Sym], sizes: Mapping[str, int]) -> Graph:
        made, nodes = self._whole.graph(graph, symbols, self._counted)
        for node, own in zip(nodes, _numbered(graph)[0], strict=True):
            if _at(node.type, sizes) != _at(own.type, sizes):
                raise StratalError("flush: a type does not follow from sizes", got=str(node.type))
        if any(_is_symbolic(state.aval) for state, _ in made.updates):
            raise StratalError("flush: a state of changing size is written where it stands")
        return made

    def _counted(self, size: Size, inputs: Sequence[Node], node: Node) -> Node:
        """Return a size as a number of the run."""
        b = Builder(node.where)
        total = b.const(size.factor, int64)
        for k in size.of:
            source = self._symbols[k]
            if source.attribute:
                raise StratalError("flush: a number follows from a size that no input has")
            total = b.mul(total, b.op("size", inputs[source.number], axis=source.entry))
        return b.cast(b.add(total, b.const(size.offset, int64)), dtype=node.aval.dtype)


def _at(type_: Type, sizes: Mapping[str, int]) -> list[Any]:
    """Return the shapes and dtypes of a type for some sizes."""
    parts: Iterable[Any] = getattr(type_, "elements", (type_,))
    return [(p.dtype, tuple(evaluate(n, sizes) for n in p.shape)) for p in parts]


def _capacity(size: int) -> int:
    """Return how many there is room for: powers of 4."""
    capacity = _LEAST
    while capacity < size:
        capacity *= _GROWTH
    return capacity


def _is_little(graph: Graph) -> bool:
    return len(graph.nodes) < _LEAST_OPS


_FAMILIES: Final = SESSION.cache(LRU[Any, GraphFamily](_CAPACITY))


def program_for(graph: Graph, compile_: Compile) -> SizedProgram | None:
    """Return a program for a graph and others that differ from it in sizes; None for the first of its kind,
    and where there can be none.
    """
    if _is_little(graph) and sum(i.aval.nbytes for i in graph.inputs) > _LITTLE_BYTES:
        return None
    key = skeleton(graph)
    family = _FAMILIES.get(key)
    if family is None:
        _FAMILIES.keep(key, GraphFamily(graph))
        return None
    return _FAMILIES.keep(key, family).program(graph, compile_)
