"""Optimizer state: a dict of tensors for each parameter, and the step counts.

Parameters that have always stepped together share one count: a compiled step then computes bias corrections
once, not once for each parameter. Nobody can tell: a step of only some of them splits the count first, and
whoever reads a count gets one that is the parameter's own.

What a compiled step relies on, which state there is and who shares a count, is made outside of the capture,
as if it had been there before; `StateTable.revision` changes with it, so that older captures are invalid. The
state of an optimizer that a function makes itself is made inside, by every call anew.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any

from stratal.base.dtypes import DType, float64
from stratal.base.types import TensorType
from stratal.runtime import far_memory
from stratal.runtime.storage import Storage
from stratal.tensor.functions.creation import full
from stratal.tensor.tensor import Tensor, hold
from stratal.tensor.values.state import MODE, note_mutation, tracing
from stratal.tensor.values.trace import Trace


class Count:
    """The number of steps that some parameters have taken, in a scalar."""

    __slots__ = ("cell", "sharers")

    def __init__(self, cell: Tensor, sharers: int = 0) -> None:
        self.cell = cell
        self.sharers = sharers  # no more parameters than these have this count


class ParamState(MutableMapping[str, Any]):
    """The state of one parameter, by name; "step" is its count, and reading it makes that its own."""

    __slots__ = ("count", "entries", "shows_count", "table", "tentative")

    def __init__(self, table: StateTable, entries: Mapping[str, Any], shows_count: bool = True) -> None:
        self.table = table
        self.entries = dict(entries)
        self.count: Count | None = None
        self.shows_count = shows_count
        self.tentative = False  # made for a step which an overflow, or an error, may have prevented

    @property
    def made_with(self) -> StateTable:
        """What a compiled function makes of it outlives the call as far as the table does."""
        return self.table

    def _names_count(self, name: str) -> bool:
        return name == "step" and self.count is not None and self.shows_count

    def __getitem__(self, name: str) -> Any:
        if not self._names_count(name):
            return self.entries[name]
        assert self.count is not None
        if self.count.sharers > 1:
            self.table.split(self.count, [self])
        self.tentative = False  # who reads it may write to it
        return self.count.cell

    def __setitem__(self, name: str, value: Any) -> None:
        if self._names_count(name):
            self.count = None  # the next step takes the entry for the count
        self.entries[name] = value
        self.table.changed()

    def __delitem__(self, name: str) -> None:
        if self._names_count(name):
            self.count = None
        else:
            del self.entries[name]
        self.table.changed()

    def __iter__(self) -> Iterator[str]:
        if self._names_count("step"):
            yield "step"
        yield from self.entries

    def __len__(self) -> int:
        return len(self.entries) + self._names_count("step")

    def __repr__(self) -> str:
        return repr(saved(self))


def saved(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of a parameter as a state dict holds it: counts in float32, as PyTorch has them."""
    found: dict[str, Any] = {}
    entries = state
    if isinstance(state, ParamState):
        entries = state.entries
        if state.count is not None and state.shows_count:
            found["step"] = state.count.cell.float()
    return found | {k: v._snapshot() if isinstance(v, Tensor) else v for k, v in entries.items()}


def prevented(state: ParamState) -> bool:
    """Return whether a state was only made for a step that did not happen; in a capture, nobody knows."""
    known = state.tentative and state.count is not None and MODE.trace is None
    return known and float(state.count.cell) <= 0  # type: ignore[union-attr]


