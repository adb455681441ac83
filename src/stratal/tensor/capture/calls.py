"""Calls of functions that are not written in Python: what they read, change and make, or why not."""

from __future__ import annotations

import abc
import contextlib
import contextvars
import functools
import operator
import types
import warnings
import weakref
import zlib
from abc import ABCMeta
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from string import Formatter
from typing import Any, Final

import numpy as np

from stratal.base.errors import CaptureError
from stratal.base.weak import Note, note
from stratal.tensor.capture import refusals
from stratal.tensor.capture.accesses import Accesses
from stratal.tensor.capture.attributes import STORED, reads_attribute, reads_attributes, writes_attribute
from stratal.tensor.capture.containers import CONTAINERS, VIEWS, Noted, kind_of, parts_of, uncovered
from stratal.tensor.capture.frozen import frozen
from stratal.tensor.capture.locations import MISSING, Measured
from stratal.tensor.capture.objects import MUTABLE, fields_of, is_standard, ours, stateful
from stratal.tensor.capture.output import filters
from stratal.tensor.capture.plain import plain
from stratal.tensor.tensor import Tensor

Unseen = Callable[[Any, dict[str, Any]], bool]

_PURE_MODULES: Final = frozenset({
    "_abc", "_ast", "_bisect", "_codecs", "_collections", "_collections_abc", "_contextvars", "_datetime",
    "_decimal", "_functools", "_heapq", "_json", "_operator", "_sre", "_stat", "_statistics", "_string",
    "_struct", "_thread", "_typing", "_warnings", "_weakref", "abc", "array", "binascii", "bisect",
    "builtins", "cmath", "codecs", "collections", "contextlib", "contextvars", "copy", "copyreg",
    "dataclasses", "datetime", "decimal", "dis", "enum", "fractions", "functools", "heapq",
    "inspect", "itertools", "json", "keyword", "math", "ml_dtypes", "numbers", "operator", "re", "reprlib",
    "statistics", "string", "struct", "textwrap", "token", "types", "typing", "unicodedata", "warnings",
    "weakref", "zlib",
})  # fmt: skip
_IMPURE_OF_NUMPY: Final = frozenset({
    "DataSource", "fromfile", "fromregex", "genfromtxt", "load", "loadtxt", "memmap", "open_memmap", "save",
    "savetxt", "savez", "savez_compressed",
    "set_printoptions", "set_string_function", "setbufsize", "seterr", "seterrcall",
})  # fmt: skip
_MOVING: Final = (
    types.CoroutineType, types.AsyncGeneratorType, type(zlib.compressobj()), type(zlib.decompressobj()),
)  # their methods change what the next one does
_IMPURE: Final = frozenset({"input", "open", "breakpoint", "copy_context", "_count", "setcontext"})
_ASKING: Final = frozenset({"get_ident", "get_native_id"})  # who calls: guarded by their result
_PATHS: Final = frozenset({"fspath", "_path_normpath", "_path_splitroot", "_path_splitroot_ex"})
_CLOCKS: Final = frozenset({"now", "today", "utcnow"})
_SYSTEM: Final = frozenset({
    "_getframe", "_getframemodulename", "audit", "exc_info", "exception", "exit", "getrecursionlimit",
    "getsizeof", "gettrace", "intern", "is_finalizing",
})  # fmt: skip
_SETTINGS: Final = frozenset({"getrecursionlimit", "is_finalizing"})
_APPENDING: Final[dict[type, set[str]]] = {
    list: {"append", "extend", "clear"}, set: {"add", "update", "clear"},
    deque: {"append", "appendleft", "extend", "extendleft", "clear"},
    dict: {"update", "__setitem__", "clear"}, OrderedDict: {"update", "__setitem__", "clear"},
    bytearray: {"append", "extend", "clear"},
}  # fmt: skip
_REPEATABLE: Final = frozenset({
    list, tuple, set, frozenset, deque, dict, OrderedDict, defaultdict, range, str, bytes, bytearray, *VIEWS,
})  # fmt: skip
_HANDING_ON: Final = frozenset({deque, dict, enumerate, list, reversed, tuple, zip})
_STORING: Final = (
    functools.partial, types.SimpleNamespace, types.MethodType, weakref.ref, property, staticmethod,
    classmethod,
)  # fmt: skip
_BY_KEY: Final = frozenset({"get", "__getitem__", "__contains__"})
_FIXED: Final = (
    str, bytes, int, float, complex, bool, tuple, frozenset, range, slice, type(None), type(Ellipsis),
)  # fmt: skip
_OF_METHODS: Final = (
    types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType,
)  # fmt: skip
_NOT_WRITTEN_IN_PYTHON: Final = (type, types.BuiltinFunctionType, types.MethodWrapperType, *_OF_METHODS)
_MAKING: Final = frozenset({"__init__", "__new__", "__init_subclass__", "__class_getitem__"})
_REGISTERED: Final = operator.methodcaller("get_cache_token")
_CURRENT: Final = operator.methodcaller("get", MISSING)
_OF_OBJECTS: Final = (types.BuiltinFunctionType, types.MethodWrapperType)
_GETTERS: Final = (operator.attrgetter, operator.itemgetter, operator.methodcaller)
_CALLING: Final = frozenset({
    "map", "filter", "starmap", "filterfalse", "takewhile", "dropwhile", "accumulate", "groupby", "reduce",
    "sorted", "sort", "max", "min", "iter", "bisect_left", "bisect_right", "insort_left", "insort_right",
})  # fmt: skip
_LRU: Final = type(functools.lru_cache(lambda: None))


