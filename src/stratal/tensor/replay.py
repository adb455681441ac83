"""Replaying a capture: read inputs where they stand now, run the program, put results where they belong."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from stratal.base import tree
from stratal.base.dtypes import float64
from stratal.base.interrupts import InterruptsHeld
from stratal.base.types import TensorType
from stratal.graph.graph import Graph, substitute
from stratal.runtime.storage import Storage
from stratal.tensor import lazy, programs, values
from stratal.tensor.alive import shared
from stratal.tensor.guards import Guards, Source
from stratal.tensor.handles import CONSTANT, look, rebind
from stratal.tensor.tensor import Tensor, hold, wrap


# -- where the inputs of a program are read at each call -----------------------------------------------------
class FromArgument(NamedTuple):
    position: int

    def tensor(self, arguments: Sequence[Any]) -> Tensor:
        found: Tensor = arguments[self.position]
        return found


class FromHandle(NamedTuple):
    handle: Tensor

    def tensor(self, arguments: Sequence[Any]) -> Tensor:
        return self.handle


class FromGrad(NamedTuple):
    owner: Tensor

    def tensor(self, arguments: Sequence[Any]) -> Tensor:
        assert self.owner._grad is not None
        return self.owner._grad


class FromFloat(NamedTuple):
    """A Python float that varies: an argument, or a place a guard watched."""

    position: int
    source: Source | None

    def storage(self, arguments: Sequence[Any]) -> Storage:
        value = arguments[self.position] if self.source is None else self.source.read()
        return Storage.copy_of(np.array(float(value)), TensorType(float64))


class Frozen(NamedTuple):
    """Data made while the function was captured, the same at each call."""

    storage_: Storage

    def storage(self, arguments: Sequence[Any]) -> Storage:
        return self.storage_


Place = FromArgument | FromHandle | FromGrad
Fixed = FromFloat | Frozen


class Out(NamedTuple):
    """A leaf of the function's result: output of that number, or a value to return as it is."""

    number: int
    value: Any
    track: int


class Entry:
    """One capture, ready to be replayed."""

    def __init__(self, graph: Graph, guards: Guards) -> None:
        self.graph = graph
        self.guards = guards
        self.reads: list[Place | Fixed] = []  # one per input of the graph, spare gradient buffers apart
        self.written: list[int] = []  # positions among the inputs that are cells to be written
        self.grads: list[
            tuple[Tensor, int]
        ] = []  # owners of gradients made inside, with their input position
        self.grad_links: list[
            tuple[Tensor, Tensor | None]
        ] = []  # owners whose gradient becomes an earlier tensor
        self.grads_before: list[
            tuple[Tensor, bool]
        ] = []  # owners whose gradient was read: whether there was one
        self.outs: list[Out] = []
        self.structure: tree.Structure = tree.LEAF
        self.survivors: list[tuple[weakref.ref[Tensor], int]] = []
        self.lazily = False  # results carry gradients back into this call: its graph joins the caller's
        self.tracks: list[int] = []  # of the values written
        self.once = False  # made tensors that outlive the call: the next call finds them and captures again
        self._program: Any = None

    @property
    def program(self) -> Any:
        if self._program is None:
            self._program = programs.compiled(self.graph)
        return self._program

    def failed(self) -> str | None:
        """Return why this capture does not fit the state of things, or None."""
        if self.once:
            return "tensors made by the last call now exist before it"
        for owner, had in self.grads_before:
            if (owner._grad is not None) is not had:
                return (
                    f"a gradient is {'missing' if had else 'there'} that was {'there' if had else 'missing'}"
                )
        return self.guards.failed()


# -- replaying -----------------------------------------------------------------------------------------------
def run(entry: Entry, arguments: list[Any]) -> Any:
    return _run_lazily(entry, arguments) if entry.lazily else _run_now(entry, arguments)


