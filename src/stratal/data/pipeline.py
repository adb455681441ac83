"""Pipelines: data in steps, in an order that (seed, epoch, position) decide, whatever workers and ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any, Final, NamedTuple

from stratal.base.errors import AttributeValueError, CallOrderError, DTypeError
from stratal.data import stages
from stratal.data.bad_rows import BadRowError
from stratal.data.collate import default_collate
from stratal.data.datasets import read_in_order
from stratal.data.lazy_records import Batch
from stratal.data.shuffle import positive
from stratal.data.stage_times import LOOP, WAITED, StageTimes, Timed, TimedRows, name_of
from stratal.data.stages import Padded, Stage
from stratal.data.streams import (
    Element,
    Exact,
    Iterated,
    Mark,
    Mixed,
    Positions,
    Repeated,
    Run,
    Stream,
    Zipped,
    exactly,
)
from stratal.data.transforms import checked_function
from stratal.data.workers import WorkerOptions, WorkerPool

Size = Callable[[int], int]
ON_ERROR: Final = ("raise", "skip", "collect")


class Step(NamedTuple):
    """What a pipeline does with elements, how many that makes of a number of them, and what positions after
    it count in, where it changes them or draws by them.
    """

    stage: Stage
    size: Size | None
    described: str = ""


class Pipeline:
    """The elements of a data set, after steps; each step returns a new pipeline, each iteration is an epoch.

    `source` has a length and elements by position, or is iterable. Rows that raise `BadRowError` end the
    iteration, or are left out: `on_error="skip"`, or "collect", which notes them in `bad_rows`.
    `shard` is (rank, number of ranks): a rank gets its part of each batch, or, of elements that are in no
    batch, one in as many as there are ranks.
    `timed=True` notes in `times` where time goes; `print(pipeline.times)` shows a table of stages.
    `state_dict` is short: the position of the element that comes next, and the steps in which it counts, the
    same on all ranks; a pipeline of the same steps goes on from there, with any number of workers and ranks.
    """

    def __init__(self, source: Any, *, on_error: str = "raise", timed: bool = False) -> None:
        if on_error not in ON_ERROR:
            raise AttributeValueError(f"Pipeline: on_error is one of {ON_ERROR}", got=repr(on_error))
        self.times = StageTimes() if timed else None
        self._source = _stream(source, self.times)
        self._stages: tuple[Step, ...] = ()
        self._positional = isinstance(self._source, Positions)  # elements are those of positions, one by one
        self._batched = False
        self._workers = WorkerOptions()
        self.shard: tuple[int, int] | None = None
        self.bad_rows: list[BadRowError] = []
        self.epoch = 0  # under way, or next
        self._next: Exact | None = None  # what comes next of it; None while it has not begun
        self._resumed = False
        if on_error != "raise":
            note = self.bad_rows.append if on_error == "collect" else _forget
            self._stages = (Step(stages.good(note), None),)
            self._positional = False

    def map(self, function: Callable[..., Any], *, seed: int | None = None) -> Pipeline:
        """Apply a function to each element; with `seed`, `function(element, rng)`, for random changes.

        `rng` is a NumPy generator that depends on seed, epoch and position alone.
        """
        timed = self._timed(f"map {name_of(function)}", checked_function("map", function))
        described = "" if seed is None else f"map(seed={seed})"
        return self._then(stages.mapped(timed, seed), _same, described, positional=self._positional)

    def filter(self, predicate: Callable[[Any], Any]) -> Pipeline:
        """Leave out the elements for which a predicate does not hold. Each rank asks it of all elements."""
        timed = self._timed(f"filter {name_of(predicate)}", checked_function("filter", predicate))
        return self._then(stages.filtered(timed), None, "filter")

    def shuffle(self, window: int | None = None, *, seed: int = 0) -> Pipeline:
        """Change the order: of all elements, or within windows of elements that follow each other.

        Without a window, positions are shuffled: nothing that needs the order may come before.
        Raises: CallOrderError where it does.
        """
        if window is not None:
            stage = stages.shuffled(positive("shuffle", window, "window"), seed)
            return self._then(stage, _same, f"shuffle({window}, seed={seed})")
        if not self._positional or not isinstance(self._source, Positions) or self._source.seed is not None:
            raise CallOrderError(
                "shuffle: without a window it takes a data set with a length, after no step but map",
                got="a stream, or another step before", hint="shuffle first, or shuffle(window=10_000)",
            )  # fmt: skip
        made = self._then(None, _same)
        made._source = Positions(self._source.dataset, seed)
        return made

    def batch(
        self, size: int, *, drop_last: bool = False, pad: Any = None,
        collate: Callable[[list[Any]], Any] = default_collate,
    ) -> Pipeline:  # fmt: skip
        """Make batches of elements that follow each other.

        `pad` is the value that arrays are padded with to the longest of the batch, or {field: value}.
        """
        positive("batch", size, "a size")
        checked_function("batch", collate)
        made = self._timed("batch", collate if pad is None else Padded(pad, None, collate))
        stage = stages.batched(size, drop_last, made)
        described = f"batch({size}{', drop_last' if drop_last else ''})"
        return self._then(
            stage, lambda n: n // size + bool(n % size and not drop_last), described, batched=True
        )

    def bucket(
        self, size: int, key: Callable[[Any], Any], *, window: int, drop_last: bool = False, pad: Any = None,
        collate: Callable[[list[Any]], Any] = default_collate,
    ) -> Pipeline:  # fmt: skip
        """Make batches of elements with like keys, such as lengths: of windows that are sorted by key."""
        if positive("bucket", window, "a window") < positive("bucket", size, "a size"):
            raise AttributeValueError("bucket: a window holds at least a batch", got=f"{window} < {size}")
        checked_function("bucket", collate)
        if isinstance(key, str):
            raise DTypeError("bucket: key is a function of an element", got=repr(key),
                             hint=f"key=lambda row: len(row[{key!r}]), say")  # fmt: skip
        checked_function("bucket", key)
        padded = self._timed("bucket", collate if pad is None else Padded(pad, None, collate))
        stage = stages.bucketed(size, key, window, drop_last, padded)
        described = f"bucket({size}, window={window}{', drop_last' if drop_last else ''})"
        return self._then(stage, None, described, batched=True)

    def pad(self, length: int, fields: Any = 0) -> Pipeline:
        """Pad arrays to a length along axis 0: of every element, or the fields of {field: value}."""
        one = Padded(fields, positive("pad", length, "length"))
        return self.map(lambda element: one.padded([element])[0])

    def repeat(self, times: int | None = None) -> Pipeline:
        """Make one epoch of several, each in its own order; of endlessly many without a number."""
        if times is not None:
            positive("repeat", times, "times")
        if self.shard is not None:
            raise CallOrderError("repeat: comes before sharded", got="a sharded pipeline")
        return self._over(Repeated(_Steps(self), times), self._batched)

    def prefetch(self, ahead: int = 2, *, workers: int = 1) -> Pipeline:
        """Let threads make elements ahead of the loop: `ahead` of them for each worker, in order."""
        made = self._then(None, _same, positional=self._positional)
        threads = positive("prefetch", workers, "workers")
        made._workers = WorkerOptions(threads, prefetch_factor=positive("prefetch", ahead, "ahead"))
        return made

    def sharded(self, rank: int, ranks: int) -> Pipeline:
        """Give one rank its part: of every batch, or of the elements."""
        if not 0 <= rank < ranks:
            raise AttributeValueError("sharded: takes a rank and the number of ranks", got=f"{rank}, {ranks}")
        made = self._then(None, _same, positional=self._positional)
        made.shard = rank, ranks
        return made

    @staticmethod
    def zip(*pipelines: Pipeline) -> Pipeline:
        """Return a pipeline of tuples of the elements of several, as long as all have some."""
        given = _given("zip", pipelines)
        return _joined(Zipped([_Steps(p) for p in given]), given, False)

    @staticmethod
    def mix(
        pipelines: Sequence[Pipeline], weights: Sequence[float] | None = None, *, seed: int = 0
    ) -> Pipeline:
        """Return a pipeline of the elements of several, drawn by weight; all come, each once."""
        given = _given("mix", pipelines)
        stream = Mixed([_Steps(p) for p in given], [1] * len(given) if weights is None else weights, seed)
        if len({p._batched for p in given}) > 1:
            raise AttributeValueError("mix: takes pipelines of batches, or of elements", got="both")
        return _joined(stream, given, given[0]._batched)

    def _then(
        self, stage: Stage | None, size: Size | None, described: str = "", *, positional: bool = False,
        batched: bool = False,
    ) -> Pipeline:  # fmt: skip
        """Return a pipeline with one stage more."""
        made = self._over(self._source, batched or self._batched)
        made._stages = self._stages if stage is None else (*self._stages, Step(stage, size, described))
        made._positional = positional
        return made

    def _over(self, source: Stream, batched: bool) -> Pipeline:
        """Return a pipeline of a stream, with what holds for all steps."""
        made = Pipeline(source)
        made._batched, made._workers, made.shard = batched, self._workers, self.shard
        made.bad_rows, made.times = self.bad_rows, self.times
        return made

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose calls are noted, where those of the pipeline are."""
        return function if self.times is None else Timed(self.times, self.times.stage(name), function)

    def __len__(self) -> int:
        count = _Steps(self).count()
        if count is None:
            raise DTypeError("len: how many elements there are shows in reading", got="a filter or a stream")
        return count if self._batched or self.shard is None else -(-(count - self.shard[0]) // self.shard[1])

    def __iter__(self) -> Iterator[Any]:
        if self._next is not None and not self._resumed:  # an epoch left in the middle is over
            self._ends()
        self._resumed, epoch = False, self.epoch
        options, pool = self._workers, None
        if options.num_workers:
            pool = WorkerPool(options, 0, self)
        run = Run(epoch, pool, options.num_workers * options.prefetch_factor)
        try:
            steps = stages.computed(_value, self._steps(run), run)
            for following, values in steps if self.times is None else _waits(steps, self.times):
                if self.epoch == epoch:
                    self._next = following
                yield from values
        finally:
            if pool is not None:
                pool.stop()
        if self.epoch == epoch:
            self._ends()

    def _ends(self) -> None:
        self.epoch, self._next = self.epoch + 1, None

    def _steps(self, run: Run) -> Iterator[tuple[Exact, list[Any]]]:
        """Yield what this rank makes in each step, with the position that all ranks have after it."""
        rank, ranks = self.shard or (0, 1)
        size = 1 if self._batched else ranks
        held: list[Any] = []
        for position, value in exactly(_Steps(self), run, self._next or Exact()):
            held.append(value)
            following = Exact(position.at, position.skip + 1)
            if len(held) == size:
                yield following, self._own(held, rank, ranks)
                held = []
        if held:
            yield following, self._own(held, rank, ranks)

    def _own(self, held: list[Any], rank: int, ranks: int) -> list[Any]:
        """Return what a rank has of a step: nothing where an epoch's last elements are fewer than ranks."""
        if not self._batched:
            return held[rank : rank + 1]
        return [held[0].part(rank, ranks) if ranks > 1 and isinstance(held[0], Batch) else held[0]]

    def state_dict(self) -> dict[str, Any]:
        """Return where the pipeline stands: the epoch, the position of the element that comes next in it, and
        the steps in which that counts.
        """
        if self._next is None:
            return {"epoch": self.epoch, "next": None}
        return {"epoch": self.epoch, "next": list(self._next), "of": _Steps(self).described()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go where another pipeline of the same steps stood; the next iteration goes on from there.

        Raises: AttributeValueError where that is in an epoch of other steps, which it names.
        """
        now = _Steps(self).described()
        for there, here in zip_longest(state.get("of", now), now, fillvalue="nothing"):
            if there != here:
                raise AttributeValueError(
                    "Pipeline: an epoch goes on in the steps it began with", got=f"{here} for {there}",
                    hint="change it between epochs",
                )  # fmt: skip
        self.epoch = state["epoch"]
        self._next = None if state["next"] is None else Exact(*state["next"])
        self._resumed = True


class _Steps:
    """The stream of a pipeline's elements, of all ranks."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.source, self.stages = pipeline._source, pipeline._stages

    def open(self, run: Run, mark: Mark) -> Iterator[Element]:
        elements = self.source.open(run, mark)
        for step in self.stages:
            elements = step.stage(elements, run)
        return elements

    def count(self) -> int | None:
        count = self.source.count()
        for step in self.stages:
            count = None if count is None or step.size is None else step.size(count)
        return count

    def described(self) -> list[str]:
        return [*self.source.described(), *(step.described for step in self.stages if step.described)]


def _value(step: tuple[Exact, list[Any]]) -> tuple[Exact, list[Any]]:
    following, lazy = step
    return following, [value.value() for value in lazy]


def _same(count: int) -> int:
    return count


def _forget(error: BadRowError) -> None:
    """Do not note an error."""


def _waits(steps: Iterator[Any], times: StageTimes) -> Iterator[Any]:
    """Yield steps; note how long they were waited for, and how long the loop took with each."""
    while True:
        start = time.perf_counter()
        step = next(steps, None)
        ready = time.perf_counter()
        times.note(WAITED, ready - start)
        if step is None:
            return
        yield step
        times.note(LOOP, time.perf_counter() - ready)


def _stream(source: Any, times: StageTimes | None = None) -> Stream:
    """Return what elements of a source come from. Raises: DTypeError."""
    if isinstance(source, Positions | Iterated | Repeated | Zipped | Mixed):
        return source
    if not read_in_order(source) and hasattr(source, "__len__"):
        if times is None:
            return Positions(source)
        return Positions(TimedRows(times, times.stage(f"read {name_of(source)}"), source))
    if isinstance(source, Iterable):
        if times is None:
            return Iterated(source)
        return Iterated(source, partial(times.reading, times.stage(f"read {name_of(source)}")))
    raise DTypeError(
        "Pipeline: takes a data set with __len__ and __getitem__, or an iterable",
        got=f"a {type(source).__name__}",
    )


def _given(name: str, pipelines: Iterable[Any]) -> list[Pipeline]:
    given = list(pipelines)
    if not given or not all(isinstance(p, Pipeline) for p in given):
        raise DTypeError(f"{name}: takes pipelines", got=", ".join(type(p).__name__ for p in given) or "none")
    if any(p.shard is not None for p in given):
        raise CallOrderError(f"{name}: the result is sharded, not its parts", got="a sharded pipeline")
    return given


def _joined(stream: Stream, given: Sequence[Pipeline], batched: bool) -> Pipeline:
    made = Pipeline(stream)
    made._batched = batched
    made._workers = max((p._workers for p in given), key=lambda w: w.num_workers)
    return made


