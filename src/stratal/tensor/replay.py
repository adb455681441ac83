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
from stratal.base.dims import evaluate
from stratal.base.dtypes import float64, int64
from stratal.base.interrupts import InterruptsHeld
from stratal.base.types import TensorType
from stratal.graph.graph import Graph, substitute
from stratal.runtime.program import LoadedProgram
from stratal.runtime.repeat import RepeatedProgram
from stratal.runtime.storage import DISTURBED, Storage
from stratal.tensor import lazy, programs, values
from stratal.tensor.alive import watched
from stratal.tensor.guards import Guards, Source
from stratal.tensor.handles import CONSTANT, disturb, give_gradient, look, place, rebind
from stratal.tensor.tensor import Tensor, hold, wrap


# -- where the inputs of a program are read at each call -----------------------------------------------------
class FromArgument(NamedTuple):
    position: int

    def tensor(self, arguments: Sequence[Any]) -> Tensor:
        found: Tensor = arguments[self.position]
        return found

    def storage(self, arguments: Sequence[Any]) -> Storage:
        found: Tensor = arguments[self.position]
        if found._storage is None:
            lazy.flush([found])
        assert found._storage is not None
        return found._storage


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


class FromSize(NamedTuple):
    """The size of an argument's axis."""

    position: int
    axis: int

    def storage(self, arguments: Sequence[Any]) -> Storage:
        return Storage.copy_of(np.array(arguments[self.position].shape[self.axis]), TensorType(int64))


class FromPart(NamedTuple):
    """An argument in the first places of a buffer that has room for the largest sizes."""

    position: int
    room: Storage

    def storage(self, arguments: Sequence[Any]) -> Storage:
        array = FromArgument(self.position).storage(arguments).array
        self.room.array[tuple(map(slice, array.shape))] = array
        return self.room


class Frozen(NamedTuple):
    """Data made while the function was captured, the same at each call."""

    storage_: Storage

    def storage(self, arguments: Sequence[Any]) -> Storage:
        return self.storage_


Place = FromArgument | FromHandle | FromGrad
Fixed = FromFloat | Frozen | FromSize | FromPart


class _Absent:
    """Stands where an input is no tensor's value."""

    _storage: ClassVar[object] = object()


_ABSENT: Final[Any] = _Absent()
_STORAGE: Final = attrgetter("_storage")
_ADDRESS: Final = attrgetter("address")
_LAYOUT: Final = attrgetter("layout")


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


class Steady(NamedTuple):
    """What a call found, true as long as nothing disturbs the storages it read and wrote."""

    token: object  # `DISTURBED` then
    program: RepeatedProgram


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
        self.sizes: dict[str, FromSize] = {}  # of each symbol, where a call says what it is
        self.parts: dict[int, TensorType] = {}  # outputs of which only the first places count
        self.steady: Steady | None = None  # since the last call, unless it could not be
        self._program: Any = None

    @cached_property
    def gather(self) -> Gather:
        """How inputs are collected."""
        handles = [r.handle if isinstance(r, FromHandle) else _ABSENT for r in self.reads]
        varying = [(k, r) for k, r in enumerate(self.reads) if isinstance(r, (FromArgument, FromGrad))]
        made = [(k, r) for k, r in enumerate(self.reads) if isinstance(r, Fixed)]
        return Gather(handles, varying, made)

    @cached_property
    def varying(self) -> list[int]:
        """The positions of inputs that are others at each call."""
        return [k for k, r in enumerate(self.reads) if not isinstance(r, (FromHandle, Frozen))]

    @cached_property
    def varying_reads(self) -> list[Place | Fixed]:
        """How those are read."""
        return [self.reads[k] for k in self.varying]

    @cached_property
    def may_be_steady(self) -> bool:
        """Whether all that is written stays where it is: cells reached through handles, and gradients."""
        written = [self.reads[k] for k in self.written]
        return not any(isinstance(r, FromGrad) for r in self.reads) and all(
            isinstance(r, FromHandle) for r in written
        )

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
        if isinstance(read, Fixed):
            nodes.append(values.leaf(read.storage(arguments)))
        else:
            nodes.append(look(read.tensor(arguments))[0])
    graph = entry.graph
    roots = [*graph.outputs, *(v for _, v in graph.updates)]
    made = substitute(roots, dict(zip(graph.inputs, nodes, strict=True)))
    outputs, states = made[: len(graph.outputs)], made[len(graph.outputs) :]
    for position, node, track in zip(entry.written, states, entry.tracks, strict=True):
        read = entry.reads[position]
        assert not isinstance(read, Fixed)
        rebind(read.tensor(arguments), node, track)
    results = [wrap(outputs[o.number], o.track) if o.number >= 0 else o.value for o in entry.outs]
    for handle, index in entry.survivors:
        made = handle()
        if made is not None:
            made._trace, made._node = None, outputs[index]
            place(made)
    return tree.unflatten(entry.structure, results)


