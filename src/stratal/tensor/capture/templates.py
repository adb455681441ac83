"""From the values of one run to templates of them.

A value from before the run stands for itself, and so does immutable plain data. What the run made is made
anew by each call, or refused: the first call's is nobody else's.
"""

from __future__ import annotations

import copyreg
import enum
import functools
import re
import types
import weakref
from array import array
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from stratal.base.dims import Sym
from stratal.base.source import SourceLine
from stratal.graph.node import Node
from stratal.tensor.capture import refusals, results
from stratal.tensor.capture.accesses import Accesses
from stratal.tensor.capture.containers import VIEWS, behind, contents_of
from stratal.tensor.capture.objects import MUTABLE, fields_of
from stratal.tensor.capture.output import BufferedOutput
from stratal.tensor.capture.plain import plain
from stratal.tensor.tensor import Tensor


class Templates:
    """Makes templates of what one run returned and wrote."""

    def __init__(
        self,
        accesses: Accesses,
        output: Callable[[Tensor, Templates], results.Output | results.Leaf | results.Gradient | None],
        arguments: dict[int, results.Path],
    ) -> None:
        self.accesses, self._output, self.arguments = accesses, output, arguments
        self._made: dict[int, results.Template] = {}
        self.prior: list[results.PriorTensor] = []
        self.early: list[results.Argument] = []  # what stands in arguments, before effects write there
        self._alive: list[Any] = []  # what `_made` names by id

    def of(self, value: Any) -> results.Template:
        known = self._made.get(id(value))
        if known is None:
            self._alive.append(value)
            known = self._made[id(value)] = self._new(value)
        return known

    def _new(self, value: Any) -> results.Template:
        if id(value) in self.arguments and not plain(value):
            self.early.append(results.Argument(self.arguments[id(value)]))
            return self.early[-1]
        if isinstance(value, Tensor):
            return self._output(value, self) or self._prior_tensor(value)
        self.accesses.known(value)
        if isinstance(value, str) and self.accesses.is_text_of_values(value):
            return self._text(value)
        if (plain(value) and not self.accesses.is_text_of_values(value)) or isinstance(value, _IMMUTABLE):
            return results.Value(value)
        if isinstance(value, np.ndarray):
            return self._array(value)
        if isinstance(value, BufferedOutput):
            raise refusals.FILE("sys.stdout, returned or stored")
        if not self.accesses.made.was_made(value):
            return results.Value(value)
        if type(value) in (bytearray, array):
            return results.Copied(value[:])
        return self._anew(value)

    def _prior_tensor(self, value: Tensor) -> results.PriorTensor:
        self.prior.append(results.PriorTensor(value))
        return self.prior[-1]

    def _text(self, value: str) -> results.Text:
        known = self.accesses.texts
        parts: list[Any] = re.split(f"({'|'.join(map(re.escape, known))})", value)
        for k, x in enumerate(parts):
            if x in known:
                parts[k] = (self.of(known[x][0]), *known[x][1:])
        return results.Text(parts)

    def _array(self, array: np.ndarray[Any, Any]) -> results.Template:
        base: Any = array
        while base is not None and not self.accesses.made.is_before(base):
            base = getattr(base, "base", None)
        if base is array:
            return results.Value(array)
        if base is not None or array.dtype.hasobject:
            raise refusals.NEW_VIEW(f"an array {array.dtype}{list(array.shape)}")
        return results.Copied(array.copy())

    def _anew(self, value: Any) -> results.Made:
        """Return the template of an object that the run made; it is known before its parts are looked at."""
        if isinstance(value, Node):
            error = refusals.NEW_GRAPH()
            error.where = value.where or error.where
            raise error
        kind = value if isinstance(value, type) else type(value)
        refusal = refusals.NEW_ITERATOR if issubclass(kind, Iterator) else refusals.NEW_OBJECT
        if kind is value or not self._is_fixed(kind, set()):
            raise refusal(kind.__qualname__, f"class {kind.__name__}")
        found = _opened(value)
        if found is None:
            raise refusal(kind.__qualname__, kind.__name__)
        self.accesses.made.refresh()  # parts may have been made just now
        made = self._made[id(value)] = results.Made(type(value), found.build, [], found.put, [], {})
        made.parts.extend(map(self.of, found.parts))
        made.contents.extend(map(self.of, found.contents))
        made.fields.update({name: self.of(field) for name, field in found.fields.items()})
        return made

    def _is_fixed(self, value: Any, seen: set[int]) -> bool:
        """Return whether a class, or what is found in one, does without anything of this very call."""
        if isinstance(value, (Tensor, Sym)):
            return isinstance(value, Tensor) and value._trace is None and id(value) not in self.arguments
        if id(value) in seen or plain(value) or isinstance(value, _DESCRIPTORS):
            return True
        if id(value) in self.arguments or not self.accesses.made.was_made(value):
            return id(value) not in self.arguments
        seen.add(id(value))
        parts: list[Any]
        if isinstance(value, type):
            parts = [*vars(value).values(), *value.__bases__]
            if any(type(x) in _PUT for name, x in vars(value).items() if not name.startswith("_")):
                return False
        elif isinstance(value, (staticmethod, classmethod)):
            parts = [value.__func__]
        elif isinstance(value, property):
            parts = [value.fget, value.fset, value.fdel]
        else:
            opened = _opened(value)
            if opened is None:
                return False
            parts = [*opened.parts, *opened.contents, *opened.fields.values()]
        return all(self._is_fixed(part, seen) for part in parts)


