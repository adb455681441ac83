"""Pickles read as data: plain values from opcodes, and what a caller's table says of a few named functions.

A pickle is a program for a stack machine that may name any function of any module and call it. Here opcodes
are only read, by the tables of `pickletools`; nothing is imported, and a name that is not in the table is
refused, called or not.

    value := None | bool | int | float | text | bytes | [value ...] | (value ...) | {key: value} | made
    key   := text | int | float | bool | None | a tuple of these
    made  := what the table's function returns for the arguments of a name, or a persistent id

Opcodes that make instances of classes, numbers of text, and references into themselves are refused.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any, Final, NoReturn, final

from stratal.base.errors import FormatError

MOST_DEPTH: Final = 200
MOST_VALUES: Final = 20_000_000  # of a value written out in full: parts may be shared
_LONGEST_INT: Final = 4096  # bits, as in documents
_ADVICE: Final = "nothing in a file is called: torch.save(net.state_dict(), path) writes plain data"

Made = Callable[..., Any]

_PUSHED: Final = frozenset((
    "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE",
    "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8",
))  # fmt: skip
_NAMED: Final[dict[str, Any]] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_EMPTY: Final[dict[str, Callable[[], Any]]] = {"EMPTY_LIST": list, "EMPTY_DICT": dict}
_TUPLES: Final = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_OTHERS: Final = frozenset((
    "PROTO", "FRAME", "MARK", "TUPLE", "APPEND", "APPENDS", "SETITEM", "SETITEMS", "BINPUT", "LONG_BINPUT",
    "MEMOIZE", "BINGET", "LONG_BINGET", "GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "BINPERSID", "STOP",
))  # fmt: skip
_OPCODES: Final = {
    opcode.code.encode("latin-1"): opcode
    for opcode in pickletools.opcodes
    if opcode.name in {*_PUSHED, *_NAMED, *_EMPTY, *_TUPLES, *_OTHERS}
}
_REFUSED: Final = {opcode.code.encode("latin-1"): opcode.name for opcode in pickletools.opcodes}
_MARK: Final = object()


class Operand:
    """What a name or a persistent id stands for: functions of the table take it, it is no value."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name: Final = name


@final
class Named(Operand):
    """A name of the table, on the stack until it is called or passed on."""

    __slots__ = ()


def refuse(rule: str, got: object = "", hint: str = "") -> NoReturn:
    """Raise the error for a pickle that is no data."""
    raise FormatError(f"torch file: {rule}", got=str(got)[:120], hint=hint)


def read_pickle(
    data: memoryview | bytes, table: Mapping[str, Made | None], values: Mapping[str, Any], persistent: Made
) -> Any:
    """Return the value of a pickle.

    `table` has, by full name, functions of the arguments in the file; None where a name is only passed on.
    `values` has names that are values themselves. `persistent` takes a persistent id.
    Raises: FormatError.
    """
    machine, file = _Machine(table, values, persistent), BytesIO(data)
    try:
        while code := file.read(1):
            opcode = _OPCODES.get(code)
            if opcode is None:
                refuse("an opcode that makes no plain value", _REFUSED.get(code, code), _ADVICE)
            if opcode.name == "STOP":
                return _checked(machine.result())
            if opcode.name == "GLOBAL":  # the table's reader takes escapes, and warns of them
                argument: Any = [file.readline().removesuffix(b"\n").decode() for _ in range(2)]
            else:
                argument = None if opcode.arg is None else opcode.arg.reader(file)
            machine.run(opcode.name, argument)
    except FormatError:
        raise
    except (ValueError, OverflowError) as error:
        refuse("not a pickle, or damaged", str(error) or type(error).__name__)
    refuse("a pickle without an end")


