"""Operand stacks of running Python frames: what an instruction is about to read or write.

CPython shows a tracing function which instruction comes next, not its operands. They lie in the frame's
memory, whose layout differs between versions (`Include/internal/pycore_frame.h`). How many are in use is a
number there up to 3.11; later, it follows from the instructions before (`depths`). `observable()` reads a
known frame first and compares; where that fails, captures are not observed, and each call is audited.
"""

from __future__ import annotations

import ctypes
import dis
import functools
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple, TypeVar

from stratal.base.session import SESSION

T = TypeVar("T")


class Layout(NamedTuple):
    """Offsets in words, of the interpreter's frame in a frame object and of fields in the former."""

    frame: int  # in a frame object
    function: int
    values: int  # locals, cells, operands
    stack_size: int | None  # an int: locals, cells and operands in use


_WORD: Final = ctypes.sizeof(ctypes.c_void_p)
_LATER: Final = Layout(3, 2, 9, None)
_LAYOUTS: Final = {(3, 11): Layout(3, 0, 9, 8), (3, 12): _LATER, (3, 13): _LATER}
_LAYOUT: Final = _LAYOUTS.get(sys.version_info[:2], Layout(0, 0, 0, 0))
_FRAME: Final = _LAYOUT.frame * _WORD
_VALUES: Final = _LAYOUT.values * _WORD
_word: Final = ctypes.c_void_p.from_address
_int: Final = ctypes.c_int.from_address
_object: Final = ctypes.py_object.from_address
NOTHING: Final[Any] = object()  # an empty place: a call without a bound object, a local without a value


def _read(address: int) -> Any:
    return _object(address).value if _word(address).value else NOTHING


def _top(frame: FrameType, inner: int) -> int:
    """Return the address behind the topmost operand."""
    if _LAYOUT.stack_size is not None:
        return inner + _VALUES + _int(inner + _LAYOUT.stack_size * _WORD).value * _WORD
    return inner + _VALUES + depths(frame.f_code)[frame.f_lasti] * _WORD


def _inner(frame: FrameType) -> int:
    """Return the address of the interpreter's frame."""
    return _word(id(frame) + _FRAME).value or 0


def operands(frame: FrameType, count: int) -> list[Any]:
    """Return the topmost operands, the top last, of a frame about to run an instruction."""
    top = _top(frame, _inner(frame))
    return [_read(top - k * _WORD) for k in range(count, 0, -1)]


def operand(frame: FrameType) -> Any:
    """Return the topmost operand."""
    return operands(frame, 1)[0]


def variable(frame: FrameType, index: int) -> Any:
    """Return a local variable, or the cell of one that functions share."""
    return _read(_inner(frame) + _VALUES + index * _WORD)


def function_of(frame: FrameType) -> Any:
    """Return the function that runs in a frame."""
    return _read(_inner(frame) + _LAYOUT.function * _WORD)


def raises(frame: FrameType) -> bool:
    """Return whether a frame stands at a `raise`, where no signal handler runs."""
    return dis.opname[frame.f_code.co_code[frame.f_lasti]] == "RAISE_VARARGS"


def own_variables(code: CodeType) -> int:
    """Return how many variables are a function's own; those of functions around it come behind."""
    return len(set(code.co_varnames) | set(code.co_cellvars))


def own_cells(frame: FrameType) -> list[Any]:
    """Return the cells a function was given for variables that it shares with functions inside."""
    code = frame.f_code
    arguments = [x for x in code.co_cellvars if x in code.co_varnames]
    others = range(len(code.co_varnames), own_variables(code))
    return [variable(frame, k) for k in (*map(code.co_varnames.index, arguments), *others)]


_JUMPS: Final = frozenset({"JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_ABSOLUTE"})
_ENDS: Final = frozenset({"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "INTERPRETER_EXIT"})


def once_per_code(compute: Callable[[CodeType], T]) -> Callable[[CodeType], T]:
    """Let something be computed once of each function's code, which is slow to hash and to compare."""
    known = SESSION.cache(dict[int, tuple[CodeType, T]]())

    def computed(code: CodeType) -> T:
        found = known.get(id(code))
        if found is None:
            found = known[id(code)] = code, compute(code)
        return found[1]

    return computed


@once_per_code
def depths(code: CodeType) -> dict[int, int]:
    """Return how many variables and operands there are ahead of each instruction that can be reached."""
    instructions = list(dis.get_instructions(code))
    location = {i.offset: k for k, i in enumerate(instructions)}
    found: dict[int, int] = {}
    entries: Any = dis.Bytecode(code)
    first = own_variables(code) + len(code.co_freevars)
    handlers = [(e.target, first + e.depth + 1 + e.lasti) for e in entries.exception_entries]
    ways = [(0, first), *handlers]
    while ways:
        offset, depth = ways.pop()
        for i in instructions[location[offset] :]:
            if i.offset in found:
                break
            found[i.offset] = depth
            if i.opcode in dis.hasjrel or i.opcode in dis.hasjabs:
                ways.append((i.argval, depth + dis.stack_effect(i.opcode, i.arg, jump=True)))
            if i.opname in _JUMPS or i.opname in _ENDS:
                break
            sent = i.opname == "RETURN_GENERATOR"  # goes on with a value that is sent
            depth += 1 if sent else dis.stack_effect(i.opcode, i.arg, jump=False)
    return found


class _Probe:
    held = 1


@functools.cache
def observable() -> bool:
    """Return whether frames of this interpreter can be read: a frame that is known says so."""
    if sys.implementation.name != "cpython" or sys.version_info[:2] not in _LAYOUTS:
        return False
    probe, seen = _Probe(), []

    def probed() -> Any:
        return probe.held

    def on_opcode(frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode":
            inner = _inner(frame)
            used = (_top(frame, inner) - inner - _VALUES) // _WORD
            seen.append(operand(frame) if 1 < used < 8 else None)
        return on_opcode

    def on_call(frame: FrameType, event: str, _: Any) -> Any:
        trace_instructions(frame, on_opcode)
        seen.append(function_of(frame))
        return on_opcode

    before = sys.gettrace()
    try:
        allow_instructions()
        sys.settrace(on_call)
        probed()
    finally:
        sys.settrace(before)
    return seen[0] is probed and any(x is probe for x in seen)


def traces_now() -> bool:
    """Return whether Python calls tracing functions here: not while one runs, as at a debugger's prompt."""
    seen: list[str] = []
    before = sys.gettrace()
    try:
        sys.settrace(lambda frame, event, arg: seen.append(event))
        (lambda: None)()
    finally:
        sys.settrace(before)
    return bool(seen)


def allow_instructions() -> None:
    """Make tracing functions that are set from now on see instructions: 3.12 asks some frame for it first."""
    if sys.version_info[:2] == (3, 12):
        sys._getframe().f_trace_opcodes = True


def trace_instructions(frame: FrameType, trace: Any) -> None:
    """Trace a frame by instructions, not by lines; 3.13 takes note only where there is a function to call."""
    frame.f_trace = trace
    frame.f_trace_lines, frame.f_trace_opcodes = False, True
