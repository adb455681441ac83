"""Batches of in-memory data, in an order that a seed and the number of the epoch decide."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from stratal.base import settings, tree
from stratal.base.errors import AttributeValueError, ShapeError
from stratal.data.shuffle import permutation
from stratal.tensor.tensor import Tensor, tensor

Array = np.ndarray[Any, Any]


class Dataset(Protocol):
    """Anything with a length whose elements are trees of numbers and arrays."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class TensorDataset:
    """Rows of arrays (or tensors) of one length: element k is row k of each.

    Raises: ShapeError when their lengths differ.
    """

    def __init__(self, *arrays: Any) -> None:
        self.arrays: tuple[Array, ...] = tuple(np.asarray(a) for a in arrays)
        lengths = [a.shape[0] if a.ndim else None for a in self.arrays]
        if not lengths or None in lengths or len(set(lengths)) > 1:
            raise ShapeError(
                "TensorDataset: takes arrays with one number of rows",
                got=", ".join(str(list(a.shape)) for a in self.arrays) or "none",
            )

    def __len__(self) -> int:
        return int(self.arrays[0].shape[0])

    def __getitem__(self, index: Any, /) -> tuple[Any, ...]:
        return tuple(a[index] for a in self.arrays)

    def __repr__(self) -> str:
        rows = ", ".join(f"{a.dtype}{list(a.shape[1:])}" for a in self.arrays)
        return f"TensorDataset({len(self)} rows of {rows})"


class Subset:
    """Some elements of a data set, by position."""

    def __init__(self, dataset: Dataset, positions: Sequence[int]) -> None:
        self.dataset = dataset
        self.positions = np.asarray(positions)

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, index: int, /) -> Any:
        return self.dataset[int(self.positions[index])]


class ConcatDataset:
    """The elements of several data sets, one set after the other."""

    def __init__(self, datasets: Iterable[Dataset]) -> None:
        self.datasets = list(datasets)
        self.ends = np.cumsum([len(d) for d in self.datasets], dtype=np.int64)
        if not self.datasets:
            raise AttributeValueError("ConcatDataset: takes at least one data set", got="none")

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, index: int, /) -> Any:
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(f"element {index} of {len(self)}")
        part = int(np.searchsorted(self.ends, place, side="right"))
        return self.datasets[part][place - (int(self.ends[part - 1]) if part else 0)]


def random_split(dataset: Dataset, lengths: Sequence[float], seed: int | None = None) -> list[Subset]:
    """Return subsets that share no element, drawn at random: by numbers of elements, or by shares of 1.

    What shares leave over when they are rounded down goes to the first subsets, one element each.
    Raises: AttributeValueError when the lengths are not those of the data set.
    """
    count = len(dataset)
    sizes = [int(n) for n in lengths]
    if abs(sum(lengths) - 1) < 1e-6 and max(lengths, default=0) <= 1 and count != 1:
        sizes = [math.floor(count * share) for share in lengths]
        for k in range(count - sum(sizes)):
            sizes[k % len(sizes)] += 1
    if sum(sizes) != count or min(sizes, default=0) < 0:
        raise AttributeValueError(
            "random_split: lengths add up to the elements of the data set, or are shares of 1",
            got=f"{list(lengths)} for {count} elements",
        )
    order = permutation(count, settings.seed.value if seed is None else seed)
    return [Subset(dataset, part) for part in np.split(order, np.cumsum(sizes)[:-1])]


class DataLoader:
    """Iterates over batches of tensors, once per epoch; each iteration is the next epoch.

    `shuffle` gives every epoch its own order: `seed` (by default the setting) and the epoch's number decide.
    `collate_fn` makes a batch of the list of its elements, by default by stacking. `num_workers` and
    `pin_memory` are there for scripts written for PyTorch: batches are made by the thread that asks for them.
    `state_dict` says where the loader stands, so that a resumed run sees the batches it would have seen.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int = 1,
        shuffle: bool = False,
        *,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        seed: int | None = None,
    ) -> None:
        if batch_size < 1:
            raise AttributeValueError("DataLoader: a batch has at least one element", got=str(batch_size))
        self.dataset = dataset
        self.collate_fn = collate_fn
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.seed = settings.seed.value if seed is None else seed
        self.epoch = 0  # under way, or next
        self._done = 0  # batches of it handed out
        self._resumed = False

    def __len__(self) -> int:
        full, rest = divmod(len(self.dataset), self.batch_size)
        return full + bool(rest and not self.drop_last)

    def __iter__(self) -> Iterator[Any]:
        if self._done and not self._resumed:  # an epoch left in the middle is over
            self.epoch, self._done = self.epoch + 1, 0
        self._resumed = False
        epoch = self.epoch
        order = self._order(epoch)
        for k in range(self._done, len(self)):
            batch = self._batch(order[k * self.batch_size : (k + 1) * self.batch_size])
            if self.epoch == epoch:
                self._done = k + 1
            yield batch
        if self.epoch == epoch:
            self.epoch, self._done = epoch + 1, 0

    def _order(self, epoch: int) -> Array:
        count = len(self.dataset)
        return permutation(count, self.seed, epoch) if self.shuffle else np.arange(count)

    def _batch(self, positions: Array) -> Any:
        source: Any = self.dataset
        while isinstance(source, Subset):
            source, positions = source.dataset, source.positions[positions]
        if isinstance(source, TensorDataset) and self.collate_fn is None:
            return tuple(tensor(a[positions]) for a in source.arrays)
        rows = [source[int(p)] for p in positions]
        return tree.map(_stacked, *rows) if self.collate_fn is None else self.collate_fn(rows)

    def state_dict(self) -> dict[str, int]:
        """Return where the loader stands: its seed, its epoch and how many of the epoch's batches are out."""
        return {"seed": self.seed, "epoch": self.epoch, "batch": self._done}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go where another loader of the same data stood; the next iteration goes on from there."""
        self.seed, self.epoch, self._done = state["seed"], state["epoch"], state["batch"]
        self._resumed = True


def _stacked(*rows: Any) -> Tensor:
    """Return one tensor of a batch's elements; Python floats make it float32, as everywhere."""
    first = rows[0]
    if isinstance(first, (bool, int, float)) and not isinstance(first, np.generic):
        return tensor(list(rows))
    return tensor(np.stack([np.asarray(r) for r in rows]))