class _Machine:
    """The stack and the memo of a pickle."""

    def __init__(self, table: Mapping[str, Made | None], values: Mapping[str, Any], persistent: Made) -> None:
        self._table, self._values, self._persistent = table, values, persistent
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def result(self) -> Any:
        """Return the one value left. Raises: FormatError."""
        if len(self._stack) != 1:
            refuse("a pickle ends with one value", f"{len(self._stack)} of them")
        return self._pop()

    def run(self, name: str, argument: Any) -> None:
        """Do what an opcode says. Raises: FormatError."""
        if name in _PUSHED:
            if type(argument) is int and argument.bit_length() > _LONGEST_INT:
                refuse("an int that is too long", f"{argument.bit_length()} bits")
            self._stack.append(argument)
        elif name in _NAMED:
            self._stack.append(_NAMED[name])
        elif name in _EMPTY:
            self._stack.append(_EMPTY[name]())
        elif name in _TUPLES:
            self._stack.append(tuple(reversed([self._pop() for _ in range(_TUPLES[name])])))
        else:
            self._run_other(name, argument)

    def _run_other(self, name: str, argument: Any) -> None:
        match name:
            case "PROTO" | "FRAME":
                pass
            case "MARK":
                self._stack.append(_MARK)
            case "TUPLE":
                self._stack.append(tuple(self._pop_to_mark()))
            case "APPEND":
                self._extend([self._pop()])
            case "APPENDS":
                self._extend(self._pop_to_mark())
            case "SETITEM":
                value, key = self._pop(), self._pop()
                self._update([key, value])
            case "SETITEMS":
                self._update(self._pop_to_mark())
            case "BINPUT" | "LONG_BINPUT":
                self._memo[argument] = self._top()
            case "MEMOIZE":
                self._memo[len(self._memo)] = self._top()
            case "BINGET" | "LONG_BINGET":
                if argument not in self._memo:
                    refuse("a pickle reads what it has not stored", argument)
                self._stack.append(self._memo[argument])
            case "GLOBAL":
                self._stack.append(self._look_up(*argument))
            case "STACK_GLOBAL":
                attribute, module = self._pop(), self._pop()
                self._stack.append(self._look_up(module, attribute))
            case "REDUCE":
                arguments, function = self._pop(), self._pop()
                self._stack.append(self._call(function, arguments))
            case "BUILD":
                state, owner = self._pop(), self._top()
                if not isinstance(owner, dict) or not isinstance(state, dict):
                    refuse("an object with a state of its own", type(owner).__name__, _ADVICE)
                # An OrderedDict's attributes: `_metadata` of state dicts, versions of modules.
            case "BINPERSID":
                self._stack.append(self._persistent(self._pop()))
            case _:
                raise AssertionError(name)  # not in _OTHERS

    # -- the stack -------------------------------------------------------------------------------------------
    def _top(self) -> Any:
        if not self._stack or self._stack[-1] is _MARK:
            refuse("a pickle takes more than its stack has")
        return self._stack[-1]

    def _pop(self) -> Any:
        self._top()
        return self._stack.pop()

    def _pop_to_mark(self) -> list[Any]:
        for at in range(len(self._stack) - 1, -1, -1):
            if self._stack[at] is _MARK:
                found = self._stack[at + 1 :]
                del self._stack[at:]
                return found
        refuse("a pickle takes more than its stack has")

    def _extend(self, items: list[Any]) -> None:
        owner = self._top()
        if type(owner) is not list:
            refuse("elements of what is no list", type(owner).__name__)
        owner.extend(items)

    def _update(self, flat: list[Any]) -> None:
        owner = self._top()
        if not isinstance(owner, dict) or len(flat) % 2:
            refuse("items of what is no dict", type(owner).__name__)
        for key, value in zip(flat[::2], flat[1::2], strict=True):
            owner[checked_key(key)] = value

    # -- names -----------------------------------------------------------------------------------------------
    def _look_up(self, module: Any, attribute: Any) -> Any:
        name = f"{module}.{attribute}"
        if name in self._values:
            return self._values[name]
        if name not in self._table:
            refuse("it names a class or function that is neither a tensor nor plain data", name, _ADVICE)
        return Named(name)

    def _call(self, function: Any, arguments: Any) -> Any:
        made = self._table[function.name] if isinstance(function, Named) else None
        if made is None or type(arguments) is not tuple:
            refuse("it calls what is no function here", getattr(function, "name", type(function).__name__))
        return called(made, function.name, arguments)


def called(made: Made, name: str, arguments: tuple[Any, ...]) -> Any:
    """Return what a function of a table makes of a file's arguments. Raises: FormatError."""
    try:
        return made(*arguments)
    except TypeError:  # of their number; functions of a table check what each is
        refuse("a call with other arguments than it takes", f"{name} of {len(arguments)}")


def checked_key(key: Any) -> Any:
    """Return a key of a dict. Raises: FormatError; no hash of anything deep is taken."""
    parts = key if type(key) is tuple else (key,)
    if not all(part is None or type(part) in (str, int, float, bool) for part in parts):
        refuse("a key that is neither text nor a number", type(key).__name__)
    return key


def _checked(value: Any) -> Any:
    """Return a value that is a tree, not too deep and, with shared parts written out, not too large.

    Raises: FormatError, also where an operand stands as a value.
    """
    sizes: dict[int, tuple[int, int]] = {}  # of containers, by id: values inside, depth
    around: set[int] = set()
    stack: list[tuple[Any, bool]] = [(value, False)]
    while stack:
        node, is_left = stack.pop()
        if isinstance(node, Operand):
            refuse("a function, class or storage as a value", node.name, _ADVICE)
        if not isinstance(node, (list, tuple, dict)) or (not is_left and id(node) in sizes):
            continue
        parts = list(node.values()) if isinstance(node, dict) else node
        if not is_left:
            if id(node) in around:
                refuse("a value that holds itself", type(node).__name__)
            around.add(id(node))
            stack.append((node, True))
            stack += [(part, False) for part in parts]
            continue
        around.remove(id(node))
        inner = [sizes.get(id(part), (1, 0)) for part in parts]
        size, depth = 1 + sum(n for n, _ in inner), 1 + max((d for _, d in inner), default=0)
        if size > MOST_VALUES or depth > MOST_DEPTH:
            refuse("nested too deep, or too large", f"{size} values, {depth} deep")
        sizes[id(node)] = size, depth
    return value
