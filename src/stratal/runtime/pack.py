"""An Executable as bytes, for the program cache: a JSON header, then object code and constants as they are.

    file := MAGIC, u64 length of the header, header, blobs

Host calls are Python functions of this process and are not written; who unpacks hands them in again.
Unpacking builds nothing but the plain data of base.artifact, and anything malformed is a FormatError.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
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
    Value,
    While,
)
from stratal.base.dtypes import as_dtype
from stratal.base.errors import FormatError
from stratal.base.source import SourceLine
from stratal.base.types import TensorType

MAGIC: Final = b"stratal-program1"
_LENGTH: Final = struct.Struct("<Q")
Json = Any


def pack(executable: Executable) -> bytes:
    """Return an Executable as bytes, its host calls left out."""
    kernels = list(executable.kernels.values())
    header = {
        "name": executable.name,
        "kernels": [[k.symbol, k.key, len(k.code)] for k in kernels],
        "constants": [len(c) for c in executable.constants],
        "values": [_value(v) for v in executable.values],
        "commands": [_command(c) for c in executable.commands],
        "inputs": executable.inputs,
        "outputs": executable.outputs,
        "states": executable.states,
        "sizes": [executable.arena_bytes, executable.scratch_bytes, executable.threads],
        "num_calls": len(executable.calls),
        "plan": executable.plan,
    }
    text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
    blobs = [k.code for k in kernels] + executable.constants
    return b"".join([MAGIC, _LENGTH.pack(len(text)), text, *blobs])


def unpack(data: bytes, calls: Sequence[object] = ()) -> Executable:
    """Return the Executable that `pack` wrote. Raises: FormatError, also for another number of calls."""
    try:
        return _unpack(data, list(calls))
    except FormatError:
        raise
    except (ValueError, TypeError, KeyError, IndexError, struct.error, RecursionError) as error:
        raise FormatError("program file: malformed", got=f"{type(error).__name__}: {error}"[:200]) from None


def _unpack(data: bytes, calls: list[object]) -> Executable:
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
    symbols = header["kernels"]
    codes = zip(symbols, blobs, strict=False)
    kernels = {s: KernelObject(s, code, key) for (s, key, _), code in codes}
    arena, scratch, threads = header["sizes"]
    return Executable(
        header["name"], kernels, [_to_value(v) for v in header["values"]],
        tuple(_to_command(c) for c in header["commands"]), tuple(header["inputs"]), tuple(header["outputs"]),
        tuple(header["states"]), blobs[len(symbols) :], arena, scratch, threads, calls, header["plan"],
    )  # fmt: skip


def _lines(where: tuple[SourceLine, ...]) -> Json:
    return [[line.file, line.line, line.function, line.scope] for line in where]


def _to_lines(where: Json) -> tuple[SourceLine, ...]:
    return tuple(SourceLine(file, line, function, tuple(scope)) for file, line, function, scope in where)


def _value(v: Value) -> Json:
    type_ = [v.type.dtype.name, v.type.ints]
    return [v.id, type_, v.strides, v.home, v.index, v.offset, v.alias, v.label, _lines(v.where)]


def _to_value(fields: Json) -> Value:
    id_, (dtype, shape), strides, home, index, offset, alias, label, where = fields
    type_ = TensorType(as_dtype(dtype), shape)
    return Value(id_, type_, tuple(strides), home, index, offset, alias, label, _to_lines(where))


def _command(c: Command) -> Json:
    if isinstance(c, Launch):
        floats = [number.hex() for number in map(float, c.floats)]
        shape = [c.kernel, c.reads, c.writes, c.chunks, c.ints, floats, c.scratch_bytes]
        return ["launch", *shape, c.label, _lines(c.where), c.may_fail]
    if isinstance(c, Copy):
        return ["copy", c.source, c.target, c.label]
    if isinstance(c, Host):
        return ["host", c.call, c.reads, c.writes, c.label, _lines(c.where)]
    if isinstance(c, Loop):
        return ["loop", _list(c.body), c.trips, c.counter, c.trips_value, c.reverse, c.label]
    if isinstance(c, While):
        return ["while", _list(c.condition), c.predicate, _list(c.body), c.label]
    return ["branch", c.predicate, _list(c.then), _list(c.otherwise), c.label]


def _list(commands: tuple[Command, ...]) -> Json:
    return [_command(c) for c in commands]


def _to_list(fields: Json) -> tuple[Command, ...]:
    return tuple(_to_command(c) for c in fields)


def _to_launch(
    kernel: str, reads: Json, writes: Json, chunks: int, ints: Json, floats: Json, scratch: int, *rest: Json
) -> Launch:
    label, where, may_fail = rest
    numbers = tuple(float.fromhex(text) for text in floats)
    buffers = tuple(reads), tuple(writes)
    return Launch(kernel, *buffers, chunks, tuple(ints), numbers, scratch, label, _to_lines(where), may_fail)


def _to_host(call: int, reads: Json, writes: Json, label: str, where: Json) -> Host:
    return Host(call, tuple(reads), tuple(writes), label, _to_lines(where))


def _to_loop(body: Json, *rest: Json) -> Loop:
    return Loop(_to_list(body), *rest)


def _to_while(condition: Json, predicate: int, body: Json, label: str) -> While:
    return While(_to_list(condition), predicate, _to_list(body), label)


def _to_branch(predicate: int, then: Json, otherwise: Json, label: str) -> Branch:
    return Branch(predicate, _to_list(then), _to_list(otherwise), label)


_READERS: Final[dict[str, Callable[..., Command]]] = {
    "launch": _to_launch,
    "copy": Copy,
    "host": _to_host,
    "loop": _to_loop,
    "while": _to_while,
    "branch": _to_branch,
}


def _to_command(fields: Json) -> Command:
    return _READERS[fields[0]](*fields[1:])
