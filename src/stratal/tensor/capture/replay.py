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
from stratal.base.budget import Demands
from stratal.base.dims import evaluate
from stratal.base.dtypes import int64
from stratal.base.interrupts import ATOMIC, UNINTERRUPTIBLE
from stratal.base.types import TensorType
from stratal.graph.graph import Graph, substitute
from stratal.runtime.program import LoadedProgram
from stratal.runtime.repeat import RepeatedProgram
from stratal.runtime.storage import INVALIDATED, Storage
from stratal.tensor.capture.effects import Effect, apply_effects
from stratal.tensor.capture.guards import Guards
from stratal.tensor.capture.locations import Location
from stratal.tensor.capture.replayed_calls import ReplayedCall
from stratal.tensor.capture.results import Bindings, Output, Path, PriorTensor, Template, Value, at
from stratal.tensor.lazy import flushing, program_cache
from stratal.tensor.scalars import FromNumber
from stratal.tensor.tensor import Tensor, hold, wrap
from stratal.tensor.values import node_values
from stratal.tensor.values.binding import assign_value, node_and_track, register, update_views
from stratal.tensor.values.handle import (
    CONSTANT,
    STOPPED,
    TRACKED,
    WITHOUT_HISTORY,
    Handle,
    forget_node,
    give_gradient,
    leave_trace,
    store,
)
from stratal.tensor.values.live import is_observable, note_earlier_node, share, shared
from stratal.tensor.values.memory import layouts_of
from stratal.tensor.values.view_writes import stopped


# -- where the inputs of a program are read at each call -----------------------------------------------------
class FromArgument(NamedTuple):
    position: int

    def tensor(self, arguments: Sequence[Any]) -> Tensor:
        found: Tensor = arguments[self.position]
        return found

    def storage(self, arguments: Sequence[Any]) -> Storage:
        return _stored(arguments[self.position])


def _stored(tensor: Tensor) -> Storage:
    if tensor._storage is None:
        flushing.flush([tensor])
    assert tensor._storage is not None
    return tensor._storage


class FromHandle(NamedTuple):
    handle: Handle

    def tensor(self, arguments: Sequence[Any]) -> Handle:
        return self.handle


Owner = FromArgument | FromHandle


class FromGrad(NamedTuple):
    """The gradient of a tensor."""

    owner: Owner

    def tensor(self, arguments: Sequence[Any]) -> Handle:
        found = self.owner.tensor(arguments)._grad
        assert found is not None
        return found


Link = Owner | FromGrad | None


class FromLocation(NamedTuple):
    """A tensor that each call finds in a place, and replaces."""

    location: Location

    def tensor(self, arguments: Sequence[Any]) -> Tensor:
        found: Tensor = self.location.read()
        return found

    def storage(self, arguments: Sequence[Any]) -> Storage:
        return _stored(self.location.read())


class FromArray(NamedTuple):
    """An array of NumPy's that the function reads: what it holds at each call."""

    array: np.ndarray[Any, Any]
    type: TensorType

    def storage(self, arguments: Sequence[Any]) -> Storage:
        return Storage.copy_of(self.array, self.type)


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


Read = FromArgument | FromHandle | FromGrad | FromLocation
Fixed = FromNumber | FromArray | Frozen | FromSize | FromPart


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
    varying: list[tuple[int, FromArgument | FromGrad | FromLocation]]
    made: list[tuple[int, Fixed]]

    def __call__(self, arguments: Sequence[Any]) -> tuple[list[Any], list[Storage]]:
        """Return the tensor and the storage of each input; what has no value yet is computed."""
        tensors = self.handles.copy()
        for k, read in self.varying:
            tensors[k] = read.tensor(arguments)
        inputs = list(map(_STORAGE, tensors))
        while None in inputs:
            flushing.flush([tensors[inputs.index(None)]])
            inputs = list(map(_STORAGE, tensors))
        for k, fixed in self.made:
            inputs[k] = fixed.storage(arguments)
        return tensors, inputs


