"""The safetensors format: named tensors in one file, read without trusting a byte of it.

    file   := u64 length of the header (little-endian), header, data
    header := JSON {"__metadata__": {text: text}, name: {"dtype", "shape", "data_offsets": [begin, end]} ...}

Offsets count from the start of the data, which they must cover without gap or overlap.
"""

from __future__ import annotations

import json
import math
import os
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

import ml_dtypes
import numpy as np

from stratal.base.errors import FormatError
from stratal.formats.files import Bytes, read_whole, write_atomically

Array = np.ndarray[Any, Any]
MAX_HEADER_BYTES: Final = 100_000_000
_ALIGN: Final = 64
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")  # an escape that may be half of a pair

DTYPES: Final[dict[str, np.dtype[Any]]] = {
    name: np.dtype(kind)
    for name, kind in {
        "BOOL": np.bool_, "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4",
        "U64": "<u8", "I64": "<i8", "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2,
        "F16": "<f2", "BF16": ml_dtypes.bfloat16, "F32": "<f4", "F64": "<f8", "C64": "<c8", "C128": "<c16",
    }.items()
}  # fmt: skip
_NAMES: Final = {dtype: name for name, dtype in DTYPES.items()}


def _refuse(what: str, got: object = "") -> NoReturn:
    raise FormatError(f"safetensors: {what}", got=str(got)[:120])


def encode(tensors: Mapping[str, object], metadata: Mapping[str, str] | None = None) -> Iterator[Bytes]:
    """Yield the bytes of a file that holds `tensors`, anything NumPy takes as an array, and text `metadata`.

    Raises: FormatError for a dtype the format does not name.
    """
    arrays = {name: _little_endian(name, np.asarray(value)) for name, value in tensors.items()}
    names = sorted(arrays, key=lambda n: (-arrays[n].dtype.itemsize, n))  # so that every tensor is aligned
    header: dict[str, Any] = {}
    if metadata:
        header["__metadata__"] = dict(sorted(metadata.items()))
    end = 0
    for name in names:
        begin, end = end, end + arrays[name].nbytes
        shape = list(arrays[name].shape)
        header[name] = {"dtype": _NAMES[arrays[name].dtype], "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(8 + len(text)) % _ALIGN)
    yield struct.pack("<Q", len(text)) + text
    for name in names:
        if arrays[name].nbytes:
            yield arrays[name].reshape(-1).view(np.uint8).data


def _little_endian(name: str, array: Array) -> Array:
    dense = np.asarray(array, order="C")
    if dense.dtype.byteorder == ">":
        dense = dense.astype(dense.dtype.newbyteorder("<"))
    if dense.dtype not in _NAMES:
        raise FormatError(
            f"save: tensor {name!r} has a dtype the format does not name", got=str(dense.dtype),
            hint="files hold numbers: text as a list, x.tolist(); dates as whole numbers, x.astype('int64')",
        )  # fmt: skip
    if name == "__metadata__":
        raise FormatError("save: a tensor cannot have this name", got=name, hint="rename it")
    return dense


def decode(data: memoryview) -> tuple[dict[str, Array], dict[str, str]]:
    """Return the tensors and metadata of a file's bytes. Tensors share the memory of `data` where aligned.

    Raises: FormatError for anything but a well-formed file.
    """
    if len(data) < 8:
        _refuse("the file is too short to have a header", f"{len(data)} bytes")
    (length,) = struct.unpack("<Q", data[:8])
    if length > MAX_HEADER_BYTES or length > len(data) - 8:
        _refuse("the header is longer than the file or the limit", f"{length} bytes in a file of {len(data)}")
    header = parse_json(bytes(data[8 : 8 + length]), "safetensors")
    if not isinstance(header, dict):
        _refuse("the header is not an object", type(header).__name__)
    metadata = _metadata(header.pop("__metadata__", {}))
    body = data[8 + length :]
    entries = {name: _entry(name, row) for name, row in header.items()}
    _check_cover(entries, len(body))
    return {name: _array(body, *entry) for name, entry in entries.items()}, metadata


def parse_json(text: bytes, what: str) -> Any:
    """Return the value of a JSON text.

    Raises: FormatError for bad text, half of a surrogate pair, duplicate keys, absurd nesting.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise FormatError(f"{what}: a key appears twice in one object")
        return found

    def constant(name: str) -> NoReturn:
        raise FormatError(f"{what}: not a JSON number", got=name)

    try:
        found = json.loads(text.decode(), object_pairs_hook=unique, parse_constant=constant)
        if _SURROGATE.search(text):
            json.dumps(found, ensure_ascii=False).encode()  # text that is no Unicode could not be saved again
        return found
    except FormatError:
        raise
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{what}: not JSON", got=str(error)[:120] or type(error).__name__) from None


def _metadata(data: object) -> dict[str, str]:
    if not isinstance(data, dict) or not all(isinstance(v, str) for v in data.values()):
        _refuse("metadata maps text to text", data)
    return data


Entry = tuple[np.dtype[Any], tuple[int, ...], int, int]


def _entry(name: str, row: object) -> Entry:
    if not isinstance(row, dict) or set(row) != {"dtype", "shape", "data_offsets"}:
        _refuse(f"tensor {name!r} needs dtype, shape and data_offsets, and nothing else", row)
    if not isinstance(row["dtype"], str) or row["dtype"] not in DTYPES:
        _refuse(f"tensor {name!r} has a dtype that is not known", row["dtype"])
    dtype = DTYPES[row["dtype"]]
    shape, offsets = _sizes(name, row["shape"]), _sizes(name, row["data_offsets"])
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        _refuse(f"tensor {name!r} has bad offsets", offsets)
    if len(shape) > 64 or math.prod(shape) * dtype.itemsize != offsets[1] - offsets[0]:
        _refuse(
            f"tensor {name!r} has offsets that do not fit its shape", f"{row['dtype']}{list(shape)} {offsets}"
        )
    return dtype, shape, offsets[0], offsets[1]


def _sizes(name: str, data: object) -> tuple[int, ...]:
    if not isinstance(data, list) or not all(type(n) is int and 0 <= n < 1 << 62 for n in data):
        _refuse(f"tensor {name!r} has a size that is no size", data)
    return tuple(data)


def _check_cover(entries: Mapping[str, Entry], size: int) -> None:
    """Refuse data that the tensors do not cover exactly, each byte once."""
    at = 0
    for name, (_, _, begin, end) in sorted(entries.items(), key=lambda e: e[1][2:]):
        if begin != at:
            _refuse(f"tensor {name!r} leaves a gap or overlaps another", f"starts at {begin}, not {at}")
        at = end
    if at != size:
        _refuse("the data is not as long as the tensors", f"{size} bytes for {at}")


def _array(body: memoryview, dtype: np.dtype[Any], shape: tuple[int, ...], begin: int, end: int) -> Array:
    flat = np.frombuffer(body[begin:end], np.uint8)
    if flat.ctypes.data % dtype.itemsize:
        flat = flat.copy()
    if dtype == np.bool_ and flat.size and flat.max() > 1:
        _refuse("a bool is neither 0 nor 1", int(flat.max()))
    return flat.view(dtype).reshape(shape)


def save_tensors(
    path: str | os.PathLike[str], tensors: Mapping[str, object], metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors to a safetensors file, whole or not at all. Raises: FormatError, FileWriteError."""
    write_atomically(path, encode(tensors, metadata))


def load_tensors(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Return the tensors of a safetensors file as NumPy arrays. Raises: FormatError."""
    return decode(read_whole(Path(path)))[0]
