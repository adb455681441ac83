"""Observation of a captured run: every instruction of Python code outside this package that reads or writes
something which outlives the call is noted in `Accesses` before it runs.

Functions not written in Python are not seen into. Those known to depend on their arguments alone note what
the arguments hold (`builtins`); others, such as clocks and random numbers, are refused.
"""

from __future__ import annotations

import builtins
import dis
import functools
import re
import sys
import types
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import CodeType, FrameType
from typing import Any, Final

import numpy as np

from stratal.base.errors import CaptureError, UndecidedError
from stratal.base.session import SESSION
from stratal.base.source import EXAMPLES, PACKAGE, SourceLine
from stratal.tensor.capture.accesses import Accesses
from stratal.tensor.capture.attributes import reads_attribute, reads_class_attribute, writes_attribute
from stratal.tensor.capture.calls import note_call
from stratal.tensor.capture.containers import CONTAINERS, Noted, parts_of
from stratal.tensor.capture.frames import (
    NOTHING,
    allow_instructions,
    function_of,
    observable,
    operand,
    operands,
    own_cells,
    own_variables,
    trace_instructions,
    variable,
)
from stratal.tensor.capture.objects import LIBRARIES, fields_of
from stratal.tensor.capture.places import Item, Slot
from stratal.tensor.capture.plain import plain
from stratal.tensor.capture.unwinding import keep
from stratal.tensor.tensor import Tensor

Handler = Callable[[Accesses, FrameType, Any], Noted | None]
"""Notes one instruction; whether it leaves an object that did not exist before on top of the stack, or what
is to be noted after it."""
Trace = Callable[[FrameType, str, Any], Any]

_BUILTINS: Final = frozenset(vars(builtins))
_NUMPY: Final = np.__file__.rpartition("/")[0] + "/"
_UNSEEN: Final = (f"{PACKAGE}/", _NUMPY, "<frozen importlib", "<__array_function__")
# Of the package: Python that steps may call.
_SEEN: Final = (EXAMPLES, f"{PACKAGE}/optim/lr_scheduler/", f"{PACKAGE}/metrics/metric.py")


# -- instructions --------------------------------------------------------------------------------------------
def _load_attribute(seen: Accesses, frame: FrameType, name: str) -> None:
    reads_attribute(seen, operand(frame, 1), name)


def _store_attribute(seen: Accesses, frame: FrameType, name: str) -> Noted:
    return writes_attribute(seen, operand(frame, 1), name)


def _load_super_attribute(seen: Accesses, frame: FrameType, name: str) -> None:
    function, kind, owner = operands(frame, 3)
    note_call(seen, function, [kind, owner], unseen)
    reads_attribute(seen, function(kind, owner), name)


def _import_name(seen: Accesses, frame: FrameType, name: str) -> None:
    for k in (name.partition(".")[0], name):
        if k in sys.modules:
            seen.read(Item(sys.modules, k, f"sys.modules[{k!r}]"))


def _load_global(seen: Accesses, frame: FrameType, name: str) -> None:
    seen.read(Item(frame.f_globals, name, name))
    if name in frame.f_globals:
        seen.use(frame.f_globals[name])
    elif name not in _BUILTINS:  # somebody put it there
        seen.read(Item(frame.f_builtins, name, name))


def _store_global(seen: Accesses, frame: FrameType, name: str) -> Noted:
    return seen.writes_place(Item(frame.f_globals, name, name))


def _load_name(seen: Accesses, frame: FrameType, name: str) -> None:
    if frame.f_locals is frame.f_globals or name not in frame.f_locals:
        _load_global(seen, frame, name)


def _load_global_unless_given(seen: Accesses, frame: FrameType, name: str) -> None:
    if name not in operand(frame, 1):
        _load_global(seen, frame, name)


def _store_name(seen: Accesses, frame: FrameType, name: str) -> Noted:
    if frame.f_locals is frame.f_globals:
        return _store_global(seen, frame, name)
    if frame.f_code.co_name == "<module>":  # of exec; otherwise the body of a class
        seen.touch(frame.f_locals)
    return False


def _load_cell(seen: Accesses, frame: FrameType, index: int) -> None:
    k = index - own_variables(frame.f_code)
    if k >= 0:  # of a function around this one
        cell = variable(frame, index)
        seen.cell(cell, frame.f_code.co_freevars[k])
        with suppress(ValueError):
            seen.use(cell.cell_contents)