def note_call(
    seen: Accesses, function: Any, args: Sequence[Any], unseen: Unseen, names: Sequence[str] = ()
) -> Noted:
    """Note what a call reads, before it is made; return whether its result is an object that it makes, or
    what is to be noted after it.

    `names` are those of the last arguments, where they are passed by name.
    Raises: CaptureError for a function whose result depends on more than its arguments.
    """
    while isinstance(function, types.MethodType):
        function, args = function.__func__, (function.__self__, *args)
    if getattr(function, "__module__", None) == frozen.__module__:
        for x in args:
            seen.known_within(x)
        return False
    if isinstance(function, types.FunctionType):
        if function.__module__ == "logging":
            raise refusals.LOG(f"logging, {function.__qualname__}")
        if unseen(function.__code__, function.__globals__):
            _library_call(seen, function, args)
        for x in args:
            seen.use(x)
        return seen.reshapes(function.__name__, args) or _by_numpy(function.__module__)
    if isinstance(function, _NOT_WRITTEN_IN_PYTHON):
        for x in args:
            seen.number(x)
            if function is operator.is_ or function is operator.is_not:
                seen.known(x)
        if function.__name__ in _CALLING:
            _calls_unseen(seen, args, unseen)
    if isinstance(function, type):
        return _construct(seen, function, args)
    if isinstance(function, types.BuiltinFunctionType):
        return _builtin(seen, function, args, names)
    if isinstance(function, _OF_METHODS):
        return _method(seen, function.__objclass__, function.__name__, args, names)
    if isinstance(function, types.MethodWrapperType):
        owner = function.__self__
        return _method(seen, type(owner), function.__name__, (owner, *args), names)
    seen.use(function)
    return _object(seen, function, args, unseen)


def _calls_unseen(seen: Accesses, args: Sequence[Any], unseen: Unseen) -> None:
    """Note what functions not written in Python read, and may write, that one like `map` is given to call."""
    functions = [*args]
    for function in functions:
        if isinstance(function, functools.partial):
            functions += [function.func, *function.keywords.values()]
            args = (*args, function.args)
        if isinstance(function, _OF_OBJECTS) and not isinstance(function.__self__, types.ModuleType):
            seen.contents(function.__self__)
            reads_attributes(seen, function.__self__)
        note: Callable[[Any], None]
        if isinstance(function, _GETTERS):
            note = functools.partial(_got_unseen, seen, function, unseen)
        elif function is vars:
            note = functools.partial(reads_attributes, seen)
        elif isinstance(function, types.BuiltinFunctionType) and function in _OF_ATTRIBUTES:
            note = functools.partial(_named_unseen, seen, _OF_ATTRIBUTES[function], [], set())
        else:
            continue
        for x in args:
            for part in x if isinstance(x, str) else parts_of(uncovered(x)):
                note(part)
            seen.ahead(x, note)