class Alias:
    """Which arguments are tensors that a capture also reads in another way: so they must be in each call."""

    def __init__(self, elsewhere: dict[int, Handle]) -> None:
        self.elsewhere = elsewhere  # tensors that are read where they stand, by id
        self.same: list[tuple[int, Handle]] = []  # arguments that are one of those
        self.written: set[int] = set()  # of arguments, by position, and of tensors read elsewhere, by id
        self.others: list[FromLocation | FromGrad] = []  # tensors that change from call to call
        self.pattern: list[int] = []  # with those, which of all arguments are one tensor
        self.overlaps: list[Any] | None = None  # which of all these show memory that is written
        self.layouts: list[Any] | None = None  # of arguments, where the function does what depends on them
        self.containers: list[tuple[Path, Any]] = []  # containers that the function finds elsewhere, too
        self.paths: list[Path] = []  # where containers are that it must not find elsewhere
        self.apart: set[int] = set()  # those that it does find there, by id

    @property
    def constrains(self) -> bool:
        """Whether more than the types of arguments decides."""
        return bool(self.same or self.others or self.overlaps)

    def failed(self, given: Any) -> str | None:
        """Return why arguments are not alike, or None."""
        arguments = self.all_arguments(given.leaves)
        if any(at(given, path) is not x for path, x in self.containers):
            return "an argument is another container, which the function reads elsewhere, too"
        if any(id(at(given, path)) in self.apart for path in self.paths):
            return "an argument is now a container that the function reads elsewhere, too"
        for k, x in self.same:
            if arguments[k] is not x:
                return f"argument {k} is another tensor, which the function reads elsewhere, too"
        if self.others and pattern_of(arguments) != self.pattern:
            return "tensors that the function finds in several places are one now, or no longer"
        if self.overlaps is not None and self.overlaps_of(arguments) != self.overlaps:
            return "other arguments, or what the function reads elsewhere, are views of each other"
        if self.layouts is not None and layouts_of(arguments) != self.layouts:
            return "an argument lies in memory as another view"
        for k, x in enumerate(arguments):
            elsewhere = isinstance(x, Handle) and x._guarded and id(x) in self.elsewhere
            if elsewhere and (k, id(x)) not in self._known:
                return f"argument {k} is now a tensor that the function reads elsewhere, too"
        return None

    def all_arguments(self, arguments: Sequence[Any]) -> Sequence[Any]:
        """Return the arguments of a call, and the tensors that it finds elsewhere."""
        return [*arguments, *(read.tensor(arguments) for read in self.others)] if self.others else arguments

    def overlaps_of(self, arguments: Sequence[Any]) -> list[Any]:
        """Return how arguments show the memory of others before them, or of what is read elsewhere, where one
        of the two is written; writes through one reach others in the order of their age.
        """
        found: list[Any] = []
        shown: dict[int, list[tuple[int, Any]]] = {}
        for k, x in enumerate(arguments):
            view = x._view if isinstance(x, Handle) else None
            if view is None:
                continue
            alive = view.memory.alive()
            age = {id(t): n for n, t in enumerate(alive)}
            others = [pair for pair in shown.get(id(view.memory), ()) if pair[1] is not x]
            others += [(-1 - id(t), t) for t in alive if id(t) in self.elsewhere and t is not x]
            for key, t in others:
                if k not in self.written and key not in self.written:
                    continue
                same, older = t._view.group is view.group, age[id(t)] < age[id(x)]
                found.append((k, key, view.ops, t._view.ops, same, older))
            shown.setdefault(id(view.memory), []).append((k, x))
        return found

    @cached_property
    def _known(self) -> set[tuple[int, int]]:
        return {(k, id(x)) for k, x in self.same}


def pattern_of(arguments: Sequence[Any]) -> list[int]:
    """Return for each tensor which one of them it is."""
    first: dict[int, int] = {}
    return [first.setdefault(id(x), k) if isinstance(x, Handle) else -1 for k, x in enumerate(arguments)]


class PinnedReplay(NamedTuple):
    """What a call found, true as long as nothing disturbs the storages it read and wrote."""

    token: object  # `INVALIDATED` then
    program: RepeatedProgram


