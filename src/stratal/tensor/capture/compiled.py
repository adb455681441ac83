"""Capture: trace a function once per signature and replay it with one program call.

signature := structure of the arguments, their types, Python arguments, gradient mode
capture   := graph + where each input is read + what is done with each output + guards on frozen Python values
"""

from __future__ import annotations

import functools
import os
import sys
import time
import weakref
from _thread import get_ident
from collections.abc import Callable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from stratal.base import settings
from stratal.base.budget import Budget, Demands
from stratal.base.collector import collector_paused
from stratal.base.errors import AttributeValueError, UndecidedError
from stratal.base.interrupts import PATIENCE_S, SIGNALS, GivenWay, interruptible, users_code
from stratal.graph.graph import Graph
from stratal.ops.control.host_call import Log
from stratal.plan.host import expect_host
from stratal.tensor.arguments import check_function
from stratal.tensor.capture import audit as audit_
from stratal.tensor.capture import refusals
from stratal.tensor.capture.dynamic import Sizes, Symbolic
from stratal.tensor.capture.frames import observable, traces_now
from stratal.tensor.capture.locations import Location
from stratal.tensor.capture.recaptures import Reasons
from stratal.tensor.capture.recording import Given, Recording, VaryingError, labels
from stratal.tensor.capture.replay import Entry, run
from stratal.tensor.capture.replayed_calls import Snapshot
from stratal.tensor.capture.signature import (
    changed_part,
    signature_of,
    sized_types,
    take_apart,
    was_float,
    with_types,
    without_sizes,
)
from stratal.tensor.capture.signature_match import NO_MATCH, SignatureMatch
from stratal.tensor.scalars import FromFloat, FromNumber
from stratal.tensor.values.state import LOCK, MODE

if TYPE_CHECKING:
    from stratal.explorer.page import Page

_MOST_QUESTIONS = 32  # about sizes, before a function is captured for those at hand
_MOST_CAPTURES = 64  # per function; the one used longest ago goes first


