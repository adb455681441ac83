"""Collation: the samples of a batch, trees of one structure, as one tree of tensors and lists."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from stratal.base import tree
from stratal.base.dtypes import as_dtype, float32
from stratal.base.errors import DTypeError, ShapeError
from stratal.base.tree import TreeError
from stratal.tensor.calls.moves import stack
from stratal.tensor.tensor import Tensor, tensor

_NAMED: Final = (str, bytes, bool, int, float, complex, type(None))
Path = tuple[tree.Key, ...]
Names = Sequence[int] | np.ndarray[Any, Any]
_PLAIN: Final = {bool, int, float, complex}
_NUMBER: Final = int | float | complex


def default_collate(batch: Sequence[Any]) -> Any:
    """Return the samples of a batch as one tree: arrays and numbers stacked to tensors, text in lists.

    Python floats make float32, as everywhere. Tuples, named tuples, lists and mappings stay what they are.
    Raises: TreeError where samples differ in keys or length, ShapeError in shape, DTypeError for what is none
    of these; each names the field and the sample.
    """
    return collate_named(batch, range(len(batch)))


def collate_named(batch: Sequence[Any], names: Names) -> Any:
    """Return `default_collate(batch)`; errors call sample k `names[k]`."""
    return _collated(batch, names, ())


def collated_columns(columns: Mapping[str, Any], names: Names | None = None) -> dict[str, Any]:
    """Return what `collate_named` makes of the rows of some columns: arrays at once."""
    return {
        name: tensor(column)
        if isinstance(column, np.ndarray)
        else _collated(column, range(len(column)) if names is None else names, (name,))
        for name, column in columns.items()
    }


def default_convert(sample: Any) -> Any:
    """Return a sample with its arrays as tensors; numbers, text and other leaves stay as they are."""
    if isinstance(sample, Tensor):
        return sample
    if isinstance(sample, np.ndarray | np.generic):
        return sample if sample.dtype.kind in "OSUT" else tensor(np.asarray(sample))
    if hasattr(sample, "__array__"):
        return tensor(np.asarray(sample))
    if isinstance(sample, Mapping):
        return _mapping(sample, {key: default_convert(value) for key, value in sample.items()})
    if isinstance(sample, str | bytes) or not isinstance(sample, Sequence):
        return sample
    return _sequence(sample, [default_convert(value) for value in sample])


def _collated(rows: Sequence[Any], names: Names, path: Path) -> Any:
    first = rows[0]
    if isinstance(first, str | bytes):
        return _texts(rows, names, path)
    if isinstance(first, Mapping):
        return _mappings(rows, names, path)
    if isinstance(first, Sequence):
        return _sequences(rows, names, path)
    if _is_array(first):
        return _stacked(rows, names, path)
    if first is not None and tree.opened(first) is not None:  # a registered class
        return _registered(rows, names, path)
    raise _unknown(first, names[0], path)


def _is_array(value: Any) -> bool:
    """Return whether a value is a number or an array, of another library's, too: PyTorch's tensors."""
    return isinstance(value, Tensor | np.ndarray | _NUMBER | np.generic) or hasattr(value, "__array__")


def _unknown(value: Any, name: int, path: Path) -> DTypeError:
    return DTypeError(
        f"DataLoader: {_field(path)} is an array, a number, text, or a container of these",
        got=f"a {type(value).__module__}.{type(value).__qualname__} in sample {name}",
        hint="return an array from the data set, or give a collate_fn",
    )


def _in(path: Path) -> str:
    return f" in {_field(path)}" if path else ""


def _field(path: Path) -> str:
    return f"the field {tree.path_name(path)!r}" if path else "a sample"


def _check_alike(kind: str, shown: Sequence[Any], names: Names, path: Path) -> None:
    """Check that samples show the same. Raises: TreeError about the first one that does not."""
    other = next((k for k, s in enumerate(shown) if s != shown[0]), None)
    if other is not None:
        raise TreeError(
            f"DataLoader: samples of a batch have {kind}{_in(path)}",
            got=f"sample {names[0]} has {shown[0]}, sample {names[other]} has {shown[other]}",
            hint="make them alike in the data set, or give a collate_fn",
        )


def _texts(rows: Sequence[Any], names: Names, path: Path) -> list[Any]:
    base = str if isinstance(rows[0], str) else bytes
    if not all(isinstance(row, base) for row in rows):
        kinds = [f"a {(base if isinstance(row, base) else type(row)).__name__}" for row in rows]
        _check_alike("one type", kinds, names, path)
    return list(rows)


def _mappings(rows: Sequence[Any], names: Names, path: Path) -> Any:
    keys = rows[0].keys()
    if any(not isinstance(row, Mapping) or row.keys() != keys for row in rows):
        shown = [
            f"the keys {sorted(map(str, row))}" if isinstance(row, Mapping) else f"a {type(row).__name__}"
            for row in rows
        ]
        _check_alike("the same keys", shown, names, path)
    made = {key: _collated([row[key] for row in rows], names, (*path, key)) for key in keys}
    return _mapping(rows[0], made)


def _sequences(rows: Sequence[Any], names: Names, path: Path) -> Any:
    sizes = [_size(row) for row in rows]
    if sizes.count(sizes[0]) < len(sizes):
        _check_alike("one number of elements", sizes, names, path)
    keys: Sequence[tree.Key] = getattr(rows[0], "_fields", range(len(rows[0])))
    columns = zip(keys, zip(*rows, strict=True), strict=True)
    return _sequence(rows[0], [_collated(column, names, (*path, key)) for key, column in columns])


def _size(row: Any) -> str:
    if isinstance(row, str | bytes) or not isinstance(row, Sequence):
        return f"a {type(row).__name__}"
    return f"{len(row)} elements"


def _registered(rows: Sequence[Any], names: Names, path: Path) -> Any:
    opened = [tree.opened(row) for row in rows]
    shown = ["no container" if found is None else f"{found[0].__name__} {found[1]}" for found in opened]
    _check_alike("one structure", shown, names, path)
    columns = list(zip(*(found[2] for found in opened if found is not None), strict=True))
    made = [_collated(column, names, (*path, k)) for k, column in enumerate(columns)]
    return tree.closed(rows[0], opened[0][1] if opened[0] else (), made)


def _mapping(like: Mapping[Any, Any], made: dict[Any, Any]) -> Any:
    """Return a mapping of the type of another one; a dict where that type takes none."""
    if type(like) is dict:
        return made
    try:
        return type(like)(made)  # type: ignore[call-arg]
    except TypeError:  # a defaultdict takes its factory first
        return made


def _sequence(like: Sequence[Any], made: list[Any]) -> Any:
    """Return a sequence of the type of another one; a list where that type takes none, as a range."""
    if hasattr(like, "_fields"):
        return type(like)(*made)
    try:
        return type(like)(made)  # type: ignore[call-arg]
    except TypeError:
        return made


def _stacked(rows: Sequence[Any], names: Names, path: Path) -> Tensor:
    """Return one tensor of the rows of a field."""
    first = rows[0]
    if isinstance(first, _NUMBER) and not isinstance(first, np.generic):
        kinds = set(map(type, rows))
        if kinds == {float} and as_dtype(float) is float32:
            with np.errstate(over="ignore"):
                return tensor(np.array(rows, float32.np))
        if kinds <= _PLAIN or all(isinstance(row, _NUMBER) for row in rows):
            return tensor(list(rows))
    elif isinstance(first, np.generic) and all(type(row) is type(first) for row in rows):
        return tensor(np.array(rows, first.dtype))
    elif isinstance(first, Tensor) and (stacked := stack(rows)) is not None:
        return stacked
    arrays = []
    for row, name in zip(rows, names, strict=True):
        if not _is_array(row):
            raise _unknown(row, name, path)
        arrays.append(array := np.asarray(row))
        if array.dtype.kind in "OSUT":
            raise _unknown(row if array.dtype.kind == "O" else array, name, path)
    for name, array in zip(names, arrays, strict=True):
        if array.shape != arrays[0].shape:
            raise ShapeError(
                f"DataLoader: samples of a batch have one shape{_in(path)}",
                got=f"{arrays[0].shape} in sample {names[0]} and {array.shape} in sample {name}",
                hint="pad them, or give a collate_fn",
            )
    return tensor(np.stack(_exact(arrays, path)))


def _exact(arrays: list[np.ndarray[Any, Any]], path: Path) -> list[np.ndarray[Any, Any]]:
    """Return arrays that stack to a type with all their numbers: whole numbers never become floats.

    Raises: DTypeError where some are negative and others too large for int64.
    """
    kinds = {array.dtype for array in arrays}
    if len(kinds) == 1 or any(kind.kind not in "biu" for kind in kinds):
        return arrays
    if np.result_type(*kinds).kind != "f":  # int64 and uint64 make float64
        return arrays
    low = min(int(a.min(initial=0)) for a in arrays)
    high = max(int(a.max(initial=0)) for a in arrays)
    if low < 0 and high > np.iinfo(np.int64).max:
        raise DTypeError(
            f"DataLoader: whole numbers of a batch fit int64 or uint64{_in(path)}", got=f"{low} to {high}",
            hint="cast them in the data set",
        )  # fmt: skip
    return [a.astype(np.int64 if low < 0 else np.uint64) for a in arrays]


def digest_of(batch: Any) -> str | None:
    """Return a digest of a batch: of the types and bytes of tensors, arrays, numbers and texts, of the types
    of other objects; None of no batch, and a digest as it is.
    """
    if batch is None or isinstance(batch, str):
        return batch
    found = hashlib.blake2b(digest_size=16)
    for leaf in tree.leaves(batch):
        array = np.asarray(leaf.detach() if isinstance(leaf, Tensor) else leaf)
        found.update(f"{array.dtype} {array.shape}".encode())
        if array.dtype.kind != "O":
            found.update(array.tobytes())
            continue
        for value in array.reshape(-1).tolist():
            found.update(repr(value if isinstance(value, _NAMED) else type(value)).encode())
    return found.hexdigest()
