"""Batches of a data set, in an order drawn from a generator, or decided by a seed and the epoch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy, deepcopy
from itertools import islice
from operator import index
from typing import Any, Final
from zlib import crc32

import numpy as np

from stratal.base.counts import as_count
from stratal.base.errors import AttributeValueError, CallOrderError, DTypeError
from stratal.data.collate import collate_named, collated_columns, default_convert, digest_of
from stratal.data.datasets import Dataset, Subset, TensorDataset, generator_of, read_in_order
from stratal.data.samplers import BatchSampler, SequentialSampler, draw_ahead
from stratal.data.shuffle import part_of, permutation, span_of, starving
from stratal.data.worker_processes import ProcessPool
from stratal.data.workers import (
    WorkerOptions,
    WorkerPool,
    called,
    checked_options,
    in_order,
    in_order_read_by_workers,
)
from stratal.tensor.functions.random import Generator
from stratal.tensor.tensor import tensor

Array = np.ndarray[Any, Any]
_REFUSED: Final = {  # by name: the value that changes nothing, and why there is no other
    "multiprocessing_context": (None, 'workers="processes" spawns them'),
    "in_order": (True, "batches come in order; a slow one is waited for"),
    "pin_memory_device": ("", "tensors lie in the memory of the host"),
}


class DataLoader:
    """Iterates over batches of tensors, once per epoch; each iteration is the next epoch.

    `dataset` has a length and elements, or is iterable: then it is read in order, and `sampler`,
    `batch_sampler` and `shuffle` are refused. `batch_size=None` gives one element at a time, its arrays as
    tensors.
    `shuffle` gives every epoch an order of its own, drawn as it begins from `generator`, by default the one
    that `st.manual_seed` starts; with `seed`, the seed and the epoch's number decide. `sampler` gives the
    positions of an epoch in order, `batch_sampler` those of each batch. `collate_fn` makes a batch of the
    list of its elements, by default `default_collate`.

    With `num_workers`, so many threads make batches ahead of the loop, `prefetch_factor` (2) for each, and
    hand them over in order. They share the data set. `worker_init_fn(number)` runs first in each;
    `persistent_workers` go on from epoch to epoch; `timeout` is the most seconds to wait for a batch. An
    iterable is read once, by workers in turns. With `workers="processes"` they are processes, each with a
    copy of the data set, which is pickled, and so are batches. `pin_memory` has no effect, all memory is the
    host's.

    `shard` is (rank, number of ranks): each rank gets its part of every batch, so that all of them together
    see what one process would, no sample lost or repeated, whatever their number. `batch_size` stays that of
    the whole batch; orders must come from a seed, which is the same on all ranks.
    `state_dict` says where the loader stands, so that a resumed run sees the batches it would have seen, in
    later epochs, too: the state of `generator` is part of it, and that of a sampler (see `data.samplers`). An
    iterable is read again from its beginning up to there.
    """

    def __init__(
        self, dataset: Dataset[Any] | Iterable[Any], batch_size: int | None = 1, shuffle: bool | None = False,
        sampler: Iterable[int] | None = None, batch_sampler: Iterable[Sequence[int]] | None = None,
        num_workers: int = 0, collate_fn: Callable[[Any], Any] | None = None, pin_memory: bool = False,
        drop_last: bool = False, timeout: float = 0, worker_init_fn: Callable[[int], Any] | None = None,
        *, generator: Generator | None = None, prefetch_factor: int | None = None,
        persistent_workers: bool = False, seed: int | None = None, shard: tuple[int, int] | None = None,
        workers: str = "threads",
        **others: Any,
    ) -> None:  # fmt: skip
        if batch_size is not None:
            batch_size = as_count("DataLoader: a batch has at least one element", batch_size)
        _refuse(others)
        self.workers = checked_options(
            num_workers, worker_init_fn, prefetch_factor, persistent_workers, timeout
        )
        self.dataset: Any = dataset
        self.processes = _are_processes(workers, self._iterable)
        self.collate_fn = collate_fn
        self.batch_size = batch_size
        self.shuffle = bool(shuffle)
        self.sampler, self.batch_sampler = sampler, batch_sampler
        self.drop_last = drop_last
        self.seed = seed
        self.generator = generator
        self.epoch = 0  # under way, or next
        self._done = 0  # batches of it handed out
        self._opening: Any = None  # the sampler's state where it began
        self._mark: int | None = None  # a checksum of the positions handed out, where a sampler gives them
        self._last: Any = None  # the last batch of an iterable, or its digest
        self._drawn: int | None = None  # the key of its order
        self._resumed = False
        self._begun = False  # an iterator can be read once
        self._pool: WorkerPool | ProcessPool | None = None  # of persistent workers
        generator_of("DataLoader", seed, generator)
        self._check_order()
        self.shard = None if shard is None else self._checked_shard(*shard)

    @property
    def num_workers(self) -> int:
        """How many threads make batches ahead."""
        return self.workers.num_workers

    @property
    def _iterable(self) -> bool:
        """Whether the data set is read in order, not by position."""
        return read_in_order(self.dataset)

    def _check_order(self) -> None:
        """Check what decides on the order. Raises: DTypeError, AttributeValueError."""
        if self._iterable:
            if not hasattr(self.dataset, "__iter__"):
                raise DTypeError(
                    "DataLoader: a data set has __len__ and __getitem__, or __iter__",
                    got=f"a {type(self.dataset).__name__} without them",
                )
            if self.shuffle or self.sampler is not None or self.batch_sampler is not None:
                raise AttributeValueError(
                    "DataLoader: an iterable is read in its own order",
                    got="shuffle, sampler or batch_sampler beside it",
                    hint="list(dataset) has elements by position",
                )
        elif not hasattr(self.dataset, "__len__") and self.sampler is None and self.batch_sampler is None:
            raise DTypeError(
                "DataLoader: a data set has __len__ and __getitem__, or __iter__",
                got=f"a {type(self.dataset).__name__} without __len__",
                hint="define it, or give a sampler",
            )
        alone = self.batch_size == 1 and not (self.shuffle or self.drop_last) and self.sampler is None
        if self.batch_sampler is not None and not alone:
            raise AttributeValueError(
                "DataLoader: a batch_sampler decides alone what a batch holds",
                got="batch_size, shuffle, sampler or drop_last beside it",
            )
        if self.sampler is not None and self.shuffle:
            raise AttributeValueError("DataLoader: a sampler decides alone on the order", got="shuffle=True")
        if self.batch_size is None and self.drop_last:
            raise AttributeValueError(
                "DataLoader: without batches there is no last one to drop",
                got="batch_size=None, drop_last=True",
            )

    def _checked_shard(self, rank: int, size: int) -> tuple[int, int]:
        """Return the shard of a rank. Raises: AttributeValueError where ranks would disagree, or starve."""
        if not 0 <= rank < size:
            raise AttributeValueError("DataLoader: a shard is (rank, number of ranks)", got=f"{rank}, {size}")
        if self.sampler is not None or self.batch_sampler is not None:
            raise AttributeValueError(
                "DataLoader: a shard is of the loader's own order", got="a sampler",
                hint="leave shard out, and let the sampler give each rank its own positions",
            )  # fmt: skip
        if self.batch_size is None:
            raise AttributeValueError("DataLoader: a shard is a part of a batch", got="batch_size=None")
        if self.shuffle and self.seed is None:
            raise AttributeValueError(
                "DataLoader: with a shard, a seed decides on the order, alike on all ranks",
                got="shuffle=True without seed", hint="DataLoader(..., shuffle=True, seed=0, shard=...)",
            )  # fmt: skip
        known = hasattr(self.dataset, "__len__") and not self.drop_last
        rest = len(self.dataset) % self.batch_size if known else 0
        if self.batch_size % size or 0 < rest < size:
            raise starving(size, rest, f"batch_size={self.batch_size}, ")
        return rank, size

    def __len__(self) -> int:
        if self.batch_sampler is not None:
            return len(self.batch_sampler)  # type: ignore[arg-type]
        source: Any = self.dataset if self.sampler is None else self.sampler
        if not hasattr(source, "__len__"):
            raise DTypeError("len: the data set does not know its length", got=f"a {type(source).__name__}")
        if self.batch_size is None:
            return len(source)
        full, rest = divmod(len(source), self.batch_size)
        return full + bool(rest and not self.drop_last)

    def __iter__(self) -> Iterator[Any]:
        if self._done and not self._resumed:  # an epoch left in the middle is over
            self._ends()
        goes_on, self._resumed = self._resumed and self._done > 0, False
        if self._stateful is not None and not goes_on:
            draw_ahead(self._stateful)
            self._opening = deepcopy(self._stateful.state_dict())
        if self.shuffle and self.seed is None and self._drawn is None:
            self._drawn = generator_of("DataLoader", None, self.generator).next_host_key()
        epoch = self.epoch
        marks: deque[int] = deque()  # of batches that are read ahead
        for k, batch in enumerate(self._batches(marks), self._done + 1):
            mark = marks.popleft() if marks else None
            if self.epoch == epoch:
                self._done, self._mark = k, mark
                self._last = batch if self._iterable else None
            yield batch
        if self.epoch == epoch:
            self._ends()

    def _ends(self) -> None:
        self.epoch, self._done, self._drawn = self.epoch + 1, 0, None
        self._opening = self._mark = self._last = None

    def _batches(self, marks: deque[int]) -> Iterator[Any]:
        """Yield the batches of the epoch that are not done, made here or by workers."""
        items: Iterator[Any]
        work: Callable[[Any], Any]
        if self._iterable:
            items, work = self._rows(), self._of_rows
        else:
            items, work = self._positions(), self._of_positions
            if self._ordering is not None:
                items = _marked(items, marks)
        options = self.workers
        if self._done:
            self._skip(items, work, marks)
        if not options.num_workers:
            yield from called(work, items)
            return
        pool = self._pool or self._new_pool()
        if options.persistent_workers:
            self._pool = pool
        read = in_order_read_by_workers if self._iterable else in_order
        try:
            yield from read(pool, work, items, options.num_workers * options.prefetch_factor, options.timeout)
        finally:
            if isinstance(pool, ProcessPool) and not pool.whole:
                self._pool = None
            if pool is not self._pool:
                pool.stop()

    def _skip(self, items: Iterator[Any], work: Callable[[Any], Any], marks: deque[int]) -> None:
        """Read the batches that are handed out already. Raises: AttributeValueError where they are others."""
        again, item = 0, None
        for again, item in enumerate(islice(items, self._done), 1):  # noqa: B007  # both are of the last one
            pass
        if again < self._done:
            raise AttributeValueError(
                "DataLoader: an epoch has the batches that it had when it began",
                got=f"{again}, of at least {self._done}", hint="change the data between epochs",
            )  # fmt: skip
        source = self.dataset if self._iterable else self._ordering
        is_other = bool(marks) and self._mark is not None and marks[-1] != self._mark
        if self._last is not None:
            is_other = digest_of(work(item)) != digest_of(self._last)
        if is_other:
            raise AttributeValueError(
                "DataLoader: an epoch goes on in the order it began with",
                got=f"another one of a {type(source).__name__}",
                hint="an iterable begins anew in each epoch" if self._iterable
                else "the state of a sampler before __iter__ decides on all that __iter__ gives",
            )  # fmt: skip
        marks.clear()

    def _new_pool(self) -> WorkerPool | ProcessPool:
        options, seed = self.workers, self._seed_of_workers()
        if not self.processes:
            return WorkerPool(options, seed, self.dataset)
        sent = copy(self)  # what makes batches of positions, and no more
        sent._pool = sent.sampler = sent.batch_sampler = sent.generator = sent._opening = None
        sent.workers = WorkerOptions()
        return ProcessPool(options, seed, sent._of_positions)

    def _seed_of_workers(self) -> int:
        if self.seed is not None:
            return self.seed
        return generator_of("DataLoader", None, self.generator).initial_seed()

    def _rows(self) -> Iterator[tuple[range, Any]]:
        """Yield the numbers and elements of each batch of an iterable, of this rank's part."""
        rows = iter(self.dataset)
        if rows is self.dataset:
            if self._begun:
                raise CallOrderError(
                    "DataLoader: an iterator can be read once",
                    got=f"another epoch of a {type(rows).__name__}",
                    hint="give an object whose __iter__ begins anew, as an IterableDataset",
                )
            self._begun = True
        size = self.batch_size or 1
        start = 0
        while batch := list(islice(rows, size)):
            if len(batch) < size and self.drop_last:
                return
            part = slice(0, len(batch)) if self.shard is None else part_of(len(batch), *self.shard)
            yield range(start + part.start, start + part.stop), batch[part]
            start += len(batch)

    def _positions(self) -> Iterator[Array]:
        """Yield the positions of each batch of the epoch."""
        if self.batch_sampler is not None:
            yield from (_indices(batch) for batch in self.batch_sampler)
            return
        size = self.batch_size or 1
        for part in self._order_in_parts(size) if self.sampler is None else _in_parts(self.sampler, size):
            if len(part) == size or not self.drop_last:
                yield part if self.shard is None else part[part_of(len(part), *self.shard)]

    def _order_in_parts(self, size: int) -> Iterator[Array]:
        order = self._order()
        return (order[start : start + size] for start in range(0, len(order), size))

    def _order(self) -> Array:
        count, order = len(self.dataset), np.arange(len(self.dataset))
        if self.shuffle:
            if self._drawn is not None:
                order = permutation(count, self._drawn)
            elif self.seed is not None:
                order = permutation(count, self.seed, self.epoch)
        return order

    def _of_positions(self, positions: Array) -> Any:
        """Return the batch of some positions."""
        source: Any = self.dataset
        while isinstance(source, Subset):
            source, positions = source.dataset, source.positions[positions]
        whole = self.collate_fn is None and self.batch_size is not None
        if isinstance(source, TensorDataset) and whole:
            rows: Any = span_of(positions)
            source.check()
            return tuple(tensor(a[positions if rows is None else rows]) for a in source.arrays)
        if hasattr(source, "columns_at") and whole:
            return collated_columns(source.columns_at(positions), positions)
        if hasattr(source, "__getitems__"):
            return self._of_rows((positions, source.__getitems__(positions.tolist())))
        return self._of_rows((positions, [source[int(p)] for p in positions]))

    def _of_rows(self, named: tuple[Sequence[int] | Array, Sequence[Any]]) -> Any:
        """Return the batch of some elements, or the one element where there are no batches."""
        names, rows = named
        if self.batch_size is None:
            return (self.collate_fn or default_convert)(rows[0])
        return collate_named(rows, names) if self.collate_fn is None else self.collate_fn(list(rows))

    @property
    def _ordering(self) -> Any:
        """The sampler that gives positions, or batches of them; None of the loader's own order."""
        return self.sampler if self.batch_sampler is None else self.batch_sampler

    @property
    def _stateful(self) -> Any:
        """The sampler, where it says where it stands."""
        return self._ordering if self.resumes and hasattr(self._ordering, "load_state_dict") else None

    @property
    def resumes(self) -> bool:
        """Whether an epoch goes on from its middle: an order of the loader's own, or of a sampler that is a
        sequence, or says where it stands. What an iterable reads next, nobody knows.
        """
        order = self._ordering
        while isinstance(order, BatchSampler):
            order = order.sampler
        if order is None:
            return not self._iterable
        fixed = isinstance(order, (list, tuple, range, np.ndarray, SequentialSampler))
        return fixed or (hasattr(order, "state_dict") and hasattr(order, "load_state_dict"))

    def _ordered_by(self) -> dict[str, Any]:
        """Return what positions in an epoch count in, beside seeds."""
        return {
            "batch_size": self.batch_size, "shuffle": self.shuffle, "drop_last": self.drop_last,
            "rows": len(self.dataset) if not self._iterable and hasattr(self.dataset, "__len__") else None,
        }  # fmt: skip

    def state_dict(self) -> dict[str, Any]:
        """Return where the loader stands: its seed or the key it drew, its epoch, how many of the epoch's
        batches are out, the state of its generator, and that of a sampler where the epoch began.
        """
        state: dict[str, Any] = {
            "seed": self.seed, "drawn": self._drawn, "epoch": self.epoch, "batch": self._done,
        }  # fmt: skip
        if self.generator is not None:
            state["generator"] = self.generator.get_state()
        if self._stateful is not None:
            state["sampler"] = deepcopy(self._opening if self._done else self._stateful.state_dict())
        if self._done:
            state |= {"of": self._ordered_by(), "order": self._mark, "last": digest_of(self._last)}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go where another loader of the same data stood; the next iteration goes on from there.

        Raises: AttributeValueError where that is in an epoch of other batches, or the order is not known.
        """
        before, now = state.get("of") or {}, self._ordered_by()
        if other := [name for name in before if before[name] != now[name]]:
            raise AttributeValueError(
                "DataLoader: an epoch goes on in the batches it began with",
                got=", ".join(f"{name} {now[name]} for {before[name]}" for name in other),
                hint="change it between epochs",
            )  # fmt: skip
        if (state["batch"] or state["epoch"]) and self._ordering is not None and not self.resumes:
            raise AttributeValueError(
                "DataLoader: goes on in an order that can be had again",
                got=f"a {type(self._ordering).__name__} without state_dict and load_state_dict",
                hint="st.data.RandomSampler and WeightedRandomSampler have them",
            )  # fmt: skip
        if "generator" in state and self.generator is None:
            raise AttributeValueError(
                "DataLoader: goes on with the generator it began with", got="none of its own",
                hint="generator= as it was",
            )  # fmt: skip
        self.seed, self._drawn = state["seed"], state.get("drawn")
        self.epoch, self._done = state["epoch"], state["batch"]
        self._mark, self._last = state.get("order"), state.get("last")
        if self.generator is not None and "generator" in state:
            self.generator.set_state(state["generator"])
        if self._stateful is not None and "sampler" in state:
            self._opening = deepcopy(state["sampler"])
            self._stateful.load_state_dict(deepcopy(state["sampler"]))
        self._resumed = True


def _are_processes(workers: str, iterable: bool) -> bool:
    """Return whether workers are processes. Raises: AttributeValueError."""
    if workers not in ("threads", "processes"):
        raise AttributeValueError('DataLoader: workers are "threads" or "processes"', got=repr(workers))
    if workers == "processes" and iterable:
        raise AttributeValueError(
            "DataLoader: processes read by position", got="an iterable",
            hint="threads read it in turns; a data set with __len__ and __getitem__ is read by processes",
        )  # fmt: skip
    return workers == "processes"


def _refuse(others: Mapping[str, Any]) -> None:
    """Refuse options that are not there. Raises: AttributeValueError."""
    for name, value in others.items():
        if name not in _REFUSED:
            raise AttributeValueError("DataLoader: an option it does not have", got=name)
        takes, reason = _REFUSED[name]
        if value != takes:
            raise AttributeValueError(f"DataLoader: {name} is {takes!r}", got=repr(value), hint=reason)


def _marked(items: Iterator[Array], marks: deque[int]) -> Iterator[Array]:
    """Yield positions of batches; `marks` gets a checksum of all positions up to each."""
    mark = 0
    for positions in items:
        mark = crc32(positions.data, mark)
        marks.append(mark)
        yield positions


def _in_parts(positions: Iterable[Any], size: int) -> Iterator[Array]:
    given = iter(positions)
    while len(part := _indices(islice(given, size))):
        yield part


def _indices(positions: Iterable[Any]) -> Array:
    return np.array([index(p) for p in positions], np.int64)
