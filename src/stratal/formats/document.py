"""Documents: nested plain Python values with arrays among them, as JSON and a table of arrays.

JSON stands for itself; what it lacks is wrapped in an object with one key:

    {"$tensor": name}   an array, kept in the table
    {"$tuple": [...]}   a tuple; of a named one with its class, {"$class": "module:Name", "$tuple": [...]}
    {"$dict": [[key, value] ...]}   a dict with keys that are not text, or that start with "$"
    {"$float": "nan" | "inf" | "-inf"}

A checkpoint, any nest of dicts, lists, numbers, text and tensors, is a container of one document: two files,
or one of text and shards (`formats.shards`).
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from pathlib import Path
from typing import Any, BinaryIO, Final, NoReturn

import numpy as np

from stratal.base.errors import AttributeValueError, FormatError
from stratal.formats.container import SINGLE_FILE, write_container
from stratal.formats.files import Bytes
from stratal.formats.safetensors import decode, encode, parse_json
from stratal.formats.shards import (
    Pieces,
    checked_limit,
    is_shard,
    joined,
    merged,
    pieces_in,
    shard_name,
    shards_of,
)

Array = np.ndarray[Any, Any]
_INT_BITS: Final = 4096  # json refuses to read numbers far beyond


def pack(value: Any, tensors: MutableMapping[str, Array], name: str = "") -> Any:
    """Return the JSON of a value; its arrays (and tensors, and NumPy scalars) go to `tensors` by their path.

    Raises: FormatError, naming the path, for a value of a type that files do not hold.
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if type(value) is int and value.bit_length() <= _INT_BITS:
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"$float": str(value)}
    if isinstance(value, Mapping):
        return _pack_dict(value, tensors, name)
    if isinstance(value, Pieces):
        return value.pack(tensors)
    if isinstance(value, (list, tuple)):
        items = [pack(v, tensors, f"{name}.{k}" if name else str(k)) for k, v in enumerate(value)]
        if isinstance(value, list):
            return items
        named = {"$class": _class_name(value, name)} if hasattr(value, "_fields") else {}
        return {**named, "$tuple": items}
    if hasattr(value, "__array__"):
        key = name or "value"
        while key in tensors or key == "__metadata__":  # a name safetensors keeps for itself
            key += "_"
        tensors[key] = np.asarray(value.detach() if hasattr(value, "detach") else value)
        return {"$tensor": key}
    held = "numbers, text, None, tensors, and lists, tuples and dicts of these"
    call = getattr(value, "state_dict", None)
    raise FormatError(
        f"save: {name or 'the value'} is of a type that files do not hold",
        got=f"an int of {value.bit_length()} bits" if type(value) is int else type(value).__name__,
        hint=f"save its state_dict(); files hold {held}" if callable(call) else held,
    )


def _class_name(value: Any, name: str) -> str:
    """Return how a file names the class of a named tuple. Raises: FormatError."""
    text = f"{type(value).__module__}:{type(value).__qualname__}"
    if _named_tuple_class(text) is not type(value):
        raise FormatError(
            f"save: {name or 'the value'} is a named tuple whose class files cannot name",
            got=type(value).__qualname__,
            hint="define the class at the top of a module, or save value._asdict()",
        )
    return text


def _named_tuple_class(text: str) -> Any:
    """Return the class of named tuples that a file names, if a module imported already has it."""
    module, _, names = text.partition(":")
    found: Any = sys.modules.get(module)
    for part in names.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    named = isinstance(found, type) and issubclass(found, tuple) and hasattr(found, "_fields")
    return found if named else None


def _pack_dict(value: Mapping[Any, Any], tensors: MutableMapping[str, Array], name: str) -> Any:
    for k in value:
        if not _is_key(k):
            raise FormatError(
                f"save: {name or 'the value'} has a key that files do not hold",
                got=f"{type(k).__name__} {str(k)[:60]}",
                hint="keys are text, numbers, None, or tuples of these; int(key) makes NumPy's numbers plain",
            )
    pairs = [(k, pack(v, tensors, f"{name}.{k}" if name else str(k))) for k, v in value.items()]
    if all(isinstance(k, str) and not k.startswith("$") for k, _ in pairs):
        return dict(pairs)
    return {"$dict": [[pack(k, tensors, f"{name}.key"), v] for k, v in pairs]}


def _is_key(key: object) -> bool:
    if isinstance(key, tuple):
        return all(map(_is_key, key))
    return key is None or type(key) in (str, bool, int, float)


def unpack(data: Any, tensors: Mapping[str, Any]) -> Any:
    """Return the value of a document. Raises: FormatError."""
    if isinstance(data, list):
        return [unpack(v, tensors) for v in data]
    if not isinstance(data, dict):
        return data
    if not any(k.startswith("$") for k in data):
        return {k: unpack(v, tensors) for k, v in data.items()}
    match data:
        case {"$tensor": str(name), **rest} if not rest:
            if name not in tensors:
                raise FormatError("load: a tensor of the document is in no file", got=name)
            return tensors[name]
        case {"$tuple": list(items), **rest} if not rest:
            return tuple(unpack(v, tensors) for v in items)
        case {"$class": str(name), "$tuple": list(items), **rest} if not rest:
            return _named_tuple(name, [unpack(v, tensors) for v in items])
        case {"$float": "nan" | "inf" | "-inf" as text, **rest} if not rest:
            return float(text)
        case {"$dict": list(pairs), **rest} if not rest:
            return _unpack_pairs(pairs, tensors)
    _refuse(data)