def _store_cell(seen: Accesses, frame: FrameType, index: int) -> Noted:
    k = index - own_variables(frame.f_code)
    return k >= 0 and seen.writes_cell(variable(frame, index), frame.f_code.co_freevars[k])


def _make_cell(seen: Accesses, frame: FrameType, index: int) -> Noted:
    return lambda: seen.created(variable(frame, index))


def _subscript(seen: Accesses, frame: FrameType, _: Any) -> None:
    _reads_item(seen, *operands(frame, 2))


def _slice(seen: Accesses, frame: FrameType, _: Any) -> None:
    holder, start, stop = operands(frame, 3)
    _reads_item(seen, holder, slice(start, stop))


def _reads_item(seen: Accesses, holder: Any, key: Any) -> None:
    if isinstance(holder, (*CONTAINERS, tuple, types.MappingProxyType)):
        seen.key(key)
        seen.item(holder, key)
        if isinstance(holder, dict) and key not in dict.keys(holder):
            reads_class_attribute(seen, type(holder), "__missing__")
            if isinstance(holder, defaultdict):
                reads_attribute(seen, holder, "default_factory")
    seen.use(holder)
    seen.not_array(holder)
    seen.reads_text(holder)
    seen.passes(key) if isinstance(holder, Tensor) else seen.contents(key)


def _store_subscript(seen: Accesses, frame: FrameType, _: Any) -> None:
    _writes_item(seen, *operands(frame, 3))


def _store_slice(seen: Accesses, frame: FrameType, _: Any) -> None:
    value, holder, start, stop = operands(frame, 4)
    _writes_item(seen, value, holder, slice(start, stop))


def _writes_item(seen: Accesses, value: Any, holder: Any, key: Any) -> None:
    if isinstance(holder, dict):
        seen.key(key)
    seen.use(holder)
    seen.writes(holder, "__setitem__", (key, value))
    seen.not_array(holder)
    if isinstance(holder, Tensor):
        seen.passes(key)
        seen.passes(value)
    else:
        seen.contents(key)
        seen.contents(value) if isinstance(holder, np.ndarray) else None


def _delete_subscript(seen: Accesses, frame: FrameType, _: Any) -> None:
    holder, key = operands(frame, 2)
    seen.use(holder)
    seen.writes(holder, "__delitem__", (key,))


def _one(seen: Accesses, frame: FrameType, _: Any) -> None:
    seen.contents(operand(frame, 1))


def _parts(seen: Accesses, frame: FrameType, _: Any) -> None:
    seen.items(operand(frame, 1))


def _binary(seen: Accesses, frame: FrameType, operation: int) -> None:
    left, right = operands(frame, 2)
    if type(left) is type(right) is str and operation in _ADDING:
        return
    if isinstance(left, str) and _PADDED.search(left):
        values = right if isinstance(right, tuple) else (right,)
        for x in values:
            seen.shows_plainly(x)
    _two(seen, frame, operation)


_ADDING: Final = (0, 13)  # the arguments of BINARY_OP for + and +=
_PADDED: Final = re.compile(r"%[-#0 +.\d*]+[sra]")  # of a text that is known only after the run


def _two(seen: Accesses, frame: FrameType, _: Any) -> None:
    left, right = operands(frame, 2)
    tensors = any(isinstance(x, Tensor) and not seen.is_array(x) for x in (left, right))
    if isinstance(left, (str, bytes)):
        seen.text(right)
    for x in (left, right):
        seen.passes(x) if tensors else seen.contents(x)


def _intrinsic(seen: Accesses, frame: FrameType, number: int) -> None:
    if number == _POSITIVE:
        _one(seen, frame, number)


_POSITIVE: Final = 5  # the argument of CALL_INTRINSIC_1 for +x


def _format_simple(seen: Accesses, frame: FrameType, _: Any) -> None:
    _format(seen, frame, 0)


def _format_with_spec(seen: Accesses, frame: FrameType, _: Any) -> None:
    _format(seen, frame, 4)


def _format(seen: Accesses, frame: FrameType, flags: int) -> None:
    value = operand(frame, 2 if flags & 4 else 1)
    seen.text(value)
    if flags & 3 and flags & 4:
        seen.shows_plainly(value)
    if not isinstance(value, str) or flags & 4:
        seen.contents(value)


def _member(seen: Accesses, frame: FrameType, _: Any) -> None:
    value, holder = operands(frame, 2)
    for x in (value, *parts_of(holder)):
        seen.key(x)
    seen.member(holder, value)