def _got_unseen(seen: Accesses, getter: Any, unseen: Unseen, part: Any) -> None:
    for item in (part, *parts_of(part)):  # of several arguments, or of a tuple of them
        note_call(seen, getter, [item], unseen)
    if not isinstance(getter, operator.methodcaller):
        with contextlib.suppress(LookupError, TypeError, AttributeError):  # raised again by the call
            seen.contents(getter(part), handed_on=True)


def _named_unseen(
    seen: Accesses, note: Callable[[Accesses, Any, str], Noted | None], owners: list[Any], names: set[str],
    part: Any,
) -> None:  # fmt: skip
    """Note that attributes of all names that are handed on are read or written, of all objects that are."""
    for item in (part, *parts_of(part)):
        if isinstance(item, str):
            names.add(item)
        else:
            owners.append(item)
        for owner in owners if isinstance(item, str) else (item,):
            for name in (item,) if isinstance(item, str) else names:
                written = note(seen, owner, name)
                if callable(written):
                    written()


_OF_ATTRIBUTES: Final[dict[Any, Callable[[Accesses, Any, str], Noted | None]]] = {
    getattr: reads_attribute, hasattr: reads_attribute, setattr: writes_attribute, delattr: writes_attribute,
}  # fmt: skip


def _library_call(seen: Accesses, function: types.FunctionType, args: Sequence[Any]) -> None:
    """Note a call of a function of this package's, or of NumPy's: it reads what it is given."""
    module = function.__module__ or ""
    _refuse_impure(module, function.__name__)
    if _by_numpy(module):
        seen.settings_of_numpy()
    for x in args:
        seen.passes(x) if module.startswith("stratal.") else seen.contents(x)


def _refuse_impure(module: str, name: str) -> None:
    """Refuse what reads or writes files, draws random numbers or sets NumPy's settings."""
    impure = name in _IMPURE_OF_NUMPY and _by_numpy(module)
    if impure or module.startswith(("stratal.formats", "numpy.random")):
        raise _unknown(f"{module}.{name}")


def _has_finalizer(kind: type) -> bool:
    """Return whether objects of a user's class are told that they die."""
    found = next((c for c in kind.__mro__ if "__del__" in c.__dict__), None)
    return found is not None and bool(found.__flags__ & MUTABLE) and not (ours(found) or is_standard(found))


def _construct(seen: Accesses, kind: type, args: Sequence[Any]) -> bool:
    """Note that an object is made, or asked for its class."""
    if kind is type and len(args) == 1:
        seen.kind(args[0])
    _refuse_impure(kind.__module__, kind.__name__)
    if kind.__name__ == "Random" or (kind is np.datetime64 and args and args[0] in ("now", "today")):
        raise _unknown(f"{kind.__module__}.{kind.__name__}")
    if _has_finalizer(kind):
        raise refusals.FINALIZER(f"{kind.__qualname__}.__del__")
    begins, makes = (isinstance(getattr(kind, name), types.FunctionType) for name in ("__init__", "__new__"))
    written = begins or makes
    for x in args if issubclass(kind, (str, bytes, set, frozenset, dict)) else ():
        seen.text(x)  # shown, or hashed
    _handed_to_each_other(seen, args)
    if not written and kind is not type and kind is not super and not issubclass(kind, BaseException):
        for x in args:
            if kind in _HANDING_ON:
                seen.items(x)
            elif issubclass(kind, _STORING):
                seen.stored(x)
            else:
                seen.contents(x, handed_on=True)
    for x in args:
        seen.use(x)
        seen.used_up(x) if not written else None
    plainly = type(kind) in (type, ABCMeta) and not makes
    creates = (plainly and kind not in (type, super, *_FIXED)) or (kind is type and len(args) > 1)
    if creates and begins:
        seen.constructing = kind
    return creates


