"""What memory and arithmetic give on this machine: ceilings of generated code beside whole products.

They inform people only: plans rest on the target's nominal figures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np

from stratal.base import settings
from stratal.base.dtypes import float32
from stratal.base.types import TensorType
from stratal.compiler import compile_graph
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph
from stratal.graph.node import graph_input
from stratal.inspect.machine import machine_peaks
from stratal.runtime.storage import Storage

_MATRIX: Final = 768
_REPEATS: Final = 5


class Ceiling(NamedTuple):
    """One measured rate, in `unit` per second."""

    name: str
    threads: int
    rate: float
    unit: str
    how: str


def measure() -> Iterator[Ceiling]:
    """Measure memory and arithmetic on one thread and on as many as the settings allow: a few seconds."""
    many = settings.threads.value
    for threads in sorted({1, many}):
        peaks = machine_peaks(threads, measure_again=True)
        yield Ceiling("memory read", threads, 1e9 * peaks.read_gbs, "B", "sweeps, generated kernel")
        yield Ceiling("memory copy", threads, 1e9 * peaks.copy_gbs, "B", "read and written, generated kernel")
    a = np.ones((_MATRIX, _MATRIX), np.float32)
    size = f"float32 {_MATRIX}x{_MATRIX}"
    for threads, product, how in (
        (0, lambda: np.matmul(a, a), "NumPy's BLAS, its own threads"),
        (many, _own_product(a), "generated kernel"),
    ):
        yield Ceiling("matrix product", threads, 2 * _MATRIX**3 / _best(product), "FLOP", f"{size}, {how}")


def _own_product(a: np.ndarray) -> Callable[[], object]:
    type_ = TensorType(float32, a.shape)
    x, y = graph_input("x", type_), graph_input("y", type_)
    out = Builder().contract(x, y, spec="mk,kn->mn")
    program = compile_graph(Graph([x, y], [out], name="product"))
    inputs = [Storage.copy_of(a, type_) for _ in range(2)]
    return lambda: program.run(inputs)


def _best(work: Callable[[], object]) -> float:
    """Return the shortest time of some runs, after one that touches every page."""
    work()
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)