def _identity(seen: Accesses, frame: FrameType, _: Any) -> None:
    for x in operands(frame, 2):
        seen.number(x)
        seen.not_array(x)


def _iterate(seen: Accesses, frame: FrameType, _: Any) -> None:
    seen.use(operand(frame, 1))
    seen.used_up(operand(frame, 1))


def _enter_block(seen: Accesses, frame: FrameType, _: Any) -> None:
    seen.use(operand(frame, 1))
    if frame.f_globals.get("__name__") != "functools":  # cached properties fill in what anybody would
        seen.not_lock(operand(frame, 1))


def _match_class(seen: Accesses, frame: FrameType, count: int) -> None:
    subject, kind, names = operands(frame, 3)
    seen.kind(subject)
    if isinstance(kind, type) and isinstance(subject, kind):
        if count:
            reads_class_attribute(seen, kind, "__match_args__")
        for name in (*getattr(kind, "__match_args__", ())[:count], *names):
            reads_attribute(seen, subject, name)


def _truth(seen: Accesses, frame: FrameType, _: Any) -> None:
    value = operand(frame, 1)
    if seen.is_array(value):
        seen.contents(value)
    elif not isinstance(value, bool):
        seen.size(value)


def _create(seen: Accesses, frame: FrameType, _: Any) -> bool:
    return True


def _create_map(seen: Accesses, frame: FrameType, count: int) -> bool:
    return _hashed(seen, operands(frame, 2 * count)[::2])


def _create_set(seen: Accesses, frame: FrameType, count: int) -> bool:
    return _hashed(seen, operands(frame, count))


def _hashed(seen: Accesses, keys: list[Any]) -> bool:
    for x in keys:
        seen.key(x)
    return True


def _add(seen: Accesses, frame: FrameType, _: Any) -> None:
    seen.key(operand(frame, 1))


def _add_item(seen: Accesses, frame: FrameType, _: Any) -> None:
    seen.key(operand(frame, 2))


def _iterator(seen: Accesses, frame: FrameType, _: Any) -> bool:
    value = operand(frame, 1)
    seen.items(value)
    return not issubclass(type(value), Iterator)


_FUNCTION_FIRST: Final = sys.version_info >= (3, 13)  # then the object it is bound to; before, the other way


def _call(seen: Accesses, frame: FrameType, arg: tuple[int, tuple[str, ...]]) -> Noted:
    count, names = arg
    return _called(seen, operands(frame, count + 2), names)


def _call_named(seen: Accesses, frame: FrameType, count: int) -> Noted:
    *called, names = operands(frame, count + 3)
    return _called(seen, called, names)


def _called(seen: Accesses, called: list[Any], names: tuple[str, ...]) -> Noted:
    first, second, *args = called
    if _FUNCTION_FIRST:
        function, bound = first, [] if second is NOTHING else [second]
    else:
        function, bound = (second, []) if first is NOTHING else (first, [second])
    return note_call(seen, function, [*bound, *args], unseen, names)


def _call_unpacked(seen: Accesses, frame: FrameType, flags: int) -> Noted:
    function, *rest = operands(frame, 2 + (flags & 1) + _FUNCTION_FIRST)
    args, *kwargs = rest[_FUNCTION_FIRST:]
    given = [*args] if isinstance(args, (tuple, list)) else []
    seen.contents(args, handed_on=True)
    for named in kwargs:
        seen.contents(named, handed_on=True)
        given += named.values() if isinstance(named, dict) else []
    return note_call(seen, function, given, unseen)


