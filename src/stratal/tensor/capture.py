"""Capture: trace a function once per signature and replay it with one program call.

signature := structure of the arguments, their types, Python arguments, gradient mode
capture   := graph + where each input is read + what is done with each output + guards on frozen Python values
"""

from __future__ import annotations

import functools
import gc
import inspect
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from stratal.base import tree
from stratal.base.dtypes import float64
from stratal.base.errors import CaptureError
from stratal.base.types import TensorType
from stratal.graph.graph import Graph, substitute
from stratal.graph.node import Input, Node
from stratal.runtime.storage import Storage
from stratal.tensor import lazy, programs, values
from stratal.tensor.guards import Guard, Guards, Source, collect
from stratal.tensor.scalars import RuntimeScalar
from stratal.tensor.state import LOCK, MODE, tracing
from stratal.tensor.state import note_mutation as note_mutation
from stratal.tensor.tensor import CONSTANT, TRACKED, Tensor, hold, look, rebind, shared, tensor, wrap
from stratal.tensor.trace import Cell, Trace

_MOST_CAPTURES = 64  # per function; the one used longest ago goes first


# -- where the inputs of a program are read at each call -----------------------------------------------------
class _FromArgument(NamedTuple):
    position: int

    def tensor(self, arguments: Sequence[Any]) -> Tensor:
        found: Tensor = arguments[self.position]
        return found


class _FromHandle(NamedTuple):
    handle: Tensor

    def tensor(self, arguments: Sequence[Any]) -> Tensor:
        return self.handle


class _FromGrad(NamedTuple):
    owner: Tensor

    def tensor(self, arguments: Sequence[Any]) -> Tensor:
        assert self.owner._grad is not None
        return self.owner._grad


class _FromFloat(NamedTuple):
    """A Python float that varies: an argument, or a place a guard watched."""

    position: int
    source: Source | None

    def storage(self, arguments: Sequence[Any]) -> Storage:
        value = arguments[self.position] if self.source is None else self.source.read()
        return Storage.copy_of(np.array(float(value)), TensorType(float64))


class _Frozen(NamedTuple):
    """Data made while the function was captured, the same at each call."""

    storage_: Storage

    def storage(self, arguments: Sequence[Any]) -> Storage:
        return self.storage_


_Place = _FromArgument | _FromHandle | _FromGrad
_Fixed = _FromFloat | _Frozen


class _Out(NamedTuple):
    """A leaf of the function's result: output of that number, or a value to return as it is."""

    number: int
    value: Any
    track: int


class Entry:
    """One capture, ready to be replayed."""

    def __init__(self, graph: Graph, guards: Guards) -> None:
        self.graph = graph
        self.guards = guards
        self.reads: list[_Place | _Fixed] = []  # one per input of the graph, spare gradient buffers apart
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
        self.outs: list[_Out] = []
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


