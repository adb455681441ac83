"""Latency tables, measured: every batch size of a frozen model on inputs of its signature."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from stratal.formats.signature import Signature, TensorSpec
from stratal.serve.planning import LatencyTable

Array = np.ndarray[Any, Any]
QUANTILE = 0.9


class Measurable(Protocol):
    """What runs batches of some sizes: a frozen model, or the stages of one."""

    @property
    def signature(self) -> Signature: ...

    @property
    def batch_sizes(self) -> tuple[int, ...]: ...

    def run_size(self, size: int, arrays: Sequence[Array]) -> list[Array]: ...


def sample_input(spec: TensorSpec, size: int, seed: int = 0) -> Array:
    """Return values for an input: normal floats; zeros else, which every table of indices has."""
    shape = spec.type_at(size).ints
    if spec.dtype.is_float:
        return np.random.default_rng(seed).standard_normal(shape).astype(spec.dtype.np)
    return np.zeros(shape, spec.dtype.np)


def measured_table(model: Measurable, seconds: float = 0.05, most: int = 200) -> LatencyTable:
    """Return the 90 % quantile of a model's latency at each of its batch sizes.

    Each size runs at least 5 and at most `most` times, and for about `seconds`. A first run, which compiles
    or loads the program and prepares the weights, does not count.
    """
    return LatencyTable.of({size: _latency(model, size, seconds, most) for size in model.batch_sizes})


def _latency(model: Measurable, size: int, seconds: float, most: int) -> float:
    arrays = [sample_input(spec, size) for spec in model.signature.inputs]
    model.run_size(size, arrays)
    times: list[float] = []
    while len(times) < 5 or (len(times) < most and sum(times) < seconds):
        start = time.perf_counter()
        model.run_size(size, arrays)
        times.append(time.perf_counter() - start)
    return float(np.quantile(times, QUANTILE))
