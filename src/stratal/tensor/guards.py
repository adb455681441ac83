"""Guards: the Python values a captured function froze, where they stand, and whether they still are what they
were.

Values are found by walking what the function can reach: closure cells, globals it names, modules, optimizers,
plain containers and objects. Attributes of Stratal's own classes announce changes through `note_mutation`;
everything else is compared at each call.
"""

from __future__ import annotations

import dis
import enum
import functools
import sys
import sysconfig
import types
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from stratal.base.dtypes import DType
from stratal.base.source import PACKAGE
from stratal.base.types import TensorType
from stratal.tensor.state import EPOCH
from stratal.tensor.tensor import Tensor

_LIBRARIES = tuple(
    path for key in ("stdlib", "purelib", "platlib") if (path := sysconfig.get_paths().get(key))
)
_PLAIN = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    enum.Enum,
    np.generic,
    np.dtype,
    DType,
    TensorType,
    slice,
    range,
)
_MOST_ITEMS = 4096
_GONE = object()
_CONTENTS = attrgetter("cell_contents")

Quick = tuple[Callable[[Any], Any], Any]


class Source:
    """A place that holds a Python value."""

    __slots__ = ("name",)
    name: str

    def read(self) -> Any:
        raise NotImplementedError

    def write(self, value: Any) -> None:
        raise NotImplementedError

    def quick(self) -> Quick:
        """Return a function and its argument that show at little cost that nothing has changed.

        While the very object stands there that stands there now, the function returns it; where there is
        none, it may raise ValueError or IndexError.
        """
        return type(self).read, self


class CellSource(Source):
    """A closure cell."""

    __slots__ = ("cell",)

    def __init__(self, cell: Any, name: str) -> None:
        self.cell, self.name = cell, name

    def read(self) -> Any:
        try:
            return self.cell.cell_contents
        except ValueError:
            return _GONE

    def write(self, value: Any) -> None:
        self.cell.cell_contents = value

    def quick(self) -> Quick:
        return super().quick() if self.read() is _GONE else (_CONTENTS, self.cell)


class DictSource(Source):
    """An entry of a dict: a global, an attribute, an item."""

    __slots__ = ("key", "mapping")

    def __init__(self, mapping: dict[Any, Any], key: Any, name: str) -> None:
        self.mapping, self.key, self.name = mapping, key, name

    def read(self) -> Any:
        return self.mapping.get(self.key, _GONE)

    def write(self, value: Any) -> None:
        dict.__setitem__(self.mapping, self.key, value)

    def quick(self) -> Quick:
        return super().quick() if self.mapping.get(self.key) is None else (self.mapping.get, self.key)


class ListSource(Source):
    """An item of a list."""

    __slots__ = ("index", "items")

    def __init__(self, items: list[Any], index: int, name: str) -> None:
        self.items, self.index, self.name = items, index, name

    def read(self) -> Any:
        return self.items[self.index] if self.index < len(self.items) else _GONE

    def write(self, value: Any) -> None:
        self.items[self.index] = value

    def quick(self) -> Quick:
        return super().quick() if self.read() is _GONE else (self.items.__getitem__, self.index)


class KeysSource(Source):
    """The keys of a dict, or the length of a list."""

    __slots__ = ("holder", "measure")

    def __init__(self, holder: Any, name: str) -> None:
        self.holder, self.name = holder, name
        self.measure: Callable[[Any], Any] = tuple if isinstance(holder, dict) else len

    def read(self) -> Any:
        return self.measure(self.holder)

    def quick(self) -> Quick:
        return self.measure, self.holder


class ZeroSource(DictSource):
    """Whether an entry of a dict is zero."""

    __slots__ = ()

    def read(self) -> Any:
        return self.mapping.get(self.key) == 0

    def quick(self) -> Quick:
        return Source.quick(self)


class Guard(NamedTuple):
    """A value that must still be what it was."""

    source: Source
    expected: Any
    same_object: bool

    def holds(self) -> bool:
        now = self.source.read()
        if now is self.expected:
            return True
        if self.same_object:
            return False
        try:
            return type(now) is type(self.expected) and bool(now == self.expected)
        except Exception:
            return False

    def complaint(self) -> str:
        now = self.source.read()
        if self.same_object:
            return f"{self.source.name} is another {type(now).__name__}"
        return f"{self.source.name} changed from {_short(self.expected)} to {_short(now)}"