class Compiled:
    """A function that is captured once per signature; what `st.compile` returns.

    `captures` counts captures and `reasons` says why each was needed; `graph`, `program`, `plan` and
    `explain()` show the capture used last.
    """

    def __init__(self, function: Callable[..., Any], name: str | None = None) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._name: str = name or getattr(function, "__name__", "") or type(function).__name__
        self._entries: dict[Any, list[Entry]] = {}
        self._last: Entry | None = None
        self._floats: dict[Any, set[int]] = {}  # positions of float arguments seen to vary
        self._frozen: set[Any] = set()  # structures of arguments whose floats Python needs
        self._varying: dict[str, bool] = {}  # names of frozen floats seen to vary: False where that failed
        self._bound: weakref.WeakKeyDictionary[Any, Compiled] = weakref.WeakKeyDictionary()
        self.captures = 0
        self.reasons: list[str] = []

    # -- looking at it ---------------------------------------------------------------------------------------
    def _shown(self) -> Entry:
        if self._last is None:
            raise CaptureError(f"{self._name}: nothing was captured yet", hint="call it once first")
        return self._last

    @property
    def graph(self) -> Graph:
        """The graph of the capture used last."""
        return self._shown().graph

    @property
    def program(self) -> Any:
        """The program of the capture used last."""
        return self._shown().program

    @property
    def plan(self) -> Any:
        """The plan of the program used last: kernels, memory and cost."""
        return self.program.plan

    def explain(self, *args: Any, **kwargs: Any) -> Any:
        """Return the decisions behind the program used last."""
        return self.program.explain(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<compiled {self._name}: {self.captures} captures>"

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        if instance not in self._bound:
            self._bound[instance] = Compiled(self._function.__get__(instance, owner), self._name)
        return self._bound[instance]

    # -- calling it ------------------------------------------------------------------------------------------
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if MODE.trace is not None or MODE.eager is not None:
            return self._function(*args, **kwargs)
        with LOCK:
            leaves, structure = _flatten(args, kwargs)
            key = self._signature(leaves, structure, bool(kwargs))
            entry, reason = self._find(key)
            if entry is None:
                entry, result = self._capture(key, leaves, structure, bool(kwargs), reason)
                return result
            self._last = entry
            return _run(entry, leaves)

    def _signature(self, leaves: list[Any], structure: tree.Structure, has_kwargs: bool) -> Any:
        """Return what decides which capture fits; arrays among the leaves become tensors."""
        varying = self._floats.get((structure, has_kwargs), ())
        parts: list[Any] = []
        first: dict[int, int] = {}
        for k, x in enumerate(leaves):
            if isinstance(x, np.ndarray):
                x = leaves[k] = tensor(x)
            if isinstance(x, Tensor):
                parts.append((x.type, x._leaf, x._track == TRACKED, first.setdefault(id(x), k)))
            elif type(x) is float and k in varying:
                parts.append(float)
            else:
                parts.append((type(x), x if isinstance(x, _HASHED) else id(x)))
        return (structure, has_kwargs, MODE.grad, tuple(parts))

    def _find(self, key: Any) -> tuple[Entry | None, str]:
        entries = self._entries.get(key)
        if entries is None:
            return None, self._novelty(key)
        reason = ""
        for k, entry in enumerate(entries):
            failure = entry.failed()
            if failure is None:
                if k:
                    entries.insert(0, entries.pop(k))
                return entry, ""
            reason = reason or failure
        return None, reason

    def _novelty(self, key: Any) -> str:
        """Return which argument differs from the signature nearest to a new one."""
        for old in reversed(list(self._entries)):
            if old[0] != key[0]:
                continue
            for k, (a, b) in enumerate(zip(old[3], key[3], strict=True)):
                if a != b:
                    return f"argument {k} changed from {_part(a)} to {_part(b)}"
            return f"gradients are {'on' if key[2] else 'off'}"
        return "first call" if not self._entries else "arguments of another structure"

    # -- capturing -------------------------------------------------------------------------------------------
    def _capture(
        self, key: Any, leaves: list[Any], structure: tree.Structure, has_kwargs: bool, reason: str
    ) -> tuple[Entry, Any]:
        key = self._learn_floats(key, leaves, structure, has_kwargs)
        self._learn_sources(key)
        key, entry = self._trace(key, leaves, structure, has_kwargs)
        self.captures += 1
        self.reasons.append(reason)
        entries = self._entries.setdefault(key, [])
        entries[:] = [e for e in entries if not e.once]
        entries.insert(0, entry)
        self._bound_size()
        self._last = entry
        return entry, _run(entry, leaves)

    def _bound_size(self) -> None:
        while sum(map(len, self._entries.values())) > _MOST_CAPTURES:
            oldest = next(iter(self._entries))
            self._entries[oldest].pop()
            if not self._entries[oldest]:
                del self._entries[oldest]

    def _learn_floats(self, key: Any, leaves: list[Any], structure: tree.Structure, has_kwargs: bool) -> Any:
        """Make a float argument an input when only its value differs from an earlier call's."""
        group = (structure, has_kwargs)
        if key in self._entries or group in self._frozen:
            return key
        for old in self._entries:
            if old[:3] != key[:3]:
                continue
            differing = [k for k, (a, b) in enumerate(zip(old[3], key[3], strict=True)) if a != b]
            if differing and all(type(leaves[k]) is float and _was_float(old[3][k]) for k in differing):
                self._floats.setdefault(group, set()).update(differing)
                return self._signature(leaves, structure, has_kwargs)
        return key

    def _learn_sources(self, key: Any) -> None:
        """Note which frozen floats are the reason why no capture fits."""
        for entry in self._entries.get(key, ()):
            for guard in entry.guards.floats():
                if not guard.holds() and type(guard.source.read()) is float:
                    self._varying.setdefault(guard.source.name, True)

    def _trace(
        self, key: Any, leaves: list[Any], structure: tree.Structure, has_kwargs: bool
    ) -> tuple[Any, Entry]:
        """Return the capture and its key; where Python needs a number that was made an input, freeze that
        number after all.
        """
        capture = _Capture(self, leaves, structure, has_kwargs, key)
        try:
            return key, capture.run(self._varying)
        except CaptureError:
            if not capture.scalars:
                raise
            self._frozen.add((structure, has_kwargs))
            self._floats.pop((structure, has_kwargs), None)
            self._varying.update(dict.fromkeys(capture.floats_used, False))
            key = self._signature(leaves, structure, has_kwargs)
            return key, _Capture(self, leaves, structure, has_kwargs, key).run(self._varying)


@functools.lru_cache(maxsize=64)
def _flat(count: int) -> tree.Structure:
    return tree.flatten((0,) * count)[1]


def _flatten(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], tree.Structure]:
    """Take arguments apart; in one step where they are tensors, arrays and numbers only."""
    if not kwargs and all(isinstance(x, _LEAVES) for x in args):
        return list(args), _flat(len(args))
    return tree.flatten((args, kwargs) if kwargs else args)


