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
from types import CodeType, FrameType, TracebackType
from typing import Any, Final

import numpy as np

from stratal.base.dims import Sym
from stratal.base.errors import CaptureError, UndecidedError
from stratal.base.interrupts import SIGNALS, GivenWay
from stratal.base.source import EXAMPLES, PACKAGE, SourceLine
from stratal.tensor.capture import frames
from stratal.tensor.capture.accesses import Accesses
from stratal.tensor.capture.attributes import reads_attribute, reads_class_attribute, writes_attribute
from stratal.tensor.capture.calls import note_call
from stratal.tensor.capture.containers import CONTAINERS, Noted, parts_of
from stratal.tensor.capture.dynamic import may_depend_on_sizes
from stratal.tensor.capture.locations import Cell, Item, Slot
from stratal.tensor.capture.objects import LIBRARIES, fields_of
from stratal.tensor.capture.plain import plain
from stratal.tensor.capture.unwinding import keep
from stratal.tensor.scalars import RuntimeScalar
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


# -- instructions: what each reads and writes ----------------------------------------------------------------
def _on(count: int, note: Callable[..., Noted | None]) -> Handler:
    """Return the handler of an instruction of which its topmost operands say all, the top last."""
    return lambda seen, frame, _: note(seen, *frames.operands(frame, count))


def _with(count: int, note: Callable[..., Noted | None]) -> Handler:
    """Return the handler of an instruction of which its argument says something, too."""
    return lambda seen, frame, arg: note(seen, *frames.operands(frame, count), arg)


def _super_attribute(seen: Accesses, function: Any, kind: Any, owner: Any, name: str) -> None:
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
    return seen.writes_location(Item(frame.f_globals, name, name))


def _load_name(seen: Accesses, frame: FrameType, name: str) -> None:
    if frame.f_locals is frame.f_globals or name not in frame.f_locals:
        _load_global(seen, frame, name)


def _load_global_unless_given(seen: Accesses, frame: FrameType, name: str) -> None:
    if name not in frames.operand(frame):
        _load_global(seen, frame, name)


def _store_name(seen: Accesses, frame: FrameType, name: str) -> Noted:
    if frame.f_locals is frame.f_globals:
        return _store_global(seen, frame, name)
    if frame.f_code.co_name == "<module>":  # of exec; otherwise the body of a class
        seen.touch(frame.f_locals)
    return False


def _outer_variable(frame: FrameType, index: int) -> Cell | None:
    """Return where a variable of a function around this one stands; None for one of its own."""
    k = index - frames.own_variables(frame.f_code)
    return None if k < 0 else Cell(frames.variable(frame, index), None, frame.f_code.co_freevars[k])


def _load_cell(seen: Accesses, frame: FrameType, index: int) -> None:
    if (location := _outer_variable(frame, index)) is not None:
        if location.holder not in seen.made:
            seen.read(location)
        with suppress(ValueError):
            seen.use(location.holder.cell_contents)


def _store_cell(seen: Accesses, frame: FrameType, index: int) -> Noted:
    location = _outer_variable(frame, index)
    return location is not None and location.holder not in seen.made and seen.writes_location(location)


def _make_cell(seen: Accesses, frame: FrameType, index: int) -> Noted:
    return lambda: seen.created(frames.variable(frame, index))


def _computed(*operands: Any) -> Noted:
    """Return whether NumPy computes the result of an instruction."""
    return any(isinstance(x, np.ndarray) for x in operands) and "computed"


def _reads_item(seen: Accesses, holder: Any, key: Any) -> Noted:
    if isinstance(holder, (*CONTAINERS, tuple, types.MappingProxyType)):
        seen.key(key)
        seen.item(holder, key)
        if isinstance(holder, dict) and key not in dict.keys(holder):
            reads_class_attribute(seen, type(holder), "__missing__")
            if isinstance(holder, defaultdict):
                reads_attribute(seen, holder, "default_factory")
    seen.use(holder)
    seen.watched(holder)
    seen.not_array(holder)
    seen.reads_text(holder)
    seen.passes(key) if isinstance(holder, Tensor) else seen.contents(key)
    return _computed(holder)