_HANDLERS: Final[dict[str, Handler]] = {
    "LOAD_ATTR": _load_attribute, "LOAD_METHOD": _load_attribute, "IMPORT_FROM": _load_attribute,
    "LOAD_SUPER_ATTR": _load_super_attribute,
    "IMPORT_NAME": _import_name, "STORE_ATTR": _store_attribute, "DELETE_ATTR": _store_attribute,
    "LOAD_GLOBAL": _load_global, "LOAD_NAME": _load_name,
    "LOAD_FROM_DICT_OR_GLOBALS": _load_global_unless_given,
    "STORE_NAME": _store_name, "DELETE_NAME": _store_name,
    "STORE_GLOBAL": _store_global, "DELETE_GLOBAL": _store_global,
    "LOAD_DEREF": _load_cell, "LOAD_CLASSDEREF": _load_cell, "LOAD_FROM_DICT_OR_DEREF": _load_cell,
    "STORE_DEREF": _store_cell, "DELETE_DEREF": _store_cell, "MAKE_CELL": _make_cell,
    "BINARY_SUBSCR": _subscript, "STORE_SUBSCR": _store_subscript, "DELETE_SUBSCR": _delete_subscript,
    "BINARY_SLICE": _slice, "STORE_SLICE": _store_slice,
    "CONTAINS_OP": _member, "IS_OP": _identity, "BINARY_OP": _binary, "COMPARE_OP": _two,
    "UNPACK_SEQUENCE": _parts, "UNPACK_EX": _parts, "GET_ITER": _iterator,
    "LIST_EXTEND": _parts, "SET_UPDATE": _parts,
    "DICT_UPDATE": _parts, "DICT_MERGE": _parts,
    "BEFORE_WITH": _enter_block, "BEFORE_ASYNC_WITH": _enter_block, "MATCH_CLASS": _match_class,
    "GET_LEN": _one, "MATCH_MAPPING": _one, "MATCH_SEQUENCE": _one,
    "MATCH_KEYS": _two, "UNARY_NEGATIVE": _one, "UNARY_POSITIVE": _one, "UNARY_INVERT": _one,
    "CALL_INTRINSIC_1": _intrinsic, "UNARY_NOT": _truth, "TO_BOOL": _truth,
    **dict.fromkeys(("POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE"), _truth),
    **dict.fromkeys(("POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_FORWARD_IF_FALSE"), _truth),
    **dict.fromkeys(("POP_JUMP_BACKWARD_IF_TRUE", "POP_JUMP_BACKWARD_IF_FALSE"), _truth),
    **dict.fromkeys(("JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP"), _truth),
    "FOR_ITER": _iterate, "GET_YIELD_FROM_ITER": _iterate,
    "FORMAT_VALUE": _format, "CONVERT_VALUE": _format_simple, "FORMAT_SIMPLE": _format_simple,
    "FORMAT_WITH_SPEC": _format_with_spec,
    "CALL": _call, "CALL_KW": _call_named, "CALL_FUNCTION_EX": _call_unpacked,
    "BUILD_LIST": _create, "BUILD_SET": _create_set, "BUILD_MAP": _create_map, "BUILD_CONST_KEY_MAP": _create,
    "SET_ADD": _add, "MAP_ADD": _add_item, "MAKE_FUNCTION": _create,
}  # fmt: skip
"""Instructions of Python 3.11 to 3.13."""
_BY_NAME: Final = frozenset({
    "LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM", "IMPORT_NAME", "STORE_ATTR", "DELETE_ATTR",
    "LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS", "STORE_GLOBAL", "DELETE_GLOBAL", "STORE_NAME",
    "DELETE_NAME",
})  # fmt: skip
_SHOWS_PREFIX: Final = sys.version_info < (3, 12)  # in place of the instruction that it belongs to

Step = tuple[Handler, Any]
_TABLES: Final = SESSION.cache(dict[int, tuple[CodeType, dict[int, Step]]]())


def _table(code: CodeType) -> dict[int, Step]:
    """Return the instructions of a function to be noted, by offset; that of prefixes where there are any."""
    known = _TABLES.get(id(code))
    if known is not None:
        return known[1]
    table: dict[int, Step] = {}
    names: tuple[str, ...] = ()
    prefix: int | None = None
    for i in dis.get_instructions(code):
        if i.opname == "EXTENDED_ARG":
            prefix = i.offset if prefix is None else prefix
            continue
        if i.opname == "KW_NAMES":
            names = code.co_consts[i.arg or 0]
        handler = _HANDLERS.get(i.opname)
        if handler is not None:
            arg: Any = i.argval if i.opname in _BY_NAME else i.arg
            if i.opname == "CALL":
                arg, names = (i.arg, names), ()
            step = handler, arg
            table[i.offset] = step
            if prefix is not None and _SHOWS_PREFIX:
                table[prefix] = step
        prefix = None
    _TABLES[id(code)] = code, table
    return table


def unseen(code: CodeType, scope: dict[str, Any]) -> bool:
    """Return whether a function belongs to this package or to NumPy, whose code is not observed."""
    file = code.co_filename
    if file.startswith(_SEEN):
        return False
    return file.startswith(_UNSEEN) or (
        file == "<string>" and str(scope.get("__name__")).startswith(("stratal.", "namedtuple_"))
    )


