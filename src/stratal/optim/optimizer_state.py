"""Optimizer state: a dict of tensors for each parameter, and the step counts.

Parameters that have always stepped together share one count: a compiled step then computes bias corrections
once, not once for each parameter. Nobody can tell: a step of only some of them splits the count first, and
whoever reads a count gets one that is the parameter's own.

What a compiled step relies on, which state there is and who shares a count, is made outside of the capture,
as if it had been there before; `StateTable.revision` changes with it, so that older captures are invalid.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any

from stratal.base.dtypes import DType, float64
from stratal.base.types import TensorType
from stratal.runtime.storage import Storage
from stratal.tensor.tensor import Tensor, hold
from stratal.tensor.values.state import MODE, note_mutation, tracing


def filled(shape: tuple[int, ...], value: float, dtype: DType) -> Tensor:
    """Return a tensor full of one value, in a capture too."""
    storage = Storage.empty(TensorType(dtype, shape))
    storage.array[...] = value
    return hold(storage)


def cell_of(source: Tensor, dtype: DType) -> Tensor:
    """Return a new tensor with the present value of another, in a dtype, that outlives a capture.

    Where the capture has written the source before, it writes the new tensor, too; the next call, which finds
    that tensor, needs a capture of its own.
    """

    def value() -> Tensor:
        return source.detach().clone() if source.dtype is dtype else source.detach().astype(dtype)

    with tracing(None):
        made = value()
    trace = MODE.trace
    while trace is not None:
        cell = trace.cells.get(id(source))
        if cell is not None and cell.written:
            made.copy_(value())
            while trace.parent is not None:
                trace = trace.parent
            trace.recapture = True
        trace = trace.parent
    return made


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

    Guards see `revision`, which stands for all the rest.
    """

    __slots__ = ("__dict__", "states")

    def __init__(self, states: Mapping[Any, Mapping[str, Any]] | None = None) -> None:
        self.revision = 0
        self.states: dict[Any, ParamState] = {}
        for p, entries in (states or {}).items():
            self.states[p] = ParamState(self, entries)

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

    # -- step counts -----------------------------------------------------------------------------------------
    def begin_count(
        self, state: ParamState, starts: dict[float, Count], shown: bool, had_slots: bool
    ) -> None:
        """Give a state its count: the entry that somebody set, or one of `starts`, which begin now.

        A count that is not shown tells the first step only; state that had slots before is past it.
        """
        state.shows_count = shown
        given = state.entries.pop("step", None)
        if given is not None:
            state.count = Count(given if isinstance(given, Tensor) else filled((), float(given), float64), 1)
        else:
            start = float(had_slots and not shown)
            state.count = starts.setdefault(start, Count(filled((), start, float64)))
            state.count.sharers += 1
        self.changed()

    def split(self, count: Count, states: list[ParamState]) -> Count:
        """Give some sharers of a count one of their own; an interrupt leaves `sharers` too large at most."""
        own = Count(cell_of(count.cell, count.cell.dtype), len(states))
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
