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
from stratal.tensor.capture import replay
from stratal.tensor.capture.accesses import Accesses, Key
from stratal.tensor.capture.containers import parts_of
from stratal.tensor.capture.dynamic import Symbolic, needs_sizes
from stratal.tensor.capture.effects import CallMethods, Effect, SetItems, SetLocation
from stratal.tensor.capture.guards import Guard, Guards
from stratal.tensor.capture.locations import MISSING, Item, Location, Measured
from stratal.tensor.capture.plain import plain
from stratal.tensor.capture.results import Output, PriorTensor, Template, Value
from stratal.tensor.capture.stateful import guard_stateful
from stratal.tensor.lazy import flushing, program_cache
from stratal.tensor.tensor import Tensor
from stratal.tensor.values import node_values
from stratal.tensor.values.handle import TRACKED, Handle, set_guarded, view_of_itself
from stratal.tensor.values.memory import layouts_of
from stratal.tensor.values.trace import Cell, Trace


class Run:
    """What one run did: its trace, its outputs, what it returned and wrote."""

    def __init__(
        self, trace: Any, name: str, leaves: list[Any], placeholders: dict[Node, int],
        outputs: dict[Node, int], tracks: list[int], result: Template, effects: list[Effect],
        prior: list[PriorTensor],
    ) -> None:  # fmt: skip
        self.trace, self.name, self.leaves = trace, name, leaves
        self.placeholders, self.outputs, self.tracks = placeholders, outputs, tracks
        self.result, self.effects, self.prior = result, effects, prior

    @functools.cached_property
    def cell_of(self) -> dict[Node, Cell]:
        return {c.placeholder: c for c in self.trace.cells.values()}

    @property
    def written(self) -> list[Cell]:
        return [c for c in self.trace.cells.values() if c.written]

    @functools.cached_property
    def grads(self) -> list[tuple[Tensor, Tensor]]:
        """The gradients the run made, with their owners: of several, the first."""
        made = [(p, g) for p, g in self.trace.grads.values() if g is not None and g._trace is self.trace]
        return [*{id(g): (p, g) for p, g in reversed(made)}.values()][::-1]


def entry_of(
    run: Run, accesses: Accesses, varying: list[tuple[Location, Any]], symbolic: Symbolic | None
) -> replay.Entry:
    """Return the entry that replays a run."""
    guards = _guards(accesses, varying)
    replayed = _replayed_calls(run, guards, accesses)
    accesses.forget()
    trace, outputs, grads, cells = run.trace, run.outputs, run.grads, run.written
    outlived = _survivors(trace, {id(g) for _, g in grads})
    survivors = [(r, outputs.setdefault(node_in(t), len(outputs))) for r, t in outlived]
    tracked = TRACKED in run.tracks or any(c.track == TRACKED and not c.leaf for c in cells)
    lazily = tracked and not trace.differentiated
    written = {k: trace.earlier(c.tensor)[1:] for k, c in enumerate(cells) if c.leaf and lazily}
    versions = {k: [outputs.setdefault(n, len(outputs)) for n in nodes] for k, nodes in written.items()}
    spare = [node_values.placeholder("grad", g.type, run.name) for _, g in grads]
    targets = [*(c.placeholder for c in cells), *spare]
    roots = [*outputs, *(c.node for c in cells), *(node_in(g) for _, g in grads)]
    order, used = program_cache.walk(roots, lambda n: isinstance(n.op, Input))
    if any(n in variables for n in used for variables in trace.points):
        roots = trace.resolved(roots)
        order, used = program_cache.walk(roots, lambda n: isinstance(n.op, Input))
    updates = list(zip(targets, roots[len(outputs) :], strict=True))
    wanted = set(used) | {c.placeholder for c in cells}
    inputs = list(dict.fromkeys([*(n for n in run.cell_of if n in wanted), *used]))
    work = program_cache.Work([*inputs, *spare], roots[: len(outputs)], updates, order)
    reads = [_read(run, n, replayed) for n in inputs]
    frozen = _frozen(run, inputs, reads)
    entry = replay.Entry(work.graph(run.name, _input_labels(run, inputs, guards), frozen), guards)
    entry.reads = reads
    position = {n: k for k, n in enumerate([*inputs, *spare])}
    entry.written = [position[c.placeholder] for c in cells]
    entry.tracks = [c.track for c in cells]
    entry.grads = [(_owner(run, p), position[s]) for s, (p, _) in zip(spare, grads, strict=True)]
    links = [(p, g) for p, g in trace.grads.values() if g is None or g._trace is not trace]
    entry.grad_links = [(_owner(run, p), None if g is None else _link(run, g)) for p, g in links]
    first = {id(g): p for p, g in grads}
    owners = [(p, first[id(g)]) for p, g in trace.grads.values() if id(g) in first]
    entry.grad_shares = [(_owner(run, p), _owner(run, q)) for p, q in owners if p is not q]
    read = trace.grads_read.values()
    entry.grads_before = [(_owner(run, p), None if g is None else g.type) for p, g in read]
    entry.result, entry.effects, entry.survivors = run.result, run.effects, survivors
    for x in run.prior:
        x.location, x.gradient = replayed.get(id(x.tensor)), _gradient_read(run, x.tensor)
    entry.prior = [x for x in run.prior if x.location is not None]
    entry.gradients = [x for x in run.prior if x.gradient is not None]
    entry.calls_back = bool(trace.tokens)
    entry.once = bool(survivors) or trace.recapture
    entry.lazily, entry.versions = lazily, versions
    entry.alias = _alias(run, entry, replayed)
    guards.validated()
    return entry if symbolic is None else _for_all_sizes(entry, symbolic)