def _run_now(entry: Entry, arguments: list[Any]) -> Any:
    outputs = None
    if entry.steady is not None:
        varied = [read.storage(arguments) for read in entry.varying_reads]  # may compute, and disturb
        if list(map(_LAYOUT, varied)) == entry.steady.program.layouts:
            outputs = _run_steadily(entry, list(map(_ADDRESS, varied)))
    if outputs is None:
        outputs = _run_with_care(entry, arguments)
    return results(entry, _counted(entry, outputs, arguments) if entry.parts else outputs)


def _counted(entry: Entry, outputs: list[Storage], arguments: list[Any]) -> list[Storage]:
    """Return outputs without the places that the sizes of this call do not fill."""
    sizes = {name: arguments[r.position].shape[r.axis] for name, r in entry.sizes.items()}
    found = list(outputs)
    for number, type_ in entry.parts.items():
        shape = tuple(evaluate(n, sizes) for n in type_.shape)
        part = outputs[number].array[tuple(map(slice, shape))]
        if part.flags.c_contiguous and part.size:
            found[number] = Storage(type_.with_shape(shape), part)
        else:
            found[number] = Storage.copy_of(part, type_.with_shape(shape))
    return found


def _run_steadily(entry: Entry, addresses: list[int]) -> list[Storage] | None:
    """Run with what the last call found; None where that may be true no more, and nothing has run.

    What varies lies at `addresses`, in the layouts that the program expects.
    """
    steady = entry.steady
    if steady is None or steady.token is not DISTURBED[0] or programs.WATCHERS:
        return None
    for owner, link in entry.grad_links:
        give_gradient(owner, link)
    return steady.program.run(addresses)


def _run_with_care(entry: Entry, arguments: list[Any]) -> list[Storage]:
    """Run after a look at everything that is read and written, and note if the next call may spare it."""
    entry.steady = None
    tensors, inputs = entry.gather(arguments)
    written = [(k, tensors[k]) for k in entry.written]
    _make_room(written, inputs)
    homes = zip(entry.grads, entry.grad_types, strict=True)
    gradients = [_gradient_home(owner, type_) for (owner, _), type_ in homes]
    inputs += map(_STORAGE, gradients)
    program = entry.program
    with InterruptsHeld():  # between the writing of cells and their handles knowing of it
        outputs = programs.run(program, inputs)
        for k, cell in written:
            if cell._storage is not inputs[k]:
                disturb(cell)
            cell._storage, cell._node, cell._home = inputs[k], None, None
        for (owner, _), gradient in zip(entry.grads, gradients, strict=True):
            give_gradient(owner, gradient)
        for owner, link in entry.grad_links:
            give_gradient(owner, link)
        for handle, index in entry.survivors:
            _adopt(handle(), outputs[index])
    _settle(entry, program.loaded, inputs)
    return outputs


def _settle(entry: Entry, program: LoadedProgram, inputs: list[Storage]) -> None:
    """Let later calls take for granted what this one found, where that can be."""
    if not entry.may_be_steady or program.calls_back or program.checked:
        return
    varying = set(entry.varying)
    for k, storage in enumerate(inputs):
        if k not in varying:
            storage.settled = True
    entry.steady = Steady(DISTURBED[0], RepeatedProgram(program, inputs, entry.varying))


def _make_room(written: list[tuple[int, Tensor]], inputs: list[Storage]) -> None:
    """Finish what depends on the old value of cells, and move cells whose memory somebody still looks at."""
    nodes = [t._node for _, t in written if t._node is not None]
    if nodes:
        lazy.settle(nodes)
    taken: set[int] = set()
    for k, t in written:
        storage = inputs[k]
        t._node = None
        if watched(storage, t) or id(storage) in taken:
            inputs[k] = storage = Storage.copy_of(storage.array, storage.type)
        taken.add(id(storage))


def _gradient_home(owner: Tensor, type_: TensorType) -> Tensor:
    """Return a tensor to write a gradient into: the last one unless somebody holds it, or a new one."""
    old = owner._grad
    if (
        old is not None
        and sys.getrefcount(old) <= 3
        and (old.type is type_ or old.type == type_)
        and old._storage is not None
        and old._node is None
        and not watched(old._storage, old)
    ):
        return old
    return hold(Storage.empty(type_))


def _adopt(made: Tensor | None, storage: Storage) -> None:
    """Turn a tensor that was made inside and outlived the call into an ordinary one."""
    if made is not None:
        made._storage, made._node, made._trace, made._track = storage, None, None, CONSTANT


def results(entry: Entry, outputs: list[Storage]) -> Any:
    """Return what the function returned when it was captured, with these values."""
    if entry.structure is tree.LEAF and entry.outs[0].number >= 0:
        return hold(outputs[entry.outs[0].number])
    made: dict[int, Tensor] = {}
    leaves = []
    for out in entry.outs:
        if out.number < 0:
            leaves.append(out.value)
        else:
            if out.number not in made:
                made[out.number] = hold(outputs[out.number])
            leaves.append(made[out.number])
    return tree.unflatten(entry.structure, leaves)