class StateTable(MutableMapping[Any, Any]):
    """The state of every parameter that has one; asked for another's, it makes an empty one. What a step that
    was prevented has made is there for the next one, and not shown.

    Guards see `revision`, which stands for all the rest. `home` is the capture in which the optimizer was
    made, if one was: its state is made there, too.
    """

    __slots__ = ("__dict__", "_home", "states")

    def __init__(
        self, states: Mapping[Any, Mapping[str, Any]] | None = None, like: StateTable | None = None
    ) -> None:
        self.home = MODE.trace if like is None else like.home
        self.revision = 0
        self.states: dict[Any, ParamState] = {}
        for p, entries in (states or {}).items():
            self.states[p] = ParamState(self, entries)

    def __getstate__(self) -> dict[str, Any]:
        return {"revision": self.revision, "states": self.states}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.home = MODE.trace
        self.revision, self.states = state["revision"], state["states"]

    @property
    def home(self) -> Trace | None:
        """The innermost open capture around the making of the optimizer."""
        trace = self._home() if self._home is not None else None
        while trace is not None and trace.closed:
            trace = trace.parent
        return trace

    @home.setter
    def home(self, trace: Trace | None) -> None:
        self._home = None if trace is None else weakref.ref(trace)

    def changed(self) -> None:
        """Invalidate what was captured with the state there was."""
        self.revision += 1
        note_mutation()

    def __getitem__(self, p: Any) -> ParamState:
        found = self.states.get(p)
        if found is None:
            found = self.states[p] = ParamState(self, {})
        return found

    def __contains__(self, p: object) -> bool:
        return p in self.states and not prevented(self.states[p])

    def get(self, p: Any, default: Any = None) -> Any:
        return self.states[p] if p in self else default

    def __setitem__(self, p: Any, entries: Mapping[str, Any]) -> None:
        if not isinstance(entries, ParamState) or entries.table is not self:
            entries = ParamState(self, entries)
        self.states[p] = entries
        self.changed()

    def __delitem__(self, p: Any) -> None:
        del self.states[p]
        self.changed()

    def __iter__(self) -> Iterator[Any]:
        return (p for p, state in self.states.items() if not prevented(state))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return repr(dict(self))

    # -- the making of state ---------------------------------------------------------------------------------
    def filled(
        self, shape: tuple[int, ...], value: float, dtype: DType, beside: Tensor | None = None
    ) -> Tensor:
        """Return a tensor full of one value, which belongs to the optimizer; in a file if `beside` is."""
        home = self.home
        if home is not None:
            with tracing(home):
                return full(shape, value, dtype=dtype)
        type_ = TensorType(dtype, shape)
        given = None if beside is None else beside._storage
        if type_.nbytes and given is not None and far_memory.location(given) is not None:
            storage = far_memory.zeros(type_)
            if value:
                storage.array[...] = value
            return hold(storage)
        storage = Storage.empty(type_)
        storage.array[...] = value
        return hold(storage)

    def copied(self, source: Tensor, dtype: DType) -> Tensor:
        """Return a new tensor with the present value of another, in a dtype, which belongs to the optimizer.

        Where a capture that the optimizer outlives has written the source before, it writes the new tensor,
        too; the next call, which finds that tensor, needs a capture of its own.
        """

        def value() -> Tensor:
            return source.detach().clone() if source.dtype is dtype else source.detach().to(dtype)

        home = self.home
        with tracing(home):
            made = value()
        trace = MODE.trace
        while trace is not home and trace is not None:
            cell = trace.cells.get(id(source))
            if cell is not None and cell.written:
                made.copy_(value())
                while trace.parent is not None:
                    trace = trace.parent
                trace.recapture |= home is None
                break
            trace = trace.parent
        return made

    # -- step counts -----------------------------------------------------------------------------------------
    def begin_count(
        self, state: ParamState, given: Any, starts: dict[float, Count], shown: bool, had_slots: bool
    ) -> None:
        """Give a state its count: the one that somebody gave, or one of `starts`, which begin now.

        A count that is not shown tells the first step only; state that had slots before is past it.
        """
        state.shows_count = shown
        if given is not None:
            given = given if isinstance(given, Tensor) else self.filled((), float(given), float64)
            state.count = Count(given, 1)
        else:
            start = float(had_slots and not shown)
            state.count = starts.setdefault(start, Count(self.filled((), start, float64)))
            state.count.sharers += 1
        self.changed()

    def split(self, count: Count, states: list[ParamState]) -> Count:
        """Give some sharers of a count one of their own; an interrupt leaves `sharers` too large at most."""
        own = Count(self.copied(count.cell, count.cell.dtype), len(states))
        for state in states:
            state.count = own
        count.sharers -= len(states)
        self.changed()
        return own

    def by_count(self, params: Iterable[Tensor]) -> list[tuple[Count, list[Tensor]]]:
        """Return the counts of parameters that step together, each with its parameters; those that others
        share, too, are split.
        """
        found: dict[Count, list[Tensor]] = {}
        for p in params:
            count = self.states[p].count
            assert count is not None
            found.setdefault(count, []).append(p)
        return [
            (self.split(c, [self.states[p] for p in ps]) if len(ps) < c.sharers else c, ps)
            for c, ps in found.items()
        ]