def _named_tuple(name: str, items: list[Any]) -> Any:
    kind = _named_tuple_class(name)
    if kind is None or len(kind._fields) != len(items):
        raise FormatError(
            "load: a named tuple whose class is not there",
            got=f"{name}, of {len(items)} fields",
            hint="import the module of the class first; files import nothing",
        )
    return tuple.__new__(kind, items)


def _unpack_pairs(pairs: list[Any], tensors: Mapping[str, Any]) -> dict[Any, Any]:
    found = {}
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2:
            _refuse(pair)
        key = unpack(pair[0], tensors)
        try:
            found[key] = unpack(pair[1], tensors)
        except TypeError:  # a key that cannot be hashed
            _refuse(pair)
    return found


def _refuse(data: object) -> NoReturn:
    raise FormatError("load: not a value of a document", got=repr(data)[:80])


# -- checkpoints ---------------------------------------------------------------------------------------------
NAME: Final = "checkpoint"


def write_checkpoint(path: str | Path | BinaryIO, nest: Any, shard_bytes: int | None = None) -> None:
    """Write a nest to a folder, or to one file where `path` ends in `.stratal`; with `shard_bytes` to a
    folder with files of at most so many bytes, but for a tensor that is larger.

    Raises: FormatError naming what files do not hold, FileWriteError; what stood there before then stays.
    """
    if shard_bytes is not None and (
        not isinstance(path, (str, os.PathLike)) or Path(path).suffix == SINGLE_FILE
    ):
        raise AttributeValueError(
            "save: shards are files of a folder", got=f"shard_bytes for {getattr(path, 'name', path)}",
            hint=f"a path that does not end in {SINGLE_FILE}",
        )  # fmt: skip
    write_container(path, document_files(NAME, nest, checked_limit(shard_bytes)))


def checkpoint_of(files: Mapping[str, memoryview], leaf: Callable[[Array], Any]) -> Any:
    """Return the nest in the files of a container, `leaf` of every array. Raises: FormatError."""
    tensors = set(files) - {f"{NAME}.json"}
    whole = tensors == {f"{NAME}.safetensors"} or (tensors and all(is_shard(NAME, name) for name in tensors))
    if len(tensors) == len(files) or not whole:
        raise FormatError("load: not the files of a checkpoint", got=", ".join(sorted(files))[:120])
    return read_document(NAME, files, leaf)


def document_files(
    name: str, value: Any, shard_bytes: int | None = None, rank: int | None = None
) -> dict[str, Iterable[Bytes]]:
    """Return the files of a document: its text and its arrays, these in shards where they have a limit.

    A `rank` writes with others: those of rank 0 are its text, what is whole and its own pieces, those of
    others their pieces. Raises: FormatError.
    """
    arrays: dict[str, Array] = {}
    try:
        text = json.dumps(pack(value, arrays), indent=1, ensure_ascii=False, allow_nan=False)
        files: dict[str, Iterable[Bytes]] = {} if rank else {f"{name}.json": [(text + "\n").encode()]}
    except RecursionError:
        raise FormatError(
            "save: nested too deep", got=type(value).__name__, hint="does a list or dict hold itself?"
        ) from None
    except UnicodeEncodeError as error:
        raise FormatError("save: text that is no Unicode", got=repr(error.object)[:60]) from None
    if shard_bytes is None and rank is None:
        return {**files, f"{name}.safetensors": encode(arrays)}
    if rank:
        arrays = {key: array for piece in pieces_in(value) for key, array in piece.arrays().items()}
    for k, shard in enumerate(shards_of(arrays, shard_bytes)):
        files[shard_name(name, k, rank)] = encode(shard)
    return files


def read_document(
    name: str, files: Mapping[str, memoryview], leaf: Callable[[Array], Any] | None = None
) -> Any:
    """Return the value of a document's files, `leaf` of every array. Raises: FormatError."""
    shards = sorted(file for file in files if file == f"{name}.safetensors" or is_shard(name, file))
    arrays: dict[str, Any] = merged((shard, decode(files[shard])[0]) for shard in shards)
    data = parse_json(bytes(files[f"{name}.json"]), f"{name}.json")
    try:
        data = joined(data, arrays)
        if leaf is not None:
            arrays = {key: leaf(array) for key, array in arrays.items()}
        return unpack(data, arrays)
    except RecursionError:
        raise FormatError(f"{name}.json: nested too deep") from None


def tensors_of(files: Mapping[str, memoryview], name: str) -> dict[str, Array]:
    """Return the arrays of a file of a container; none where there is no such file."""
    return decode(files[name])[0] if name in files else {}
