"""Shards: the tensors of a checkpoint in several files of a bounded size, written by one process or by ranks.

    checkpoint.json                      the nest, and the names of its tensors
    checkpoint-00000.safetensors ..      shards: whole tensors, and pieces of those that ranks share
    manifest.json                        the index: length and digest of each file, renamed into place last

A tensor whose elements lie with several ranks is `{"$pieces": name, "count": n, "shape": [..]}` in the nest:
flat pieces `name@0` .. `name@(n-1)`, end to end in the order of its elements. A nest says nothing of how many
ranks wrote it, so any number can load it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any, Final

import numpy as np

from stratal.base.errors import AttributeValueError, FormatError

Array = np.ndarray[Any, Any]
MOST_SHARDS: Final = 4000  # whose rows fit into a manifest
_SHARD: Final = re.compile(r"-(\d{5})(-\d{5})?\.safetensors")


class Pieces:
    """A tensor of which this process has some pieces: leaf of a nest that several ranks write together.

    `name` is its own in the nest, `own` maps the positions of pieces, below `count`, to flat arrays.
    """

    __slots__ = ("count", "name", "own", "shape")

    def __init__(self, name: str, shape: tuple[int, ...], count: int, own: Mapping[int, Array]) -> None:
        self.name, self.shape, self.count, self.own = name, shape, count, own

    def arrays(self) -> dict[str, Array]:
        """Return the pieces of this process by their names in a file."""
        return {f"{self.name}@{k}": array for k, array in self.own.items()}

    def pack(self, tensors: MutableMapping[str, Array]) -> dict[str, Any]:
        """Return the JSON of it; its pieces go to `tensors`. Raises: FormatError for a name that is taken."""
        for key, array in self.arrays().items():
            if key in tensors:
                raise FormatError("save: two tensors of a checkpoint have one name", got=key)
            tensors[key] = array
        return {"$pieces": self.name, "count": self.count, "shape": list(self.shape)}


def joined(data: Any, arrays: MutableMapping[str, Array]) -> Any:
    """Return the JSON of a nest with whole tensors where it has pieces; `arrays` gets these in their place.

    Raises: FormatError.
    """
    if isinstance(data, list):
        return [joined(value, arrays) for value in data]
    if not isinstance(data, dict):
        return data
    if "$pieces" not in data:
        return {key: joined(value, arrays) for key, value in data.items()}
    match data:
        case {"$pieces": str(name), "count": int(count), "shape": list(shape), **rest} if not rest:
            if name in arrays or not 0 < count < 1 << 24 or not all(type(n) is int and n >= 0 for n in shape):
                raise FormatError("load: a tensor in pieces is not described as it should be", got=name)
            arrays[name] = _whole(name, [arrays.pop(f"{name}@{k}", None) for k in range(count)], shape)
            return {"$tensor": name}
    raise FormatError("load: not a value of a document", got=repr(data)[:80])


def _whole(name: str, pieces: list[Array | None], shape: list[int]) -> Array:
    there = [piece for piece in pieces if piece is not None]
    if len(there) < len(pieces):
        missing = next(k for k, piece in enumerate(pieces) if piece is None)
        raise FormatError(
            "load: a piece of a tensor is in no shard", got=f"{name}, piece {missing} of {len(pieces)}"
        )
    if any(piece.ndim != 1 or piece.dtype != there[0].dtype for piece in there) or (
        sum(piece.size for piece in there) != math.prod(shape)
    ):
        sizes = " + ".join(f"{piece.dtype}{list(piece.shape)}" for piece in there)
        raise FormatError("load: the pieces of a tensor do not make it", got=f"{name}: {sizes} for {shape}")
    return np.concatenate(there).reshape(shape)


def shards_of(arrays: Mapping[str, Array], limit: int | None) -> list[dict[str, Array]]:
    """Return tensors in groups of at most `limit` bytes, in their order, one at least; a larger tensor has a
    group of its own.

    Raises: AttributeValueError for a limit that makes too many.
    """
    found: list[dict[str, Array]] = [{}]
    room = limit
    for name, array in arrays.items():
        if room is not None and limit is not None:
            if found[-1] and array.nbytes > room:
                found.append({})
                room = limit
            room -= array.nbytes
        found[-1][name] = array
    if len(found) > MOST_SHARDS:
        raise AttributeValueError(
            f"save: a checkpoint has at most {MOST_SHARDS} shards",
            got=f"{len(found)} of {limit} bytes", hint="a larger shard_bytes",
        )  # fmt: skip
    return found


def checked_limit(limit: int | None) -> int | None:
    """Return a number of bytes. Raises: AttributeValueError."""
    if limit is not None and (type(limit) is not int or limit < 1):
        raise AttributeValueError("save: shard_bytes counts bytes, from 1", got=repr(limit))
    return limit


def shard_name(stem: str, number: int, rank: int | None = None) -> str:
    """Return the name of a shard; ranks that write together number their own."""
    of_rank = "" if rank is None else f"-{rank:05d}"
    return f"{stem}{of_rank}-{number:05d}.safetensors"


def is_shard(stem: str, name: str) -> bool:
    """Return whether a file is a shard of a document."""
    return name.startswith(stem) and _SHARD.fullmatch(name, len(stem)) is not None


def merged(shards: Iterable[tuple[str, Mapping[str, Array]]]) -> dict[str, Array]:
    """Return the tensors of shards. Raises: FormatError where two have one of a name."""
    found: dict[str, Array] = {}
    for shard, tensors in shards:
        if twice := found.keys() & tensors.keys():
            raise FormatError("load: a tensor is in two shards", got=f"{sorted(twice)[0]}, again in {shard}")
        found |= tensors
    return found


def pieces_in(nest: Any) -> Iterator[Pieces]:
    """Yield the tensors in pieces of a nest."""
    if isinstance(nest, Pieces):
        yield nest
    elif isinstance(nest, Mapping):
        for value in nest.values():
            yield from pieces_in(value)
    elif isinstance(nest, (list, tuple)):
        for value in nest:
            yield from pieces_in(value)