def _builtin(
    seen: Accesses, function: types.BuiltinFunctionType, args: Sequence[Any], names: Sequence[str]
) -> Noted:
    owner, name = function.__self__, function.__name__
    if owner is not None and not isinstance(owner, types.ModuleType):
        mro = type.mro(owner) if isinstance(owner, type) and owner is not type else type(owner).__mro__
        kind = next((c for c in mro if name in c.__dict__), mro[0])
        return _method(seen, kind, name, (owner, *args), names)
    module = function.__module__ or ""
    if module == "builtins" and name in ("setattr", "delattr") and len(args) > 1:
        return writes_attribute(seen, args[0], str(args[1]))
    if module == "builtins" and name in _BUILTINS:
        _BUILTINS[name](seen, args)
        return name == "sorted" or (name == "iter" and not issubclass(type(args[0]), Iterator))
    if module == "_warnings":
        for x in args:
            seen.reads_text(x)
        seen.read(Measured(warnings, filters, "filters of warnings"))
        return False
    if module == "_abc":
        seen.read(Measured(abc, _REGISTERED, "classes registered with abstract ones"))
    if module == "sys" and name in _SYSTEM:
        seen.read(Measured(function, operator.call, f"sys.{name}()")) if name in _SETTINGS else None
        return False
    _refuse_impure(module, name)
    known = (module in _PURE_MODULES and name not in _IMPURE) or (module == "posix" and name in _PATHS)
    if not known and not _by_numpy(module):
        raise _unknown(f"{module}.{name}" if module else name)
    if module == "_thread" and name in _ASKING:
        seen.read(Measured(function, operator.call, f"{name}()"))
    if module == "decimal" and name == "getcontext":
        seen.read(Measured(function, operator.call, "the context of decimal numbers"))
    _handed_to_each_other(seen, args)
    for x in args:
        seen.contents(x)
    return name == "__build_class__" or _by_numpy(module)


def _handed_to_each_other(seen: Accesses, args: Sequence[Any]) -> None:
    """Ask for the numbers among what a function that is not seen into is called with: map(str, x.shape)."""
    if any(isinstance(x, (*_NOT_WRITTEN_IN_PYTHON, _LRU)) for x in args):
        for x in args:
            seen.known_within(x)


def _method(seen: Accesses, kind: type, name: str, args: Sequence[Any], names: Sequence[str]) -> Noted:
    """Note a call of a method that a class written in C defines."""
    owner = args[0] if args else None
    if isinstance(owner, np.ndarray) and name in ("tofile", "dump", "resize", "setflags"):
        raise _unknown(f"numpy.ndarray.{name}")
    if isinstance(owner, CONTAINERS):
        return _container_method(seen, kind_of(owner), name, owner, args[1:], names)
    if isinstance(owner, contextvars.ContextVar):
        if name != "get":
            raise _unknown(f"contextvars.ContextVar.{name}")
        seen.read(Measured(owner, _CURRENT, f"the context variable {owner.name}"))
        return False
    if isinstance(owner, _LRU) and name in ("cache_info", "cache_clear"):
        raise _unknown(f"{owner.__qualname__}.{name}")
    if isinstance(owner, type) and name == "__subclasses__":
        seen.read(Measured(owner, _subclasses, f"the subclasses of {owner.__name__}"))
    if isinstance(owner, type) and name == "__call__":
        return _construct(seen, owner, args[1:])
    if name in _MAKING:
        return name == "__new__"
    if isinstance(owner, weakref.ref):
        seen.weakly(owner)
        return False
    if name in ("__setattr__", "__delattr__") and len(args) > 1:
        return writes_attribute(seen, owner, args[1])
    if name == "__getattribute__" and len(args) > 1:
        reads_attribute(seen, owner, args[1])
        return False
    module = kind.__module__
    if module == "datetime" and name in _CLOCKS:
        raise _unknown(f"time of {kind.__name__}.{name}")
    if isinstance(owner, STORED) and len(args) > 1:
        if name != "__get__":
            return writes_attribute(seen, args[1], owner.__name__)
        reads_attribute(seen, args[1], owner.__name__)
        return False
    if name != "__exit__":
        seen.not_lock(owner)
    moves = isinstance(owner, _MOVING) or (name in _OF_ERRORS and isinstance(owner, BaseException))
    if moves and owner not in seen.made:
        raise _unknown(f"{kind.__qualname__}.{name}")
    seen.used_up(owner)
    if kind is str and name in ("join", "format"):
        return _text(seen, name, owner, args[1:])
    package = module.partition(".")[0]
    if kind is object or package in _PURE_MODULES or (package == "numpy" and "random" not in module):
        for x in args if name != "__exit__" else ():  # which ends what was begun inside
            seen.text(x) if isinstance(owner, (str, bytes)) else None
            seen.contents(x)
        if name in ("__reduce__", "__reduce_ex__", "__getstate__"):
            reads_attributes(seen, owner)
        if package == "numpy":
            return "computed"
        return name == "fromkeys" or (isinstance(owner, (str, bytes)) and name in _SPLITTING)
    if plain(owner) or stateful(owner) or owner in seen.made:
        return False
    raise _unknown(f"{kind.__module__}.{kind.__qualname__}.{name}")


