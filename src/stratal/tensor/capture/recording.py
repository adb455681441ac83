"""One capture: the user's function run once on placeholders, observed; Python's state is as before."""

from __future__ import annotations

import functools
import gc
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stratal.base import tree
from stratal.base.collector import collector_paused
from stratal.base.dtypes import as_dtype
from stratal.base.errors import CaptureError, UndecidedError
from stratal.base.interrupts import SIGNALS, UNINTERRUPTIBLE
from stratal.base.types import TensorType
from stratal.graph.node import Node
from stratal.tensor.capture import refusals
from stratal.tensor.capture.accesses import Accesses
from stratal.tensor.capture.assembly import Run, entry_of, node_in
from stratal.tensor.capture.attributes import reads_attribute
from stratal.tensor.capture.calls import note_call
from stratal.tensor.capture.dynamic import Symbolic, needs_sizes
from stratal.tensor.capture.effects import CallMethods, Effect, effects_of, gradient_effects
from stratal.tensor.capture.frozen import unobserved
from stratal.tensor.capture.locations import MISSING, Item, Location
from stratal.tensor.capture.objects import fields_of
from stratal.tensor.capture.observe import Observer, unseen
from stratal.tensor.capture.output import BufferedOutput, Printed, Warned, buffered_output
from stratal.tensor.capture.plain import plain
from stratal.tensor.capture.replay import Entry, FromArray
from stratal.tensor.capture.replayed_calls import CallMethod, ReplayedCall, Snapshot
from stratal.tensor.capture.results import Gradient, Leaf, Output, Path, Shown
from stratal.tensor.capture.templates import Templates
from stratal.tensor.scalars import FromFloat, FromNumber, RuntimeScalar
from stratal.tensor.tensor import Tensor, wrap
from stratal.tensor.values import node_values
from stratal.tensor.values.handle import CONSTANT, TRACKED, Handle
from stratal.tensor.values.memory import View
from stratal.tensor.values.state import MODE, tracing
from stratal.tensor.values.trace import Cell, Trace