def _writes_item(seen: Accesses, value: Any, holder: Any, key: Any) -> None:
    if isinstance(holder, dict):
        seen.key(key)
    seen.use(holder)
    seen.watched(holder)
    copied = isinstance(holder, np.ndarray) and isinstance(value, np.ndarray) and not value.dtype.hasobject
    seen.writes(holder, "__setitem__", (key, value.copy() if copied else value))
    seen.not_array(holder)
    if isinstance(holder, Tensor):
        seen.passes(key)
        seen.passes(value)
    else:
        seen.contents(key)
        seen.contents(value) if isinstance(holder, np.ndarray) else None


def _sliced(note: Callable[..., Noted | None]) -> Callable[..., Noted | None]:
    """Return what notes an instruction that has the start and the end of a slice, not the slice."""
    return lambda seen, *known: note(seen, *known[:-2], slice(*known[-2:]))


def _deletes_item(seen: Accesses, holder: Any, key: Any) -> None:
    seen.use(holder)
    seen.watched(holder)
    seen.writes(holder, "__delitem__", (key,))


def _binary(seen: Accesses, left: Any, right: Any, operation: int) -> Noted:
    if type(left) is type(right) is str and operation in _ADDING:
        return False
    if isinstance(left, str) and _PADDED.search(left):
        for x in right if isinstance(right, tuple) else (right,):
            seen.shows_plainly(x)
    return _two(seen, left, right)


_ADDING: Final = (0, 13)  # the arguments of BINARY_OP for + and +=
_PADDED: Final = re.compile(r"%[-#0 +.\d*]+[sra]")  # of a text that is known only after the run


def _two(seen: Accesses, left: Any, right: Any) -> Noted:
    tensors = any(isinstance(x, Tensor) and not seen.is_array(x) for x in (left, right))
    if isinstance(left, (str, bytes)):
        seen.text(right)
    for x in (left, right):
        seen.passes(x) if tensors else seen.contents(x)
    return _computed(left, right)


def _one(seen: Accesses, value: Any) -> Noted:
    seen.contents(value)
    return _computed(value)


def _intrinsic(seen: Accesses, value: Any, number: int) -> Noted:
    return number == _POSITIVE and _one(seen, value)


_POSITIVE: Final = 5  # the argument of CALL_INTRINSIC_1 for +x


def _format(seen: Accesses, frame: FrameType, flags: int) -> None:
    value, spec = frames.operands(frame, 2) if flags & 4 else (frames.operand(frame), None)
    _shows(seen, value, spec, bool(flags & 3))


def _shows(seen: Accesses, value: Any, spec: Any = None, converted: bool = False) -> None:
    seen.text(value)
    if converted and spec is not None:
        seen.shows_plainly(value)
    if not isinstance(value, str) or spec is not None:
        seen.contents(value)


def _member(seen: Accesses, value: Any, holder: Any) -> None:
    for x in (value, *parts_of(holder)):
        seen.key(x)
    seen.member(holder, value)


def _identity(seen: Accesses, *compared: Any) -> None:
    numbers = all(type(x) in _NUMBERS for x in compared)  # none is None
    for x in compared:
        seen.key(x) if numbers else None
        seen.not_array(x)


_NUMBERS: Final = (int, float, Sym, RuntimeScalar)


def _next_item(seen: Accesses, iterator: Any) -> None:
    seen.use(iterator)
    seen.used_up(iterator)


def _yields(seen: Accesses, frame: FrameType, _: Any) -> None:
    seen.yields(frame, frames.operand(frame))


def _returns(seen: Accesses, frame: FrameType, _: Any) -> None:
    if frame.f_code in seen.caching:  # what it returns is there to stay
        seen.known_within(frames.operand(frame))


def _enter_block(seen: Accesses, frame: FrameType, _: Any) -> None:
    seen.use(frames.operand(frame))
    if frame.f_globals.get("__name__") != "functools":  # cached properties fill in what anybody would
        seen.not_lock(frames.operand(frame))


