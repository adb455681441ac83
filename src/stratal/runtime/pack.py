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
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from stratal.base.artifact import (
    Branch,
    Command,
    Copy,
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

MAGIC: Final = b"stratal-program4"
_LENGTH: Final = struct.Struct("<Q")
Json = Any
Numbers = dict[SourceLine, int]  # where each line stands in the list of lines
Lines = Sequence[SourceLine]


def pack(executable: Executable, lines: Iterable[SourceLine] = ()) -> bytes:
    """Return an Executable as bytes, its host calls and the source lines in `lines` left out."""
    kernels = list(executable.kernels.values())
    numbers = {line: k for k, line in enumerate(dict.fromkeys(lines))}
    num_given = len(numbers)
    values = [_value(v, numbers) for v in executable.values]
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
        "held": executable.held,
        "sizes": [
            executable.arena_bytes, executable.kept_bytes, executable.scratch_bytes, executable.threads,
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
    lines = [*given, *(SourceLine(f, n, function, tuple(scope)) for f, n, function, scope in header["lines"])]
    symbols = header["kernels"]
    codes = zip(symbols, blobs, strict=False)
    kernels = {s: KernelObject(s, code, key) for (s, key, _), code in codes}
    arena, kept, scratch, threads = header["sizes"]
    return Executable(
        header["name"], kernels, [_to_value(v, lines) for v in header["values"]],
        _to_list(header["commands"], lines), tuple(header["inputs"]), tuple(header["outputs"]),
        tuple(header["states"]), blobs[len(symbols) :], arena, scratch, threads, calls, header["plan"],
        kept, tuple(header["held"]),
    )  # fmt: skip


def _where(where: Iterable[SourceLine], numbers: Numbers) -> list[int]:
    return [numbers.setdefault(line, len(numbers)) for line in where]


def _to_where(where: Json, lines: Lines) -> tuple[SourceLine, ...]:
    return tuple([lines[k] for k in where])


def _value(v: Value, numbers: Numbers) -> Json:
    type_ = [v.type.dtype.name, v.type.ints]
    place = [v.home, v.index, v.offset, v.alias]
    return [v.id, type_, v.strides, *place, v.label, _where(v.where, numbers), v.row]


def _to_value(fields: Json, lines: Lines) -> Value:
    id_, (dtype, shape), strides, home, index, offset, alias, label, where, row = fields
    type_ = TensorType(as_dtype(dtype), shape)
    place = home, index, offset, alias
    return Value(id_, type_, tuple(strides), *place, label, _to_where(where, lines), row)


def _command(c: Command, numbers: Numbers) -> Json:
    if isinstance(c, Launch):
        floats = [number.hex() for number in map(float, c.floats)]
        shape = [c.kernel, c.reads, c.writes, c.chunks, c.ints, floats, c.scratch_bytes]
        return ["launch", *shape, c.label, _where(c.where, numbers), c.may_fail]
    if isinstance(c, Copy):
        return ["copy", c.source, c.target, c.label]
    if isinstance(c, Host):
        return ["host", c.call, c.reads, c.writes, c.label, _where(c.where, numbers)]
    if isinstance(c, Loop):
        return ["loop", _list(c.body, numbers), c.trips, c.counter, c.trips_value, c.reverse, c.label]
    if isinstance(c, Once):
        return ["once", _list(c.body, numbers)]
    if isinstance(c, While):
        return ["while", _list(c.condition, numbers), c.predicate, _list(c.body, numbers), c.label]
    return ["branch", c.predicate, _list(c.then, numbers), _list(c.otherwise, numbers), c.label]


def _list(commands: Iterable[Command], numbers: Numbers) -> Json:
    return [_command(c, numbers) for c in commands]


def _to_list(fields: Json, lines: Lines) -> tuple[Command, ...]:
    return tuple([_READERS[kind](lines, *rest) for kind, *rest in fields])


def _to_launch(
    lines: Lines, kernel: str, reads: Json, writes: Json, chunks: int, ints: Json, floats: Json, *rest: Json
) -> Launch:
    scratch, label, where, may_fail = rest
    numbers = tuple(float.fromhex(text) for text in floats)
    buffers = tuple(reads), tuple(writes)
    found = _to_where(where, lines)
    return Launch(kernel, *buffers, chunks, tuple(ints), numbers, scratch, label, found, may_fail)


def _to_copy(lines: Lines, source: int, target: int, label: str) -> Copy:
    return Copy(source, target, label)


def _to_host(lines: Lines, call: int, reads: Json, writes: Json, label: str, where: Json) -> Host:
    return Host(call, tuple(reads), tuple(writes), label, _to_where(where, lines))


def _to_loop(lines: Lines, body: Json, *rest: Json) -> Loop:
    return Loop(_to_list(body, lines), *rest)


def _to_once(lines: Lines, body: Json) -> Once:
    return Once(_to_list(body, lines))


def _to_while(lines: Lines, condition: Json, predicate: int, body: Json, label: str) -> While:
    return While(_to_list(condition, lines), predicate, _to_list(body, lines), label)


def _to_branch(lines: Lines, predicate: int, then: Json, otherwise: Json, label: str) -> Branch:
    return Branch(predicate, _to_list(then, lines), _to_list(otherwise, lines), label)


_READERS: Final[dict[str, Callable[..., Command]]] = {
    "launch": _to_launch,
    "copy": _to_copy,
    "host": _to_host,
    "loop": _to_loop,
    "once": _to_once,
    "while": _to_while,
    "branch": _to_branch,
}