# -- what must hold ------------------------------------------------------------------------------------------
def _guards(accesses: Accesses, varying: list[tuple[Location, Any]]) -> Guards:
    guards = Guards()
    guards.always = [Guard(location, value) for location, value in accesses.guarded()]
    for location, value in varying:
        guards.always.append(Guard(Measured(location, _type_at, location.name), type(value)))
    missing = [location for location in accesses.missing.values() if location.read() is MISSING]
    guards.announced = [Guard(location, MISSING) for location in missing]
    guard_stateful(guards, accesses.stateful.values(), accesses.names, accesses.replayed)
    for location, value in accesses.reads.values():
        if isinstance(value, Tensor):
            guards.names.setdefault(id(value), location.name)
    return guards


def _type_at(location: Location) -> Any:
    """Return what must be equal of numbers that are inputs."""
    return type(location.read())


def _replayed_calls(run: Run, guards: Guards, accesses: Accesses) -> dict[int, Location]:
    """Return where tensors stand that the run reads and replaces, by their id: each call finds another one.

    Their guards compare types instead.
    """
    written = set(_locations_written(run.effects))
    found: dict[int, Location] = {}
    for location, x in (*accesses.reads.values(), *guards.announced):  # the latter are of a module's buffers
        if isinstance(x, Tensor) and id(x) in run.trace.cells and location.identity() in written:
            found[id(x)] = location
    for guard in [*guards.always, *guards.announced]:
        for x in _tensors(guard):
            if id(x) in found and found[id(x)] is not guard.location:
                del found[id(x)]  # somebody else relies on this very tensor
    for x in (*run.leaves, *(o for o, _ in (*run.trace.grads.values(), *run.trace.grads_read.values()))):
        found.pop(id(x), None)
    locations = list(found.values())
    for kept in (guards.always, guards.announced):
        for k, guard in enumerate(kept):
            if (location := guard.location) in locations:
                kept[k] = Guard(Measured(location, _replayed_kind, location.name), _replayed_kind(location))
    return found


def _replayed_kind(location: Location) -> Any:
    """Return what must be equal of tensors that stand in a place one after another."""
    x = location.read()
    if type(x) is not Tensor or x._trace is not None:
        return x
    return (x.type, x._leaf, x._track == TRACKED, x._guarded)


def _tensors(guard: Guard) -> list[Tensor]:
    """Return the tensors that a guard expects."""
    found = parts_of(guard.expected) if isinstance(guard.expected, tuple) else (guard.expected,)
    return [x for x in found if isinstance(x, Tensor)]


def _locations_written(effects: Sequence[Effect]) -> list[Key]:
    """Return the places that get an output of the program."""
    found: list[Key] = []
    for effect in effects:
        if isinstance(effect, SetLocation) and isinstance(effect.value, Output):
            found.append(effect.location.identity())
        elif isinstance(effect, SetItems) and isinstance(effect.holder, Value):
            holder = id(effect.holder.value)
            found += [(holder, Item, k) for k, v in effect.values.items() if isinstance(v, Output)]
        elif isinstance(effect, CallMethods) and isinstance(effect.holder, Value):
            holder = id(effect.holder.value)
            keys = [c[1][0] for c in effect.calls if len(c[1]) == 2 and isinstance(c[1][1], Output)]
            found += [(holder, Item, k.value) for k in keys if isinstance(k, Value) and plain(k.value)]
    return found


def _alias(run: Run, entry: replay.Entry, replayed: dict[int, Location]) -> replay.Alias:
    """Return what must be alike of arguments and of what is read elsewhere."""
    handles = [r.handle for r in entry.reads if isinstance(r, replay.FromHandle)]
    for guard in entry.guards.always:
        handles += _tensors(guard)
    others = _others(run, entry, replayed)
    leaves = [*run.leaves, *(x for x, _ in others)]
    anew = {id(x) for x, _ in others} - {id(x) for x in handles}
    own = {id(x) for x in leaves if isinstance(x, Tensor)}
    known = ({id(x) for x in handles} | entry.guards.names.keys()) - anew
    cells = [c.tensor for c in run.trace.cells.values()]
    entered = [x for x in cells if id(x) not in own or id(x) in known]
    held = [g.expected for g in entry.guards.announced if isinstance(g.expected, Tensor)]
    seen = [*handles, *held, *(x for x in cells if id(x) not in own or id(x) in known or id(x) in anew)]
    entry.guards.add_tensors({id(t): t for t in seen if not t._trace}.values())
    for x in handles:
        set_guarded(x)
    alias = replay.Alias({id(x): x for x in [*handles, *entered]})
    alias.others = [read for _, read in others]
    alias.pattern = replay.pattern_of(leaves)
    alias.same = [(k, x) for k, x in enumerate(leaves) if isinstance(x, Tensor) and id(x) in known]
    if run.written:
        written = {id(c.tensor) for c in run.written}
        alias.written = {-1 - key for key in written} | {k for k, x in enumerate(leaves) if id(x) in written}
        alias.overlaps = alias.overlaps_of(leaves)
        for cell in run.written:
            if id(cell.tensor) not in own:
                view_of_itself(cell.tensor).memory.guarded = True
    if run.trace.asks_layouts:
        alias.layouts = layouts_of(leaves)
    return alias


