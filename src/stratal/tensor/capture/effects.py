"""What a replay writes to Python's state: places and containers, with values that templates make."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from stratal.tensor.capture.accesses import Accesses
from stratal.tensor.capture.containers import Before, set_contents
from stratal.tensor.capture.locations import MISSING, Location
from stratal.tensor.capture.results import Bindings, Template, Value
from stratal.tensor.capture.templates import Templates
from stratal.tensor.values.binding import own_value
from stratal.tensor.values.state import note_mutation


class SetLocation(NamedTuple):
    """A place that holds another value after the call; None where it holds nothing."""

    location: Location
    value: Template | None

    def apply(self, bindings: Bindings) -> None:
        if self.value is None:
            self.location.restore(MISSING)
        else:
            self.location.write(bindings.fill(self.value))


class SetItems(NamedTuple):
    """Entries of a dict of attributes that are other ones after the call."""

    holder: Template
    values: dict[Any, Template]
    removed: list[Any]

    def apply(self, bindings: Bindings) -> None:
        holder = bindings.fill(self.holder)
        for key in self.removed:
            dict.pop(holder, key, None)
        for key, value in self.values.items():
            dict.__setitem__(holder, key, bindings.fill(value))


class CallMethods(NamedTuple):
    """Calls that change an object: append to a list, assign to a key, let a container hold other things."""

    holder: Template
    calls: list[tuple[Callable[..., Any], list[Template]]]

    def apply(self, bindings: Bindings) -> None:
        holder = bindings.fill(self.holder)
        for method, args in self.calls:
            method(holder, *[bindings.fill(x) for x in args])


class Effect(Protocol):
    """What a run wrote, and each call writes."""

    def apply(self, bindings: Bindings) -> None: ...


def effects_of(accesses: Accesses, templates: Templates) -> list[Effect]:
    """Return what a run wrote; guard what a container held where that decides what it holds now."""
    found = [_effect_of(before, accesses, templates) for before in accesses.written_containers()]
    for location, now in accesses.written_locations():
        found.append(SetLocation(location, None if now is MISSING else templates.of(now)))
    return found


def _effect_of(before: Before, accesses: Accesses, templates: Templates) -> Effect:
    holder = before.holder
    at = templates.of(holder) if id(holder) in templates.arguments else Value(holder)
    if before.attributes and not before.calls:
        then, written = before.copy, before.written
        changed = {k: v for k, v in holder.items() if k in written or then.get(k, accesses) is not v}
        removed = [k for k in (*then, *written) if k not in holder]
        return SetItems(at, {k: templates.of(v) for k, v in changed.items()}, removed)
    if before.calls and before.explained():
        return CallMethods(
            at, [(before.method(c.method), [templates.of(x) for x in c.args]) for c in before.calls]
        )
    accesses.reads_contents(before)
    now = before.now()
    if isinstance(now, _OF_NUMBERS):
        accesses.known(tuple(now.flat) if isinstance(now, np.ndarray) and now.dtype.hasobject else ())
        return CallMethods(at, [(set_contents, [Value(now)])])
    accesses.created(now)
    return CallMethods(at, [(set_contents, [templates.of(now)])])


_OF_NUMBERS: Final = (bytearray, array, np.ndarray)


def gradient_effects(accesses: Accesses, templates: Templates) -> list[Effect]:
    """Return which tensors from before the run take gradients now that did not, and the other way round."""
    cells = accesses.trace.cells.values()
    turned = [c for c in cells if c.leaf is not c.tensor._leaf]
    return [CallMethods(templates.of(c.tensor), [(own_value, [Value(c.leaf)])]) for c in turned]


def apply_effects(effects: Sequence[Effect], bindings: Bindings) -> None:
    """Write what the captured run wrote."""
    for effect in effects:
        effect.apply(bindings)
    if effects:
        note_mutation()