class Entry:
    """One capture, ready to be replayed."""

    def __init__(self, graph: Graph, guards: Guards) -> None:
        self.graph = graph
        self.guards = guards
        self.reads: list[Read | Fixed] = []  # one per input of the graph, spare gradient buffers apart
        self.written: list[int] = []  # positions among the inputs that are cells to be written
        self.grads: list[tuple[Owner, int]] = []  # owners of gradients made inside, with their input position
        self.grad_links: list[tuple[Owner, Link]] = []  # whose gradient becomes an earlier tensor
        self.grad_shares: list[tuple[Owner, Owner]] = []  # whose gradient is then that of another tensor
        self.grads_before: list[tuple[Owner, TensorType | None]] = []  # whose gradient was read: its type
        self.result: Template = Value(None)
        self.prior: list[Template] = []  # what it returns or stores that stood in places it may write
        self.gradients: list[PriorTensor] = []  # and those of it that were gradients
        self.effects: list[Effect] = []  # what it writes of Python's state
        self.alias = Alias({})
        self.key: Any = None  # what it was captured for
        self.symbolic: Any = None
        self.prelude: list[ReplayedCall] = []  # called before each run
        self.frozen_values: list[Any] = []  # that `st.frozen` gave
        self.versions: dict[int, list[int]] = {}  # of written leaves, outputs that are values in between
        self.survivors: list[tuple[weakref.ref[Handle], int]] = []
        self.lazily = False  # results carry gradients back into this call: its graph joins the caller's
        self.tracks: list[int] = []  # of the values written
        self.calls_back = False  # calls Python functions that may do anything, once in each run
        self.once = False  # made tensors that outlive the call: the next call finds them and captures again
        self.sizes: dict[str, FromSize] = {}  # of each symbol, where a call says what it is
        self.parts: dict[int, TensorType] = {}  # outputs of which only the first places count
        self.pinned_replay: PinnedReplay | None = None  # since the last call, unless it could not be
        self.demands = Demands()  # on its program
        self._program: Any = None

    @cached_property
    def gather(self) -> Gather:
        """How inputs are collected."""
        handles = [r.handle if isinstance(r, FromHandle) else _ABSENT for r in self.reads]
        found = (FromArgument, FromGrad, FromLocation)
        varying = [(k, r) for k, r in enumerate(self.reads) if isinstance(r, found)]
        made = [(k, r) for k, r in enumerate(self.reads) if isinstance(r, Fixed)]
        return Gather(handles, varying, made)

    @cached_property
    def varying(self) -> list[int]:
        """The positions of inputs that are others at each call."""
        return [k for k, r in enumerate(self.reads) if not isinstance(r, (FromHandle, Frozen))]

    @cached_property
    def varying_reads(self) -> list[FromArgument | FromLocation | Fixed]:
        """How those are read; gradients are not, where a call can be steady."""
        reads = [self.reads[k] for k in self.varying]
        return [r for r in reads if not isinstance(r, (FromHandle, FromGrad))]

    @cached_property
    def may_be_pinned(self) -> bool:
        """Whether all that is written stays where it is: cells reached through handles, and gradients."""
        written: list[Any] = [self.reads[k] for k in self.written]
        written += [owner for owner, _ in (*self.grads, *self.grad_links, *self.grad_shares)]
        written += [link for _, link in self.grad_links if link is not None]
        return not any(isinstance(r, FromGrad) for r in self.reads) and all(
            isinstance(r, FromHandle) for r in written
        )

    @cached_property
    def acts(self) -> bool:
        """Whether a call changes more than the program does: what Python sees, or several handles."""
        linked = self.grad_links or self.grad_shares
        return bool(self.prelude or self.effects or linked or (self.lazily and self.written))

    @cached_property
    def grad_types(self) -> list[TensorType]:
        """The types of the gradients made inside."""
        return [self.graph.inputs[k].aval for _, k in self.grads]

    def prior_gradients(self, arguments: Sequence[Any]) -> list[tuple[PriorTensor, Handle]]:
        """Return the gradients from before the call that it returns or stores."""
        return [(x, x.gradient.tensor(arguments)) for x in self.gradients]

    @property
    def program(self) -> Any:
        if self._program is None:
            with self.demands.in_force():
                self._program = program_cache.compiled(self.graph)
        return self._program

    def sizes_of(self, arguments: Sequence[Any]) -> dict[str, int]:
        """Return the size that each symbol stands for in a call."""
        return {name: arguments[r.position].shape[r.axis] for name, r in self.sizes.items()}

    def failed(self, given: Any) -> str | None:
        """Return why this capture does not fit a call and the state of things, or None."""
        if self.once:
            return "tensors made by the last call now exist before it"
        for owner, type_ in self.grads_before:
            found = owner.tensor(given.leaves)._grad
            now = None if found is None else found.type
            if now != type_:
                return f"a gradient changed from {type_ or 'nothing'} to {now or 'nothing'}"
        return self.guards.failed() or self.alias.failed(given)


