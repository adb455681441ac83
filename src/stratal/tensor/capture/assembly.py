"""From one run of a function to the entry that replays it."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from stratal.base.dims import Sym
from stratal.graph.node import Input, Node
from stratal.optimize.sized import bounded
from stratal.runtime.storage import Storage
from stratal.tensor.capture.accesses import Accesses, Key
from stratal.tensor.capture.containers import parts_of
from stratal.tensor.capture.dynamic import Symbolic, needs_sizes
from stratal.tensor.capture.effects import CallMethods, Effect, SetItems, SetPlace
from stratal.tensor.capture.guards import Guard, Guards
from stratal.tensor.capture.places import MISSING, Item, Measured, Place
from stratal.tensor.capture.plain import plain
from stratal.tensor.capture.replay import (
    Alias,
    Entry,
    Fixed,
    FromArgument,
    FromGrad,
    FromHandle,
    FromPart,
    FromPlace,
    FromSize,
    Frozen,
    Owner,
    Read,
)
from stratal.tensor.capture.results import Output, Standing, Template, Value
from stratal.tensor.capture.stateful import guard_stateful
from stratal.tensor.lazy import lazy, programs
from stratal.tensor.tensor import Tensor
from stratal.tensor.values import values
from stratal.tensor.values.handle import TRACKED, Handle, begin, set_guarded
from stratal.tensor.values.memory import layouts_of
from stratal.tensor.values.trace import Cell, Trace


class Run:
    """What one run did: its trace, its outputs, what it returned and wrote."""

    def __init__(
        self, trace: Any, name: str, leaves: list[Any], placeholders: dict[Node, int],
        outputs: dict[Node, int], tracks: list[int], result: Template, effects: list[Effect],
        standing: list[Standing],
    ) -> None:  # fmt: skip
        self.trace, self.name, self.leaves = trace, name, leaves
        self.placeholders, self.outputs, self.tracks = placeholders, outputs, tracks
        self.result, self.effects, self.standing = result, effects, standing

    @functools.cached_property
    def cell_of(self) -> dict[Node, Cell]:
        return {c.placeholder: c for c in self.trace.cells.values()}

    @property
    def written(self) -> list[Cell]:
        return [c for c in self.trace.cells.values() if c.written]

    @functools.cached_property
    def grads(self) -> list[tuple[Tensor, Tensor]]:
        """The gradients the run made, with their owners."""
        return [(p, g) for p, g in self.trace.grads.values() if g is not None and g._trace is self.trace]


def entry_of(
    run: Run, accesses: Accesses, varying: list[tuple[Place, Any]], symbolic: Symbolic | None
) -> Entry:
    """Return the entry that replays a run."""
    guards = _guards(accesses, varying)
    carried = _carried(run, guards, accesses)
    accesses.forget()
    trace, outputs, grads, cells = run.trace, run.outputs, run.grads, run.written
    outlived = _survivors(trace, {id(g) for _, g in grads})
    survivors = [(r, outputs.setdefault(node_in(t), len(outputs))) for r, t in outlived]
    for token in trace.tokens:
        outputs.setdefault(token, len(outputs))
    tracked = TRACKED in run.tracks or any(c.track == TRACKED and not c.leaf for c in cells)
    lazily = tracked and not trace.differentiated
    written = {k: trace.earlier(c.tensor)[1:] for k, c in enumerate(cells) if c.leaf and lazily}
    versions = {k: [outputs.setdefault(n, len(outputs)) for n in nodes] for k, nodes in written.items()}
    spare = [values.placeholder("grad", g.type, run.name) for _, g in grads]
    targets = [*(c.placeholder for c in cells), *spare]
    roots = [*outputs, *(c.node for c in cells), *(node_in(g) for _, g in grads)]
    order, used = programs.walk(roots, lambda n: isinstance(n.op, Input))
    if any(n in variables for n in used for variables in trace.points):
        roots = trace.resolved(roots)
        order, used = programs.walk(roots, lambda n: isinstance(n.op, Input))
    updates = list(zip(targets, roots[len(outputs) :], strict=True))
    wanted = set(used) | {c.placeholder for c in cells}
    inputs = list(dict.fromkeys([*(n for n in run.cell_of if n in wanted), *used]))
    work = programs.Work([*inputs, *spare], roots[: len(outputs)], updates, order)
    reads = [_read(run, n, carried) for n in inputs]
    frozen = _frozen(run, inputs, reads)
    entry = Entry(work.graph(run.name, _input_labels(run, inputs, guards), frozen), guards)
    entry.reads = reads
    position = {n: k for k, n in enumerate([*inputs, *spare])}
    entry.written = [position[c.placeholder] for c in cells]
    entry.tracks = [c.track for c in cells]
    entry.grads = [(_owner(run, p), position[s]) for s, (p, _) in zip(spare, grads, strict=True)]
    links = [(p, g) for p, g in trace.grads.values() if g is None or g._trace is not trace]
    entry.grad_links = [(_owner(run, p), None if g is None else _owner(run, g)) for p, g in links]
    read = trace.grads_read.values()
    entry.grads_before = [(_owner(run, p), None if g is None else g.type) for p, g in read]
    entry.result, entry.effects, entry.survivors = run.result, run.effects, survivors
    for x in run.standing:
        x.place = carried.get(id(x.tensor))
    entry.standing = [x for x in run.standing if x.place is not None]
    entry.once = bool(survivors) or trace.recapture
    entry.lazily, entry.versions = lazily, versions
    entry.alias = _alias(run, entry)
    guards.validated()
    return entry if symbolic is None else _for_all_sizes(entry, symbolic)


# -- what must hold ------------------------------------------------------------------------------------------
def _guards(accesses: Accesses, varying: list[tuple[Place, Any]]) -> Guards:
    guards = Guards()
    guards.always = [Guard(place, value) for place, value in accesses.guarded()]
    for place, _ in varying:
        guards.always.append(Guard(Measured(place, _type_at, place.name), float))
    missing = [place for place in accesses.missing.values() if place.read() is MISSING]
    guards.announced = [Guard(place, MISSING) for place in missing]
    guard_stateful(guards, accesses.stateful.values(), accesses.names, accesses.carried)
    for place, value in accesses.reads.values():
        if isinstance(value, Tensor):
            guards.names.setdefault(id(value), place.name)
    return guards


def _type_at(place: Place) -> type:
    return type(place.read())


def _carried(run: Run, guards: Guards, accesses: Accesses) -> dict[int, Place]:
    """Return where tensors stand that the run reads and replaces, by their id: each call finds another one.

    Their guards compare types instead.
    """
    written = set(_places_written(run.effects))
    found: dict[int, Place] = {}
    for key, (place, value) in accesses.reads.items():
        if key in written and isinstance(value, Tensor) and id(value) in run.trace.cells:
            found[id(value)] = place
    for guard in guards.announced:  # of a module's buffers
        x = guard.expected
        if isinstance(x, Tensor) and id(x) in run.trace.cells and guard.place.identity() in written:
            found[id(x)] = guard.place
    for guard in [*guards.always, *guards.announced]:
        for x in parts_of(guard.expected) if isinstance(guard.expected, tuple) else (guard.expected,):
            if isinstance(x, Tensor) and id(x) in found and found[id(x)] is not guard.place:
                del found[id(x)]  # somebody else relies on this very tensor
    for x in (*run.leaves, *(o for o, _ in (*run.trace.grads.values(), *run.trace.grads_read.values()))):
        found.pop(id(x), None)
    places = list(found.values())
    for kept in (guards.always, guards.announced):
        kept[:] = [
            Guard(Measured(g.place, carried_kind, g.place.name), carried_kind(g.place))
            if g.place in places
            else g
            for g in kept
        ]
    return found


def carried_kind(place: Place) -> Any:
    """Return what must be equal of tensors that stand in a place one after another."""
    x = place.read()
    if type(x) is not Tensor or x._trace is not None:
        return x
    return (x.type, x._leaf, x._track == TRACKED, x._guarded)


def _places_written(effects: Sequence[Effect]) -> list[Key]:
    """Return the places that get an output of the program."""
    found: list[Key] = []
    for effect in effects:
        if isinstance(effect, SetPlace) and isinstance(effect.value, Output):
            found.append(effect.place.identity())
        elif isinstance(effect, SetItems) and isinstance(effect.holder, Value):
            holder = id(effect.holder.value)
            found += [(holder, Item, k) for k, v in effect.values.items() if isinstance(v, Output)]
        elif isinstance(effect, CallMethods) and isinstance(effect.holder, Value):
            holder = id(effect.holder.value)
            keys = [c[1][0] for c in effect.calls if len(c[1]) == 2 and isinstance(c[1][1], Output)]
            found += [(holder, Item, k.value) for k in keys if isinstance(k, Value) and plain(k.value)]
    return found


def _alias(run: Run, entry: Entry) -> Alias:
    """Return what must be alike of arguments and of what is read elsewhere."""
    handles = [r.handle for r in entry.reads if isinstance(r, FromHandle)]
    for guard in entry.guards.always:
        found = parts_of(guard.expected) if isinstance(guard.expected, tuple) else (guard.expected,)
        handles += [x for x in found if isinstance(x, Tensor)]
    own = {id(x) for x in run.leaves if isinstance(x, Tensor)}
    known = {id(x) for x in handles} | entry.guards.names.keys()
    entered = [c.tensor for c in run.trace.cells.values() if id(c.tensor) not in own or id(c.tensor) in known]
    held = [g.expected for g in entry.guards.announced if isinstance(g.expected, Tensor)]
    seen = [*handles, *held, *entered]
    entry.guards.add_tensors({id(t): t for t in seen if not t._trace}.values())
    for x in handles:
        set_guarded(x)
    alias = Alias({id(x): x for x in [*handles, *entered]})
    for k, x in enumerate(run.leaves):
        if not isinstance(x, Tensor):
            continue
        if id(x) in known:
            alias.same.append((k, x))
        owner = next((o for o, g in run.trace.grads_read.values() if g is x), None)
        if owner is not None:
            alias.gradients.append((k, _owner(run, owner)))
    if run.written:
        cells = {id(c.tensor) for c in run.written}
        alias.written = {-1 - key for key in cells} | {k for k, x in enumerate(run.leaves) if id(x) in cells}
        alias.overlaps = alias.overlaps_of(run.leaves)
        for cell in run.written:
            if id(cell.tensor) not in own:
                begin(cell.tensor).memory.guarded = True
    if run.trace.asks_layouts:
        alias.layouts = layouts_of(run.leaves)
    return alias


# -- the graph -----------------------------------------------------------------------------------------------
def _read(run: Run, node: Node, carried: dict[int, Place]) -> Read | Fixed:
    if node in run.trace.fixed:
        fixed: Fixed = run.trace.fixed[node]
        return fixed
    if node in run.placeholders:
        return FromArgument(run.placeholders[node])
    cell = run.cell_of.get(node)
    if cell is None:
        storage = values.finished(node)
        if storage is None:
            raise lazy.no_value(node)
        return Frozen(storage)
    found = _owner(run, cell.tensor)
    if isinstance(found, FromArgument):
        return found
    for owner, before in run.trace.grads_read.values():
        if before is cell.tensor:
            return FromGrad(_owner(run, owner))
    return FromPlace(carried[id(cell.tensor)]) if id(cell.tensor) in carried else found


def _owner(run: Run, tensor: Handle) -> Owner:
    """Return where each call finds a tensor from before the run."""
    at = next((k for k, x in enumerate(run.leaves) if x is tensor), None)
    return FromHandle(tensor) if at is None else FromArgument(at)


def _frozen(run: Run, inputs: Sequence[Node], reads: Sequence[Read | Fixed]) -> set[Node]:
    """Return the inputs that seldom change: read through handles, neither written nor about to be.

    A tensor whose gradient is made here is about to be: that is what gradients are for.
    """
    changing = {c.placeholder for c in run.written}
    learning = {id(owner) for owner, _ in run.grads}

    def frozen(node: Node, read: Read | Fixed) -> bool:
        if isinstance(read, FromHandle):
            return node not in changing and id(read.handle) not in learning
        return isinstance(read, Frozen)

    return {node for node, read in zip(inputs, reads, strict=True) if frozen(node, read)}


def _survivors(trace: Trace, expected: set[int]) -> list[tuple[weakref.ref[Handle], Handle]]:
    """Return tensors made by the run that Stratal's objects hold, such as the state of an optimizer."""

    def alive() -> list[tuple[weakref.ref[Handle], Handle]]:
        return [(r, t) for r in trace.created if (t := r()) is not None and id(t) not in expected]

    if not alive():
        return []
    gc.collect()
    return alive()


def _input_labels(run: Run, inputs: Sequence[Node], guards: Guards) -> list[str]:
    labels = []
    for node in inputs:
        cell = run.cell_of.get(node)
        label = node.op.label if isinstance(node.op, Input) else ""
        labels.append(label or (guards.names.get(id(cell.tensor), "") if cell is not None else ""))
    return labels


def node_in(made: Handle) -> Node:
    """Return the node of a tensor made inside a trace."""
    assert made._node is not None
    return made._node


def _for_all_sizes(entry: Entry, symbolic: Symbolic) -> Entry:
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