@dataclass(slots=True, eq=False)
class Given:
    """The arguments of one call: as they were passed, and their leaves with NumPy's arrays as tensors."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    leaves: list[Any]
    structure: tree.Structure
    raised: BaseException | None = None  # by the function, while it was captured

    @property
    def group(self) -> Any:
        """What calls with arguments of one structure share."""
        return self.structure, bool(self.kwargs)


class CaptureTrace(Trace):
    """The trace of a captured function; arrays of NumPy that it reads become inputs."""

    def __init__(self, name: str, known: Sequence[Any] = ()) -> None:
        super().__init__(name)
        self.accesses: Accesses | None = None
        self.fixed: dict[Node, FromArray | FromNumber] = {}
        self.replayed: list[ReplayedCall] = []
        self.stale: set[int] = set()  # cells that a carried call changes after the program has run
        self._snapshots: list[tuple[Snapshot, Accesses]] = []
        self._after: dict[int, tuple[Any, Snapshot]] = {}  # what owners hold after their last call, by id
        self.drawn_once: CaptureError | None = None  # unless the function raises itself
        self.frozen_values: list[Any] = []  # in the order in which the function asks for them
        self._known = iter(known)
        self.said: list[str | Warned] = []
        self.texts: dict[str, tuple[Tensor, str | None, str, str]] = {}  # by what stands for them

    def text(self, tensor: Handle, spec: str | None, name: str, gradient: str) -> str | None:
        if self.closed or not (tensor._trace is self or (tensor._trace is None and self.reads(tensor))):
            return None
        prior = f"<traced {tensor.type}, {len(self.texts)} of {id(self)}>"
        self.texts[prior] = wrap(self.node_and_track(tensor)[0], CONSTANT), spec, name, gradient
        return prior

    def frozen(self, function: Callable[[], Any]) -> Any:
        value = next(self._known, MISSING)
        self.frozen_values.append(unobserved(function) if value is MISSING else value)
        return self.frozen_values[-1]

    def add_replayed_call(self, owner: Any, method: Callable[..., Any], args: Any, kwargs: Any) -> None:
        """Note a call that each replay makes, too; make it, unless it needs values that are not known yet."""
        accesses = self.accesses
        assert accesses is not None
        state = unobserved(lambda: Snapshot(owner))
        self.check_replayed_calls()
        held = [*(fields for fields, _ in state.fields), *(items for items, _ in state.lists)]
        for before_run in (accesses.containers.get(id(x)) for x in held if id(x) not in accesses.replayed):
            if before_run is not None and before_run.changed():
                raise refusals.WRITTEN_TWICE(before_run.name, type(owner).__name__)
        leaves = tree.leaves((args, kwargs))
        for x in leaves:
            accesses.number(x)
        known = not any(isinstance(x, Tensor) for x in leaves)  # whose values a capture does not know
        changed = {id(x) for part in state.parts for x in (part, fields_of(part))}
        read = {id(location.holder) for location, _ in accesses.reads.values()} | accesses.scalars
        before = known and state.cells.isdisjoint(self.cells) and changed.isdisjoint(read)
        nodes = [self.node_and_track(x)[0] if isinstance(x, Tensor) else None for x in leaves]
        self.replayed.append(ReplayedCall(method, owner, args, kwargs, before, nodes))
        if not before:
            self.stale |= state.cells
        accesses.replayed_state += [*state.fields, *state.lists]
        accesses.prelude |= changed if before else set()
        for part in state.parts:
            accesses.touch(part)
            accesses.replayed[id(part)] = part
            accesses.replayed[id(fields_of(part))] = fields_of(part)
        if not known:
            accesses.deferred[id(owner)] = owner
            self._note_after(owner)
            return
        aside = Accesses(self, {}, {})
        self._snapshots.append((state, aside))
        scalars = [location.read() for location, _ in self.varying]
        for location, value in self.varying:
            location.write(value)
        try:
            with tracing(None):
                unobserved(lambda: Observer(aside).watch(lambda: method(owner, *args, **kwargs)))
        finally:
            for (location, value), scalar in zip(self.varying, scalars, strict=True):
                now = location.read()
                if type(scalar) is RuntimeScalar and type(now) is float and before:
                    scalar.value = now  # what the call made of it
                if before or now is value:
                    location.write(scalar)
        self._note_after(owner)

    def reads_items(self, holder: Any, keys: Iterable[Any]) -> None:
        if self.accesses is not None:
            for key in keys:
                self.accesses.item(holder, key)

    def _note_after(self, owner: Any) -> None:
        """Note what objects hold after a call that is carried: it may change what others hold, too."""
        owners = {id(o): o for o, _ in self._after.values()} | {id(owner): owner}
        self._after = {k: (o, unobserved(functools.partial(Snapshot, o))) for k, o in owners.items()}

    def draws_once(self) -> None:
        self.drawn_once = self.drawn_once or refusals.DRAWN_ONCE()

    def calls_back(self) -> None:
        if self.accesses is not None and (name := self._writes_before_calls()):
            raise refusals.WRITTEN_BEFORE_CALL(name)

    def _writes_before_calls(self) -> str:
        """Return what the run has written or said that replays would after the calls of a program."""
        accesses = self.accesses
        assert accesses is not None
        if self.said or (isinstance(sys.stdout, BufferedOutput) and sys.stdout.getvalue()):
            return "what it prints or warns of"
        late = next((c for c in self.replayed if not c.before), None)
        if late is not None:
            return f"what a call of a {type(late.owner).__name__} changes"
        accesses.made.refresh()
        stepped = {id(x) for x, _ in accesses.replayed_state}  # ahead of the program
        written = [b for b in accesses.written_containers() if id(b.holder) not in stepped]
        names = [b.name for b in written if b.changed() or b.calls]
        names += [p.name for p, now in accesses.written_locations() if not isinstance(now, BufferedOutput)]
        return next(iter(names), "")

    def check_replayed_calls(self) -> None:
        """Refuse that the function itself writes what calls change that each replay makes, too."""
        for owner, state in self._after.values():
            if name := unobserved(state.changed):
                raise refusals.WRITTEN_TWICE(name, type(owner).__name__)

    def restore(self) -> None:
        """Let objects be as they were before calls that are carried, and what functions of users wrote."""
        self._after.clear()  # it holds numbers that stand for inputs, which are not to live on
        while self._snapshots:
            state, aside = self._snapshots.pop()
            aside.restore()
            state.restore()

    def enter(self, tensor: Handle, label: str = "") -> Cell:
        if id(tensor) in self.stale:
            raise refusals.RATE_READ_AGAIN()
        return super().enter(tensor, label)

    def node_and_track(self, tensor: Handle) -> tuple[Node, int]:
        if id(tensor) in self.stale:
            self.enter(tensor)  # raises
        return super().node_and_track(tensor)

    def array(self, array: np.ndarray[Any, Any]) -> Node | None:
        if self.accesses is None or id(array) not in self.accesses.containers or array.dtype.hasobject:
            return None  # made by the run, or by Stratal itself
        if self.accesses.rewritten(array):
            return None
        type_ = TensorType(as_dtype(array.dtype), array.shape)
        node = node_values.placeholder("array", type_, self.name)
        self.fixed[node] = FromArray(array, type_)
        reads_attribute(self.accesses, array, "shape")
        reads_attribute(self.accesses, array, "dtype")
        return node


class VaryingError(Exception):
    """The function reads numbers that a schedule changes in each call: they are inputs of its program."""

    def __init__(self, locations: dict[str, Location]) -> None:
        super().__init__(*locations)
        self.locations = locations


class Recording:
    """One run of the user's function on placeholders."""

    def __init__(
        self, function: Callable[..., Any], name: str, given: Given, key: Any,
        symbolic: Symbolic | None = None, frozen: Sequence[Any] = (),
    ) -> None:  # fmt: skip
        self.key, self.symbolic = key, symbolic
        self.sized: dict[int, Tensor] = {}  # arguments with symbolic types, by the handle they stand for
        self.function, self.name = function, name
        self.given, self.leaves = given, given.leaves
        self.float_arguments = {k for k, part in enumerate(key[3]) if part is float}
        self.trace = CaptureTrace(self.name, frozen)
        self.labels = labels(self.function, given)
        self.placeholders: dict[Node, int] = {}
        self.numbers: list[FromFloat] = []  # Python floats that the function is given as numbers that vary
        self.arguments: dict[int, Path] = {}  # where objects stand in the arguments, by id
        self.passed: list[Any] = []  # those objects
        self.containers: dict[int, Any] = {}  # of them, those whose contents a signature says, by id
        self.arrays: dict[int, Tensor] = {}  # arguments that are arrays of NumPy's, by id
        self.trace.symbolic = symbolic
        self.varying = self.trace.varying
        self.outputs: dict[Node, int] = {}
        self.tracks: list[int] = []  # of outputs, to gradients
        self._numbers: dict[int, int] = {}  # of memories and groups that results show, by id

    def run(self, varying: dict[str, Location | None]) -> Entry:
        """Run the function, and return what it did; Python's state is as before."""
        undivided = UNINTERRUPTIBLE.weight_here()
        with collector_paused(), tracing(self.trace):
            leaves = [self._argument(k, x) for k, x in enumerate(self.leaves)]
            args, kwargs = self._passed(leaves)
            accesses = self.trace.accesses = Accesses(self.trace, self.containers, self.arrays)
            accesses.texts = self.trace.texts
            for k, x in enumerate(self.leaves):
                accesses.made.found(x)
                accesses.names.setdefault(id(x), self.labels[k])
            accesses.use(getattr(self.function, "__self__", None))
            accesses.use(self.function)
            try:
                self._vary(varying)  # first: containers of numbers are tracked only from then on
                with tracing(None):  # finalizers compute as they would anywhere
                    gc.collect(1)  # what it tracks is of its oldest generation now; what the run makes is not
                result, said = self._observed(accesses, args, kwargs)
                self.trace.check_replayed_calls()
                self.trace.restore()
                accesses.made.refresh()  # what was new when last asked for is not all that the run made
                for token in self.trace.tokens:  # first: calls are made in the order of the outputs
                    self.outputs.setdefault(token, len(self.outputs))
                templates = Templates(accesses, self._output, self.arguments)
                template = templates.of(result)
                accesses.reads_arrays(
                    id(r.array) for r in self.trace.fixed.values() if isinstance(r, FromArray)
                )
                effects: list[Effect] = [Printed(templates.of(s)) if isinstance(s, str) else s for s in said]
                for s in said:
                    accesses.known((str(s.message), s.message.args) if isinstance(s, Warned) else ())
                effects += effects_of(accesses, templates)
                turned = gradient_effects(accesses, templates)
                if turned and TRACKED in self.tracks:
                    raise refusals.REQUIRES_GRAD(of=self.name)
                containers = self._containers(accesses, effects)
                effects += [*turned, *self._replayed_calls(templates)]
            finally:
                SIGNALS.depth += undivided  # no call, on whose way Ctrl-C could still come
                try:
                    accesses.restore()
                    self.trace.restore()
                    for location, value in self.varying:
                        location.write(value)
                finally:
                    SIGNALS.depth -= undivided
            self.trace.accesses = None
        sized = [node_in(made) for made in self.sized.values()]
        self.trace.fixed.update(self.trace.numbers.values())
        if accesses.varying:
            raise VaryingError(accesses.varying)
        if any(node not in self.placeholders for node in sized):
            raise needs_sizes("an argument is changed in place")
        if not self.trace.cells.keys().isdisjoint(self.sized):
            raise needs_sizes("an argument is a tensor that the function reads elsewhere, too")
        if self._shown_written():
            raise needs_sizes("an argument is a view of what is changed in place")
        del args, kwargs, leaves, result
        prelude = [c for c in self.trace.replayed if c.before]
        for held in (self.trace.texts, self.trace.replayed, self.trace.symbols):  # tensors that the run made
            held.clear()
        for passed in (self.sized, self.passed, self.containers, self.arrays):
            passed.clear()
        run = Run(
            self.trace, self.name, self.leaves, self.placeholders, self.outputs, self.tracks,
            template, effects, templates.prior,
        )  # fmt: skip
        early = [x for x in templates.early if len(x.path) > 2]
        del templates
        entry = entry_of(run, accesses, self.varying, self.symbolic)
        entry.alias.containers, entry.alias.paths, entry.alias.apart = containers
        entry.frozen_values = self.trace.frozen_values
        if effects:
            entry.prior += early
        entry.prelude = prelude
        entry.key, entry.symbolic = self.key, self.symbolic  # an audit captures for the same
        return entry

    def _observed(self, accesses: Accesses, args: Any, kwargs: Any) -> tuple[Any, list[str | Warned]]:
        """Return what the function returns, prints and warns of."""
        grad, self.given.raised = MODE.grad, None
        observer = Observer(accesses)
        accesses.before(Item(sys.__dict__, "stdout", "sys.stdout"))  # as it is ahead of the block
        with buffered_output() as said:
            self.trace.said = said
            if isinstance(self.function, functools.partial):
                note_call(accesses, self.function, (), unseen)
            try:
                observer.start()
                result = self.function(*args, **kwargs)
            except (CaptureError, UndecidedError):
                raise
            except BaseException as error:
                if not isinstance(error, Exception) and observer.interrupted(error):
                    raise
                self.given.raised = error
                if observer.refusal is None:
                    raise
            finally:
                observer.stop()
                self.trace.closed, left, MODE.grad = True, MODE.grad, grad
        refusal = observer.refusal or self.trace.drawn_once
        if refusal is None and self.trace.asked:  # code not written in Python dropped the error
            refusal = CaptureError("capture: Python needs a number that varies")
        if refusal is not None:  # though the function may have caught it
            raise refusal
        if observer.depends_on_sizes:
            raise needs_sizes("an error is caught that some sizes may do without")
        if observer.lost:
            raise refusals.STACK_ENDED(of=self.name)
        if left is not grad:
            raise refusals.GRADIENTS_LEFT(of=self.name)
        return result, said

    def _shown_written(self) -> bool:
        """Return whether an argument of symbolic size shows memory that the run writes."""
        views = [x._view for x in self.leaves if id(x) in self.sized and x._view is not None]
        memories = {id(view.memory) for view in views}
        written = [c.tensor._view for c in self.trace.cells.values() if c.written]
        return any(view is not None and id(view.memory) in memories for view in written)

    def _containers(self, accesses: Accesses, effects: list[Effect]) -> Any:
        """Return which containers among the arguments the function also finds elsewhere; and where others are
        that must not be one with what it finds elsewhere, since it writes some of them.
        """
        elsewhere = accesses.made.given_elsewhere
        if not elsewhere.keys() <= self.arguments.keys():
            raise refusals.FOUND_ELSEWHERE()
        same = [(self.arguments[k], x) for k, x in elsewhere.items()]
        if not any(isinstance(e, CallMethods) for e in effects):
            return same, [], set()
        paths = [self.arguments[k] for k in self.containers if k in self.arguments and k not in elsewhere]
        return same, paths, accesses.containers.keys() - self.containers.keys()

    def _replayed_calls(self, templates: Templates) -> list[CallMethod]:
        """Return the calls that come after the program, with tensors as they were when they were made."""
        calls = []
        for call in self.trace.replayed:
            if not call.before:
                leaves, structure = tree.flatten((call.args, call.kwargs))
                given = tree.unflatten(structure, map(self._then, leaves, call.nodes))
                calls.append((call.method, call.owner, *given))
        templates.accesses.made.refresh()  # the run made these containers
        return [CallMethod(m, o, templates.of(args), templates.of(kwargs)) for m, o, args, kwargs in calls]

    def _then(self, x: Any, node: Node | None) -> Any:
        return x if node is None or self.trace.node_and_track(x)[0] is node else wrap(node, CONSTANT)

    def _vary(self, varying: dict[str, Location | None]) -> None:
        """Put numbers that vary where floats stand that do."""
        for name, location in varying.items():
            value = None if location is None else location.read()
            if location is not None and type(value) is float:
                self.varying.append((location, value))
                location.write(self._number(FromFloat(-1, location, name), value))

    # -- arguments -------------------------------------------------------------------------------------------
    def _passed(self, leaves: list[Any]) -> tuple[Any, Any]:
        """Return the arguments with placeholders among them; containers without any are passed themselves."""
        rest = iter(zip(self.leaves, leaves, strict=True))
        args = [self._replaced(x, (0, k), rest) for k, x in enumerate(self.given.args)]
        given = self.given.kwargs
        kwargs = {name: self._replaced(given[name], (1, name), rest) for name in sorted(given)}
        return args, {name: kwargs[name] for name in given}  # **kwargs are in the order of the call

    def _replaced(self, value: Any, path: Path, rest: Iterator[tuple[Any, Any]]) -> Any:
        if value is None:
            return None
        opened = tree.opened(value)
        if opened is None:
            _, made = next(rest)
            if isinstance(value, np.ndarray) and isinstance(made, Tensor):
                self.arrays[id(made)] = made
        else:
            kind, keys, children = opened
            steps = keys if kind is dict else range(len(children))
            parts = [self._replaced(c, (*path, k), rest) for k, c in zip(steps, children, strict=True)]
            changed = any(a is not b for a, b in zip(parts, children, strict=True))
            made = tree.closed(value, keys, parts) if changed else value
            self.containers[id(made)] = made
            self.containers[id(value)] = value
        if not plain(made):
            self.arguments.setdefault(id(made), path)
            self.passed.append(made)
        return made

    def _argument(self, k: int, x: Any) -> Any:
        if self.symbolic is not None and k in self.symbolic.types:
            return self._sized_argument(k, x, self.symbolic)
        if isinstance(x, Tensor):
            self.trace.enter(x, self.labels[k])
        elif k in self.float_arguments:
            return self._number(FromFloat(k, None, self.labels[k]), x)
        return x

    def _sized_argument(self, k: int, x: Tensor, symbolic: Symbolic) -> Tensor:
        made = self.sized.get(id(x))
        if made is None:
            node = node_values.placeholder(self.labels[k], symbolic.types[k], self.name)
            made = self.sized[id(x)] = wrap(node, CONSTANT)
            self.placeholders[node] = k
            for name, axis in symbolic.names.items():
                if axis[0] == k:
                    self.trace.symbols[name] = made, axis[1]
        return made

    def _number(self, read: FromFloat, value: float) -> RuntimeScalar:
        self.numbers.append(read)
        return RuntimeScalar(self.trace, value, read)

    def _output(self, x: Tensor, templates: Templates) -> Output | Leaf | Gradient | None:
        """Return which output a tensor is that the run made; None for one from before."""
        if x._trace is not self.trace:
            return None
        for owner, gradient in self.trace.grads.values():
            if gradient is x:
                return Gradient(templates.of(owner))
        self.tracks.append(CONSTANT if x._leaf else x._track)
        number = self.outputs.setdefault(node_in(x), len(self.outputs))
        output = Output(number, x._track, self._shown(x, templates))
        fields = {name: templates.of(value) for name, value in getattr(x, "__dict__", {}).items()}
        if type(x) is Tensor and not (x._leaf or x._grad is not None or fields):
            return output
        grad = None if x._grad is None else templates.of(x._grad)
        return Leaf(output, type(x), x._leaf, grad, fields)

    def _shown(self, x: Tensor, templates: Templates) -> Shown | None:
        """Return what memory a result shows, where another tensor shows it, too, or it is not contiguous."""
        view = x._view
        if view is None:
            return None
        memory = view.memory
        alive = memory.alive()
        if id(memory) in self.trace.regrouped:
            self.trace.asks_layouts = True
        outside = {id(t._view): t for t in alive if t._trace is None or id(t) in self.arguments}
        base: View | None = view
        while base is not None and id(base) not in outside:
            base = base.parent
        if base is None and len(alive) < 2 and view.is_contiguous:
            return None
        group = self._numbers.setdefault(id(view.group), len(self._numbers))
        if base is None:
            number = self._numbers.setdefault(id(memory), len(self._numbers))
            return Shown(None, number, memory.type, view.ops, group, view.layout)
        origin = templates.of(outside[id(base)])
        own = None if view.group is base.group else group
        return Shown(origin, -1, memory.type, view.ops[len(base.ops) :], own, view.layout_in(base))


def labels(function: Any, given: Given) -> list[str]:
    """Return a name for each leaf of the arguments: `x`, `batch.0`."""
    try:
        names = [p for p in inspect.signature(function).parameters if p != "self"]
    except (TypeError, ValueError):
        names = []
    numbered = tree.unflatten(given.structure, range(len(given.leaves)))
    args, kwargs = numbered if given.kwargs else (numbered, {})
    found = [""] * len(given.leaves)
    heads = [(names[k] if k < len(names) else f"arg{k}", a) for k, a in enumerate(args)]
    for head, part in (*heads, *kwargs.items()):
        for path, index in tree.paths(part):
            found[index] = tree.path_name((head, *path))
    return found