class Compiled:
    """A function that is captured once per signature; what `st.compile` returns.

    `captures` counts captures and `reasons` says why each was needed; `graph`, `program`, `plan` and
    `explain()` show the capture used last.
    """

    def __init__(
        self, function: Callable[..., Any], name: str | None = None, dynamic: bool | None = None,
        audit: bool = True, demands: Demands = Demands(),  # noqa: B008 (immutable)
    ) -> None:  # fmt: skip
        check_function("compile", function)
        functools.update_wrapper(self, function, updated=())
        self._audit = audit
        self._demands = demands  # on each program
        self._schedule = audit_.Schedule()
        self._dynamic = dynamic
        self._sizes: dict[Any, Sizes] = {}  # by all of a signature but sizes
        self._function = function
        self._name: str = name or getattr(function, "__name__", "") or type(function).__name__
        self._entries: dict[Any, list[Entry]] = {}
        self._last: Entry | None = None
        self._match: SignatureMatch | None = None  # calls that need no key; of the capture used last
        self._floats: dict[Any, set[int]] = {}  # positions of float arguments seen to vary
        self._frozen: dict[Any, set[int]] = {}  # positions of float arguments that Python needs
        self._varying: dict[str, Location | None] = {}  # floats seen to vary; None where that failed
        self._bound: dict[int, tuple[Any, Compiled]] = {}  # by the identity of the instance
        self.captures = 0
        self.reasons = Reasons()

    # -- copying it ------------------------------------------------------------------------------------------
    def __reduce_ex__(self, protocol: Any) -> Any:
        found: Any = sys.modules.get(self.__module__)
        path = getattr(self, "__qualname__", "")
        for name in path.split("."):
            found = getattr(found, name, None)
        return path if found is self else super().__reduce_ex__(protocol)  # as functions are

    def __getstate__(self) -> tuple[Any, ...]:
        """Return what makes one like it, without captures: of a method, that of the copied object."""
        return self._function, self._name, self._dynamic, self._audit, self._demands

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        function, *rest = state
        if isinstance(function, Compiled):  # a decorated method, found by its name
            function = function._function
        self.__init__(function, *rest)  # type: ignore[misc]

    # -- attributes: but for its own, they are the function's ------------------------------------------------
    def _owner_of(self, name: str) -> Any:
        """Return the object whose attribute one of this is."""
        return self if name in _OWN or name in type(self).__dict__ else self._function

    def __getattr__(self, name: str) -> Any:
        if name in _OWN:  # it is a copy in the making, or the function has no name
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._function, name)

    def __setattr__(self, name: str, value: Any) -> None:
        owner = self._owner_of(name)
        object.__setattr__(self, name, value) if owner is self else setattr(owner, name, value)

    def __delattr__(self, name: str) -> None:
        owner = self._owner_of(name)
        object.__delattr__(self, name) if owner is self else delattr(owner, name)

    # -- looking at it ---------------------------------------------------------------------------------------
    def _shown(self) -> Entry:
        if self._last is None:
            raise refusals.NOT_CAPTURED(of=self._name)
        return self._last

    @property
    def audits(self) -> int:
        """How many calls were captured anew to be compared with the capture that they would have replayed."""
        return self._schedule.audits

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

    @property
    def memory(self) -> Any:
        """The memory of the program used last: bytes by purpose, the peak, what is computed again."""
        return self.program.memory

    def explain(self, *args: Any, **kwargs: Any) -> Any:
        """Return the decisions behind the program used last."""
        return self.program.explain(*args, **kwargs)

    def view(
        self, path: str | os.PathLike[str] | None = None, *, diff: object = None, profile: Any = None
    ) -> Page:
        """Return the explorer's page of the program used last, which a notebook shows; write it to `path`.

        `diff` is a plan, or a compiled function, to compare with; `profile` what `st.profile` returned.
        """
        from stratal.explorer.view import view  # what is not asked for is not imported

        return view([self.program], path, diff=diff, profile=profile)

    def __repr__(self) -> str:
        return f"<compiled {self._name}: {self.captures} capture{'' if self.captures == 1 else 's'}>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the function, and the plan of the program used last."""
        plan = "" if self._last is None else self.plan._repr_html_()
        return f"<pre>{escape(repr(self))}</pre>{plan}"

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        known = self._bound.get(id(instance))
        if known is None or known[0]() is not instance:
            bound = self._function.__get__(instance, owner)
            made = Compiled(bound, self._name, self._dynamic, self._audit, self._demands)
            known = self._bound[id(instance)] = (_reference(instance, self._bound), made)
        return known[1]

    # -- calling it ------------------------------------------------------------------------------------------
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        mode = MODE.__dict__  # once: each attribute of it takes as long as a small function
        if mode["trace"] is not None or mode["eager"] is not None:
            if self._demands.budget is not None and mode["trace"] is not None:
                raise refusals.BUDGET_INSIDE(of=self._name)
            return self._function(*args, **kwargs)
        match = self._match
        schedule = self._schedule
        schedule.calls += 1
        if (
            match is not None
            and schedule.calls < schedule.next
            and not kwargs
            and match.grad is mode["grad"]
            and match.autocast is mode["autocast"]
            and match.part is mode["part"]
        ):
            made, free = NO_MATCH, False
            in_main = get_ident() == SIGNALS.thread
            if in_main:  # as `with LOCK`, at a third of its cost
                SIGNALS.depth += 1
            try:
                free = LOCK.acquire(False)
                if free:
                    made = match.run(args)
            finally:
                if free:
                    LOCK.release()
                if in_main:
                    SIGNALS.depth -= 1
                    if SIGNALS.pending and SIGNALS.depth == SIGNALS.open:
                        SIGNALS.deliver()
            if made is not NO_MATCH:
                return made
        while True:
            try:
                with LOCK:
                    leaves, structure = take_apart(args, kwargs)
                    given = Given(args, kwargs, leaves, structure)
                    key = self._signature(given)
                    entry, reason = self._find(key, given)
                    if entry is None:
                        sizes = self._family(key)
                        if sizes is not None:
                            entry, reason = self._find_sized(key, sizes, reason, given)
                    if entry is None:
                        reason = reason or self._novelty(key, given)  # only now: it takes long
                        try:
                            return self._capture(key, given, reason, sizes)
                        except BaseException as error:
                            if error is not given.raised:
                                raise
                        return self._uncompiled(given)
                    due = schedule.calls >= schedule.next and not entry.once and self._audit
                    if due and self._to_be_audited():
                        audited = self._audited(key, given, entry)
                        if audited is None:
                            return self._uncompiled(given)
                        entry = audited
                    self._last = entry
                    made = self._run(entry, given)
                    self._match = None if kwargs else SignatureMatch.of(entry, args)
                    return made
            except GivenWay:  # handlers have run, and returned
                SIGNALS.patience_s *= 2  # others may come as regularly as a timer's

    def _run(self, entry: Entry, given: Given) -> Any:
        """Return what a call gives; where a function of `st.host_call` raises, the call has done until then
        what the uncompiled one does, since it is that one, with all that was called before.
        """
        if not entry.calls_back:
            return run(entry, given)
        if entry.lazily:  # calls happen now, and results carry gradients back through what is computed later
            with users_code():
                return self._function(*given.args, **given.kwargs)
        before = [Snapshot(call.owner) for call in entry.prelude]
        log = Log()
        try:
            with log:
                return run(entry, given)
        except BaseException as error:  # its program has written nothing: calls come before
            if not log.raised(error):
                raise
        for state in reversed(before):
            state.restore()
        with log.replayed(), users_code():
            return self._function(*given.args, **given.kwargs)

    def _uncompiled(self, given: Given) -> Any:
        """Call the function as it is: it raised while it was captured, and has done something before."""
        given.raised = None  # its frames hold what the capture made
        with users_code():
            made = self._function(*given.args, **given.kwargs)
        self.reasons.add(self._name, "the function raised only while it was captured")
        return made

    # -- auditing it -----------------------------------------------------------------------------------------
    def _to_be_audited(self) -> bool:
        if settings.verify.value or not observable():
            self._schedule.next = self._schedule.calls + 1
            return True
        return self._schedule.due()

    def _audited(self, key: Any, given: Given, entry: Entry) -> Entry | None:
        """Return the capture a call is to replay: the one found, unless capturing anew gives another; None
        where the function raises.
        """
        started_s = time.perf_counter()
        with interruptible():
            try:
                key, new = self._trace(entry.key, given, entry.symbolic, entry.frozen_values)
            except BaseException as error:
                if error is not given.raised:
                    raise
                return None
            what = audit_.difference(entry, new)
        self._schedule.done(time.perf_counter() - started_s)
        if what is None:
            return entry
        audit_.warn(self._name, what)
        self._entries[key] = [new, *(e for e in self._entries.get(key, ()) if e is not entry)]
        self.captures += 1
        self.reasons.append(f"an audit found another capture: {what}")
        return new

    def _signature(self, given: Given) -> Any:
        """Return what decides which capture fits; arrays among the leaves become tensors."""
        return signature_of(given, self._floats.get(given.group, ()) if self._floats else ())

    def _family(self, key: Any) -> Sizes | None:
        """Return what is known of the sizes of calls like this one; None where each is captured by itself."""
        if self._dynamic is False:
            return None
        family = (*key[:3], tuple(map(without_sizes, key[3])))
        found = self._sizes.get(family)
        return self._sizes.setdefault(family, Sizes(self._dynamic)) if found is None else found

    def _find(self, key: Any, given: Given) -> tuple[Entry | None, str]:
        reason, entries = "", self._entries.get(key, [])
        for k, entry in enumerate(entries):
            failure = entry.failed(given)
            if failure is None:
                if k:
                    entries.insert(0, entries.pop(k))
                return entry, ""
            reason = reason or failure
        return None, reason

    def _find_sized(self, key: Any, sizes: Sizes, reason: str, given: Given) -> tuple[Entry | None, str]:
        """Return a capture whose sizes have room for a call, or why there is none."""
        for symbolic in sizes.fitting(sized_types(key)):
            entry, failure = self._find(with_types(key, symbolic.types), given)
            if entry is not None:
                return entry, ""
            reason = failure or reason
        return None, reason

    def _novelty(self, key: Any, given: Given) -> str:
        """Return which argument differs from the signature nearest to a new one."""
        match = [old for old in reversed(list(self._entries)) if old[0] == key[0]]
        match.sort(key=lambda old: sum(a != b for a, b in zip(old[3], key[3], strict=True)))
        for old in match:
            for k, (a, b) in enumerate(zip(old[3], key[3], strict=True)):
                if a != b:
                    return f"argument {labels(self._function, given)[k]!r} {changed_part(a, b)}"
            if old[2] != key[2]:
                grad, precision, default, chosen, part = key[2]
                pairs = zip(settings.SHAPING, old[2][3], chosen, strict=True)
                if changed := [f"{s.name} is {value}" for s, before, value in pairs if before != value]:
                    return ", ".join(changed)
                if old[2][4] is not part:
                    return "another part of a batch"
                modes = f"gradients are {'on' if grad else 'off'}, autocast is {precision or 'off'}"
                return f"{modes}, default dtype is {default}"
        return "first call" if not self._entries else "arguments of another structure"

    # -- capturing -------------------------------------------------------------------------------------------
    def _capture(self, key: Any, given: Given, reason: str, sizes: Sizes | None) -> Any:
        if sys.implementation.name == "cpython" and not traces_now():
            raise refusals.TRACED(of=self._name)
        plain = self._learn_floats(key, given)
        self._learn_locations(plain)
        expect_host()
        with collector_paused():  # until the first run has compiled it
            with interruptible():
                if sizes is None:
                    key, entry = self._trace(plain, given)
                else:
                    sizes.note(sized_types(plain))
                    key, entry = self._trace_sized(plain, given, sizes)
            SIGNALS.patience_s = PATIENCE_S
            self.captures += 1
            self.reasons.add(self._name, reason)
            entries = self._entries.setdefault(key, [])
            entries[:] = [e for e in entries if not e.once]
            entries.insert(0, entry)
            self._bound_size()
            self._last, self._match = entry, None
            return self._run(entry, given)

    def _bound_size(self) -> None:
        while sum(map(len, self._entries.values())) > _MOST_CAPTURES:
            oldest = next(iter(self._entries))
            self._entries[oldest].pop()
            if not self._entries[oldest]:
                del self._entries[oldest]

    def _learn_floats(self, key: Any, given: Given) -> Any:
        """Make a float argument an input when only its value differs from an earlier call's."""
        leaves = given.leaves
        if key in self._entries:
            return key
        for old in self._entries:
            if old[:3] != key[:3]:
                continue
            differing = [k for k, (a, b) in enumerate(zip(old[3], key[3], strict=True)) if a != b]
            new = set(differing) - self._frozen.get(given.group, set())
            if new and all(type(leaves[k]) is float and was_float(old[3][k]) for k in differing):
                self._floats.setdefault(given.group, set()).update(new)
                return self._signature(given)
        return key

    def _learn_locations(self, key: Any) -> None:
        """Note which frozen floats are the reason why no capture fits."""
        for entry in self._entries.get(key, ()):
            for guard in entry.guards.floats():
                if not guard.holds() and type(guard.location.read()) is float:
                    self._varying.setdefault(guard.location.name, guard.location)

    def _trace_sized(self, plain: Any, given: Given, sizes: Sizes) -> tuple[Any, Entry]:
        """Return the capture for as many sizes as the function allows, and its key.

        What it asks of sizes is answered for those at hand, and it is captured again.
        """
        for _ in range(_MOST_QUESTIONS):
            symbolic = sizes.symbolic(sized_types(plain))
            if not symbolic:
                break
            key = with_types(plain, symbolic.types)
            try:
                made = self._trace(key, given, symbolic)
                sizes.keep(symbolic)
                return made
            except UndecidedError as error:
                sizes.learn(error, symbolic.names, symbolic.values)
            except Exception:  # Python may need an int in a hundred ways; the same call without symbols tells
                found = self._trace(plain, given)
                sizes.fix_all()
                return found
        return self._trace(plain, given)

    def _trace(
        self, key: Any, given: Given, symbolic: Symbolic | None = None, frozen: Sequence[Any] = ()
    ) -> tuple[Any, Entry]:
        """Return the capture and its key; where Python needs a number that was made an input, freeze that
        number after all.
        """
        capture = Recording(self._function, self._name, given, key, symbolic, frozen)
        try:
            entry = capture.run(self._varying)
            entry.demands = self._demands
            return key, entry
        except VaryingError as error:
            known = {name for name, location in self._varying.items() if location is None}
            if not known.isdisjoint(error.locations):
                names = ", ".join(known & error.locations.keys())
                raise refusals.NUMBER_OF_SCHEDULE(names, of=self._name) from None
            self._varying |= error.locations
            return self._trace(key, given, symbolic, frozen)
        except UndecidedError:
            raise
        except Exception:  # Python may need the number itself in a hundred ways
            numbers = capture.trace.asked or capture.numbers
            if not numbers:
                raise
            self._freeze(numbers, given)
            key = self._signature(given)
            key = key if symbolic is None else with_types(key, symbolic.types)
            return self._trace(key, given, symbolic, frozen)

    def _freeze(self, numbers: Sequence[FromFloat], given: Given) -> None:
        """Let floats be inputs no longer, since Python needs them."""
        for number in numbers:
            if number.location is not None:
                self._varying[number.name] = None
                continue
            self._frozen.setdefault(given.group, set()).add(number.position)
            self._floats.get(given.group, set()).discard(number.position)
        for entries in self._entries.values():  # an audit would not find them again
            entries[:] = [e for e in entries if not any(isinstance(r, FromNumber) for r in e.reads)]


