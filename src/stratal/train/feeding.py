"""Batches of whatever a trainer is given: a pair of arrays, a data set, a loader, any iterable of batches."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any, Final, cast

import numpy as np

from stratal.base import tree
from stratal.base.dtypes import float32, float64
from stratal.base.errors import AttributeValueError, DTypeError, ShapeError
from stratal.data.collate import digest_of
from stratal.data.datasets import TensorDataset
from stratal.data.loader import DataLoader
from stratal.tensor.functions.random import Generator
from stratal.tensor.tensor import Tensor, tensor
from stratal.train.randomness import random_state, set_random_state

DEFAULT_BATCH: Final = 32
_NO_NUMBERS: Final = "OUSMm"  # kinds of NumPy's dtypes: objects, texts, times
_HINT: Final = "draw from random, np.random, torch or st.manual_seed's generator, or define state_dict"


class Batches:
    """One pass of `data` after the other, as tuples of trees of tensors, from a position on.

    Arrays, and data sets without an order of their own, are batched by a DataLoader; of arrays in tuples,
    lists and dicts each batch is the same tree of their rows. NumPy arrays in float64 become `dtype`, that of
    the net's weights; tensors stay as they are. Inputs may be `alone`, without targets.
    Raises: AttributeValueError, DTypeError for what is no data.
    """

    def __init__(
        self, name: str, data: Any, batch_size: int | None, shuffle: bool, dtype: Any = float32,
        alone: bool = False,
    ) -> None:  # fmt: skip
        self.name, self.dtype = name, dtype
        arrays = _arrays_of(name, data, alone)
        self._structure = None if arrays is None else tree.flatten(arrays)[1]
        if arrays is not None:
            data = TensorDataset(*tree.leaves(self._converted(arrays)))
        self.source: Iterable[Any] = _source(name, data, batch_size, shuffle)
        self.begun = 0  # batches of a pass that are to be left out, or are out
        self._once = hasattr(self.source, "__next__")  # an iterator, which has one pass
        self._passes = 0
        self._random: Any = None  # the generators' state where a pass began that cannot go to a position
        self._seen: Any = None  # the last batch of such a pass, or its digest
        self._opening: str | None = None  # the digest of the first batch of the first such pass
        self._checks = False  # whether the next pass is the first of a run that goes on

    def count(self) -> int | None:
        """Return how many batches a pass has, None where that is not known."""
        try:
            return len(self.source)  # type: ignore[arg-type]
        except TypeError:
            return None

    def one_pass(self) -> Iterator[tuple[Any, ...]]:
        """Yield the batches of one pass. Raises: AttributeValueError for an iterator that was used up."""
        if self._once and self._passes:
            raise AttributeValueError(
                f"{self.name}: an iterator gives its batches once", got=f"pass {self._passes + 1}",
                hint="give a list, a DataLoader, or an object whose __iter__ begins anew",
            )  # fmt: skip
        self._passes += 1
        keeps_position = self._keeps_position()
        for batch in self.source if keeps_position else self._from_position():
            self.begun, self._seen = self.begun + 1, self._as_tensors(batch)
            if self._opening is None and not keeps_position:
                self._opening = digest_of(self._seen)
            yield self._seen
        self.begun, self._random, self._seen = 0, None, None

    def _keeps_position(self) -> bool:
        return hasattr(self.source, "load_state_dict") and getattr(self.source, "resumes", True)

    def _from_position(self) -> Iterator[Any]:
        """Return an iterator behind the batches that are out; these are read as they were, with the random
        numbers of the pass's beginning.
        """
        now = self._generators()
        checks, self._checks = self._checks, False
        if self._random is None:
            self._random = now
            return self._another_pass(now) if checks else iter(self.source)
        self._restore(self._random)
        batches = iter(self.source)
        last = deque(islice(batches, self.begun), 1)
        if self._seen is not None and (not last or digest_of(self._as_tensors(last[0])) != self._seen):
            raise AttributeValueError(
                f"{self.name}: a pass goes on with the batches that it began with",
                got=f"another batch {self.begun} of a {type(self.source).__name__}",
                hint=_HINT,
            )  # fmt: skip
        self._restore(now)
        return batches

    def _another_pass(self, now: Mapping[str, Any]) -> Iterator[Any]:
        """Return the iterator of the first pass of a run that goes on after passes of a process before.

        Raises: AttributeValueError where it begins as the run's first pass did, and the next one, with the
        same random numbers, does not: it depends on what the source itself counts or draws, from the start.
        """
        batches = iter(self.source)
        first = list(islice(batches, 1))
        if not first or digest_of(self._as_tensors(first[0])) != self._opening:
            return chain(first, batches)
        del batches  # a loader has one pass at a time
        self._restore(now)
        batches = iter(self.source)
        again = list(islice(batches, 1))
        if not again or digest_of(self._as_tensors(again[0])) != self._opening:
            raise AttributeValueError(
                f"{self.name}: a run goes on with passes that it can have again",
                got=f"the first pass of a {type(self.source).__name__}, whose passes differ", hint=_HINT,
            )  # fmt: skip
        return chain(again, batches)

    def _generators(self) -> dict[str, Any]:
        """Return the state of all generators, and of those that a loader and its samplers have."""
        own = {f"of the {owner}": _state_of(g) for owner, g in _own_generators(self.source).items()}
        return {**random_state(), **own}

    def _restore(self, state: Mapping[str, Any]) -> None:
        set_random_state(state)
        for owner, generator in _own_generators(self.source).items():
            if (found := state.get(f"of the {owner}")) is not None:
                _set_state(generator, found)

    def _as_tensors(self, batch: Any) -> tuple[Any, ...]:
        parts = tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)
        if self._structure is not None:
            parts = cast(tuple[Any, ...], tree.unflatten(self._structure, parts))
        return self._converted(parts)

    def _converted(self, parts: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the parts of a batch with tensors as leaves. Raises: DTypeError that names a leaf."""
        try:
            return tuple(p if isinstance(p, Tensor) else tree.map(self._as_tensor, p) for p in parts)
        except _NoNumbersError as error:
            raise _no_numbers(self.name, parts, error.leaf) from None

    def _as_tensor(self, leaf: Any) -> Any:
        if isinstance(leaf, (Tensor, str, bytes)) or leaf is None:
            return leaf
        array = np.asarray(leaf)
        if array.dtype.kind in _NO_NUMBERS:
            raise _NoNumbersError(leaf)
        if array.dtype == np.float64 and self.dtype is not float64:
            return tensor(array, dtype=self.dtype)
        return tensor(array)

    # -- where a pass stands ---------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """Return where the pass stands: the loader's own state where it has one, else how many are out."""
        loader: Any = self.source if self._keeps_position() else None
        own = {} if loader is not None else _own_generators(self.source)
        return {
            "batch": self.begun, "random": self._random,
            "seen": digest_of(self._seen) if loader is None else None,
            "loader": None if loader is None else loader.state_dict(),
            "generators": {owner: _state_of(generator) for owner, generator in own.items()},
            "opening": self._opening,
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go where another pass of the same data stood. Raises: AttributeValueError."""
        loader: Any = self.source if self._keeps_position() else None
        if (state["loader"] is None) != (loader is None):
            raise AttributeValueError(
                f"{self.name}: resumes with the data of the run it goes on with",
                got=type(self.source).__name__,
            )
        self.begun, self._random = int(state["batch"]), state["random"]
        self._seen, self._opening = state.get("seen"), state.get("opening")
        self._checks = self._opening is not None and not self.begun
        saved = dict(state.get("generators") or {})
        if loader is not None:
            loader.load_state_dict(state["loader"])
            if state.get("generator") is not None:  # as older checkpoints have it
                saved["loader"] = state["generator"]
        for owner, generator in _own_generators(self.source).items():
            if owner in saved:
                _set_state(generator, saved[owner])


class _NoNumbersError(Exception):
    def __init__(self, leaf: Any) -> None:
        self.leaf = leaf


def _no_numbers(name: str, parts: tuple[Any, ...], leaf: Any) -> DTypeError:
    """Return the error for a leaf that holds no numbers: which one, and of a table which columns."""
    k, path = next((k, p) for k, part in enumerate(parts) for p, x in tree.paths(part) if x is leaf)
    keys = "".join(f"[{key!r}]" for key in path)
    part = ("inputs", "targets")[k] if k < 2 else f"part {k}"
    columns = getattr(leaf, "columns", None)
    kinds = {None: leaf} if columns is None else {c: leaf[c] for c in columns}
    wrong = [
        f"{'' if c is None else f'column {c}: '}{getattr(x, 'dtype', type(x).__name__)}"
        for c, x in kinds.items() if np.asarray(x).dtype.kind in _NO_NUMBERS
    ]  # fmt: skip
    if not wrong:  # each is numbers, and all together are not: bools beside floats
        wrong = ["columns of " + " and ".join(sorted({str(x.dtype) for x in kinds.values()}))]
    return DTypeError(
        f"{name}: {part}{keys} are numbers", got=", ".join(wrong[:4]) + ", .." * (len(wrong) > 4),
        hint="classes, numbers = np.unique(targets, return_inverse=True)" if part == "targets"
        else 'astype("float32") where they are; else transforms.OneHot.of(column) for categories, a '
        "difference in days for dates",
    )  # fmt: skip


def _own_generators(source: Any) -> dict[str, Any]:
    """Return the generators of Stratal and PyTorch that a loader and its samplers draw from, by owner."""
    batched = getattr(source, "batch_sampler", None)
    owners = {
        "loader": source, "sampler": getattr(source, "sampler", None), "batch_sampler": batched,
        "batch_sampler.sampler": getattr(batched, "sampler", None),
    }  # fmt: skip
    found = {owner: getattr(value, "generator", None) for owner, value in owners.items()}
    return {owner: g for owner, g in found.items() if isinstance(g, Generator) or _is_torchs(g)}


def _is_torchs(generator: Any) -> bool:
    """Return whether this is a generator of PyTorch's, not a network of that name."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(generator, torch.Generator)


def _state_of(generator: Any) -> Any:
    state = generator.get_state()
    return state.numpy().copy() if _is_torchs(generator) else np.asarray(state)


def _set_state(generator: Any, state: Any) -> None:
    array = np.array(state)
    generator.set_state(sys.modules["torch"].from_numpy(array) if _is_torchs(generator) else array)


def is_rows(data: Any) -> bool:
    """Return whether data are single samples, which are still to be batched: arrays, or a data set."""
    if _is_array(data) or isinstance(data, Mapping) or (isinstance(data, tuple) and _are_arrays(data)):
        return True
    return hasattr(data, "__getitem__") and hasattr(data, "__len__") and not hasattr(data, "__iter__")


def _is_array(value: Any) -> bool:
    return hasattr(value, "__array__")


def _are_arrays(data: tuple[Any, ...]) -> bool:
    """Return whether a tuple is (inputs,) or (inputs, targets), each an array or a tree of arrays."""
    return len(data) in (1, 2) and all(
        (leaves := tree.leaves(part)) and all(_is_array(leaf) for leaf in leaves) for part in data
    )


def _arrays_of(name: str, data: Any, alone: bool) -> tuple[Any, ...] | None:
    """Return (inputs,) or (inputs, targets) where that is what data are, checked.

    Raises: DTypeError where targets are missing; ShapeError.
    """
    given = data if isinstance(data, tuple) else (data,)
    if not (isinstance(data, tuple | Mapping) or _is_array(data)) or not _are_arrays(given):
        return None
    if len(given) == 1 and not alone:
        raise DTypeError(
            f"{name}: takes inputs with targets", got="one array" if _is_array(given[0]) else "inputs alone",
            hint=f"{name}((inputs, targets)); [batch, ..] is a list of batches",
        )  # fmt: skip
    shapes = [np.shape(leaf) for leaf in tree.leaves(given)]
    if any(not shape or shape[0] != shapes[0][0] for shape in shapes):
        raise ShapeError(
            f"{name}: inputs and targets have one number of rows",
            got=" and ".join(str(list(shape)) for shape in shapes),
            hint="a tuple is (inputs, targets); [(x, y), ..] is a list of batches",
        )
    return given


def _source(name: str, data: Any, batch_size: int | None, shuffle: bool) -> Iterable[Any]:
    if is_rows(data) and not isinstance(data, Mapping):
        return DataLoader(data, DEFAULT_BATCH if batch_size is None else batch_size, shuffle)
    if not hasattr(data, "__iter__") or isinstance(data, (str, bytes, Mapping)):
        raise DTypeError(
            f"{name}: takes a pair of arrays, a data set, or an iterable of batches",
            got=type(data).__name__, hint=f"{name}((x, y)), or {name}(st.data.DataLoader(..))",
        )  # fmt: skip
    if batch_size is not None:
        raise AttributeValueError(
            f"{name}: batch_size is for arrays and data sets", got=f"{type(data).__name__} of batches",
            hint="the loader decides on its batches: leave batch_size out; np.asarray(numbers) is an array",
        )  # fmt: skip
    return data  # type: ignore[no-any-return]


def pair_of(name: str, batch: tuple[Any, ...]) -> tuple[Any, Any]:
    """Return the inputs and targets of a batch. Raises: DTypeError."""
    if batch:
        inputs_of(name, batch)
    if len(batch) != 2:
        raise DTypeError(
            f"{name}: a batch is a pair of inputs and targets", got=f"{len(batch)} parts",
            hint="several inputs are a tuple: ((a, b), y); a step of your own takes any batch",
        )  # fmt: skip
    return batch[0], batch[1]


def inputs_of(name: str, batch: tuple[Any, ...]) -> Any:
    """Return the inputs of a batch. Raises: DTypeError where they are numbers: one row, or its elements."""
    leaves = [batch[0]] if batch and isinstance(batch[0], Tensor) else tree.leaves(batch[:1])
    if leaves and all(isinstance(leaf, Tensor) and not leaf.ndim for leaf in leaves):
        raise DTypeError(
            f"{name}: takes arrays, a data set, or an iterable of batches of arrays",
            got="numbers as a batch",
            hint="np.asarray(numbers) is an array; st.data.DataLoader(samples, batch_size=32) makes batches",
        )
    return batch[0]


def rows_of(batch: tuple[Any, ...]) -> int:
    """Return how many samples a batch has: the length of its first tensor."""
    for part in batch:
        for leaf in [part] if isinstance(part, Tensor) else tree.leaves(part):
            if isinstance(leaf, Tensor) and leaf.ndim:
                return int(leaf.shape[0])
    return 1