def _short(value: Any) -> str:
    if value is _GONE:
        return "nothing"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


class Guards:
    """All guards of one capture. `announced` ones are compared only after a mutation was noted."""

    def __init__(self) -> None:
        self.announced: list[Guard] = []
        self.always: list[Guard] = []
        self.tensors: list[
            tuple[Tensor, TensorType, bool]
        ] = []  # types of tensors read, whether they take gradients
        self.names: dict[int, str] = {}  # of tensors, by id: labels for the graph's inputs
        self.epoch = -1
        self._quick: list[tuple[Callable[[Any], Any], Any, Any, Guard]] = []  # `always`, laid out for speed

    def settle(self) -> Guards:
        """Lay out the guards that every call compares, and return self."""
        self._quick = [(*guard.source.quick(), guard.expected, guard) for guard in self.always]
        self.epoch = EPOCH[0]
        return self

    def failed(self) -> str | None:
        """Return what changed, or None."""
        try:
            for read, at, expected, guard in self._quick:
                if read(at) is not expected and not guard.holds():
                    return guard.complaint()
        except (ValueError, IndexError):  # a cell that is empty now, a list that is shorter
            return guard.complaint()
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
        """Return where the walk found a tensor."""
        return self.names.get(id(tensor), "a tensor")

    def floats(self) -> Iterator[Guard]:
        """Yield guards on Python floats."""
        for guard in (*self.always, *self.announced):
            if type(guard.expected) is float and not isinstance(guard.source, KeysSource):
                yield guard

    def after_call(self, without: set[int], read: Iterable[Tensor]) -> Guards:
        """Return the guards told the values that stand there now, less those on some sources (by id), with
        tensors read.
        """
        made = Guards()
        made.names = self.names
        for old, new in ((self.always, made.always), (self.announced, made.announced)):
            new += [
                Guard(g.source, g.source.read(), g.same_object) for g in old if id(g.source) not in without
            ]
        for tensor in read:
            tensor._guarded = True
            made.tensors.append((tensor, tensor.type, tensor._leaf))
        return made.settle()