def _run_lazily(entry: Entry, arguments: list[Any]) -> Any:
    """Put the captured graph in the place of the call: gradients flow back through it, and one flush runs it
    all.
    """
    nodes = []
    for read in entry.reads:
        if isinstance(read, (FromFloat, Frozen)):
            nodes.append(values.leaf(read.storage(arguments)))
        else:
            nodes.append(look(read.tensor(arguments))[0])
    graph = entry.graph
    roots = [*graph.outputs, *(v for _, v in graph.updates)]
    made = substitute(roots, dict(zip(graph.inputs, nodes, strict=True)))
    outputs, states = made[: len(graph.outputs)], made[len(graph.outputs) :]
    for position, node, track in zip(entry.written, states, entry.tracks, strict=True):
        read = entry.reads[position]
        assert not isinstance(read, (FromFloat, Frozen))
        rebind(read.tensor(arguments), node, track)
    results = [wrap(outputs[o.number], o.track) if o.number >= 0 else o.value for o in entry.outs]
    return tree.unflatten(entry.structure, results)


def _run_now(entry: Entry, arguments: list[Any]) -> Any:
    tensors: list[Tensor | None] = []
    inputs: list[Storage] = []
    for read in entry.reads:
        if isinstance(read, (FromFloat, Frozen)):
            tensors.append(None)
            inputs.append(read.storage(arguments))
            continue
        found = read.tensor(arguments)
        storage = found._storage
        if storage is None:
            lazy.flush([found])
            storage = found._storage
            assert storage is not None
        tensors.append(found)
        inputs.append(storage)
    written = [(k, tensors[k]) for k in entry.written]
    _make_room(written, inputs)  # type: ignore[arg-type]
    gradients = [_gradient_home(owner, entry.graph.inputs[k].aval) for owner, k in entry.grads]
    inputs += [g._storage for g in gradients]  # type: ignore[misc]
    program = entry.program
    with InterruptsHeld():  # between the writing of cells and their handles knowing of it
        outputs = programs.run(program, inputs)
        for k, cell in written:
            assert cell is not None
            cell._storage, cell._node, cell._home = inputs[k], None, None
        for (owner, _), gradient in zip(entry.grads, gradients, strict=True):
            owner._grad = gradient
        for owner, link in entry.grad_links:
            owner._grad = link
        for handle, index in entry.survivors:
            _adopt(handle(), outputs[index])
    return _results(entry, outputs)


def _make_room(written: list[tuple[int, Tensor]], inputs: list[Storage]) -> None:
    """Finish what depends on the old value of cells, and move cells whose memory somebody still looks at."""
    nodes = [t._node for _, t in written if t._node is not None]
    if nodes:
        lazy.settle(nodes)
    taken: set[int] = set()
    for k, t in written:
        storage = inputs[k]
        t._node = None
        if storage.exported or shared(storage, t) or values.uses(storage) or id(storage) in taken:
            inputs[k] = storage = Storage.copy_of(storage.array, storage.type)
        taken.add(id(storage))


def _gradient_home(owner: Tensor, type_: TensorType) -> Tensor:
    """Return a tensor to write a gradient into: the last one unless somebody holds it, or a new one."""
    old = owner._grad
    if (
        old is not None
        and sys.getrefcount(old) <= 3
        and old.type == type_
        and old._storage is not None
        and old._node is None
        and not old._storage.exported
        and not shared(old._storage, old)
        and not values.uses(old._storage)
    ):
        return old
    return hold(Storage.empty(type_))


def _adopt(made: Tensor | None, storage: Storage) -> None:
    """Turn a tensor that was made inside and outlived the call into an ordinary one."""
    if made is not None:
        made._storage, made._node, made._trace, made._track = storage, None, None, CONSTANT


def _results(entry: Entry, outputs: list[Storage]) -> Any:
    if entry.structure is tree.LEAF and entry.outs[0].number >= 0:
        return hold(outputs[entry.outs[0].number])
    made: dict[int, Tensor] = {}
    results = []
    for out in entry.outs:
        if out.number < 0:
            results.append(out.value)
        else:
            if out.number not in made:
                made[out.number] = hold(outputs[out.number])
            results.append(made[out.number])
    return tree.unflatten(entry.structure, results)
