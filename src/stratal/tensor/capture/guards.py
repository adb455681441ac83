"""Guards: the Python values a captured function read, where they stand, and whether they still are the same.

`always` ones are compared at each call. Attributes of Stratal's modules and optimizers announce that they
change (`note_mutation`): those are compared only after that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from stratal.base.types import TensorType
from stratal.tensor.capture.locations import MISSING, Computed, Location, Measured
from stratal.tensor.capture.plain import plain, same
from stratal.tensor.tensor import Tensor
from stratal.tensor.values.handle import set_guarded
from stratal.tensor.values.state import EPOCH


class Guard(NamedTuple):
    """A value that must still be what it was."""

    location: Location
    expected: Any

    def holds(self) -> bool:
        try:
            return same(self.location.read(), self.expected)
        except Exception:
            return False  # what stands there now cannot even be compared

    def complaint(self) -> str:
        now, name = self.location.read(), self.location.name
        told = isinstance(self.location, Measured) and isinstance(self.expected, tuple)
        if type(now) is type(self.expected) and not (plain(now) or told):
            return f"{name} is another {type(now).__name__}"
        return f"{name} changed from {_short(self.expected)} to {_short(now)}"


def _short(value: Any) -> str:
    if value is MISSING:
        return "nothing"
    if isinstance(value, Tensor):
        return f"a tensor {value.type}"
    if isinstance(value, tuple):
        text = "(" + ", ".join(_short(x) for x in value[:8]) + (", ..)" if len(value) > 8 else ")")
    elif plain(value):
        text = repr(value)
    else:
        text = f"a {type(value).__name__}"  # its own text may compute something
    return text if len(text) <= 60 else text[:57] + "..."


class Guards:
    """All guards of one capture."""

    def __init__(self) -> None:
        self.announced: list[Guard] = []
        self.always: list[Guard] = []
        self.tensors: list[tuple[Tensor, TensorType, bool]] = []  # read: types, whether they take gradients
        self.names: dict[int, str] = {}  # of tensors, by id: labels for the graph's inputs
        self.epoch: object = None
        self._quick: list[tuple[Callable[[Any], Any], Any, Any, Guard]] = []  # `always`, laid out for speed

    def add_tensors(self, read: Iterable[Tensor]) -> None:
        """Guard the types of tensors that are read through their handles."""
        for tensor in read:
            set_guarded(tensor)
            self.tensors.append((tensor, tensor.type, tensor._leaf))

    def validated(self) -> Guards:
        """Lay out the guards that every call compares, which hold now, and return self."""
        self._quick = [(*guard.location.quick(guard.expected), guard) for guard in self.always]
        self.epoch = EPOCH[0]
        return self

    def failed(self) -> str | None:
        """Return what changed, or None."""
        guard = None
        try:
            for read, at, expected, guard in self._quick:
                if read(at) is not expected and not guard.holds():
                    return guard.complaint()
        except (ValueError, LookupError, AttributeError):
            if guard is None:
                raise
            return guard.complaint()  # nothing stands there any more
        return None if self.epoch == EPOCH[0] else self._failed_since()

    def _failed_since(self) -> str | None:
        epoch = EPOCH[0]
        for guard in self.announced:
            if not guard.holds():
                return guard.complaint()
        for tensor, type_, leaf in self.tensors:
            if tensor.type != type_:
                return f"{self.name_of(tensor)} changed from {type_} to {tensor.type}"
            if tensor._leaf is not leaf:
                return f"{self.name_of(tensor)} {'no longer takes' if leaf else 'now takes'} a gradient"
        self.epoch = epoch
        return None

    def name_of(self, tensor: Tensor) -> str:
        """Return where a tensor was found."""
        return self.names.get(id(tensor), "a tensor")

    def floats(self) -> Iterator[Guard]:
        """Yield guards on Python floats."""
        for guard in (*self.always, *self.announced):
            if type(guard.expected) is float and not isinstance(guard.location, (Computed, Measured)):
                yield guard
