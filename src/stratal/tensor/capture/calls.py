"""Calls of functions that are not written in Python: what they read, change and make, or why not."""

from __future__ import annotations

import abc
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
from typing import Any, Final

import numpy as np

from stratal.base.errors import CaptureError
from stratal.base.weak import Note, note
from stratal.tensor.capture.accesses import Accesses
from stratal.tensor.capture.attributes import reads_attribute, reads_attributes, writes_attribute
from stratal.tensor.capture.containers import CONTAINERS, VIEWS, Noted, kind_of, parts_of
from stratal.tensor.capture.frozen import frozen
from stratal.tensor.capture.objects import MUTABLE, fields_of, is_standard, ours, stateful
from stratal.tensor.capture.output import filters
from stratal.tensor.capture.places import MISSING, Measured
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
_FILES_OF_NUMPY: Final = frozenset({
    "DataSource", "fromfile", "fromregex", "genfromtxt", "load", "loadtxt", "memmap", "open_memmap", "save",
    "savetxt", "savez", "savez_compressed",
})  # fmt: skip
_SETTINGS_OF_NUMPY: Final = frozenset({
    "set_printoptions", "set_string_function", "setbufsize", "seterr", "seterrcall",
})  # fmt: skip
_MOVING: Final = (
    types.CoroutineType, types.AsyncGeneratorType, type(zlib.compressobj()), type(zlib.decompressobj()),
)  # their methods change what the next one does
_IMPURE: Final = frozenset({"input", "open", "breakpoint"})
_PATHS: Final = frozenset({"fspath", "_path_normpath", "_path_splitroot", "_path_splitroot_ex"})
_CLOCKS: Final = frozenset({"now", "today", "utcnow"})
_SYSTEM: Final = frozenset({
    "_getframe", "_getframemodulename", "audit", "exc_info", "exception", "getrecursionlimit", "getsizeof",
    "gettrace", "intern", "is_finalizing",
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
_MAKERS: Final = frozenset({
    "sorted", "__build_class__", "deepcopy", "copy", "array", "zeros", "ones", "arange", "empty",
})  # fmt: skip
_BY_KEY: Final = frozenset({"get", "__getitem__", "__contains__"})
_FIXED: Final = (
    str,
    bytes,
    int,
    float,
    complex,
    bool,
    tuple,
    frozenset,
    range,
    slice,
    type(None),
    type(Ellipsis),
)
_OF_METHODS: Final = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
)
_NOT_WRITTEN_IN_PYTHON: Final = (type, types.BuiltinFunctionType, types.MethodWrapperType, *_OF_METHODS)
_MAKING: Final = frozenset({"__init__", "__new__", "__init_subclass__", "__class_getitem__"})
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
        return False
    if isinstance(function, types.FunctionType):
        if function.__module__ == "logging":
            raise CaptureError(
                "capture: a compiled function cannot write to a log", got=f"logging, {function.__qualname__}",
                hint="log what it returns; what it prints is printed by each call",
            )  # fmt: skip
        if unseen(function.__code__, function.__globals__):
            _library_call(seen, function, args)
        for x in args:
            seen.use(x)
        return seen.reshapes(function.__name__, args)
    if isinstance(function, _NOT_WRITTEN_IN_PYTHON):
        for x in args:
            seen.number(x)
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


def _library_call(seen: Accesses, function: types.FunctionType, args: Sequence[Any]) -> None:
    """Note a call of a function of this package's, or of NumPy's: it reads what it is given."""
    module = function.__module__ or ""
    setting = module.startswith("numpy") and function.__name__ in _SETTINGS_OF_NUMPY
    if setting or module.startswith("numpy.random") or _reads_files(module, function.__name__):
        raise _unknown(f"{module}.{function.__name__}")
    for x in args:
        seen.passes(x) if module.startswith("stratal.") else seen.contents(x)


def _reads_files(module: str, name: str) -> bool:
    """Return whether a function of Stratal's or of NumPy's reads or writes files."""
    package = module.partition(".")[0]
    return module.startswith("stratal.formats") or (package == "numpy" and name in _FILES_OF_NUMPY)


def _has_finalizer(kind: type) -> bool:
    """Return whether objects of a user's class are told that they die."""
    found = next((c for c in kind.__mro__ if "__del__" in c.__dict__), None)
    return found is not None and bool(found.__flags__ & MUTABLE) and not (ours(found) or is_standard(found))


def _construct(seen: Accesses, kind: type, args: Sequence[Any]) -> bool:
    """Note that an object is made, or asked for its class."""
    if kind is type and len(args) == 1:
        seen.kind(args[0])
    drawing = kind.__name__ == "Random" or kind.__module__.startswith("numpy.random")
    clock = kind is np.datetime64 and bool(args) and args[0] in ("now", "today")
    if drawing or clock or _reads_files(kind.__module__, kind.__name__):
        raise _unknown(f"{kind.__module__}.{kind.__name__}")
    if _has_finalizer(kind):
        raise CaptureError(
            "capture: a compiled function cannot make objects with a finalizer: replays would not call it",
            got=f"{kind.__qualname__}.__del__",
            hint="make it outside and pass it as an argument",
        )
    begins, makes = (isinstance(getattr(kind, name), types.FunctionType) for name in ("__init__", "__new__"))
    written = begins or makes
    for x in args if issubclass(kind, (str, bytes, set, frozenset, dict)) else ():
        seen.text(x)  # shown, or hashed
    if not written and kind is not type and kind is not super and not issubclass(kind, BaseException):
        for x in args:
            seen.items(x) if kind in _HANDING_ON else seen.contents(x, handed_on=True)
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
        seen.read(Measured(abc, _registered, "classes registered with abstract ones"))
    if module == "sys" and name in _SYSTEM:
        seen.read(Measured(function, operator.call, f"sys.{name}()")) if name in _SETTINGS else None
        return False
    if _reads_files(module, name):
        raise _unknown(f"{module}.{name}")
    known = (module in _PURE_MODULES and name not in _IMPURE) or (module == "posix" and name in _PATHS)
    if not known and not (module.split(".")[0] == "numpy" and not module.startswith("numpy.random")):
        raise _unknown(f"{module}.{name}" if module else name)
    for x in args:
        seen.contents(x)
    return name in _MAKERS


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
        seen.read(Measured(owner, _current, f"the context variable {owner.name}"))
        return False
    if isinstance(owner, type) and name == "__call__":
        return _construct(seen, owner, args[1:])
    if isinstance(owner, weakref.ref) or name in _MAKING:
        return name == "__new__"
    if name in ("__setattr__", "__delattr__") and len(args) > 1:
        return writes_attribute(seen, owner, args[1])
    if name == "__getattribute__" and len(args) > 1:
        reads_attribute(seen, owner, args[1])
        return False
    module = kind.__module__
    if module == "datetime" and name in _CLOCKS:
        raise _unknown(f"time of {kind.__name__}.{name}")
    if isinstance(owner, _STORED) and len(args) > 1:
        if name != "__get__":
            return writes_attribute(seen, args[1], owner.__name__)
        reads_attribute(seen, args[1], owner.__name__)
        return False
    if name != "__exit__":
        seen.not_lock(owner)
    moves = isinstance(owner, _MOVING) or (name in _OF_ERRORS and isinstance(owner, BaseException))
    if moves and not seen.is_created(owner):
        raise _unknown(f"{kind.__qualname__}.{name}")
    seen.used_up(owner)
    if kind is str and name in ("join", "format"):
        return _text(seen, name, owner, args[1:])
    if (
        kind is object
        or module.split(".")[0] in _PURE_MODULES
        or (module.split(".")[0] == "numpy" and "random" not in module)
    ):
        for x in args:
            seen.text(x) if isinstance(owner, (str, bytes)) else None
            seen.contents(x)
        if name in ("__reduce__", "__reduce_ex__", "__getstate__"):
            reads_attributes(seen, owner)
        return isinstance(owner, (str, bytes)) and name in ("split", "rsplit", "splitlines")
    if plain(owner) or stateful(owner) or seen.is_created(owner):
        return False
    raise _unknown(f"{kind.__module__}.{kind.__qualname__}.{name}")


def _text(seen: Accesses, name: str, owner: Any, args: Sequence[Any]) -> bool:
    """Note that text is put together."""
    seen.reads_text(owner)
    for x in args:
        seen.text(x)
        if name == "join" and any(map(seen.is_text_of_values, parts_of(x))):
            if isinstance(x, CONTAINERS) and seen.touch(x):
                seen.reads_contents(seen.containers[id(x)])
            continue
        seen.contents(x)
        if "!" in owner:
            seen.shows_plainly(x)
    return False


def _registered(module: Any) -> object:
    return module.get_cache_token()


def _current(variable: contextvars.ContextVar[Any]) -> Any:
    return variable.get(MISSING)


_STORED: Final = (types.MemberDescriptorType, types.GetSetDescriptorType)
_OF_ERRORS: Final = frozenset({"add_note", "with_traceback", "__setstate__"})
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
        for x in (owner, *args):
            seen.contents(x, handed_on=name not in _COMPARING)
    return name in (
        "copy",
        "__add__",
        "__mul__",
        "keys",
        "values",
        "items",
        "union",
        "intersection",
        "difference",
    )


def _object(seen: Accesses, function: Any, args: Sequence[Any], unseen: Unseen) -> Noted:
    """Note a call of an object."""
    if isinstance(function, functools.partial):
        if not seen.is_created(function):
            seen.read(Measured(function, _parts_of_partial, f"what {seen.name(function)} is a partial of"))
        for x in function.args:
            seen.foreign(x)
        seen.size(function.keywords)
        for name in function.keywords:
            seen.item(function.keywords, name)
        return note_call(seen, function.func, (*function.args, *args, *function.keywords.values()), unseen)
    if isinstance(function, _LRU):
        reads_attribute(seen, function, "__wrapped__")
        for x in args:
            seen.contents(x)
        library = (function.__module__ or "").split(".")[0] in _PURE_MODULES
        return False if library else _cached(seen, function)
    if isinstance(function, (operator.attrgetter, operator.itemgetter, operator.methodcaller)):
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
    if _reads_files(str(getattr(function, "__module__", "")), getattr(function, "__name__", "")):
        raise _unknown(f"{function.__module__}.{function.__name__}")
    if "numpy.random" in source:
        raise _unknown(f"numpy.random.{getattr(function, '__qualname__', type(function).__name__)}")
    if type(function).__module__.split(".")[0] not in ("numpy", *_PURE_MODULES) and not ours(type(function)):
        raise _unknown(f"{type(function).__module__}.{type(function).__qualname__}")
    for x in args:
        seen.contents(x)
    return False


def _parts_of_partial(function: functools.partial[Any]) -> tuple[Any, ...]:
    return (function.func, *function.args, *function.keywords, *function.keywords.values())


def _cached(seen: Accesses, function: Any) -> Callable[[], None]:
    """Note a call of what `functools.lru_cache` made: what it holds then is guarded, by how much that is."""
    name = getattr(function, "__name__", "a function")
    written, known = seen.num_writes(), _misses(function)

    def note() -> None:
        if _misses(function) != known:  # from now on, the cache has what was just computed
            seen.trace.recapture = True
        if seen.num_writes() != written:
            raise CaptureError(
                "capture: a cached function, which writes something only when it fills its cache, is called",
                got=f"{name}, of functools.lru_cache",
                hint=f"call {name} once outside, with these arguments; or {name}.__wrapped__",
            )
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
            return note_call(seen, getattr(x, name), given, unseen, names)
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
    return CaptureError(
        "capture: a compiled function cannot call what depends on more than its arguments",
        got=name,
        hint=f"{hint}; or st.frozen({name.rpartition('.')[2]}, ..), called once",
    )


# -- builtins that do not read all they are given ------------------------------------------------------------
def _nothing(seen: Accesses, args: Sequence[Any]) -> None:
    for x in args:
        seen.used_up(x)


def _kind(seen: Accesses, args: Sequence[Any]) -> None:
    for x in args[:1]:
        seen.kind(x)
    for x in args:
        seen.use(x)


def _subclass(seen: Accesses, args: Sequence[Any]) -> None:
    for x in args[:1]:
        seen.bases(x) if isinstance(x, type) else None


def _getattr(seen: Accesses, args: Sequence[Any]) -> None:
    if len(args) > 1 and isinstance(args[1], str):
        reads_attribute(seen, args[0], args[1])


def _vars(seen: Accesses, args: Sequence[Any]) -> None:
    for x in args[:1]:
        seen.touch(x)
        fields = fields_of(x)
        if fields is not None and not isinstance(x, (type, types.ModuleType)):
            seen.names.setdefault(id(fields), f"the attributes of {seen.name(x)}")


def _dir(seen: Accesses, args: Sequence[Any]) -> None:
    for x in args:
        reads_attributes(seen, x)
        if not seen.is_created(x):
            seen.read(Measured(x, _dir_of, f"the names of {seen.name(x)}"))


def _dir_of(value: Any) -> tuple[str, ...]:
    return tuple(dir(value))


def _hash(seen: Accesses, args: Sequence[Any]) -> None:
    for x in args:
        seen.key(x)
        seen.contents(x)


def _len(seen: Accesses, args: Sequence[Any]) -> None:
    seen.size(args[0]) if args else None


def _iter(seen: Accesses, args: Sequence[Any]) -> None:
    for x in args:
        seen.contents(x)


def _next(seen: Accesses, args: Sequence[Any]) -> None:
    seen.used_up(args[0]) if args else None


def _repr(seen: Accesses, args: Sequence[Any]) -> None:
    for x in args:
        seen.text(x)
        seen.contents(x)
        if not isinstance(x, Tensor):
            reads_attributes(seen, x)


def _print(seen: Accesses, args: Sequence[Any]) -> None:
    _repr(seen, [x for x in args if not isinstance(x, str)])


def _refuse(seen: Accesses, args: Sequence[Any]) -> None:
    raise _unknown("builtins.open")


_BUILTINS: Final[dict[str, Callable[[Accesses, Sequence[Any]], None]]] = {
    **dict.fromkeys(("globals", "locals", "id", "eval", "exec", "compile"), _nothing),
    **dict.fromkeys(("isinstance", "callable"), _kind), "issubclass": _subclass,
    **dict.fromkeys(("getattr", "hasattr"), _getattr),
    **dict.fromkeys(("repr", "format", "ascii"), _repr), **dict.fromkeys(("open", "input"), _refuse),
    "vars": _vars, "hash": _hash, "dir": _dir, "len": _len, "next": _next, "iter": _iter, "print": _print,
}  # fmt: skip