def _subclasses(kind: type) -> tuple[type, ...]:
    return tuple(type.__subclasses__(kind))


def _text(seen: Accesses, name: str, owner: Any, args: Sequence[Any]) -> bool:
    """Note that text is put together."""
    seen.reads_text(owner)
    fields = name == "format" and any("." in (field or "") for _, field, *_ in Formatter().parse(owner))
    for x in args:
        seen.text(x)
        if fields:  # "{0.name}"
            reads_attributes(seen, x)
        if name == "join" and (isinstance(x, Iterator) or any(map(seen.is_text_of_values, parts_of(x)))):
            seen.used_up(x)
            if isinstance(x, CONTAINERS) and seen.touch(x):
                seen.reads_contents(seen.containers[id(x)])
            continue
        seen.contents(x)
        if "!" in owner:
            seen.shows_plainly(x)
    return False


_SPLITTING: Final = frozenset({"split", "rsplit", "splitlines"})
_OF_ERRORS: Final = frozenset({"add_note", "with_traceback", "__setstate__"})
_COPYING: Final = frozenset({
    "copy", "__add__", "__mul__", "keys", "values", "items", "union", "intersection", "difference",
})  # fmt: skip
_PUTTING: Final = frozenset({"insert", "setdefault", "pop", "get", "fromkeys"})
_COMPARING: Final = frozenset(("index", "count", "remove", "sort", "__contains__", "__eq__", "__ne__"))


def _container_method(
    seen: Accesses, base: type, name: str, owner: Any, args: Sequence[Any], names: Sequence[str]
) -> Noted:
    for x in args if issubclass(base, (dict, set)) else ():
        seen.text(x) if name.endswith("update") else seen.key(x)
    if name in _APPENDING.get(base, ()):
        if name in ("extend", "extendleft", "update"):
            for x in args:
                seen.contents(x, handed_on=True)
            if not all(type(x) in _REPEATABLE for x in args):  # what they yield is known after the call
                return seen.extends(owner, name)
        if base in (dict, OrderedDict) and name == "update":
            split = len(args) - len(names)
            args = (dict(*args[:split], **dict(zip(names, args[split:], strict=True))),)
        elif name in ("extend", "extendleft"):
            args = [list(x) for x in args]
        seen.writes(owner, name, tuple(args))
    elif isinstance(owner, dict) and name in _BY_KEY and args:
        seen.key(args[0])
        seen.item(owner, args[0]) if plain(args[0]) else seen.contents(owner)
    elif name == "__len__":
        seen.size(owner)
    elif name in ("__init__", "__new__"):
        seen.touch(owner)
    else:
        seen.contents(owner, handed_on=name not in _COMPARING)
        for x in args:
            seen.stored(x) if name in _PUTTING else seen.contents(x, handed_on=name not in _COMPARING)
    return name in _COPYING or (base is np.ndarray and "computed")