_OWN = frozenset({
    *functools.WRAPPER_ASSIGNMENTS, "__wrapped__", "__class__", "__dict__", "__copy__", "__deepcopy__",
    "_audit", "_bound", "_demands", "_dynamic", "_entries", "_floats", "_frozen", "_function", "_last",
    "_match", "_name", "_schedule", "_sizes", "_varying", "captures", "reasons",
})  # fmt: skip


def _reference(instance: Any, bound: dict[int, Any]) -> Callable[[], Any]:
    """Return a weak reference to an instance that forgets what was bound to it, where there can be one."""
    try:
        return weakref.ref(instance, functools.partial(bound.pop, id(instance)))  # no Python runs then
    except TypeError:
        return lambda: instance


# -- the decorator -------------------------------------------------------------------------------------------
class CompiledModule:
    """A module whose call is compiled; every other attribute is the module's."""

    def __init__(
        self, module: Any, dynamic: bool | None = None, audit: bool = True,
        demands: Demands = Demands(),  # noqa: B008 (immutable)
    ) -> None:
        object.__setattr__(self, "_module", module)
        made = Compiled(module.__call__, type(module).__name__, dynamic, audit, demands)
        object.__setattr__(self, "_compiled", made)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._compiled(*args, **kwargs)

    def __getstate__(self) -> tuple[Any, ...]:
        made = self._compiled
        return self._module, made._dynamic, made._audit, made._demands

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def __getattr__(self, name: str) -> Any:
        if name in ("_module", "_compiled", "__copy__", "__deepcopy__"):  # it is a copy in the making
            raise AttributeError(name)
        if name in _SHOWN:
            return getattr(self._compiled, name)
        return getattr(self._module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._module, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._module, name)

    def _owner_of(self, name: str) -> Any:
        """Return the object whose attribute one of this is."""
        return self if name in ("_module", "_compiled", *type(self).__dict__, *_SHOWN) else self._module

    def __repr__(self) -> str:
        return f"compiled {self._module!r}"


