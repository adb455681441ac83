"""Checkpoints: any nest of dicts, lists, numbers, text and tensors, as the files of a container.

checkpoint.json          the nest as a document (`formats.document`)
checkpoint.safetensors   its tensors
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from stratal.base.errors import FormatError
from stratal.formats.container import write_container
from stratal.formats.document import pack, unpack
from stratal.formats.files import Bytes
from stratal.formats.safetensors import decode, encode, parse_json

Array = np.ndarray[Any, Any]
NAME: Final = "checkpoint"


def write_checkpoint(path: str | Path, nest: Any) -> None:
    """Write a nest to a folder, or to one file where `path` ends in `.stratal`.

    Raises: FormatError naming what files do not hold, FileWriteError; what stood there before then stays.
    """
    write_container(path, document_files(NAME, nest))


def checkpoint_of(files: Mapping[str, memoryview], leaf: Callable[[Array], Any]) -> Any:
    """Return the nest in the files of a container, `leaf` of every array. Raises: FormatError."""
    if set(files) != {f"{NAME}.json", f"{NAME}.safetensors"}:
        raise FormatError("load: not the files of a checkpoint", got=", ".join(sorted(files)))
    return read_document(NAME, files, leaf)


def document_files(name: str, value: Any) -> dict[str, Iterable[Bytes]]:
    """Return the two files of a document, its text and its arrays. Raises: FormatError."""
    arrays: dict[str, Array] = {}
    try:
        text = json.dumps(pack(value, arrays), indent=1, ensure_ascii=False, allow_nan=False)
        return {f"{name}.json": [(text + "\n").encode()], f"{name}.safetensors": encode(arrays)}
    except RecursionError:
        raise FormatError(
            "save: nested too deep", got=type(value).__name__, hint="does a list or dict hold itself?"
        ) from None
    except UnicodeEncodeError as error:
        raise FormatError("save: text that is no Unicode", got=repr(error.object)[:60]) from None


def read_document(
    name: str, files: Mapping[str, memoryview], leaf: Callable[[Array], Any] | None = None
) -> Any:
    """Return the value of a document's two files, `leaf` of every array. Raises: FormatError."""
    arrays: dict[str, Any] = tensors_of(files, f"{name}.safetensors")
    if leaf is not None:
        arrays = {key: leaf(array) for key, array in arrays.items()}
    return unpack(parse_json(bytes(files[f"{name}.json"]), f"{name}.json"), arrays)


def tensors_of(files: Mapping[str, memoryview], name: str) -> dict[str, Array]:
    """Return the arrays of a file of a container; none where there is no such file."""
    return decode(files[name])[0] if name in files else {}
