"""Measured ceilings of this machine: what memory and arithmetic give here, now, beside other work.

Each measurement is the best of several short runs on arrays larger than the last cache. They inform people
only: plans rest on the target's nominal figures.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

import numpy as np

from stratal.base import settings
from stratal.base.dtypes import float32
from stratal.base.types import TensorType
from stratal.compiler import compile_graph
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph
from stratal.graph.node import graph_input
from stratal.runtime.storage import Storage

Array = np.ndarray[Any, Any]
_BYTES: Final = 128 << 20
_MATRIX: Final = 768


class Ceiling(NamedTuple):
    """One measured rate, in `unit` per second."""

    name: str
    threads: int
    rate: float
    unit: str
    how: str


def measure(repeats: int = 5) -> list[Ceiling]:
    """Measure memory and arithmetic on one thread and on as many as the settings allow: a few seconds."""
    many = settings.threads.value
    counts = [1] if many == 1 else [1, many]
    found = []
    for threads in counts:
        found += [_read(threads, repeats), _copy(threads, repeats)]
    return [*found, _matmul(repeats), _own_add(repeats), _own_matmul(repeats)]


def _read(threads: int, repeats: int) -> Ceiling:
    source = np.ones(_BYTES // 8, np.int64)
    seconds = _best(lambda part: part.max(), np.array_split(source, threads), repeats)
    return Ceiling("memory read", threads, source.nbytes / seconds, "B", "largest of 128 MB, NumPy")


def _copy(threads: int, repeats: int) -> Ceiling:
    source = np.ones(_BYTES // 8, np.int64)
    target = np.zeros_like(source)
    pairs = list(zip(np.array_split(source, threads), np.array_split(target, threads), strict=True))
    seconds = _best(lambda pair: np.copyto(pair[1], pair[0]), pairs, repeats)
    return Ceiling("memory copy", threads, 2 * source.nbytes / seconds, "B", "128 MB read and written, NumPy")


def _matmul(repeats: int) -> Ceiling:
    a = np.ones((_MATRIX, _MATRIX), np.float32)
    out = np.empty_like(a)
    seconds = _best(lambda m: np.matmul(m, m, out=out), [a], repeats)
    how = f"float32 {_MATRIX}x{_MATRIX}, NumPy's BLAS, its own threads"
    return Ceiling("matrix product", 0, 2 * _MATRIX**3 / seconds, "FLOP", how)


def _own_add(repeats: int) -> Ceiling:
    """Time a generated kernel that reads and writes as much as `_copy`."""
    type_ = TensorType(float32, (_BYTES // 4,))
    x = graph_input("x", type_)
    b = Builder()
    seconds = _compiled(Graph([x], [b.add(x, b.full(type_, 1))], name="sweep"), repeats)
    how = "x + 1 over 128 MB, generated kernel"
    return Ceiling("memory copy", settings.threads.value, 2 * type_.nbytes / seconds, "B", how)


def _own_matmul(repeats: int) -> Ceiling:
    type_ = TensorType(float32, (_MATRIX, _MATRIX))
    x, y = graph_input("x", type_), graph_input("y", type_)
    out = Builder().contract(x, y, spec="mk,kn->mn")
    seconds = _compiled(Graph([x, y], [out], name="product"), repeats)
    how = f"float32 {_MATRIX}x{_MATRIX}, generated kernel"
    return Ceiling("matrix product", settings.threads.value, 2 * _MATRIX**3 / seconds, "FLOP", how)


def _compiled(graph: Graph, repeats: int) -> float:
    """Return the shortest time of a compiled graph on inputs of ones."""
    program = compile_graph(graph)
    inputs = [Storage.copy_of(np.ones(t.ints, t.dtype.np), t) for t in graph.input_types]
    return _best(lambda _: program.run(inputs), [None], repeats)


def _best(work: Callable[[Any], object], parts: list[Any], repeats: int) -> float:
    """Return the shortest time in which `work` did all parts, one thread each."""
    times = []
    with ThreadPoolExecutor(len(parts)) as pool:
        list(pool.map(work, parts))  # touch every page first
        for _ in range(repeats):
            start = time.perf_counter()
            if len(parts) == 1:
                work(parts[0])
            else:
                list(pool.map(work, parts))
            times.append(time.perf_counter() - start)
    return min(times)