_LEAVES = (Tensor, np.ndarray, bool, int, float, str)
_HASHED = (bool, int, float, complex, str, bytes, type(None), type)


def _part(part: Any) -> str:
    if isinstance(part, tuple) and part and isinstance(part[0], TensorType):
        return str(part[0])
    return repr(part[1]) if isinstance(part, tuple) else "float"


def _was_float(part: Any) -> bool:
    return part is float or (isinstance(part, tuple) and part[0] is float)


class _Capture:
    """One run of the user's function on placeholders."""

    def __init__(
        self, compiled: Compiled, leaves: list[Any], structure: tree.Structure, has_kwargs: bool, key: Any
    ) -> None:
        self.function = compiled._function
        self.name = compiled._name
        self.leaves = leaves
        self.structure = structure
        self.has_kwargs = has_kwargs
        self.float_arguments = {k for k, part in enumerate(key[3]) if part is float}
        self.trace = Trace(self.name)
        self.labels = _labels(self.function, structure, leaves, has_kwargs)
        self.scalars: dict[Node, _FromFloat] = {}
        self.floats_used: list[str] = []

    def run(self, varying: dict[str, bool]) -> Entry:
        objects = [
            (self.labels[k], x) for k, x in enumerate(self.leaves) if not isinstance(x, (Tensor, *_HASHED))
        ]
        guards = collect(self.function, self.name, objects)
        swapped = [g for g in guards.floats() if varying.get(g.source.name)]
        with tracing(self.trace):
            arguments = [self._argument(k, x) for k, x in enumerate(self.leaves)]
            try:
                for guard in swapped:
                    guard.source.write(self._scalar(_FromFloat(-1, guard.source), guard.source.name))
                    self.floats_used.append(guard.source.name)
                tree_of_arguments = tree.unflatten(self.structure, arguments)
                args, kwargs = tree_of_arguments if self.has_kwargs else (tree_of_arguments, {})
                result = self.function(*args, **kwargs)
            finally:
                for guard in swapped:
                    if isinstance(guard.source.read(), RuntimeScalar):
                        guard.source.write(guard.expected)
                self.trace.closed = True
        del arguments, args, kwargs, tree_of_arguments
        own = {id(x) for x in self.leaves}
        read = [c.tensor for c in self.trace.cells.values() if id(c.tensor) not in own]
        return self._entry(result, guards.after_call({id(g.source) for g in swapped}, read))

    def _argument(self, k: int, x: Any) -> Any:
        if isinstance(x, Tensor):
            self.trace.enter(x, self.labels[k])
        elif k in self.float_arguments:
            return self._scalar(_FromFloat(k, None), self.labels[k])
        return x

    def _scalar(self, place: _FromFloat, label: str) -> RuntimeScalar:
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
        entry = Entry(work.graph(self.name, self._input_labels(inputs, guards)), guards)
        entry.reads = [self._read(n) for n in inputs]
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
        entry.lazily = tracked and not trace.differentiated and not leaf_written and not survivors
        return entry

    def _out(self, x: Any, outputs: dict[Node, int]) -> _Out:
        if not isinstance(x, Tensor) or x._trace is not self.trace:
            return _Out(-1, x, CONSTANT)
        return _Out(outputs.setdefault(_node_in(x), len(outputs)), None, x._track)

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

    def _read(self, node: Node) -> _Place | _Fixed:
        if node in self.scalars:
            return self.scalars[node]
        cell = self._cell_of.get(node)
        if cell is None:
            storage = values.finished(node)
            if storage is None:
                raise lazy.no_value(node)
            return _Frozen(storage)
        for k, x in enumerate(self.leaves):
            if x is cell.tensor:
                return _FromArgument(k)
        for owner, before in self.trace.grads_read.values():
            if before is cell.tensor:
                return _FromGrad(owner)
        return _FromHandle(cell.tensor)

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