_SHOWN = ("audits", "captures", "explain", "graph", "memory", "plan", "program", "reasons")
_AS_PYTORCH: dict[str, tuple[Any, ...]] = {
    "fullgraph": (False, True), "mode": (None, "default"), "backend": (None, "inductor"),
    "options": (None, {}), "disable": (None, False),
}  # fmt: skip


def compile(
    function: Any = None,
    *,
    name: str | None = None,
    dynamic: bool | None = None,
    audit: bool = True,
    memory: int | str | None = None,
    micro_batches: bool = False,
    math: str | None = None,
    **as_pytorch: Any,
) -> Any:
    """Capture a function, or a module's call, once per signature and replay it with one program call. Also a
    decorator.

    A call gives what the uncompiled call would give, or raises an error that names the line. The signature is
    the types of tensors, Python arguments, and whether gradients are on. Python values that the function
    reads are guarded where they stand, and it is captured again when they change; what it writes, replays
    write, too. Tensors it reads are inputs, and those it changes are written back. What depends on more than
    that (an iterator from outside, clocks, files, other random numbers than Stratal's) is refused.

    Sizes of data that change from call to call do not need a program each: from the second size of an axis on
    (`dynamic=True`: from the first call on) one program serves all sizes up to a bound, with means and
    gradients of the true sizes. `dynamic=False` captures each size by itself.

    Some calls (2, 3, 5, 9, 17, and as many as 2 % of the time allow) run the function's Python again and
    compare: an audit, which warns of what no guard noticed. `audit=False` leaves them out.

    `memory` is a budget for the plan of each program, in bytes or as "512 MB": what does not fit is computed
    again, or in another order, with the same bits; a budget that cannot be kept raises DoesNotFit before
    anything runs. It counts what `plan.planned_peak_bytes` counts; `st.fits` asks first. Each size of data is
    captured by itself then, each capture has the whole budget. With `micro_batches` the batch may be computed
    in equal parts, one after another, where every argument with a batch axis has it first and nothing between
    them takes statistics of the batch: sums over the batch are then added up in another order, so that
    results agree to rounding, not to the bit.

    `math="real"` lets a search rewrite the graph by what is proved equal over the real numbers, where that is
    estimated to take less time: batch norms folded into convolutions, products of one input taken together.
    Results then agree to rounding, not to the bit; `explain("rewrites")` says what was chosen and why. By
    default the setting `math` decides, "exact" unless it is set.

    PyTorch's `fullgraph` (always so here), and `mode`, `backend` and `options` by default, are taken.
    """
    for word, value in as_pytorch.items():
        if word not in _AS_PYTORCH or value not in _AS_PYTORCH[word]:
            raise AttributeValueError(
                f"compile: {word} is not to be chosen", got=f"{word}={value!r}"[:80],
                hint="there is one compiler; `stratal tune SCRIPT` searches faster schedules",
            )  # fmt: skip
    budget = None if memory is None else Budget.of("compile", memory, micro_batches)
    if budget is None and micro_batches:
        raise AttributeValueError(
            "compile: micro_batches says how a memory budget may be kept", got="no memory=",
            hint='st.compile(step, memory="2 GB", micro_batches=True)',
        )  # fmt: skip
    if budget is not None:
        if dynamic:
            raise AttributeValueError(
                "compile: a memory budget is for sizes that do not change",
                got=f"memory={memory!r}, dynamic=True",
                hint="leave dynamic out: each size is captured by itself, within the budget",
            )  # fmt: skip
        dynamic = False  # a program for many sizes needs the memory of the largest
    if math is not None and math not in settings.MATH:
        raise AttributeValueError(
            "compile: there is no such arithmetic", got=f"math={math!r}"[:80],
            hint='math="exact" gives the bits of what is written, math="real" allows all that is equal '
            "over the real numbers",
        )  # fmt: skip
    demands = Demands(budget, math)
    if function is None:
        return functools.partial(
            compile, name=name, dynamic=dynamic, audit=audit, memory=memory, micro_batches=micro_batches,
            math=math,
        )
    if hasattr(function, "forward") and hasattr(function, "named_parameters"):
        return CompiledModule(function, dynamic, audit, demands)
    return Compiled(function, name, dynamic, audit, demands)


__all__ = ["Compiled", "CompiledModule", "compile"]