# -- replaying -----------------------------------------------------------------------------------------------
def run(entry: Entry, given: Any) -> Any:
    """Return what a call returns, and write what it writes: tensors and Python's state, or neither."""
    if not entry.acts:
        return _run_lazily(entry, given) if entry.lazily else _run_now(entry, given)
    if not entry.lazily:
        _ = entry.program  # compiling it may be interrupted
    with ATOMIC:
        for call in entry.prelude:
            call()
        return _run_lazily(entry, given) if entry.lazily else _run_now(entry, given)


def _run_lazily(entry: Entry, given: Any) -> Any:
    """Put the captured graph in the place of the call: gradients flow back through it, and one flush runs it
    all.
    """
    arguments = given.leaves
    gradients = entry.prior_gradients(arguments)
    nodes = []
    for read in entry.reads:
        if isinstance(read, Fixed):
            nodes.append(node_values.leaf(read.storage(arguments)))
        else:
            node, track = node_and_track(read.tensor(arguments))
            nodes.append(stopped(node) if track == STOPPED else node)
    graph = entry.graph
    known = dict(zip(graph.inputs, nodes, strict=False))  # the last stand for gradients that are made here
    owners, links = [owner.tensor(arguments) for owner, _ in entry.grads], _links(entry, arguments)
    written = [read.tensor(arguments) for k in entry.written if not isinstance(read := entry.reads[k], Fixed)]
    values_ = [value for _, value in graph.updates]
    for k, numbers in entry.versions.items():  # leaves: gradients end at every value they have
        for number in numbers:
            (node,) = substitute([graph.outputs[number]], known)
            leaf = known.setdefault(graph.outputs[number], node_values.pending_leaf(node))
            note_earlier_node(written[k], leaf)
        (node,) = substitute([values_[k]], known)
        assign_value(written[k], node, TRACKED)
        known[values_[k]] = node_and_track(written[k])[0]
    made = substitute([*graph.outputs, *values_], known)
    outputs, states = made[: len(graph.outputs)], made[len(graph.outputs) :]
    for k, (tensor, node, track) in enumerate(zip(written, states, entry.tracks, strict=False)):
        if k not in entry.versions:
            assign_value(tensor, node, track)
    for owner, node in zip(owners, states[len(written) :], strict=True):
        give_gradient(owner, wrap(node, CONSTANT))
    _link_gradients(entry, arguments, links)
    update_views(written)
    for survivor, index in _surviving(entry):
        leave_trace(survivor, node=outputs[index])
        register(survivor)

    def handle(out: Output) -> Tensor:
        return wrap(outputs[out.number], out.track)

    return _filled(entry, given.args, given.kwargs, handle, gradients)


def _surviving(entry: Entry) -> list[tuple[Handle, int]]:
    """Return the tensors made by the run that are still alive, with their outputs."""
    return [(made, index) for handle, index in entry.survivors if (made := handle()) is not None]


def _run_now(entry: Entry, given: Any) -> Any:
    outputs, arguments = None, given.leaves
    gradients = entry.prior_gradients(arguments)
    if entry.pinned_replay is not None:
        varied = [read.storage(arguments) for read in entry.varying_reads]  # may compute, and disturb
        if list(map(_LAYOUT, varied)) == entry.pinned_replay.program.layouts:
            outputs = _run_steadily(entry, list(map(_ADDRESS, varied)))
    if outputs is None:
        outputs = _run_with_care(entry, arguments)
    outputs = _counted(entry, outputs, arguments) if entry.parts else outputs
    return results(entry, outputs, given.args, given.kwargs, gradients)


def _counted(entry: Entry, outputs: list[Storage], arguments: list[Any]) -> list[Storage]:
    """Return outputs without the places that the sizes of this call do not fill."""
    sizes, found = entry.sizes_of(arguments), list(outputs)
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
    pinned_replay = entry.pinned_replay
    if pinned_replay is None or pinned_replay.token is not INVALIDATED[0] or program_cache.WATCHERS:
        return None
    _link_gradients(entry, (), _links(entry, ()))
    return pinned_replay.program.run(addresses)