def _match_class(seen: Accesses, subject: Any, kind: Any, names: Any, count: int) -> None:
    seen.kind(subject)
    if isinstance(kind, type) and isinstance(subject, kind):
        if count:
            reads_class_attribute(seen, kind, "__match_args__")
        for name in (*getattr(kind, "__match_args__", ())[:count], *names):
            reads_attribute(seen, subject, name)


def _truth(seen: Accesses, value: Any) -> None:
    if seen.is_array(value):
        seen.contents(value)
    elif not isinstance(value, bool):
        seen.size(value)


def _update_set(seen: Accesses, frame: FrameType, depth: int) -> Noted:
    made, *_, more = frames.operands(frame, depth + 1)
    seen.items(more)
    return lambda: seen.hashes(made)


def _create(seen: Accesses, *keys: Any) -> bool:
    for x in keys:
        seen.key(x)
    return True


def _create_map(seen: Accesses, frame: FrameType, count: int) -> bool:
    return _create(seen, *frames.operands(frame, 2 * count)[::2])


def _create_set(seen: Accesses, frame: FrameType, count: int) -> bool:
    return _create(seen, *frames.operands(frame, count))


def _iterator(seen: Accesses, value: Any) -> bool:
    seen.items(value)
    return not issubclass(type(value), Iterator)


_FUNCTION_FIRST: Final = sys.version_info >= (3, 13)  # then the object it is bound to; before, the other way


def _call(seen: Accesses, frame: FrameType, arg: tuple[int, tuple[str, ...]]) -> Noted:
    count, names = arg
    return _called(seen, frames.operands(frame, count + 2), names)


def _call_named(seen: Accesses, frame: FrameType, count: int) -> Noted:
    *called, names = frames.operands(frame, count + 3)
    return _called(seen, called, names)


def _called(seen: Accesses, called: list[Any], names: tuple[str, ...]) -> Noted:
    first, second, *args = called
    if _FUNCTION_FIRST:
        function, bound = first, [] if second is frames.NOTHING else [second]
    else:
        function, bound = (second, []) if first is frames.NOTHING else (first, [second])
    return note_call(seen, function, [*bound, *args], unseen, names)


def _call_unpacked(seen: Accesses, frame: FrameType, flags: int) -> Noted:
    function, *rest = frames.operands(frame, 2 + (flags & 1) + _FUNCTION_FIRST)
    args, *kwargs = rest[_FUNCTION_FIRST:]
    given = [*args] if isinstance(args, (tuple, list)) else []
    seen.contents(args, handed_on=True)
    for named in kwargs:
        seen.contents(named, handed_on=True)
        given += named.values() if isinstance(named, dict) else []
    return note_call(seen, function, given, unseen)


def _each(names: str, handler: Handler) -> dict[str, Handler]:
    return dict.fromkeys(names.split(), handler)