def _lines(frame: FrameType | None) -> tuple[SourceLine, ...]:
    """Return the innermost line that belongs neither to this package nor to a library."""
    while frame is not None:
        code = frame.f_code
        if not unseen(code, frame.f_globals) and not code.co_filename.startswith((*LIBRARIES, "<string>")):
            return (SourceLine(code.co_filename, frame.f_lineno, code.co_qualname),)
        frame = frame.f_back
    return ()


class Observer:
    """Observes this thread between `start` and `stop`."""

    def __init__(self, accesses: Accesses) -> None:
        self.accesses = accesses
        self.refusal: CaptureError | UndecidedError | None = None
        self.lost = False  # whether Python has stopped calling it: it does so at the end of the stack
        self._before: Any = None
        self._operands = observable()  # now: it traces, too
        self._root: FrameType | None = None
        self._local: Trace = self._on_instruction

    def start(self) -> None:
        self._before, self._root = sys.gettrace(), sys._getframe(1)
        allow_instructions()
        sys.settrace(self._on_call)

    def stop(self) -> None:
        self.lost = sys.gettrace() != self._on_call
        sys.settrace(self._before)
        self._root = None

    def watch(self, function: Callable[[], Any]) -> None:
        """Observe one call."""
        self.start()
        try:
            function()
        finally:
            self.stop()

    def _on_call(self, frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if unseen(code, frame.f_globals):
            return None
        if code.co_name == "<module>" or code.co_filename.startswith(LIBRARIES):
            caller = frame.f_back  # on behalf of what is not observed, imports and libraries are not, either
            if caller is None or (caller.f_trace is None and caller is not self._root):
                return None
        if not self._operands:
            frame.f_trace_lines = False
            return self._on_exception
        trace_instructions(frame, self._local)
        self._enter(frame)
        return self._local

    def _enter(self, frame: FrameType) -> None:
        """Note what a function is: its code, defaults, and containers Python made for its arguments."""
        code, seen = frame.f_code, self.accesses
        function = function_of(frame)
        if isinstance(function, types.FunctionType) and not seen.is_created(function):
            name = function.__name__
            for field in ("__code__", "__defaults__", "__kwdefaults__"):
                value = getattr(function, field)
                if value is not None:
                    seen.read(Slot(function, field, f"{name}.{field}"))
                    seen.contents(value)
        for cell in own_cells(frame):
            seen.created(cell)
        first = code.co_argcount + code.co_kwonlyargcount
        names = frame.f_locals
        if code.co_name == "__init__" and code.co_argcount:
            made = names.get(code.co_varnames[0])
            if type(made) is seen.constructing or fields_of(made) == {}:  # in code not seen
                seen.created(made)
            seen.constructing = None
        extra = bool(code.co_flags & 4) + bool(code.co_flags & 8)
        for name in code.co_varnames[first : first + extra]:
            if name in names:
                seen.created(names[name])
        for name in code.co_varnames[:first]:
            if name in names and not plain(names[name]):
                seen.names.setdefault(id(names[name]), name)
                seen.use(names[name])

    def _on_exception(self, frame: FrameType, event: str, arg: Any) -> Any:
        """Note what refused the capture: a function may catch it, and go on as it would not uncompiled."""
        if event == "exception" and isinstance(arg[1], (CaptureError, UndecidedError)):
            self.refusal = self.refusal or arg[1]
        return frame.f_trace

    def _on_instruction(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event != "opcode":
            return self._on_exception(frame, event, arg)
        step = _table(frame.f_code).get(frame.f_lasti)
        if step is None:
            return self._local
        handler, what = step
        noted = self._noting(frame, lambda: handler(self.accesses, frame, what))
        return functools.partial(self._afterwards, noted) if noted else self._local

    def _noting(self, frame: FrameType, note: Callable[[], Noted | None]) -> Noted | None:
        try:
            return note()
        except CaptureError as error:
            error.where = _lines(frame) or error.where
            self.refusal = self.refusal or error
            keep(self.accesses, self._frames(frame))
            raise

    def _frames(self, frame: FrameType | None) -> Iterator[FrameType]:
        """Yield the frames of users' code, the innermost first."""
        while frame is not None and frame is not self._root:
            if not unseen(frame.f_code, frame.f_globals):
                yield frame
            frame = frame.f_back

    def _afterwards(self, noted: Noted, frame: FrameType, event: str, arg: Any) -> Any:
        if event != "opcode":  # an exception: there is no result
            self._on_exception(frame, event, arg)
            return self._local
        if noted is True:
            self.accesses.created(operand(frame, 1))
        elif noted:
            self._noting(frame, noted)
        return self._on_instruction(frame, event, arg)