_Anew = replay.FromLocation | replay.FromGrad


def _others(run: Run, entry: replay.Entry, replayed: dict[int, Location]) -> list[tuple[Handle, _Anew]]:
    """Return the tensors from before that each call finds anew: in places that it writes, as gradients."""
    cells = run.trace.cells
    found: list[tuple[Handle, _Anew]] = []
    for key, location in replayed.items():
        found.append((cells[key].tensor, replay.FromLocation(location)))
    shown = {id(x.tensor) for x in entry.gradients}
    shown |= {id(g) for _, g in run.trace.grads.values()}
    for owner, g in run.trace.grads_read.values():
        if g is not None and g._trace is not run.trace and (id(g) in cells or id(g) in shown):
            found.append((g, replay.FromGrad(_owner(run, owner))))
    return found


# -- the graph -----------------------------------------------------------------------------------------------
def _read(run: Run, node: Node, replayed: dict[int, Location]) -> replay.Read | replay.Fixed:
    if node in run.trace.fixed:
        fixed: replay.Fixed = run.trace.fixed[node]
        return fixed
    if node in run.placeholders:
        return replay.FromArgument(run.placeholders[node])
    cell = run.cell_of.get(node)
    if cell is None:
        storage = node_values.finished(node)
        if storage is None:
            raise flushing.missing_value_error(node)
        return replay.Frozen(storage)
    found = _owner(run, cell.tensor)
    if isinstance(found, replay.FromArgument):
        return found
    gradient = _gradient_read(run, cell.tensor)
    if gradient is not None:
        return gradient
    return replay.FromLocation(replayed[id(cell.tensor)]) if id(cell.tensor) in replayed else found


def _gradient_read(run: Run, tensor: Handle) -> replay.FromGrad | None:
    """Return whose gradient a tensor was before the run, if the run read it there."""
    owner = next((o for o, g in run.trace.grads_read.values() if g is tensor), None)
    return None if owner is None or tensor._trace is run.trace else replay.FromGrad(_owner(run, owner))


def _link(run: Run, gradient: Handle) -> replay.Link:
    """Return where each call finds a tensor that becomes a gradient."""
    owner = _owner(run, gradient)
    return owner if isinstance(owner, replay.FromArgument) else _gradient_read(run, gradient) or owner


def _owner(run: Run, tensor: Handle) -> replay.Owner:
    """Return where each call finds a tensor from before the run."""
    at = next((k for k, x in enumerate(run.leaves) if x is tensor), None)
    return replay.FromHandle(tensor) if at is None else replay.FromArgument(at)


def _frozen(run: Run, inputs: Sequence[Node], reads: Sequence[replay.Read | replay.Fixed]) -> set[Node]:
    """Return the inputs that seldom change: read through handles, neither written nor about to be.

    A tensor whose gradient is made here is about to be: that is what gradients are for.
    """
    changing = {c.placeholder for c in run.written}
    learning = {id(owner) for owner, g in run.trace.grads.values() if g is not None}

    def frozen(node: Node, read: replay.Read | replay.Fixed) -> bool:
        if isinstance(read, replay.FromHandle):
            return node not in changing and id(read.handle) not in learning
        return isinstance(read, replay.Frozen)

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


def _for_all_sizes(entry: replay.Entry, symbolic: Symbolic) -> replay.Entry:
    """Let the entry's program serve every size up to the bounds, with the sizes as inputs in front."""
    if entry.lazily or entry.survivors:
        raise needs_sizes("results carry gradients, or outlive the call")
    graph, names = bounded(entry.graph)
    types = [o.aval for o in entry.graph.outputs]
    entry.parts = {k: t for k, t in enumerate(types) if any(isinstance(n, Sym) for n in t.shape)}
    entry.graph = graph
    entry.sizes = {name: replay.FromSize(*symbolic.names[name]) for name in names}
    shift = len(names)
    entry.reads = [*entry.sizes.values(), *entry.reads]
    for k, read in enumerate(entry.reads):
        if isinstance(read, replay.FromArgument) and read.position in symbolic.types:
            type_ = graph.inputs[k].aval
            entry.reads[k] = replay.FromPart(read.position, Storage.copy_of(np.zeros(type_.ints), type_))
    entry.written = [k + shift for k in entry.written]
    entry.grads = [(owner, k + shift) for owner, k in entry.grads]
    return entry
