"""One capture: the user's function run once on placeholders, and the entry that replays what it did."""

from __future__ import annotations

import functools
import gc
import inspect
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stratal.base import tree
from stratal.base.dims import Sym
from stratal.base.dtypes import float64
from stratal.base.types import TensorType
from stratal.graph.node import Input, Node
from stratal.optimize.sized import bounded
from stratal.runtime.storage import Storage
from stratal.tensor import lazy, programs, values
from stratal.tensor.dynamic import Symbolic, needs_sizes
from stratal.tensor.guards import Guards, collect
from stratal.tensor.handles import CONSTANT, TRACKED
from stratal.tensor.replay import (
    Entry,
    Fixed,
    FromArgument,
    FromFloat,
    FromGrad,
    FromHandle,
    FromPart,
    FromSize,
    Frozen,
    Out,
    Place,
)
from stratal.tensor.scalars import RuntimeScalar
from stratal.tensor.state import tracing
from stratal.tensor.tensor import Tensor, wrap
from stratal.tensor.trace import Cell, Trace

HASHED = (bool, int, float, complex, str, bytes, type(None), type)
"""Python values a signature holds themselves; of others it holds the identity."""


class Recording:
    """One run of the user's function on placeholders."""

    def __init__(
        self, function: Callable[..., Any], name: str, leaves: list[Any], structure: tree.Structure,
        has_kwargs: bool, key: Any, symbolic: Symbolic | None = None,
    ) -> None:  # fmt: skip
        self.symbolic = symbolic
        self.sized: dict[int, Tensor] = {}  # arguments with symbolic types, by the handle they stand for
        self.function, self.name = function, name
        self.leaves = leaves
        self.structure = structure
        self.has_kwargs = has_kwargs
        self.float_arguments = {k for k, part in enumerate(key[3]) if part is float}
        self.trace = Trace(self.name)
        self.labels = labels(self.function, structure, leaves, has_kwargs)
        self.scalars: dict[Node, FromFloat] = {}
        self.placeholders: dict[Node, int] = {}
        self.floats_used: list[str] = []

    def run(self, varying: dict[str, bool]) -> Entry:
        objects = [
            (self.labels[k], x) for k, x in enumerate(self.leaves) if not isinstance(x, (Tensor, *HASHED))
        ]
        guards = collect(self.function, self.name, objects)
        swapped = [g for g in guards.floats() if varying.get(g.source.name)]
        with tracing(self.trace):
            arguments = [self._argument(k, x) for k, x in enumerate(self.leaves)]
            try:
                for guard in swapped:
                    guard.source.write(self._scalar(FromFloat(-1, guard.source), guard.source.name))
                    self.floats_used.append(guard.source.name)
                tree_of_arguments = tree.unflatten(self.structure, arguments)
                args, kwargs = tree_of_arguments if self.has_kwargs else (tree_of_arguments, {})
                result = self.function(*args, **kwargs)
            finally:
                for guard in swapped:
                    if isinstance(guard.source.read(), RuntimeScalar):
                        guard.source.write(guard.expected)
                self.trace.closed = True
        if any(_node_in(made) not in self.placeholders for made in self.sized.values()):
            raise needs_sizes(self.symbolic, "an argument is changed in place")
        del arguments, args, kwargs, tree_of_arguments
        self.sized.clear()
        self.trace.symbols.clear()
        own = {id(x) for x in self.leaves}
        read = [c.tensor for c in self.trace.cells.values() if id(c.tensor) not in own]
        return self._entry(result, guards.after_call({id(g.source) for g in swapped}, read))

    def _argument(self, k: int, x: Any) -> Any:
        if self.symbolic is not None and k in self.symbolic.types:
            return self._sized_argument(k, x, self.symbolic)
        if isinstance(x, Tensor):
            self.trace.enter(x, self.labels[k])
        elif k in self.float_arguments:
            return self._scalar(FromFloat(k, None), self.labels[k])
        return x

    def _sized_argument(self, k: int, x: Tensor, symbolic: Symbolic) -> Tensor:
        made = self.sized.get(id(x))
        if made is None:
            made = self.sized[id(x)] = wrap(
                values.placeholder(self.labels[k], symbolic.types[k], self.name), CONSTANT
            )
            self.placeholders[_node_in(made)] = k
            for name, axis in symbolic.names.items():
                if axis[0] == k:
                    self.trace.symbols[name] = made, axis[1]
        return made

    def _scalar(self, place: FromFloat, label: str) -> RuntimeScalar:
        node = values.placeholder(label, TensorType(float64), self.name)
        self.scalars[node] = place
        return RuntimeScalar.of(node)

    # -- from trace to entry ---------------------------------------------------------------------------------
    def _entry(self, result: Any, guards: Guards) -> Entry:
        trace = self.trace
        leaves, structure = tree.flatten(result)
        outputs: dict[Node, int] = {}
        outs = [self._out(x, outputs) for x in leaves]
        grads = self._grads()
        outlived = self._survivors([*leaves, *(g for _, g in grads)])
        survivors = [(r, outputs.setdefault(_node_in(t), len(outputs))) for r, t in outlived]
        for token in trace.tokens:
            outputs.setdefault(token, len(outputs))
        cells = [c for c in trace.cells.values() if c.written]
        spare = [values.placeholder("grad", g.type, self.name) for _, g in grads]
        updates = [(c.placeholder, c.node) for c in cells]
        updates += [(s, _node_in(g)) for s, (_, g) in zip(spare, grads, strict=True)]
        roots = [*outputs, *(v for _, v in updates)]
        order, used = programs.walk(roots, lambda n: isinstance(n.op, Input))
        inputs = list(dict.fromkeys([*self._in_order(set(used) | {c.placeholder for c in cells}), *used]))
        work = programs.Work([*inputs, *spare], list(outputs), updates, order)
        reads = [self._read(n) for n in inputs]
        held = self._held(inputs, reads, [p for p, _ in grads])
        entry = Entry(work.graph(self.name, self._input_labels(inputs, guards), held), guards)
        entry.reads = reads
        position = {n: k for k, n in enumerate([*inputs, *spare])}
        entry.written = [position[c.placeholder] for c in cells]
        entry.tracks = [c.track for c in cells]
        entry.grads = [(p, position[s]) for s, (p, _) in zip(spare, grads, strict=True)]
        entry.grad_links = [(p, g) for p, g in trace.grads.values() if g is None or g._trace is not trace]
        entry.grads_before = [(p, g is not None) for p, g in trace.grads_read.values()]
        entry.outs, entry.structure, entry.survivors = outs, structure, survivors
        entry.once = bool(survivors)
        leaf_written = any(c.leaf for c in cells)
        tracked = any(o.track == TRACKED for o in outs if o.number >= 0)
        entry.lazily = tracked and not trace.differentiated and not leaf_written
        return entry if self.symbolic is None else self._for_all_sizes(entry, self.symbolic)

    def _for_all_sizes(self, entry: Entry, symbolic: Symbolic) -> Entry:
        """Let the entry's program serve every size up to the bounds, with the sizes as inputs in front."""
        if entry.lazily or entry.survivors:
            raise needs_sizes(symbolic, "results carry gradients, or outlive the call")
        graph, names = bounded(entry.graph)
        types = [o.aval for o in entry.graph.outputs]
        entry.parts = {k: t for k, t in enumerate(types) if any(isinstance(n, Sym) for n in t.shape)}
        entry.graph = graph
        entry.sizes = {name: FromSize(*symbolic.names[name]) for name in names}
        shift = len(names)
        entry.reads = [*entry.sizes.values(), *entry.reads]
        for k, read in enumerate(entry.reads):
            if isinstance(read, FromArgument) and read.position in symbolic.types:
                type_ = graph.inputs[k].aval
                entry.reads[k] = FromPart(read.position, Storage.copy_of(np.zeros(type_.ints), type_))
        entry.written = [k + shift for k in entry.written]
        entry.grads = [(owner, k + shift) for owner, k in entry.grads]
        return entry

    def _out(self, x: Any, outputs: dict[Node, int]) -> Out:
        if not isinstance(x, Tensor) or x._trace is not self.trace:
            return Out(-1, x, CONSTANT)
        return Out(outputs.setdefault(_node_in(x), len(outputs)), None, x._track)

    def _grads(self) -> list[tuple[Tensor, Tensor]]:
        return [(p, g) for p, g in self.trace.grads.values() if g is not None and g._trace is self.trace]

    def _survivors(self, known: list[Any]) -> list[tuple[weakref.ref[Tensor], Tensor]]:
        """Return tensors made inside that something outside still holds, results and gradients apart."""
        expected = {id(x) for x in known}

        def alive() -> list[tuple[weakref.ref[Tensor], Tensor]]:
            return [(r, t) for r in self.trace.created if (t := r()) is not None and id(t) not in expected]

        if not alive():
            return []
        gc.collect()
        return alive()

    def _in_order(self, wanted: set[Node]) -> list[Node]:
        return [c.placeholder for c in self.trace.cells.values() if c.placeholder in wanted]

    def _read(self, node: Node) -> Place | Fixed:
        if node in self.scalars:
            return self.scalars[node]
        if node in self.placeholders:
            return FromArgument(self.placeholders[node])
        cell = self._cell_of.get(node)
        if cell is None:
            storage = values.finished(node)
            if storage is None:
                raise lazy.no_value(node)
            return Frozen(storage)
        for k, x in enumerate(self.leaves):
            if x is cell.tensor:
                return FromArgument(k)
        for owner, before in self.trace.grads_read.values():
            if before is cell.tensor:
                return FromGrad(owner)
        return FromHandle(cell.tensor)

    def _held(
        self, inputs: Sequence[Node], reads: Sequence[Place | Fixed], learning: Sequence[Tensor]
    ) -> set[Node]:
        """Return the inputs that seldom change: read through handles, neither written nor about to be.

        A tensor whose gradient is made here is about to be: that is what gradients are for.
        """
        changing = {c.placeholder for c in self.trace.cells.values() if c.written}
        about_to = {id(tensor) for tensor in learning}

        def seldom(node: Node, read: Place | Fixed) -> bool:
            if isinstance(read, FromHandle):
                return node not in changing and id(read.handle) not in about_to
            return isinstance(read, Frozen)

        return {node for node, read in zip(inputs, reads, strict=True) if seldom(node, read)}

    @functools.cached_property
    def _cell_of(self) -> dict[Node, Cell]:
        return {c.placeholder: c for c in self.trace.cells.values()}

    def _input_labels(self, inputs: Sequence[Node], guards: Guards) -> list[str]:
        labels = []
        for node in inputs:
            cell = self._cell_of.get(node)
            label = node.op.label if isinstance(node.op, Input) else ""
            labels.append(label or (guards.names.get(id(cell.tensor), "") if cell is not None else ""))
        return labels


def _node_in(made: Tensor) -> Node:
    """Return the node of a tensor made inside a trace."""
    assert made._node is not None
    return made._node


def labels(function: Any, structure: tree.Structure, leaves: Sequence[Any], has_kwargs: bool) -> list[str]:
    """Return a name for each leaf of the arguments: `x`, `batch.0`."""
    try:
        names = [p for p in inspect.signature(function).parameters if p != "self"]
    except (TypeError, ValueError):
        names = []
    numbered = tree.unflatten(structure, range(len(leaves)))
    args, kwargs = numbered if has_kwargs else (numbered, {})
    found = [""] * len(leaves)
    heads = [(names[k] if k < len(names) else f"arg{k}", a) for k, a in enumerate(args)] + list(
        kwargs.items()
    )
    for head, part in heads:
        for path, index in tree.paths(part):
            found[index] = tree.path_name((head, *path))
    return found