_DESCRIPTORS: Final = (
    types.GetSetDescriptorType, types.MemberDescriptorType, types.ModuleType, types.CodeType,
    type(vars(SourceLine)["file"]),  # of named tuples
)  # fmt: skip


# -- what an object consists of ------------------------------------------------------------------------------
class Opened(NamedTuple):
    """An object's parts, and how another one is made of such: parts, contents and fields as in `Made`."""

    build: Callable[[list[Any]], Any]
    parts: Sequence[Any] = ()
    put: Callable[[Any, list[Any]], Any] = list.extend
    contents: Sequence[Any] = ()
    fields: dict[str, Any] = {}  # noqa: RUF012 (nobody writes into it)


def _put_items(base: Any, made: Any, parts: list[Any]) -> None:
    for key, value in zip(parts[: len(parts) // 2], parts[len(parts) // 2 :], strict=True):
        base.__setitem__(made, key, value)


_PUT: Final[dict[type, Callable[[Any, list[Any]], Any]]] = {
    list: list.extend, set: set.update, deque: deque.extend,
    **{base: functools.partial(_put_items, base) for base in (dict, OrderedDict, defaultdict)},
}  # fmt: skip
_BASES: Final = (*_PUT, tuple, frozenset, types.SimpleNamespace, object)
"""Classes written in C whose objects consist of what they hold and of attributes."""


def _base(kind: type) -> Any:
    """Return the class written in C that a class is made of, if objects of it can be made by parts."""
    for c in kind.__mro__:
        plainly = issubclass(c, BaseException) and c.__basicsize__ == BaseException.__basicsize__
        if c in _BASES or (plainly and not c.__flags__ & MUTABLE):
            return c
        if not c.__flags__ & MUTABLE or isinstance(vars(c).get("__new__"), types.BuiltinFunctionType):
            return None
    return None


def _object(value: Any) -> Opened | None:
    """Open an object that consists of attributes and, where it is a container, of what it holds."""
    kind = type(value)
    base = _base(kind)
    try:
        base.__new__(kind)
    except (AttributeError, TypeError):  # written in C, with more in it
        return None
    fields = dict(fields_of(value) or {})
    names = [*copyreg._slotnames(kind)]  # type: ignore[attr-defined]
    if isinstance(value, BaseException):
        names += ["args", "__cause__", "__context__", "__suppress_context__"]
        if value.__traceback__ is not None:
            return None
    if isinstance(value, defaultdict):
        names.append("default_factory")
    fields |= {name: getattr(value, name) for name in names if hasattr(value, name)}
    if base in (tuple, frozenset):
        return Opened(functools.partial(base.__new__, kind), [*base.__iter__(value)], fields=fields)
    if base is deque:
        return Opened(functools.partial(_deque, kind, value.maxlen), (), deque.extend, [*value], fields)
    contents = contents_of(value) if base in _PUT else ()
    return Opened(lambda _: base.__new__(kind), (), _PUT.get(base, list.extend), contents, fields)


def _deque(kind: type, maxlen: int | None, _: Any) -> Any:
    made: Any = deque.__new__(kind)
    deque.__init__(made, (), maxlen)
    return made


def _function(value: types.FunctionType) -> Opened:
    names = {key: getattr(value, key) for key in ("__name__", "__qualname__", "__doc__", "__module__")}
    notes = dict(value.__annotations__)

    def build(parts: list[Any]) -> types.FunctionType:
        code, scope, defaults, kwdefaults, *cells = parts
        made = types.FunctionType(code, scope, None, defaults, tuple(cells) or None)
        made.__kwdefaults__, made.__annotations__ = kwdefaults, dict(notes)
        for key, text in names.items():
            setattr(made, key, text)
        return made

    parts = [value.__code__, value.__globals__, value.__defaults__, value.__kwdefaults__]
    return Opened(build, [*parts, *(value.__closure__ or ())], fields=vars(value))


def _cell(value: types.CellType) -> Opened:
    try:
        contents = [value.cell_contents]
    except ValueError:  # empty
        contents = []
    return Opened(lambda _: types.CellType(), (), _put_cell, contents)


def _put_cell(cell: types.CellType, contents: list[Any]) -> None:
    (cell.cell_contents,) = contents


def _bound(value: Any) -> Opened:
    name = value.__name__
    return Opened(lambda parts: getattr(parts[0], name), [value.__self__])


def _view(value: Any) -> Opened:
    name = type(value).__name__.rpartition("_")[2]
    return Opened(lambda parts: getattr(parts[0], name)(), [behind(value.mapping)])


_OPENED: Final[dict[type, Callable[[Any], Opened | None]]] = {
    types.FunctionType: _function, types.CellType: _cell,
    types.MethodType: lambda m: Opened(lambda parts: types.MethodType(*parts), [m.__func__, m.__self__]),
    types.BuiltinFunctionType: _bound, types.MethodWrapperType: _bound,
    slice: lambda s: Opened(lambda parts: slice(*parts), [s.start, s.stop, s.step]),
    types.MappingProxyType: lambda p: Opened(lambda parts: types.MappingProxyType(*parts), [behind(p)]),
    weakref.ref: lambda r: Opened(lambda parts: weakref.ref(*parts), [r(), r.__callback__]),
    **dict.fromkeys(VIEWS, _view),
}  # fmt: skip


def _opened(value: Any) -> Opened | None:
    return _OPENED.get(type(value), _object)(value) or _reduced(value)


def _reduced(value: Any) -> Opened | None:
    """Open an object of another class written in C as `copy.copy` does."""
    kind = type(value)
    if any(isinstance(getattr(kind, name), types.FunctionType) for name in ("__reduce__", "__reduce_ex__")):
        return None
    try:
        function, args, *rest = value.__reduce_ex__(2)
    except Exception:
        return None
    if not any(part is not None for part in rest):
        return Opened(lambda parts: function(*parts), args)
    if not hasattr(kind, "__setstate__") or any(part is not None for part in rest[1:]):
        return None
    return Opened(
        lambda parts: function(*parts), args, lambda made, state: made.__setstate__(*state), rest[:1]
    )


_IMMUTABLE: Final = (
    types.ModuleType, types.CodeType, types.GenericAlias, types.UnionType, re.Pattern, re.Match, enum.Enum,
)  # fmt: skip
