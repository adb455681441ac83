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
    """Measure memory and arithmetic on one thread and on as many as the settings allow: about a second."""
    many = settings.threads.value
    counts = [1] if many == 1 else [1, many]
    found = []
    for threads in counts:
        found += [_read(threads, repeats), _copy(threads, repeats)]
    return [*found, _matmul(repeats)]


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
