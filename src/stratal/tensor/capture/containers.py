"""Mutable containers: of which kinds they are, what they hold, and what they held before a run."""

from __future__ import annotations

import functools
import gc
import types
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from stratal.base.dims import Sym
from stratal.base.types import TensorType
from stratal.tensor.capture.plain import same

CONTAINERS: Final = (list, OrderedDict, dict, set, deque, bytearray, array, memoryview, np.ndarray)
"""Kinds of mutable containers whose contents are compared; of all other objects attributes are."""


def subscript(key: Any) -> str:
    """Return how an item of a container is named; a key of another kind may take long to show."""
    return f"[{key!r}]" if isinstance(key, (str, int, float, bytes)) else "[...]"


def kind_of(holder: Any) -> Any:
    """Return the built-in class of a container: its methods do what users' classes may not."""
    return next(kind for kind in CONTAINERS if isinstance(holder, kind))


def contents_of(holder: Any) -> tuple[Any, ...]:
    """Return what a mutable container holds, in its order: a value for `same` to compare."""
    if isinstance(holder, dict):
        kind = kind_of(holder)
        return (*kind.keys(holder), *kind.values(holder))
    if isinstance(holder, (list, set, deque)):
        return tuple(kind_of(holder).__iter__(holder))
    if isinstance(holder, np.ndarray):
        if holder.dtype.hasobject:
            return (holder.shape, holder.dtype, *holder.ravel().tolist())
        return (holder.shape, holder.dtype, holder.tobytes())
    return (bytes(holder),)


def parts_of(holder: Any) -> Iterable[Any]:
    """Return what a container, mutable or not, consists of."""
    if isinstance(holder, dict):
        return contents_of(holder)
    if isinstance(holder, functools.partial):
        return (*holder.args, *holder.keywords.values())
    kind = next((k for k in _SEQUENCES if isinstance(holder, k)), None)
    return () if kind is None else tuple(kind.__iter__(holder))


_SEQUENCES: Final = (list, tuple, set, frozenset, deque)


def size_in(value: Any) -> Sym | None:
    """Return a symbolic size that an immutable value is or holds, in whatever depth."""
    if isinstance(value, Sym):
        return value
    if isinstance(value, TensorType):
        value = value.shape
    elif isinstance(value, slice):
        value = (value.start, value.stop, value.step)
    parts = parts_of(value) if isinstance(value, (tuple, frozenset)) else ()
    return next((size for part in parts if (size := size_in(part)) is not None), None)


VIEWS: Final[tuple[Any, ...]] = tuple(
    type(view(kind())) for kind in (dict, OrderedDict) for view in (kind.keys, kind.values, kind.items)
)


def behind(proxy: Any) -> Any:
    """Return the dict behind a read-only view of it."""
    return next((d for d in gc.get_referents(proxy) if isinstance(d, dict)), proxy)


def uncovered(holder: Any) -> Any:
    """Return the dict that a view of keys, values or items, or a read-only view, shows; else the holder."""
    if isinstance(holder, VIEWS):
        return behind(holder.mapping)
    return behind(holder) if isinstance(holder, types.MappingProxyType) else holder


Noted = bool | Literal["computed"] | Callable[[], None]
"""Of a call: whether its result is a new object, or computed by NumPy, or what is to be noted after it."""


def origin_of(array: Any) -> Any:
    """Return the array that one is a view of, or the array itself."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


class Call(NamedTuple):
    """A change of a container that depends on nothing it holds: an append, an assignment to a key."""

    method: str
    args: tuple[Any, ...]


class Before:
    """A container as it was before the run, and the calls known to have changed it."""

    __slots__ = ("attributes", "calls", "copy", "holder", "name", "order", "written")

    def __init__(
        self, holder: Any, name: str, attributes: bool = False, origin: Before | None = None
    ) -> None:
        self.holder, self.name = holder, name
        self.attributes = attributes  # whether it is the dict of an object's attributes
        self.copy = _copy(holder) if origin is None else _part(holder, origin)
        self.order = contents_of(holder) if isinstance(holder, set) else None  # of copies, another one
        self.calls: list[Call] = []
        self.written: dict[Any, None] = {}  # keys of attributes that were, be it with what stood there

    @property
    def contents(self) -> tuple[Any, ...]:
        """What it held, in its order."""
        return contents_of(self.copy) if self.order is None else self.order

    def extends(self, method: str) -> Callable[[], None]:
        """Return what notes, after a call that extends it, what that put into it; where that is seen."""
        holder, then = self.holder, _copy(self.holder)

        def note() -> None:
            now = _copy(holder)
            more: Any = None
            if isinstance(holder, dict):
                new = {k: v for k, v in now.items() if k not in then or then[k] is not v}
                more = new if len(new) == len(now) else None
            elif isinstance(holder, set):
                more = None if then else now
            elif getattr(holder, "maxlen", None) is None:
                added = len(now) - len(then)
                more = [*now][:added][::-1] if method == "extendleft" else [*now][len(then) :]
            if more is not None:
                self.calls.append(Call(method, (more,)))

        return note

    def now(self) -> Any:
        """Return a copy of what it holds now."""
        return _copy(self.holder)

    def method(self, name: str) -> Any:
        """Return a method of its kind."""
        return getattr(kind_of(self.holder), name)

    def changed(self) -> bool:
        now, then = contents_of(self.holder), self.contents
        if isinstance(self.holder, np.ndarray) and self.holder.dtype.hasobject:
            pairs = zip(now[2:], then[2:], strict=False)
            return now[:2] != then[:2] or any(a is not b for a, b in pairs)
        if isinstance(self.holder, (bytearray, array, memoryview, np.ndarray)):
            return now != then
        return len(now) != len(then) or any(a is not b for a, b in zip(now, then, strict=True))

    def explained(self) -> bool:
        """Return whether the calls alone make what it holds now of what it held."""
        made = _copy(self.copy)
        try:
            for method, args in self.calls:
                self.method(method)(made, *args)
        except (TypeError, LookupError):  # a copy may be of another class
            return False
        now, then = contents_of(self.holder), contents_of(made)
        return len(now) == len(then) and all(map(same, now, then))

    def restore(self) -> None:
        set_contents(self.holder, self.copy)


def _copy(holder: Any) -> Any:
    kind = kind_of(holder)
    if isinstance(holder, dict):
        return kind(zip(kind.keys(holder), kind.values(holder), strict=True))
    if kind is deque:
        return deque(deque.__iter__(holder), holder.maxlen)
    if kind is memoryview:
        return bytearray(holder)
    if kind is np.ndarray:
        return holder.copy("K")
    return holder[:] if kind is array else kind(kind.__iter__(holder))


def _part(view: Any, origin: Before) -> Any:
    """Return what a view of an array held when that was as before the run."""
    array, then = origin.holder, origin.copy
    if then.dtype.hasobject or then.strides != array.strides:
        return _copy(view)
    start = view.__array_interface__["data"][0] - array.__array_interface__["data"][0]
    return np.ndarray(view.shape, view.dtype, then.ravel("K"), start, view.strides).copy("K")


def set_contents(holder: Any, contents: Any) -> None:
    """Let a container hold what another of its kind holds."""
    kind = kind_of(holder)
    if isinstance(holder, (dict, set)):
        kind.clear(holder)
        kind.update(holder, contents)
    elif kind is deque:
        holder.clear()
        holder.extend(contents)
    elif kind is np.ndarray:
        holder[...] = contents
    else:
        holder[:] = contents
