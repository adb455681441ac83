"""Data sets: elements by position or by iteration, and data sets made of others."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final, Generic, Protocol, TypeVar

import numpy as np

from stratal.base.errors import AttributeValueError, DTypeError, ShapeError, not_given
from stratal.data.shuffle import permutation
from stratal.data.sources.memory_map import check_mapped
from stratal.tensor.functions.random import Generator, default_generator
from stratal.tensor.tensor import Tensor, tensor

Array = np.ndarray[Any, Any]
T_co = TypeVar("T_co", covariant=True)
_SPLIT: Final = -1  # the stream of splits: the epochs of a loader with the same seed have those from 0 on


class Dataset(Protocol[T_co]):
    """Anything with a length whose elements are trees of numbers, arrays and text."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> T_co: ...


class IterableDataset(Generic[T_co]):
    """A data set that is read in order and need not know its length; subclasses define `__iter__`.

    Each `iter()` begins anew, for another epoch. A `DataLoader` takes any such iterable, subclass or not.
    """

    def __iter__(self) -> Iterator[T_co]:
        raise not_given(self, "__iter__", "def __iter__(self): yield each element, from the first")

    def __add__(self, other: Iterable[Any]) -> ChainDataset:
        return ChainDataset([self, other])


def read_in_order(dataset: Any) -> bool:
    """Return whether a data set is read by iteration: PyTorch's IterableDataset has a `__getitem__`, too."""
    named = any(c.__name__ == "IterableDataset" for c in type(dataset).__mro__)
    return named or not hasattr(dataset, "__getitem__")


class ChainDataset(IterableDataset[Any]):
    """The elements of several iterables, one iterable after the other."""

    def __init__(self, datasets: Iterable[Iterable[Any]]) -> None:
        self.datasets = list(datasets)

    def __iter__(self) -> Iterator[Any]:
        return chain.from_iterable(self.datasets)

    def __len__(self) -> int:
        sized: list[Any] = self.datasets
        return sum(len(d) for d in sized)


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

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The arrays as tensors, copied at each access."""
        return tuple(tensor(a) for a in self.arrays)

    def __len__(self) -> int:
        return int(self.arrays[0].shape[0])

    def __getitem__(self, index: Any, /) -> tuple[Any, ...]:
        self.check()
        return tuple(a[index] for a in self.arrays)

    def check(self) -> None:
        """Check that files under the arrays were not cut short. Raises: ChangedSourceError."""
        for array in self.arrays:
            check_mapped(array)

    def __repr__(self) -> str:
        rows = ", ".join(f"{a.dtype}{list(a.shape[1:])}" for a in self.arrays)
        return f"TensorDataset({len(self)} rows of {rows})"


class Subset:
    """Some elements of a data set, by position."""

    def __init__(self, dataset: Dataset[Any], positions: Sequence[int] | Array) -> None:
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

    def __init__(self, datasets: Iterable[Dataset[Any]]) -> None:
        self.datasets = list(datasets)
        self.ends = np.cumsum([len(d) for d in self.datasets], dtype=np.int64)
        if not self.datasets:
            raise AttributeValueError("ConcatDataset: takes at least one data set", got="none")

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, index: int, /) -> Any:
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError(f"element {index} of {len(self)}")
        part = int(np.searchsorted(self.ends, position, side="right"))
        return self.datasets[part][position - (int(self.ends[part - 1]) if part else 0)]


def random_split(
    dataset: Dataset[Any], lengths: Sequence[float], generator: Generator | None = None, *,
    seed: int | None = None,
) -> list[Subset]:  # fmt: skip
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
    source = generator_of("random_split", seed, generator)
    order = permutation(count, source.next_host_key() if seed is None else seed, _SPLIT)
    return [Subset(dataset, part) for part in np.split(order, np.cumsum(sizes)[:-1])]


def generator_of(name: str, seed: int | None, generator: Generator | None) -> Generator:
    """Return the generator to draw from where there is no seed. Raises: DTypeError, AttributeValueError."""
    if not isinstance(generator, Generator | None):
        raise DTypeError(
            f"{name}: takes a generator", got=f"a {type(generator).__module__}.{type(generator).__name__}",
            hint="generator=st.Generator(0), or seed=0",
        )  # fmt: skip
    if seed is not None and generator is not None:
        raise AttributeValueError(f"{name}: takes a seed or a generator", got="both")
    return generator or default_generator()