class _Walk:
    """One walk over what a function can reach."""

    def __init__(self) -> None:
        self.guards = Guards()
        self.seen: set[int] = set()
        self.keep: list[Any] = []  # what `seen` names by id must not die meanwhile

    def first_time(self, value: Any) -> bool:
        if id(value) in self.seen:
            return False
        self.seen.add(id(value))
        self.keep.append(value)
        return True

    def guard(self, source: Source | None, value: Any, announced: bool, same_object: bool) -> None:
        if source is not None:
            target = self.guards.announced if announced else self.guards.always
            target.append(Guard(source, value, same_object))

    # -- by kind ---------------------------------------------------------------------------------------------
    def visit(self, value: Any, source: Source | None, name: str, announced: bool = False) -> None:
        if isinstance(value, _PLAIN):
            self.guard(source, value, announced, False)
            return
        if isinstance(value, Tensor):
            self.guards.names.setdefault(id(value), name)
            self.guard(source, value, announced, True)
            return
        if isinstance(value, (type, types.ModuleType, types.BuiltinFunctionType)):
            return
        self.guard(
            source, value, announced, not isinstance(value, (tuple, set, frozenset)) or _holds_objects(value)
        )
        if not self.first_time(value):
            return
        if isinstance(value, types.FunctionType):
            self.function(value, name)
        elif isinstance(value, types.MethodType):
            self.visit(value.__self__, None, name.rsplit(".", 1)[0] if "." in name else name)
            self.visit(value.__func__, None, name)
        elif isinstance(value, functools.partial):
            self.items([value.func, *value.args, *value.keywords.values()], name)
        elif isinstance(value, (list, tuple)):
            self.sequence(value, name, announced)
        elif isinstance(value, dict):
            self.mapping(value, name, announced)
        elif hasattr(value, "__dict__"):
            self.object(value, name)

    def items(self, values: Any, name: str) -> None:
        for k, value in enumerate(values):
            self.visit(value, None, f"{name}[{k}]")

    def function(self, function: types.FunctionType, name: str) -> None:
        if not _users(function):
            return
        code = function.__code__
        for free, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            free_cell = CellSource(cell, free)
            self.visit(free_cell.read(), free_cell, free)
        scope = function.__globals__
        for global_name in _names(code):
            if global_name in scope:
                source = DictSource(scope, global_name, global_name)
                self.visit(scope[global_name], source, global_name)
        self.items(function.__defaults__ or (), f"{name} defaults")
        self.items((function.__kwdefaults__ or {}).values(), f"{name} defaults")
        wrapped = getattr(function, "__wrapped__", None)
        if wrapped is not None:
            self.visit(wrapped, None, name)

    def sequence(self, values: Any, name: str, announced: bool) -> None:
        if isinstance(values, list):
            self.guard(KeysSource(values, f"the length of {name}"), len(values), announced, False)
        if len(values) > _MOST_ITEMS:
            return
        for k, value in enumerate(values):
            source = ListSource(values, k, f"{name}[{k}]") if isinstance(values, list) else None
            self.visit(value, source, f"{name}[{k}]", announced)

    def mapping(self, values: dict[Any, Any], name: str, announced: bool) -> None:
        announced = announced or _announces(type(values))
        self.guard(KeysSource(values, f"the keys of {name}"), tuple(values), announced, False)
        if len(values) > _MOST_ITEMS:
            return
        inputs = getattr(
            values, "_runtime", ()
        )  # hyper-parameters read from cells: only being zero or not is frozen
        for key, value in values.items():
            label = f"{name}[{key!r}]" if isinstance(key, (str, int)) else f"{name}[...]"
            if key in inputs and isinstance(value, float):
                self.guard(ZeroSource(values, key, f"whether {label} is 0"), value == 0, announced, False)
                continue
            self.visit(value, DictSource(values, key, label), label, announced)
        self.attributes(values, name, announced)

    def object(self, value: Any, name: str) -> None:
        kind = type(value)
        if _library(getattr(sys.modules.get(kind.__module__), "__file__", None)) or isinstance(
            value, np.ndarray
        ):
            return
        wrapped = getattr(value, "__wrapped__", None)
        if isinstance(wrapped, (types.FunctionType, types.MethodType)):
            self.visit(wrapped, None, name)
        if kind.__module__.startswith("stratal.tensor."):  # generators and compiled functions freeze nothing
            return
        self.attributes(value, name, _announces(kind))

    def attributes(self, value: Any, name: str, announced: bool) -> None:
        fields = getattr(value, "__dict__", None)
        if not isinstance(fields, dict):
            return
        tables = ("_parameters", "_buffers", "_modules")
        ours = type(value).__module__.startswith("stratal.")  # announces changes inside its containers too
        for key, field in list(fields.items()):
            inner = announced and (ours or key.startswith("_") or not isinstance(field, (list, dict)))
            if key in tables and isinstance(field, dict) and announced:
                self.guard(KeysSource(field, f"the {key[1:]} of {name}"), tuple(field), True, False)
                for child, part in field.items():
                    self.visit(part, DictSource(field, child, f"{name}.{child}"), f"{name}.{child}", True)
            else:
                self.visit(field, DictSource(fields, key, f"{name}.{key}"), f"{name}.{key}", inner)


def _holds_objects(value: Any) -> bool:
    return any(not isinstance(x, _PLAIN) for x in value)


def _announces(kind: type) -> bool:
    """Return whether a class reports changes of its attributes: Stratal's own, and the user's modules."""
    return any(base.__module__.startswith("stratal.") for base in kind.__mro__ if base is not object)


def _library(file: str | None) -> bool:
    return file is not None and file.startswith(_LIBRARIES) and not file.startswith(PACKAGE)


def _users(function: types.FunctionType) -> bool:
    file = function.__code__.co_filename
    return not file.startswith(PACKAGE) and not _library(file)


@functools.lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> tuple[str, ...]:
    """Return the globals a code object and those within it read."""
    found = {i.argval: None for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found.update(dict.fromkeys(_names(constant)))
    return tuple(found)


def collect(function: Any, name: str, arguments: Any = ()) -> Guards:
    """Return guards on every Python value a function and its object arguments can reach."""
    walk = _Walk()
    walk.visit(function, None, name)
    for label, value in arguments:
        walk.visit(value, None, label)
    return walk.guards
