"""Methods of Stratal's objects that change Python's state: a compiled function calls them again in each call.

A schedule of rates, for instance: its step is no part of the program, it changes numbers the program reads. A
step before the program reads them is taken before each run, another one after it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from stratal.tensor.capture.locations import MISSING
from stratal.tensor.capture.results import Bindings, Template
from stratal.tensor.tensor import Tensor, set_number
from stratal.tensor.values.state import MODE, tracing

F = TypeVar("F", bound=Callable[..., Any])


def replayed_method(method: F) -> F:
    """Let compiled functions call a method at each replay. It returns nothing, and the objects it changes are
    those that `carried_state` of its owner lists.
    """

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        trace = MODE.trace
        if trace is None:
            return method(self, *args, **kwargs)
        return trace.add_replayed_call(self, method, args, kwargs)

    call.is_replayed = True  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]


class ReplayedCall(NamedTuple):
    """One call of such a method."""

    method: Callable[..., Any]
    owner: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    before: bool  # whether the program reads what it changes
    nodes: list[Any]  # what tensors among the arguments held then

    def __call__(self) -> None:
        self.method(self.owner, *self.args, **self.kwargs)


class CallMethod(NamedTuple):
    """The effect of such a call after the program has run."""

    method: Callable[..., Any]
    owner: Any
    args: Template
    kwargs: Template

    def apply(self, bindings: Bindings) -> None:
        self.method(self.owner, *bindings.fill(self.args), **bindings.fill(self.kwargs))


class Snapshot:
    """The state of an object that a carried method may change, to be restored after the capture."""

    def __init__(self, owner: Any) -> None:
        self.parts = [owner, *owner.replayed_state()]
        fields = [part if isinstance(part, dict) else part.__dict__ for part in self.parts]
        self.fields = [(f, dict(dict.items(f))) for f in fields]
        self.lists = [(v, list(v)) for f in fields for v in dict.values(f) if type(v) is list]
        with tracing(None):
            self._cells = [(cell, float(cell.item())) for part in self.parts for cell in _cells(part)]
        self.cells = {id(cell) for cell, _ in self._cells}

    def changed(self) -> str:
        """Return what an object holds now that it did not then, or nothing."""
        for fields, kept in self.fields:
            for name in {**kept, **fields}:
                if fields.get(name, MISSING) is not kept.get(name, MISSING):
                    return str(name)
        return "a list" if any([*map(id, a)] != [*map(id, b)] for a, b in self.lists) else ""

    def restore(self) -> None:
        for fields, kept in self.fields:
            dict.clear(fields)
            dict.update(fields, kept)
        for items, kept_items in self.lists:
            items[:] = kept_items
        with tracing(None):
            for cell, value in self._cells:
                set_number(cell, value)


def _cells(part: Any) -> Iterable[Tensor]:
    return [*getattr(part, "_cells", {}).values(), *getattr(part, "_betas", ())]