def _run_with_care(entry: Entry, arguments: list[Any]) -> list[Storage]:
    """Run after a look at everything that is read and written, and note if the next call may spare it."""
    entry.pinned_replay = None
    tensors, inputs = entry.gather(arguments)
    written = [(k, tensors[k]) for k in entry.written]
    owners = [owner.tensor(arguments) for owner, _ in entry.grads]
    program, links = entry.program, _links(entry, arguments)
    nodes = [t._node for _, t in written if t._node is not None]
    seen = {k for k, t in written if shared(inputs[k], t)}  # first: who holds a value may begin to read it
    flushing.compute_dependents(nodes)
    with UNINTERRUPTIBLE:  # from the moment nodes stand for no value any more until handles know the new one
        flushing.overwrite(nodes)
        _make_room(written, inputs, seen)
        gradients = list(map(_gradient_home, owners, entry.grad_types))
        inputs += map(_STORAGE, gradients)
        outputs = program_cache.run(program, inputs)
        for k, cell in written:
            store(cell, inputs[k])
        for owner, gradient in zip(owners, gradients, strict=True):
            give_gradient(owner, gradient)
        _link_gradients(entry, arguments, links)
        for survivor, index in _surviving(entry):
            leave_trace(survivor, outputs[index])
        update_views([cell for _, cell in written])
    views = [cell._view for _, cell in written if cell._view is not None]
    if all(len(view.memory.alive()) < 2 for view in views):
        _pin(entry, program.loaded, inputs)
    return outputs


def _links(entry: Entry, arguments: Sequence[Any]) -> list[tuple[Handle, Handle | None]]:
    """Return whose gradient becomes which tensor, before any is another one."""
    return [
        (owner.tensor(arguments), None if link is None else link.tensor(arguments))
        for owner, link in entry.grad_links
    ]


def _link_gradients(
    entry: Entry, arguments: Sequence[Any], links: list[tuple[Handle, Handle | None]]
) -> None:
    for owner, gradient in links:
        give_gradient(owner, gradient)
    for one, other in entry.grad_shares:
        give_gradient(one.tensor(arguments), other.tensor(arguments)._grad)


def _pin(entry: Entry, program: LoadedProgram, inputs: list[Storage]) -> None:
    """Let later calls take for granted what this one found, where that can be."""
    if not entry.may_be_pinned or program.calls_back or program.checked:
        return
    varying = set(entry.varying)
    for k, storage in enumerate(inputs):
        if k not in varying:
            storage.pinned = True
    entry.pinned_replay = PinnedReplay(INVALIDATED[0], RepeatedProgram(program, inputs, entry.varying))


def _make_room(written: list[tuple[int, Tensor]], inputs: list[Storage], seen: set[int]) -> None:
    """Move cells whose memory somebody still looks at, as was `seen` before."""
    taken: set[int] = set()
    for k, t in written:
        storage = inputs[k]
        forget_node(t)
        if k in seen or is_observable(storage, t) or id(storage) in taken:
            inputs[k] = storage = Storage.copy_of(storage.array, storage.type)
        taken.add(id(storage))


def _gradient_home(owner: Handle, type_: TensorType) -> Handle:
    """Return a tensor to write a gradient into: the last one unless somebody holds it, or a new one."""
    old = owner._grad
    if (
        old is not None
        and sys.getrefcount(old) <= 3
        and (old.type is type_ or old.type == type_)
        and old._storage is not None
        and old._node is None
        and not is_observable(old._storage, old)
    ):
        return old
    return hold(Storage.empty(type_))


def results(
    entry: Entry, outputs: list[Storage], args: Sequence[Any], kwargs: dict[str, Any],
    gradients: Sequence[tuple[PriorTensor, Handle]] = (),
) -> Any:  # fmt: skip
    """Return what the function returned when it was captured, with these values, and write what it wrote."""
    if type(entry.result) is Output and not entry.effects and entry.result.shown is None:
        return hold(outputs[entry.result.number], WITHOUT_HISTORY[entry.result.track])
    made: dict[int, Tensor] = {}

    def handle(out: Output) -> Tensor:
        found = hold(outputs[out.number], WITHOUT_HISTORY[out.track])
        share(found, made.setdefault(out.number, found))
        return found

    return _filled(entry, args, kwargs, handle, gradients)


def _filled(
    entry: Entry, args: Sequence[Any], kwargs: dict[str, Any], handle: Any,
    gradients: Sequence[tuple[PriorTensor, Handle]],
) -> Any:  # fmt: skip
    sizes = entry.sizes_of(tree.leaves((args, kwargs) if kwargs else args)) if entry.sizes else {}
    bindings = Bindings(args, kwargs, handle, sizes)
    for found, gradient in gradients:
        bindings.put(found, gradient)
    for x in entry.prior:
        bindings.fill(x)
    made = bindings.fill(entry.result)
    apply_effects(entry.effects, bindings)
    return made
