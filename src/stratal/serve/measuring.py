"""Latency tables, measured: every batch size of a frozen model on inputs of its signature.

Sizes take turns, so that each finds caches as other batches leave them, and a slow moment of the machine
falls on all of them. A server measures the round trips of a worker, which is what it waits for later: of a
small model that is ten times what the model takes in a loop of its own.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from stratal.formats.signature import Signature, TensorSpec
from stratal.serve.planning import LatencyTable
from stratal.serve.planning_latency import ENOUGH, QUANTILE, bounded

Array = np.ndarray[Any, Any]
SECONDS: Final = 0.3  # that all sizes of a model run together
LEAST_ROUNDS: Final = 3  # with the first, which warms up
MOST_ROUNDS: Final = 20


class Measurable(Protocol):
    """What runs batches of some sizes: a frozen model, or the stages of one."""

    @property
    def signature(self) -> Signature: ...

    @property
    def batch_sizes(self) -> tuple[int, ...]: ...

    def run_size(self, size: int, arrays: Sequence[Array]) -> list[Array]: ...


class Measured(NamedTuple):
    """The high quantile of the latency of each batch size, and the median."""

    high: LatencyTable
    typical: LatencyTable


class _Rounds:
    """Times of batch sizes that take turns, as long as more are wanted."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.times: dict[int, list[float]] = {size: [] for size in sizes}

    def wanted(self) -> bool:
        done = len(next(iter(self.times.values()), ()))
        spent = sum(map(sum, self.times.values()))
        return done < LEAST_ROUNDS or (done < MOST_ROUNDS and spent < SECONDS)

    def measured(self) -> Measured:
        """Return both tables; the first round does not count: batches of it take twice as long.

        Of a large model there are two rounds, so that a stall would make a size look several times too slow:
        few times are bounded by those of other sizes.
        """
        sizes = tuple(self.times)
        certain = [len(times) > ENOUGH for times in self.times.values()]
        high, typical = (
            LatencyTable(sizes, tuple(bounded(sizes, seconds, certain)))
            for seconds in (
                [float(np.quantile(times[1:], share)) for times in self.times.values()]
                for share in (QUANTILE, 0.5)
            )
        )
        return Measured(high, typical)


def sample_input(spec: TensorSpec, size: int, seed: int = 0) -> Array:
    """Return values for an input: normal floats; zeros else, which every table of indices has."""
    shape = spec.type_at(size).ints
    if spec.dtype.is_float:
        return np.random.default_rng(seed).standard_normal(shape).astype(spec.dtype.np)
    return np.zeros(shape, spec.dtype.np)


def measured_tables(model: Measurable) -> Measured:
    """Return the latency of a model at each of its batch sizes, in this process.

    A first run of each, which compiles or loads the program and prepares the weights, does not count.
    """
    inputs = {n: [sample_input(spec, n) for spec in model.signature.inputs] for n in model.batch_sizes}
    for size, arrays in inputs.items():
        model.run_size(size, arrays)
    rounds = _Rounds(model.batch_sizes)
    while rounds.wanted():
        for size, arrays in inputs.items():
            start = time.perf_counter()
            model.run_size(size, arrays)
            rounds.times[size].append(time.perf_counter() - start)
    return rounds.measured()


async def measured_round_trips(
    signature: Signature, sizes: Sequence[int], run: Callable[[list[bytes]], Awaitable[float]]
) -> Measured:
    """Return the tables of a model that another process runs: `run` takes inputs and returns seconds."""
    inputs = {n: [sample_input(spec, n).tobytes() for spec in signature.inputs] for n in sizes}
    rounds = _Rounds(sizes)
    while rounds.wanted():
        for size, parts in inputs.items():
            rounds.times[size].append(await run(parts))
    return rounds.measured()