_HANDLERS: Final[dict[str, Handler]] = {
    **_each("LOAD_ATTR LOAD_METHOD IMPORT_FROM", _with(1, reads_attribute)),
    **_each("STORE_ATTR DELETE_ATTR", _with(1, writes_attribute)),
    "LOAD_SUPER_ATTR": _with(3, _super_attribute), "IMPORT_NAME": _import_name,
    "LOAD_GLOBAL": _load_global, "LOAD_NAME": _load_name,
    "LOAD_FROM_DICT_OR_GLOBALS": _load_global_unless_given,
    **_each("STORE_NAME DELETE_NAME", _store_name), **_each("STORE_GLOBAL DELETE_GLOBAL", _store_global),
    **_each("LOAD_DEREF LOAD_CLASSDEREF LOAD_FROM_DICT_OR_DEREF", _load_cell),
    **_each("STORE_DEREF DELETE_DEREF", _store_cell), "MAKE_CELL": _make_cell,
    "BINARY_SUBSCR": _on(2, _reads_item), "BINARY_SLICE": _on(3, _sliced(_reads_item)),
    "STORE_SUBSCR": _on(3, _writes_item), "STORE_SLICE": _on(4, _sliced(_writes_item)),
    "DELETE_SUBSCR": _on(2, _deletes_item),
    "CONTAINS_OP": _on(2, _member), "IS_OP": _on(2, _identity), "BINARY_OP": _with(2, _binary),
    **_each("COMPARE_OP MATCH_KEYS", _on(2, _two)), "CALL_INTRINSIC_1": _with(1, _intrinsic),
    **_each("UNARY_NEGATIVE UNARY_POSITIVE UNARY_INVERT", _on(1, _one)),
    **_each("GET_LEN MATCH_MAPPING MATCH_SEQUENCE", _on(1, Accesses.contents)),
    **_each("UNPACK_SEQUENCE UNPACK_EX", _on(1, Accesses.items)),
    **_each("LIST_EXTEND DICT_UPDATE DICT_MERGE", _on(1, Accesses.items)), "SET_UPDATE": _update_set,
    "GET_ITER": _on(1, _iterator), **_each("FOR_ITER GET_YIELD_FROM_ITER", _on(1, _next_item)),
    "YIELD_VALUE": _yields, "RETURN_VALUE": _returns,
    **_each("BEFORE_WITH BEFORE_ASYNC_WITH", _enter_block), "MATCH_CLASS": _with(3, _match_class),
    **_each("UNARY_NOT TO_BOOL POP_JUMP_IF_TRUE POP_JUMP_IF_FALSE", _on(1, _truth)),
    **_each("POP_JUMP_FORWARD_IF_TRUE POP_JUMP_FORWARD_IF_FALSE", _on(1, _truth)),
    **_each("POP_JUMP_BACKWARD_IF_TRUE POP_JUMP_BACKWARD_IF_FALSE", _on(1, _truth)),
    **_each("JUMP_IF_TRUE_OR_POP JUMP_IF_FALSE_OR_POP", _on(1, _truth)),
    "FORMAT_VALUE": _format, **_each("CONVERT_VALUE FORMAT_SIMPLE", _on(1, _shows)),
    "FORMAT_WITH_SPEC": _on(2, _shows),
    "CALL": _call, "CALL_KW": _call_named, "CALL_FUNCTION_EX": _call_unpacked,
    **_each("BUILD_LIST BUILD_CONST_KEY_MAP MAKE_FUNCTION", _on(0, _create)),
    "BUILD_SET": _create_set, "BUILD_MAP": _create_map,
    "SET_ADD": _on(1, Accesses.key), "MAP_ADD": _on(2, lambda seen, key, value: seen.key(key)),
}  # fmt: skip
"""Instructions of Python 3.11 to 3.13."""
_BY_NAME: Final = frozenset({
    "LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM", "IMPORT_NAME", "STORE_ATTR", "DELETE_ATTR",
    "LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS", "STORE_GLOBAL", "DELETE_GLOBAL", "STORE_NAME",
    "DELETE_NAME",
})  # fmt: skip
_SHOWS_PREFIX: Final = sys.version_info < (3, 12)  # in place of the instruction that it belongs to

Step = tuple[Handler, Any]


@frames.once_per_code
def _table(code: CodeType) -> dict[int, Step]:
    """Return the instructions of a function to be noted, by offset; that of prefixes where there are any."""
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
    return table


def unseen(code: CodeType, scope: dict[str, Any]) -> bool:
    """Return whether a function belongs to this package or to NumPy, whose code is not observed."""
    file = code.co_filename
    if file.startswith(_SEEN):
        return False
    return file.startswith(_UNSEEN) or (
        file == "<string>" and str(scope.get("__name__")).startswith(("stratal.", "namedtuple_"))
    )


def _observed(frame: FrameType | None, end: FrameType | None = None) -> Iterator[FrameType]:
    """Yield frames of code that is observed, the innermost first, up to one."""
    while frame is not None and frame is not end:
        if not unseen(frame.f_code, frame.f_globals):
            yield frame
        frame = frame.f_back


def _lines(frame: FrameType) -> tuple[SourceLine, ...]:
    """Return the innermost line that belongs neither to this package nor to a library."""
    for f in _observed(frame):
        if not f.f_code.co_filename.startswith((*LIBRARIES, "<string>")):
            return (SourceLine(f.f_code.co_filename, f.f_lineno, f.f_code.co_qualname),)
    return ()