def _object(seen: Accesses, function: Any, args: Sequence[Any], unseen: Unseen) -> Noted:
    """Note a call of an object."""
    if isinstance(function, functools.partial):
        if function not in seen.made:
            seen.read(Measured(function, _parts_of_partial, f"what {seen.name(function)} is a partial of"))
        for x in function.args:
            seen.made.found(x)
        seen.size(function.keywords)
        for name in function.keywords:
            seen.item(function.keywords, name)
        return note_call(seen, function.func, (*function.args, *args, *function.keywords.values()), unseen)
    if isinstance(function, _LRU):
        reads_attribute(seen, function, "__wrapped__")
        for x in args:
            seen.key(x)
            seen.contents(x)
        library = (function.__module__ or "").split(".")[0] in _PURE_MODULES
        return False if library else _cached(seen, function)
    if isinstance(function, _GETTERS):
        return _getter(seen, function, args, unseen)
    if isinstance(function, weakref.ref):
        seen.weakly(function)
        return False
    call = getattr(type(function), "__call__", None)  # noqa: B004 (the function itself is asked for)
    if isinstance(call, types.FunctionType):  # written in Python
        if unseen(call.__code__, call.__globals__) or stateful(function):
            _library_call(seen, call, args)
        return False
    source = f"{getattr(function, '__module__', None)} {type(getattr(function, '__self__', None)).__module__}"
    if "numpy.random" in source:
        raise _unknown(f"numpy.random.{getattr(function, '__qualname__', type(function).__name__)}")
    _refuse_impure(str(getattr(function, "__module__", "")), getattr(function, "__name__", ""))
    module, computed = type(function).__module__, _by_numpy(type(function).__module__)
    if computed:
        seen.settings_of_numpy()
    elif module.partition(".")[0] not in _PURE_MODULES and not ours(type(function)):
        raise _unknown(f"{module}.{type(function).__qualname__}")
    for x in args:
        seen.contents(x)
    return computed


def _by_numpy(module: str | None) -> Noted:
    """Return "computed" for a module of NumPy, whose functions and classes compute what they give."""
    return (module or "").partition(".")[0] == "numpy" and "computed"


def _parts_of_partial(function: functools.partial[Any]) -> tuple[Any, ...]:
    return (function.func, *function.args, *function.keywords, *function.keywords.values())


def _cached(seen: Accesses, function: Any) -> Callable[[], None]:
    """Note a call of what `functools.lru_cache` made: what it holds then is guarded, by how much that is."""
    name = getattr(function, "__name__", "a function")
    wrapped = getattr(function, "__wrapped__", None)
    if isinstance(wrapped, types.FunctionType):
        seen.caching.add(wrapped.__code__)
    else:  # what it returns is not seen
        for location, _ in seen.trace.varying:
            seen.number(location.read())
    written, known = seen.num_writes(), _misses(function)

    def note() -> None:
        if _misses(function) != known:  # from now on, the cache has what was just computed
            seen.trace.recapture = True
        if seen.num_writes() != written:
            raise refusals.CACHED(f"{name}, of functools.lru_cache", name)
        seen.read(Measured(function, _misses, f"the cache of {name}"))

    return note


_HITS: Final[dict[int, Note[Any]]] = {}  # of caches: hits when looked at, and how often they fell


def _misses(function: Any) -> tuple[int, int, int]:
    """Return what tells that a cache holds something else: also how often it was seen to be cleared."""
    info = function.cache_info()
    if (noted := _HITS.get(id(function))) is None:
        note(_HITS, function, [info.hits, 0])
        noted = _HITS[id(function)]
    noted.fact[1] += info.hits < noted.fact[0]
    noted.fact[0] = info.hits
    return info.misses, info.currsize, noted.fact[1]


