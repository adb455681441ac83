"""Replaying a capture: read inputs where they stand now, run the program, put results where they belong."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np

from stratal.base import tree
from stratal.base.dtypes import float64
from stratal.base.interrupts import InterruptsHeld
from stratal.base.types import TensorType
from stratal.graph.graph import Graph, substitute
from stratal.runtime.storage import Storage, any_exported
from stratal.tensor import alive, lazy, programs, values
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


class _Absent:
    """Stands where an input is no tensor's value."""

    _storage: ClassVar[object] = object()


_ABSENT: Final[Any] = _Absent()
_STORAGE: Final = attrgetter("_storage")


class Gather(NamedTuple):
    """The inputs of a program by where they are read, each with its position; `handles` has one for each."""

    handles: list[Any]
    varying: list[tuple[int, FromArgument | FromGrad]]
    made: list[tuple[int, Fixed]]

    def __call__(self, arguments: Sequence[Any]) -> tuple[list[Any], list[Storage]]:
        """Return the tensor and the storage of each input; what has no value yet is computed."""
        tensors = self.handles.copy()
        for k, read in self.varying:
            tensors[k] = read.tensor(arguments)
        inputs = list(map(_STORAGE, tensors))
        while None in inputs:
            lazy.flush([tensors[inputs.index(None)]])
            inputs = list(map(_STORAGE, tensors))
        for k, fixed in self.made:
            inputs[k] = fixed.storage(arguments)
        return tensors, inputs


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
        self.settled: tuple[Any, ...] = ()  # what was true when nobody but the cells held their storages
        self.own_grads: list[int] = []  # ids of the storages that hold the gradients, since then
        self._program: Any = None

    @cached_property
    def gather(self) -> Gather:
        """How inputs are collected."""
        handles = [r.handle if isinstance(r, FromHandle) else _ABSENT for r in self.reads]
        varying = [(k, r) for k, r in enumerate(self.reads) if isinstance(r, (FromArgument, FromGrad))]
        made = [(k, r) for k, r in enumerate(self.reads) if isinstance(r, (FromFloat, Frozen))]
        return Gather(handles, varying, made)

    @cached_property
    def grad_types(self) -> list[TensorType]:
        """The types of the gradients made inside."""
        return [self.graph.inputs[k].aval for _, k in self.grads]

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
    tensors, inputs = entry.gather(arguments)
    steady = _state_of(entry, inputs) == entry.settled and not _looked_at(entry, inputs)
    written = [] if steady else [(k, tensors[k]) for k in entry.written]
    if not steady:
        _make_room(written, inputs)
        entry.settled = _state_of(entry, inputs)
        entry.own_grads = [0] * len(entry.grads)  # no storage has this id
    homes = zip(entry.grads, entry.grad_types, entry.own_grads, strict=True)
    gradients = [_gradient_home(owner, type_, own) for (owner, _), type_, own in homes]
    stores = list(map(_STORAGE, gradients))
    entry.own_grads = list(map(id, stores))
    inputs += stores
    program = entry.program
    with InterruptsHeld():  # between the writing of cells and their handles knowing of it
        outputs = programs.run(program, inputs)
        for k, cell in written:
            cell._storage, cell._node, cell._home = inputs[k], None, None
        for (owner, _), gradient in zip(entry.grads, gradients, strict=True):
            owner._grad = gradient
        for owner, link in entry.grad_links:
            owner._grad = link
        for handle, index in entry.survivors:
            _adopt(handle(), outputs[index])
    return _results(entry, outputs)


def _state_of(entry: Entry, inputs: list[Storage]) -> tuple[Any, ...]:
    """Return what stays equal as long as nobody else can have come to hold the storages a capture writes.

    Handles come to share a storage, and nodes to have one as their value, in two places, which count that.
    """
    return values.CHANGES[0], alive.CHANGES[0], [id(inputs[k]) for k in entry.written]


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


def _looked_at(entry: Entry, inputs: list[Storage]) -> bool:
    """Return whether NumPy may look at a storage that is written: at any of them, once it did."""
    return any_exported() and any(inputs[k]._exports is not None for k in entry.written)


def _gradient_home(owner: Tensor, type_: TensorType, own: int) -> Tensor:
    """Return a tensor to write a gradient into: the last one unless somebody holds it, or a new one.

    `own` is the id of the storage it was written to last, if nobody can have come to hold that since.
    """
    old = owner._grad
    if (
        old is not None
        and sys.getrefcount(old) <= 3
        and (old.type is type_ or old.type == type_)
        and old._storage is not None
        and old._node is None
        and not old._storage.exported
        and (id(old._storage) == own or not (shared(old._storage, old) or values.uses(old._storage)))
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