def _raised_by_user(traceback: TracebackType | None) -> bool:
    """Return whether a `raise` of code that is observed raised an error: what led there was observed, too."""
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None or unseen(traceback.tb_frame.f_code, traceback.tb_frame.f_globals):
        return False
    return traceback.tb_frame.f_code.co_code[traceback.tb_lasti] == dis.opmap["RAISE_VARARGS"]


class Observer:
    """Observes this thread between `start` and `stop`."""

    def __init__(self, accesses: Accesses) -> None:
        self.accesses = accesses
        self.refusal: CaptureError | UndecidedError | None = None
        self.depends_on_sizes = False  # whether an error was raised that some sizes may do without
        self.interrupt: KeyboardInterrupt | None = None  # seen, be it raised by the function
        self.signalled = False  # whether one was raised by a signal
        self.lost = False  # whether Python has stopped calling it: it does so at the end of the stack
        self._before: Any = None
        self._operands = frames.observable()  # now: it traces, too
        self._root: FrameType | None = None
        self._local: Trace = self._on_instruction

    def start(self) -> None:
        self._before, self._root = sys.gettrace(), sys._getframe(1)
        frames.allow_instructions()
        sys.settrace(self._on_call)

    def stop(self) -> None:
        self.lost = sys.gettrace() != self._on_call
        sys.settrace(self._before)
        self._root = None

    def interrupted(self, error: BaseException) -> bool:
        """Return whether a signal, not the function itself, is behind what was raised."""
        return self.signalled or (isinstance(error, KeyboardInterrupt) and error is not self.interrupt)

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
        frames.trace_instructions(frame, self._local)
        self._enter(frame)
        return self._local

    def _enter(self, frame: FrameType) -> None:
        """Note what a function is: its code, defaults, and containers Python made for its arguments."""
        code, seen = frame.f_code, self.accesses
        function = frames.function_of(frame)
        if isinstance(function, types.FunctionType) and function not in seen.made:
            name = function.__name__
            for field in ("__code__", "__defaults__", "__kwdefaults__"):
                value = getattr(function, field)
                if value is not None:
                    seen.read(Slot(function, field, f"{name}.{field}"))
                    seen.contents(value)
        for cell in frames.own_cells(frame):
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
        """Note what refused the capture, or may depend on sizes: a function may catch it, and go on as it
        would not uncompiled.
        """
        if event != "exception":
            return frame.f_trace
        _, error, traceback = arg
        if isinstance(error, (CaptureError, UndecidedError)):
            self.refusal = self.refusal or error
        elif self.accesses.trace.symbols and may_depend_on_sizes(error):
            self.depends_on_sizes = self.depends_on_sizes or not _raised_by_user(traceback)
        if isinstance(error, KeyboardInterrupt) and error is not self.interrupt:
            self.signalled = self.signalled or not frames.raises(frame)
            self.interrupt = error
        return frame.f_trace

    def _on_instruction(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event != "opcode":
            return self._on_exception(frame, event, arg)
        if SIGNALS.pending and SIGNALS.give_way():
            keep(self.accesses, _observed(frame, self._root))
            raise GivenWay
        step = _table(frame.f_code).get(frame.f_lasti)
        if step is None:
            return self._local
        handler, what = step
        noted = self._noting(frame, lambda: handler(self.accesses, frame, what))
        return functools.partial(self._afterwards, noted) if noted else self._local

    def _noting(self, frame: FrameType, note: Callable[[], Noted | None]) -> Noted | None:
        try:
            return note()
        except (CaptureError, UndecidedError) as error:
            error.where = _lines(frame) or error.where
            self.refusal = self.refusal or error
            keep(self.accesses, _observed(frame, self._root))
            raise

    def _afterwards(self, noted: Noted, frame: FrameType, event: str, arg: Any) -> Any:
        if event != "opcode":  # an exception: there is no result
            self._on_exception(frame, event, arg)
            return self._local
        if noted is True:
            self.accesses.created(frames.operand(frame))
        elif noted == "computed":
            self.accesses.computed(frames.operand(frame))
        elif noted:
            self._noting(frame, noted)
        return self._on_instruction(frame, event, arg)