def _labels(function: Any, structure: tree.Structure, leaves: list[Any], has_kwargs: bool) -> list[str]:
    """Return a name for each leaf of the arguments: `x`, `batch.0`."""
    try:
        names = [p for p in inspect.signature(function).parameters if p != "self"]
    except (TypeError, ValueError):
        names = []
    numbered = tree.unflatten(structure, range(len(leaves)))
    args, kwargs = numbered if has_kwargs else (numbered, {})
    labels = [""] * len(leaves)
    heads = [(names[k] if k < len(names) else f"arg{k}", a) for k, a in enumerate(args)] + list(
        kwargs.items()
    )
    for head, part in heads:
        for path, index in tree.paths(part):
            labels[index] = tree.path_name((head, *path))
    return labels


# -- replaying -----------------------------------------------------------------------------------------------
def _run(entry: Entry, arguments: list[Any]) -> Any:
    return _run_lazily(entry, arguments) if entry.lazily else _run_now(entry, arguments)


def _run_lazily(entry: Entry, arguments: list[Any]) -> Any:
    """Put the captured graph in the place of the call: gradients flow back through it, and one flush runs it
    all.
    """
    nodes = []
    for read in entry.reads:
        if isinstance(read, (_FromFloat, _Frozen)):
            nodes.append(values.leaf(read.storage(arguments)))
        else:
            nodes.append(look(read.tensor(arguments))[0])
    graph = entry.graph
    roots = [*graph.outputs, *(v for _, v in graph.updates)]
    made = substitute(roots, dict(zip(graph.inputs, nodes, strict=True)))
    outputs, states = made[: len(graph.outputs)], made[len(graph.outputs) :]
    for position, node, track in zip(entry.written, states, entry.tracks, strict=True):
        read = entry.reads[position]
        assert not isinstance(read, (_FromFloat, _Frozen))
        rebind(read.tensor(arguments), node, track)
    results = [wrap(outputs[o.number], o.track) if o.number >= 0 else o.value for o in entry.outs]
    return tree.unflatten(entry.structure, results)


def _run_now(entry: Entry, arguments: list[Any]) -> Any:
    tensors: list[Tensor | None] = []
    inputs: list[Storage] = []
    for read in entry.reads:
        if isinstance(read, (_FromFloat, _Frozen)):
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
    outputs = programs.run(entry.program, inputs)
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
    """Return a tensor to write a gradient into: the owner's last one if nobody else holds it, or a new one."""
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


# -- the decorator -------------------------------------------------------------------------------------------
class CompiledModule:
    """A module whose call is compiled; every other attribute is the module's."""

    def __init__(self, module: Any) -> None:
        object.__setattr__(self, "_module", module)
        object.__setattr__(self, "_compiled", Compiled(module.__call__, type(module).__name__))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._compiled(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in ("captures", "explain", "graph", "plan", "program", "reasons"):
            return getattr(self._compiled, name)
        return getattr(self._module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._module, name, value)

    def __repr__(self) -> str:
        return f"compiled {self._module!r}"


def compile(function: Any = None, *, name: str | None = None) -> Any:
    """Capture a function, or a module's call, once per signature and replay it with one program call. Also a
    decorator.

    The signature is the types of tensors, Python arguments, and whether gradients are on; Python values read
    through closures, globals, modules and containers are frozen, and captured again when they change. Tensors
    read that way are inputs, and those changed inside are written back.
    """
    if function is None:
        return functools.partial(compile, name=name)
    if hasattr(function, "forward") and hasattr(function, "named_parameters"):
        return CompiledModule(function)
    return Compiled(function, name)


__all__ = ["Compiled", "CompiledModule", "Guard", "compile", "note_mutation"]
