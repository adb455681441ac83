"""Batches of in-memory data, in an order drawn from a generator, or decided by a seed and the epoch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import index
from typing import Any, Final, Protocol

import numpy as np

from stratal.base import tree
from stratal.base.errors import AttributeValueError, DTypeError, ShapeError
from stratal.data.shuffle import permutation
from stratal.tensor.calls.moves import stack
from stratal.tensor.functions.random import Generator, default_generator
from stratal.tensor.tensor import Tensor, tensor

Array = np.ndarray[Any, Any]
_SPLIT: Final = -1  # the stream of splits: the epochs of a loader with the same seed have those from 0 on
_OF_WORKERS: Final = {
    "timeout", "prefetch_factor", "persistent_workers", "multiprocessing_context", "pin_memory_device",
    "in_order",
}  # fmt: skip


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

    @property
    def indices(self) -> list[int]:
        """PyTorch's name for the positions."""
        return self.positions.tolist()  # type: ignore[no-any-return]

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


def random_split(
    dataset: Dataset, lengths: Sequence[float], generator: Generator | None = None, *, seed: int | None = None
) -> list[Subset]:
    """Return subsets that share no element, drawn at random: by numbers of elements, or by shares of 1.

    What shares leave over when they are rounded down goes to the first subsets, one element each. The draw is
    that of `seed`, of `generator`, or of the default generator, which `st.manual_seed` starts.
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
    source = _source("random_split", seed, generator)
    order = permutation(count, source.next_host_key() if seed is None else seed, _SPLIT)
    return [Subset(dataset, part) for part in np.split(order, np.cumsum(sizes)[:-1])]


def _source(name: str, seed: int | None, generator: Generator | None) -> Generator:
    """Return the generator to draw from where there is no seed. Raises: DTypeError, AttributeValueError."""
    if not isinstance(generator, Generator | None):
        raise DTypeError(
            f"{name}: takes a generator", got=f"a {type(generator).__module__}.{type(generator).__name__}",
            hint="generator=st.Generator(0), or seed=0",
        )  # fmt: skip
    if seed is not None and generator is not None:
        raise AttributeValueError(f"{name}: takes a seed or a generator", got="both")
    return generator or default_generator()


class DataLoader:
    """Iterates over batches of tensors, once per epoch; each iteration is the next epoch.

    `shuffle` gives every epoch an order of its own, drawn as it begins from `generator`, by default the one
    that `st.manual_seed` starts; with `seed`, the seed and the epoch's number decide. `sampler` gives the
    positions of an epoch in order, `batch_sampler` those of each batch. `collate_fn` makes a batch of the
    list of its elements, by default by stacking. `num_workers`, `pin_memory` and what else PyTorch says of
    workers change nothing: batches are made by the thread that asks for them.
    `shard` is (rank, number of ranks): each rank gets its part of every batch, so that all of them together
    see what one process would, no sample lost or repeated, whatever their number. `batch_size` stays that of
    the whole batch; orders must come from a seed, which is the same on all ranks.
    `state_dict` says where the loader stands, so that a resumed run sees the batches it would have seen; the
    generator of later epochs has a state of its own.
    """

    def __init__(
        self, dataset: Dataset, batch_size: int = 1, shuffle: bool | None = False,
        sampler: Iterable[int] | None = None, batch_sampler: Iterable[Sequence[int]] | None = None,
        num_workers: int = 0, collate_fn: Callable[[list[Any]], Any] | None = None, pin_memory: bool = False,
        drop_last: bool = False, *, worker_init_fn: Callable[[int], None] | None = None,
        generator: Generator | None = None, seed: int | None = None,
        shard: tuple[int, int] | None = None, **of_workers: Any
    ) -> None:
        if not isinstance(batch_size, int) or batch_size < 1:
            raise AttributeValueError("DataLoader: a batch has at least one element", got=repr(batch_size))
        lacks = [] if hasattr(dataset, "__getitem__") else ["__getitem__"]
        if not hasattr(dataset, "__len__") and sampler is None and batch_sampler is None:
            lacks.append("__len__")
        if lacks:
            raise DTypeError(
                "DataLoader: a data set has __len__ and __getitem__",
                got=f"{type(dataset).__name__} without {' and '.join(lacks)}",
                hint="define them, or give list(dataset)",
            )
        if unknown := sorted(set(of_workers) - _OF_WORKERS):
            raise AttributeValueError("DataLoader: an option it does not have", got=", ".join(unknown))
        if worker_init_fn is not None and num_workers:
            raise AttributeValueError(
                "DataLoader: there are no workers that worker_init_fn could prepare",
                got=f"num_workers={num_workers}",
                hint="batches are made by the thread that asks: call the function before the loop",
            )
        if batch_sampler is not None and (batch_size != 1 or shuffle or sampler is not None or drop_last):
            raise AttributeValueError(
                "DataLoader: a batch_sampler decides alone what a batch holds",
                got="batch_size, shuffle, sampler or drop_last beside it",
            )
        if sampler is not None and shuffle:
            raise AttributeValueError("DataLoader: a sampler decides alone on the order", got="shuffle=True")
        self.dataset = dataset
        self.collate_fn = collate_fn
        self.batch_size = batch_size
        self.shuffle = bool(shuffle)
        self.sampler, self.batch_sampler = sampler, batch_sampler
        self.drop_last = drop_last
        self.seed = seed
        self.generator = generator
        self.epoch = 0  # under way, or next
        self._done = 0  # batches of it handed out
        self._drawn: int | None = None  # the key of its order
        self._resumed = False
        _source("DataLoader", seed, generator)
        self.shard = None if shard is None else self._checked_shard(*shard)

    def _checked_shard(self, rank: int, size: int) -> tuple[int, int]:
        """Return the shard of a rank. Raises: AttributeValueError where ranks would disagree, or starve."""
        if not 0 <= rank < size:
            raise AttributeValueError("DataLoader: a shard is (rank, number of ranks)", got=f"{rank}, {size}")
        if self.sampler is not None or self.batch_sampler is not None:
            raise AttributeValueError(
                "DataLoader: a shard is of the loader's own order", got="a sampler",
                hint="leave shard out, and let the sampler give each rank its own positions",
            )  # fmt: skip
        if self.shuffle and self.seed is None:
            raise AttributeValueError(
                "DataLoader: with a shard, a seed decides on the order, alike on all ranks",
                got="shuffle=True without seed", hint="DataLoader(..., shuffle=True, seed=0, shard=...)",
            )  # fmt: skip
        rest = 0 if self.drop_last else len(self.dataset) % self.batch_size
        if self.batch_size % size or 0 < rest < size:
            raise AttributeValueError(
                f"DataLoader: every batch has parts for all {size} ranks, of one size but for the last batch",
                got=f"batch_size={self.batch_size}, {rest} samples in the last batch",
                hint="a batch size the ranks divide; drop_last=True leaves the last batch out",
            )  # fmt: skip
        return rank, size

    def __len__(self) -> int:
        if self.batch_sampler is not None:
            return len(self.batch_sampler)  # type: ignore[arg-type]
        source: Any = self.dataset if self.sampler is None else self.sampler
        full, rest = divmod(len(source), self.batch_size)
        return full + bool(rest and not self.drop_last)

    def __iter__(self) -> Iterator[Any]:
        if self._done and not self._resumed:  # an epoch left in the middle is over
            self._ends()
        self._resumed = False
        if self.shuffle and self.seed is None and self._drawn is None:
            self._drawn = _source("DataLoader", None, self.generator).next_host_key()
        epoch = self.epoch
        for k, positions in enumerate(islice(self._positions(), self._done, None), self._done + 1):
            batch = self._batch(positions)
            if self.epoch == epoch:
                self._done = k
            yield batch
        if self.epoch == epoch:
            self._ends()

    def _ends(self) -> None:
        self.epoch, self._done, self._drawn = self.epoch + 1, 0, None

    def _positions(self) -> Iterator[Array]:
        """Yield the positions of each batch of the epoch."""
        if self.batch_sampler is not None:
            yield from (_indices(batch) for batch in self.batch_sampler)
            return
        order = iter(self._order() if self.sampler is None else self.sampler)
        while len(part := _indices(islice(order, self.batch_size))) == self.batch_size or (
            len(part) and not self.drop_last
        ):
            yield part if self.shard is None else np.array_split(part, self.shard[1])[self.shard[0]]

    def _order(self) -> list[int]:
        count, order = len(self.dataset), np.arange(len(self.dataset))
        if self.shuffle:
            key, stream = (self.seed, self.epoch) if self._drawn is None else (self._drawn, 0)
            order = permutation(count, key, stream)
        return order.tolist()

    def _batch(self, positions: Array) -> Any:
        source: Any = self.dataset
        while isinstance(source, Subset):
            source, positions = source.dataset, source.positions[positions]
        if isinstance(source, TensorDataset) and self.collate_fn is None:
            return tuple(tensor(a[positions]) for a in source.arrays)
        rows = [source[int(p)] for p in positions]
        return tree.map(_stacked, *rows) if self.collate_fn is None else self.collate_fn(rows)

    def state_dict(self) -> dict[str, int | None]:
        """Return where the loader stands: its seed or the key it drew, its epoch and how many of the epoch's
        batches are out.
        """
        return {"seed": self.seed, "drawn": self._drawn, "epoch": self.epoch, "batch": self._done}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go where another loader of the same data stood; the next iteration goes on from there."""
        self.seed, self._drawn = state["seed"], state.get("drawn")
        self.epoch, self._done = state["epoch"], state["batch"]
        self._resumed = True


def _indices(positions: Iterable[Any]) -> Array:
    return np.array([index(p) for p in positions], np.int64)


def _stacked(*rows: Any) -> Any:
    """Return one tensor of a batch's elements; Python floats make it float32, as everywhere. Text stays as it
    is, in a list.
    """
    first = rows[0]
    if isinstance(first, (str, bytes)):
        return list(rows)
    if isinstance(first, (bool, int, float)) and not isinstance(first, np.generic):
        return tensor(list(rows))
    stacked = stack(rows) if isinstance(first, Tensor) else None
    if stacked is not None:
        return stacked
    arrays = [np.asarray(r) for r in rows]
    if len(shapes := {a.shape for a in arrays}) > 1:
        raise ShapeError(
            "DataLoader: samples of a batch have one shape", got=" and ".join(map(str, sorted(shapes))),
            hint="pad them, or give a collate_fn",
        )  # fmt: skip
    return tensor(np.stack(arrays))
