"""Streams: elements in order, each with a mark from which a stream can be opened again.

    Element := (mark | None, lazy value)

Opening a stream at a mark gives the element that had it and all that followed. Marks are JSON: a position, or
a list of those of other streams. A stage that holds elements back passes on the mark of an element only if it
held none before it; so what is opened at a mark repeats and loses nothing. An element without a mark is
found from the last mark before it and a count: its `Exact` position.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from itertools import accumulate, islice
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from stratal.base.errors import AttributeValueError, CallOrderError
from stratal.data.lazy_records import Joined, Record
from stratal.data.row_blocks import Part, RowBlocks
from stratal.data.shuffle import permutation
from stratal.data.workers import WorkerPool

Mark = Any  # JSON
Element = tuple[Mark, Any]
_BLOCK: Final = 1024  # draws of a mix from one key


class Run(NamedTuple):
    """What a pass over a pipeline is: its epoch, and the workers that compute ahead, if any."""

    epoch: int
    pool: WorkerPool | None = None
    ahead: int = 0


class Stream(Protocol):
    """What elements come from."""

    def open(self, run: Run, mark: Mark) -> Iterator[Element]:
        """Yield the elements from a mark on; from the first where it is None."""
        ...

    def count(self) -> int | None:
        """Return how many elements an epoch has; None where that is not known."""
        ...

    def described(self) -> list[str]:
        """Return what its marks count in: where that differs, a mark of another stream is none of it."""
        ...


class Exact(NamedTuple):
    """A position in a stream: `skip` elements after the one with the mark `at` (None: the first)."""

    at: Mark = None
    skip: int = 0


def exactly(stream: Stream, run: Run, start: Exact) -> Iterator[tuple[Exact, Any]]:
    """Yield each element from a position on, with its own position."""
    at, base = start.at, 0
    for number, (mark, value) in enumerate(stream.open(run, at)):
        if mark is not None:
            at, base = mark, number
        if number >= start.skip:
            yield Exact(at, number - base), value


class Keys:
    """Keys of elements that depend on their positions alone, for draws."""

    def __init__(self, seed: int, epoch: int) -> None:
        self._seed, self._epoch = seed, epoch
        self._at: Mark = None
        self._skip = 0

    def of(self, mark: Mark) -> int:
        """Return the key of the next element: 64 bits."""
        self._at, self._skip = (self._at, self._skip + 1) if mark is None else (mark, 0)
        return key_of(self._seed, self._epoch, self._at, self._skip)


def key_of(*parts: Any) -> int:
    """Return 64 bits that depend on some JSON."""
    digest = hashlib.blake2b(json.dumps(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


class Positions:
    """The elements of a data set with a length, in order, or in an order drawn from (seed, epoch)."""

    def __init__(self, dataset: Any, seed: int | None = None) -> None:
        self.dataset, self.seed = dataset, seed

    def open(self, run: Run, mark: Mark) -> Iterator[Element]:
        count, start = len(self.dataset), mark or 0
        if self.seed is None:
            order = np.arange(start, count)
        else:
            order = permutation(count, self.seed, run.epoch)[start:]
        return RowBlocks(self.dataset, [Part(start, order, counted=True)])

    def count(self) -> int:
        return len(self.dataset)

    def described(self) -> list[str]:
        order = [] if self.seed is None else [f"shuffle(seed={self.seed})"]
        return [f"{len(self.dataset)} rows", *order]


class Iterated:
    """The elements of an iterable; a position is found by reading up to it."""

    def __init__(
        self, iterable: Iterable[Any], reading: Callable[[Iterator[Any]], Iterator[Any]] = iter
    ) -> None:
        self.iterable, self._reading = iterable, reading
        self._begun = False

    def open(self, run: Run, mark: Mark) -> Iterator[Element]:
        rows = iter(self.iterable)
        if rows is self.iterable and self._begun:
            raise CallOrderError(
                "Pipeline: an iterator can be read once", got=f"another pass over a {type(rows).__name__}",
                hint="give an object whose __iter__ begins anew",
            )  # fmt: skip
        self._begun = True
        read, start = self._reading(rows), mark or 0
        if (again := sum(1 for _ in islice(read, start))) < start:
            raise AttributeValueError(
                "Pipeline: an iterable has the elements that it had when the epoch began",
                got=f"{again}, of at least {start + 1}", hint="change it between epochs",
            )  # fmt: skip
        for position, row in enumerate(read, start):
            yield position, Record((row,), 0)

    def count(self) -> int | None:
        return len(self.iterable) if isinstance(self.iterable, Sized) else None

    def described(self) -> list[str]:
        return ["an iterable"]


class Repeated:
    """The epochs of a stream, one after the other: `times` of them, or without end."""

    def __init__(self, stream: Stream, times: int | None) -> None:
        self.stream, self.times = stream, times

    def open(self, run: Run, mark: Mark) -> Iterator[Element]:
        turn, start = (0, Exact()) if mark is None else (mark[0], Exact(*mark[1]))
        first = run.epoch * (self.times or 0)
        while self.times is None or turn < self.times:
            empty = start == Exact()
            for position, value in exactly(self.stream, run._replace(epoch=first + turn), start):
                empty = False
                yield [turn, list(position)], value
            if empty:
                return
            turn, start = turn + 1, Exact()

    def count(self) -> int | None:
        once = self.stream.count()
        return None if once is None or self.times is None else once * self.times

    def described(self) -> list[str]:
        return [*self.stream.described(), f"repeat({'' if self.times is None else self.times})"]


class Zipped:
    """The elements of several streams side by side, as long as all have some."""

    def __init__(self, streams: Sequence[Stream]) -> None:
        self.streams = streams

    def open(self, run: Run, mark: Mark) -> Iterator[Element]:
        starts = [Exact()] * len(self.streams) if mark is None else [Exact(*m) for m in mark]
        opened = [exactly(s, run, start) for s, start in zip(self.streams, starts, strict=True)]
        for row in zip(*opened, strict=False):
            yield [list(position) for position, _ in row], Joined([value for _, value in row])

    def count(self) -> int | None:
        counts = [s.count() for s in self.streams]
        return None if None in counts else min(c for c in counts if c is not None)

    def described(self) -> list[str]:
        return [f"zip({_side_by_side(self.streams)})"]


class Mixed:
    """The elements of several streams, each next one drawn by weight from those that have some left.

    All elements come, none twice; weights say how fast. Mark: index, then of each stream its next position,
    or None where it is at its end.
    """

    def __init__(self, streams: Sequence[Stream], weights: Sequence[float], seed: int) -> None:
        self.streams, self.weights, self.seed = streams, list(weights), seed
        if len(weights) != len(streams) or not all(0 < w < float("inf") for w in weights):
            raise AttributeValueError(
                "mix: takes a positive weight for each pipeline", got=f"{list(weights)} for {len(streams)}"
            )

    def open(self, run: Run, mark: Mark) -> Iterator[Element]:
        index, starts = (0, [[None, 0]] * len(self.streams)) if mark is None else mark
        ends = [
            iter(()) if start is None else exactly(stream, run, Exact(*start))
            for stream, start in zip(self.streams, starts, strict=True)
        ]
        heads = [next(elements, None) for elements in ends]
        draws = np.empty(0)
        while any(head is not None for head in heads):
            if index % _BLOCK == 0 or not len(draws):
                philox = np.random.Philox(key=key_of(self.seed, run.epoch, index // _BLOCK))
                draws = np.random.Generator(philox).random(_BLOCK)
            chosen = self._chosen(heads, float(draws[index % _BLOCK]))
            _, value = heads[chosen] or (None, None)
            yield [index, [None if head is None else list(head[0]) for head in heads]], value
            heads[chosen] = next(ends[chosen], None)
            index += 1

    def _chosen(self, heads: Sequence[Any], draw: float) -> int:
        """Return which stream a draw below 1 chooses of those that have elements left."""
        left = [k for k, head in enumerate(heads) if head is not None]
        sums = list(accumulate(self.weights[k] for k in left))
        return next((k for k, s in zip(left, sums, strict=True) if draw * sums[-1] < s), left[-1])

    def count(self) -> int | None:
        counts = [s.count() for s in self.streams]
        return None if None in counts else sum(c for c in counts if c is not None)

    def described(self) -> list[str]:
        return [f"mix({_side_by_side(self.streams)}, weights={self.weights}, seed={self.seed})"]


def _side_by_side(streams: Sequence[Stream]) -> str:
    return ", ".join(f"[{', '.join(stream.described())}]" for stream in streams)