def _getter(seen: Accesses, getter: Any, args: Sequence[Any], unseen: Unseen) -> Noted:
    kind, (made_by, fields) = type(getter), getter.__reduce__()[:2]
    for x in args[:1]:
        if kind is operator.methodcaller:
            names = tuple(made_by.keywords) if isinstance(made_by, functools.partial) else ()
            name, *given = (*made_by.args, *fields, *made_by.keywords.values()) if names else fields
            reads_attribute(seen, x, name)
            method = getattr(x, name, None)
            return method is not None and note_call(seen, method, given, unseen, names)
        for field in fields:
            if kind is operator.itemgetter:
                seen.item(x, field)
                continue
            owner = x
            for name in str(field).split("."):
                reads_attribute(seen, owner, name)
                owner = getattr(owner, name, None)
    return False


def _unknown(name: str) -> CaptureError:
    if name.split(".")[0] in ("random", "_random", "numpy") and "andom" in name:
        hint = "draw with st.rand, st.randn, st.randint, ..: their generator is part of the program"
    else:
        hint = "call it outside and pass the result as an argument"
    return refusals.UNKNOWN(name, hint, name.rpartition(".")[2])


# -- builtins that do not read all they are given ------------------------------------------------------------
Read = Callable[[Accesses, Any], object]


def _each(*reads: Read) -> Callable[[Accesses, Sequence[Any]], None]:
    """Return what notes how a builtin reads each of its arguments."""

    def note(seen: Accesses, args: Sequence[Any]) -> None:
        for x in args:
            for read in reads:
                read(seen, x)

    return note


def _first(read: Read) -> Callable[[Accesses, Sequence[Any]], None]:
    """Return what notes how a builtin reads its first argument."""
    return lambda seen, args: _each(read)(seen, args[:1])


def _isinstance(seen: Accesses, args: Sequence[Any]) -> None:
    _first(Accesses.kind)(seen, args)
    _each(Accesses.use)(seen, args)


def _bases(seen: Accesses, kind: Any) -> None:
    seen.bases(kind) if isinstance(kind, type) else None


def _getattr(seen: Accesses, args: Sequence[Any]) -> None:
    if len(args) > 1 and isinstance(args[1], str):
        reads_attribute(seen, args[0], args[1])


def _vars(seen: Accesses, x: Any) -> None:
    seen.touch(x)
    fields = fields_of(x)
    if fields is not None and not isinstance(x, (type, types.ModuleType)):
        seen.names.setdefault(id(fields), f"the attributes of {seen.name(x)}")


def _dir(seen: Accesses, x: Any) -> None:
    reads_attributes(seen, x)
    seen.kind(x)
    if x not in seen.made:
        seen.read(Measured(x, _dir_of, f"the names of {seen.name(x)}"))


def _dir_of(value: Any) -> tuple[str, ...]:
    return tuple(dir(value))


def _repr(seen: Accesses, x: Any) -> None:
    seen.text(x)
    seen.contents(x)
    if not isinstance(x, Tensor):
        reads_attributes(seen, x)


def _print(seen: Accesses, x: Any) -> None:
    _repr(seen, x) if not isinstance(x, str) else None


def _refuse(seen: Accesses, args: Sequence[Any]) -> None:
    raise _unknown("builtins.open")


_BUILTINS: Final[dict[str, Callable[[Accesses, Sequence[Any]], None]]] = {
    **dict.fromkeys(("globals", "locals", "id", "eval", "exec", "compile"), _each(Accesses.used_up)),
    **dict.fromkeys(("isinstance", "callable"), _isinstance), "issubclass": _first(_bases),
    **dict.fromkeys(("getattr", "hasattr"), _getattr),
    **dict.fromkeys(("repr", "format", "ascii"), _each(_repr)), **dict.fromkeys(("open", "input"), _refuse),
    "vars": _first(_vars), "hash": _each(Accesses.key, Accesses.contents), "dir": _each(_dir),
    "len": _first(Accesses.size), "next": _first(Accesses.used_up), "iter": _each(Accesses.contents),
    "print": _each(_print),
}  # fmt: skip
