"""Samplers: the positions of an epoch, in the order in which a loader reads them.

Each iteration is a new draw. Its key comes from `generator`, by default the one that `st.manual_seed` starts.

A loader asks a sampler for its state where an epoch begins, before `__iter__`, and to go on in that epoch it
iterates a sampler of that state again, over all positions: `state_dict` decides on all that the next
`__iter__` gives. A state of a generator, the number of the epoch, or a position, 0 by then, does so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from itertools import islice
from typing import Any

import numpy as np

from stratal.base.errors import AttributeValueError, ShapeError, not_given
from stratal.data.datasets import generator_of
from stratal.data.shuffle import permutation, positive
from stratal.tensor.functions.random import Generator

Array = np.ndarray[Any, Any]
_DRAWS, _STEPS = 1, 1 << 32  # streams of a key: permutations have 0


class Sampler:
    """The base of samplers: subclasses define `__iter__`, and `__len__` where the number is known."""

    def __iter__(self) -> Iterator[Any]:
        raise not_given(self, "__iter__", "def __iter__(self): yield each position")


class SequentialSampler(Sampler):
    """All positions of a data set, in order."""

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class _RandomSampler(Sampler):
    """A sampler whose order is a function of a key."""

    def __init__(self, generator: Generator | None) -> None:
        generator_of(type(self).__name__, None, generator)
        self.generator = generator
        self._key: int | None = None  # of the next iteration, once it is drawn

    def __iter__(self) -> Iterator[int]:
        key, self._key = self.draw(), None
        return iter(self._order(key).tolist())

    def draw(self) -> int:
        """Draw the key of the next iteration, where that is still to do: `state_dict` has it from then on."""
        if self._key is None:
            self._key = generator_of("", None, self.generator).next_host_key()
        return self._key

    def _order(self, key: int) -> Array:
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Return the key of the next iteration, if it is drawn, and the state of a generator of its own."""
        return {"key": self._key, "generator": None if self.generator is None else self.generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iterations be those of another sampler. Raises: AttributeValueError."""
        own = state.get("generator")
        if "generator" in state and (own is None) != (self.generator is None):
            raise AttributeValueError(
                f"{type(self).__name__}: goes on with the generator it began with",
                got="none of its own" if self.generator is None else "one of its own",
                hint="generator= as it was",
            )
        self._key = state["key"]
        if own is not None and self.generator is not None:
            self.generator.set_state(own)


class RandomSampler(_RandomSampler):
    """The positions of a data set in random order, or `num_samples` drawn with replacement.

    Without replacement, more samples than elements are several permutations, one after the other.
    """

    def __init__(
        self, data_source: Sized, replacement: bool = False, num_samples: int | None = None,
        generator: Generator | None = None,
    ) -> None:  # fmt: skip
        super().__init__(generator)
        self.data_source, self.replacement, self._num_samples = data_source, replacement, num_samples
        positive("RandomSampler", self.num_samples, "num_samples")

    @property
    def num_samples(self) -> int:
        """How many positions an iteration has."""
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def _order(self, key: int) -> Array:
        count, wanted = len(self.data_source), self.num_samples
        if self.replacement:
            return _philox(key).integers(0, count, wanted)
        turns = range(-(-wanted // count))
        return np.concatenate([permutation(count, key, turn * _STEPS) for turn in turns])[:wanted]

    def __len__(self) -> int:
        return self.num_samples


class SubsetRandomSampler(_RandomSampler):
    """The given positions, in random order."""

    def __init__(self, indices: Sequence[int], generator: Generator | None = None) -> None:
        super().__init__(generator)
        self.indices = indices

    def _order(self, key: int) -> Array:
        return np.asarray(self.indices, np.int64)[permutation(len(self.indices), key)]

    def __len__(self) -> int:
        return len(self.indices)


class WeightedRandomSampler(_RandomSampler):
    """`num_samples` positions, each drawn with a probability in proportion to its weight.

    Raises: ShapeError unless weights have one axis; AttributeValueError for negative weights, a sum of 0, or
    fewer positive weights than draws without replacement.
    """

    def __init__(
        self, weights: Any, num_samples: int, replacement: bool = True, generator: Generator | None = None
    ) -> None:
        super().__init__(generator)
        self.weights = np.asarray(weights, np.float64)
        self.num_samples = positive("WeightedRandomSampler", num_samples, "num_samples")
        self.replacement = replacement
        if self.weights.ndim != 1:
            raise ShapeError(
                "WeightedRandomSampler: weights have one axis", got=str(list(self.weights.shape))
            )
        if not np.isfinite(self.weights).all() or (self.weights < 0).any() or not self.weights.sum() > 0:
            raise AttributeValueError(
                "WeightedRandomSampler: weights are finite, not negative, and not all 0",
                got=f"{self.weights.min()} to {self.weights.max()}",
            )
        if not replacement and num_samples > (most := int((self.weights > 0).sum())):
            raise AttributeValueError(
                "WeightedRandomSampler: draws without replacement are at most the positive weights",
                got=f"{num_samples} of {most}",
            )

    def _order(self, key: int) -> Array:
        shares = self.weights / self.weights.sum()
        return _philox(key).choice(len(shares), self.num_samples, self.replacement, p=shares)

    def __len__(self) -> int:
        return self.num_samples


class BatchSampler(Sampler):
    """Lists of `batch_size` positions of another sampler."""

    def __init__(self, sampler: Iterable[int], batch_size: int, drop_last: bool) -> None:
        self.sampler, self.drop_last = sampler, drop_last
        self.batch_size = positive("BatchSampler", batch_size, "batch_size")

    def __iter__(self) -> Iterator[list[int]]:
        positions = iter(self.sampler)
        while batch := list(islice(positions, self.batch_size)):
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch

    def __len__(self) -> int:
        full, rest = divmod(len(self.sampler), self.batch_size)  # type: ignore[arg-type]
        return full + bool(rest and not self.drop_last)

    def draw(self) -> None:
        """Let the sampler draw its next order, where it does so ahead."""
        draw_ahead(self.sampler)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the sampler; empty where it has none."""
        return self.sampler.state_dict() if hasattr(self.sampler, "state_dict") else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Give the sampler the state of another one."""
        if state and hasattr(self.sampler, "load_state_dict"):
            self.sampler.load_state_dict(state)


def draw_ahead(sampler: Any) -> None:
    """Let a sampler of ours draw its next order, so that its state has it."""
    if isinstance(sampler, _RandomSampler | BatchSampler):
        sampler.draw()


def _philox(key: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=np.array([key, _DRAWS], np.uint64)))
