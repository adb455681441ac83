"""Files as `torch.save` writes them, put together by hand: opcodes of a pickle, and a zip around it."""

from __future__ import annotations

import io
import pickletools
import struct
import zipfile
from collections.abc import Mapping
from typing import Any

_CODES = {op.name: op.code.encode("latin-1") for op in pickletools.opcodes}


def op(name: str, argument: bytes = b"") -> bytes:
    """Return one opcode with its argument's bytes."""
    return _CODES[name] + argument


def value(given: Any) -> bytes:
    """Return the opcodes that push a plain value; bytes are opcodes already."""
    if isinstance(given, bytes):
        return given
    if given is None or isinstance(given, bool):
        return op({None: "NONE", True: "NEWTRUE", False: "NEWFALSE"}[given])
    if isinstance(given, int):
        if 0 <= given < 256:
            return op("BININT1", bytes([given]))
        return op("LONG1", bytes([9]) + given.to_bytes(9, "little", signed=True))
    if isinstance(given, float):
        return op("BINFLOAT", struct.pack(">d", given))
    if isinstance(given, str):
        text = given.encode()
        return op("BINUNICODE", struct.pack("<I", len(text)) + text)
    if isinstance(given, tuple):
        return op("MARK") + b"".join(map(value, given)) + op("TUPLE")
    if isinstance(given, list):
        return op("EMPTY_LIST") + op("MARK") + b"".join(map(value, given)) + op("APPENDS")
    items = b"".join(value(key) + value(part) for key, part in given.items())
    return op("EMPTY_DICT") + op("MARK") + items + op("SETITEMS")


def name(module: str, attribute: str) -> bytes:
    """Return the opcode that looks up a name."""
    return op("GLOBAL", f"{module}\n{attribute}\n".encode())


def call(module: str, attribute: str, *arguments: Any) -> bytes:
    """Return the opcodes of a call."""
    return name(module, attribute) + value(arguments) + op("REDUCE")


def stored(kind: str, key: str, count: int) -> bytes:
    """Return the opcodes of a storage, such as ("FloatStorage", "0", 6)."""
    return value(("storage", name("torch", kind), key, "cpu", count)) + op("BINPERSID")


def rebuilt(storage: bytes, shape: tuple[Any, ...], strides: tuple[Any, ...], offset: Any = 0) -> bytes:
    """Return the opcodes of a tensor."""
    hooks = call("collections", "OrderedDict")
    return call("torch._utils", "_rebuild_tensor_v2", storage, offset, shape, strides, False, hooks)


def torch_file(
    root: bytes, storages: Mapping[str, bytes], *, byteorder: bytes = b"little", compressed: bool = False
) -> bytes:
    """Return a file of opcodes that push a value, and of storages by their keys."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", op("PROTO", b"\2") + root + op("STOP"))
        archive.writestr("archive/byteorder", byteorder)
        for key, data in storages.items():
            archive.writestr(f"archive/data/{key}", data)
    return buffer.getvalue()
