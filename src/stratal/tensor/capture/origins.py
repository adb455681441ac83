"""Which objects a run made, be it in code that is not observed, and which are from before it."""

from __future__ import annotations

import gc
import types
from collections.abc import Iterator
from itertools import chain
from typing import Any, Final

import numpy as np

from stratal.tensor.capture.containers import Before
from stratal.tensor.capture.objects import MUTABLE, made_with
from stratal.tensor.capture.plain import plain
from stratal.tensor.scalars import RuntimeScalar
from stratal.tensor.tensor import Tensor
from stratal.tensor.values.trace import Trace


class Made:
    """The objects that one run made; those that it was seen to make are `in` it.

    `given` are the containers among the arguments, by id, `containers` all that are known.
    """

    def __init__(self, trace: Trace, given: dict[int, Any], containers: dict[int, Before]) -> None:
        self._trace, self._given, self._containers = trace, given, containers
        self.given_elsewhere: dict[int, Any] = {}  # containers among the arguments that were found elsewhere
        self.owners: dict[int, Any] = {}  # of dicts of attributes, by id
        self.tracked: dict[int, bool] = {}  # containers, when the run first used them: by the collector
        self._made: dict[int, Any] = {}
        self._before: dict[int, Any] = {}
        self._held: dict[int, tuple[Any, Any]] = {}  # what was read, and the tuple or list that held it
        self._young: set[int] = set()

    def add(self, value: Any) -> None:
        self._made[id(value)] = value

    def __contains__(self, value: Any) -> bool:
        return id(value) in self._made

    def refresh(self) -> None:
        """Look for what was made since the run began; the collector is paused.

        In one call that no other thread interrupts: the list refers to tuples that are still being filled,
        and CPython refuses to fill those any further while it does.
        """
        self._young = set(map(id, chain.from_iterable(map(gc.get_objects, (0, 1)))))

    def is_value(self, value: Any) -> bool:
        """Return whether a value is a tensor that the run computed."""
        return isinstance(value, Tensor) and value._trace is self._trace

    def was_made(self, value: Any) -> bool:
        """Return, after the run, whether it made an object."""
        value = made_with(value)
        if value in self:
            return True
        if id(value) in self._given:
            return False
        if isinstance(value, type) and not value.__flags__ & MUTABLE:  # of the interpreter's own
            return False
        if id(value) in self.owners:
            return self.was_made(self.owners[id(value)])
        held = self._held.get(id(value))
        if isinstance(value, dict) and held is not None:  # may be tracked only since now
            return held[1] is not None and self.was_made(held[1])
        if self.tracked.get(id(value), gc.is_tracked(value)):
            return self._is_young(value)
        if id(value) in self._containers:
            return False
        _, holder = self._held.get(id(value), (None, value))
        return holder is not None and (holder is value or self.was_made(holder))

    def is_new(self, value: Any) -> bool:
        """Return, after the run, whether an object is known to be made by it."""
        value = made_with(value)
        if id(value) in self.owners:
            return self.is_new(self.owners[id(value)])
        return value in self or (gc.is_tracked(value) and self._is_young(value))

    def _is_young(self, value: Any) -> bool:
        if not self._young:
            self.refresh()
        return id(value) in self._young

    def holds_made(self, holder: Any, parts: Any) -> bool:
        """Return whether a container was made by the run: it holds what that made."""
        if any(map(self.is_value, parts)):
            return True
        if not any(type(part) is RuntimeScalar for part in parts):
            return False
        self.refresh()  # such stand in places from before the run, too
        return self.is_new(holder)

    def found(self, value: Any, holder: Any = None) -> None:
        """Take note of a value found outside, in a tuple or list if given: iterators are refused where they
        are used up, arrays and containers among the arguments are known to be one with it.
        """
        if not plain(value):
            self._held.setdefault(id(value), (value, holder))
        if type(value) in _BOUND:
            value = value.__self__
        if issubclass(type(value), (Iterator, np.ndarray)):
            self._before[id(value)] = value
        elif id(value) in self._given and not plain(value):
            self.given_elsewhere[id(value)] = value

    def is_before(self, value: Any) -> bool:
        """Return whether an iterator or an array is known to be from before the run."""
        if id(value) not in self._before or value in self:
            return False
        if isinstance(value, Iterator) and gc.is_tracked(value):
            self.refresh()  # code that is not observed may have made it
            return id(value) not in self._young
        return True


_BOUND: Final = (types.BuiltinFunctionType, types.MethodWrapperType)
