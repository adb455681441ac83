"""An Executable as bytes, for the program cache: a JSON header, then object code and constants as they are.

    file := MAGIC, u64 length of the header, header, blobs

Host calls are Python functions of this process and are not written; who unpacks hands them in again. Source
lines are numbers in a list. A list given to both `pack` and `unpack` is not written: one program serves every
place in the user's files that computes the same.
Unpacking builds nothing but the plain data of base.artifact, and anything malformed is a FormatError.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any, Final

from stratal.base.artifact import (
    Branch,
    Command,
    Copy,
    CopyDone,
    CopyStart,
    Executable,
    Host,
    KernelObject,
    Launch,
    Loop,
    Once,
    Value,
    While,
)
from stratal.base.dtypes import as_dtype
from stratal.base.errors import FormatError
from stratal.base.source import SourceLine
from stratal.base.types import TensorType

MAGIC: Final = b"stratal-program6"
_LENGTH: Final = struct.Struct("<Q")
Json = Any
Numbers = dict[SourceLine, int]  # where each line stands in the list of lines
Lines = Sequence[SourceLine]


def pack(executable: Executable, lines: Iterable[SourceLine] = ()) -> bytes:
    """Return an Executable as bytes, its host calls and the source lines in `lines` left out."""
    kernels = list(executable.kernels.values())
    numbers = {line: k for k, line in enumerate(dict.fromkeys(lines))}
    num_given = len(numbers)
    values = [_fields(v, numbers) for v in executable.values]
    commands = _list(executable.commands, numbers)
    header = {
        "name": executable.name,
        "kernels": [[k.symbol, k.key, len(k.code)] for k in kernels],
        "constants": [len(c) for c in executable.constants],
        "num_lines": num_given,
        "lines": list(numbers)[num_given:],
        "values": values,
        "commands": commands,
        "inputs": executable.inputs,
        "outputs": executable.outputs,
        "states": executable.states,
        "frozen": executable.frozen,
        "sizes": [
            executable.arena_bytes, executable.persistent_bytes, executable.scratch_bytes, executable.threads,
        ],
        "num_calls": len(executable.calls),
        "plan": executable.plan,
    }
    text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
    blobs = [k.code for k in kernels] + executable.constants
    return b"".join([MAGIC, _LENGTH.pack(len(text)), text, *blobs])


def unpack(data: bytes, calls: Sequence[object] = (), lines: Iterable[SourceLine] = ()) -> Executable:
    """Return the Executable that `pack` wrote.

    Raises: FormatError, also for another number of calls or lines.
    """
    try:
        return _unpack(data, list(calls), list(dict.fromkeys(lines)))
    except FormatError:
        raise
    except (ValueError, TypeError, KeyError, IndexError, struct.error, RecursionError) as error:
        raise FormatError("program file: malformed", got=f"{type(error).__name__}: {error}"[:200]) from None


def _unpack(data: bytes, calls: list[object], given: list[SourceLine]) -> Executable:
    start = len(MAGIC) + _LENGTH.size
    if data[: len(MAGIC)] != MAGIC:
        raise FormatError("program file: not one of this version")
    (length,) = _LENGTH.unpack_from(data, len(MAGIC))
    header = json.loads(data[start : start + length])
    sizes = [k[2] for k in header["kernels"]] + header["constants"]
    blobs, at = [], start + length
    for size in sizes:
        blobs.append(data[at : at + size])
        at += size
    if at != len(data) or any(type(size) is not int or size < 0 for size in sizes):
        raise FormatError("program file: truncated or longer than it says")
    if header["num_calls"] != len(calls):
        got = f"{len(calls)}, not {header['num_calls']}"
        raise FormatError("program file: needs other host calls", got=got)
    if header["num_lines"] != len(given):
        raise FormatError(
            "program file: needs other source lines", got=f"{len(given)}, not {header['num_lines']}"
        )
    own = (SourceLine(f, n, name, tuple(scope), module) for f, n, name, scope, module in header["lines"])
    lines = [*given, *own]
    symbols = header["kernels"]
    codes = zip(symbols, blobs, strict=False)
    kernels = {s: KernelObject(s, code, key) for (s, key, _), code in codes}
    arena, kept, scratch, threads = header["sizes"]
    return Executable(
        header["name"], kernels, [_made(Value, v, lines) for v in header["values"]],
        _to_list(header["commands"], lines), tuple(header["inputs"]), tuple(header["outputs"]),
        tuple(header["states"]), blobs[len(symbols) :], arena, scratch, threads, calls, header["plan"],
        kept, tuple(header["frozen"]),
    )  # fmt: skip


_KINDS: Final[dict[str, type[Command]]] = {
    "launch": Launch, "copy": Copy, "copy-start": CopyStart, "copy-done": CopyDone, "host": Host,
    "loop": Loop, "once": Once, "while": While, "branch": Branch,
}  # fmt: skip
_NAMES: Final = {kind: name for name, kind in _KINDS.items()}
_FIELDS: Final = {kind: tuple(field.name for field in fields(kind)) for kind in (Value, *_NAMES)}
_LISTS: Final = ("body", "condition", "then", "otherwise")  # fields that hold commands


def _fields(record: Value | Command, numbers: Numbers) -> list[Json]:
    """Return the fields of a value or a command, in order."""
    return [_field(name, getattr(record, name), numbers) for name in _FIELDS[type(record)]]


def _field(name: str, value: Any, numbers: Numbers) -> Json:
    if name in _LISTS:
        return _list(value, numbers)
    if name == "floats":
        return [number.hex() for number in map(float, value)]
    if name == "type":
        return [value.dtype.name, value.ints]
    return [numbers.setdefault(line, len(numbers)) for line in value] if name == "where" else value


def _made(kind: type[Any], fields: Json, lines: Lines) -> Any:
    """Return the value or command that has these fields."""
    return kind(*(_to_field(n, v, lines) for n, v in zip(_FIELDS[kind], fields, strict=True)))


def _to_field(name: str, value: Json, lines: Lines) -> Any:
    if name in _LISTS:
        return _to_list(value, lines)
    if name == "floats":
        return tuple([float.fromhex(text) for text in value])
    if name == "where":
        return tuple([lines[k] for k in value])
    if name == "in_place":
        return tuple([(read, write) for read, write in value])
    if name == "type":
        dtype, shape = value
        return TensorType(as_dtype(dtype), shape)
    return tuple(value) if isinstance(value, list) else value


def _list(commands: Iterable[Command], numbers: Numbers) -> Json:
    """Return commands, each the name of its kind, then its fields."""
    return [[_NAMES[type(c)], *_fields(c, numbers)] for c in commands]


def _to_list(fields: Json, lines: Lines) -> tuple[Command, ...]:
    return tuple([_made(_KINDS[kind], given, lines) for kind, *given in fields])
