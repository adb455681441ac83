"""What this machine can do at most, measured: arithmetic per dtype, memory and caches.

    peaks = machine_peaks(threads=2)
    peaks.flops[float32]                       GFLOP/s of multiply-adds in registers
    peaks.seconds({float32: flops}, bytes)     the roofline: no program is faster

A ceiling is the best of several short runs, and a later measurement only raises it: what else the machine
does can hide speed but not add any. Results live for the process and, under the processor's name, in the
cache directory. They inform people and benchmarks; plans rest on the nominal figures of `base.target`.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import platform
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from stratal.base.dtypes import DType, as_dtype, bfloat16, float32
from stratal.base.errors import SettingError
from stratal.base.session import SESSION
from stratal.codegen.assemble import assemble
from stratal.inspect.machine_kernels import (
    DATA_BYTES,
    STEP_BYTES,
    module_text,
    multiply_adds,
    operations_per_round,
)
from stratal.plan.host import host_target
from stratal.runtime.cache import object_cache
from stratal.runtime.loader import Library

_SECONDS: Final = 0.008  # one timed run: long beside the hand-over to threads, short beside a time slice
_REPEATS: Final = 12
_START_S: Final = 60.0  # that threads may take to start
_MEMORY_BYTES: Final = 96 << 20  # at least, a thread's share of a sweep through memory
_MOST_BYTES: Final = 512 << 20  # at most: beyond, a sweep may still hit the last cache in part
_VERSION: Final = 1  # of the measurement; part of the cache key
_Kernel = Callable[..., None]
_measured: Final = SESSION.cache(dict[int, "MachinePeaks"]())


@dataclass(frozen=True, slots=True)
class MachinePeaks:
    """Measured ceilings with `threads` threads at work.

    Units: `flops` 1e9 operations per second, a multiply-add counted as two; the rest 1e9 bytes per second.
    `copy_gbs` counts bytes read and bytes written.
    """

    threads: int
    cpu: str
    flops: Mapping[DType, float]
    read_gbs: float
    copy_gbs: float
    l1_gbs: float
    l2_gbs: float
    l3_gbs: float
    l1_bytes: int  # of the threads together
    l2_bytes: int
    l3_bytes: int

    def flops_of(self, dtype: DType) -> float:
        """Return GFLOP/s in a dtype; float32's where no instruction multiplies and adds that dtype."""
        return self.flops.get(dtype, self.flops[float32])

    def bandwidth(self, working_set_bytes: float = float("inf")) -> float:
        """Return the GB/s at which a working set is swept over and over: from the cache that holds it."""
        sizes = (self.l1_bytes, self.l2_bytes, self.l3_bytes)
        beyond = sum(working_set_bytes > size for size in sizes)  # so many levels are too small
        return max(self._rates[beyond:])

    def traffic_seconds(self, accesses: Sequence[tuple[float, float]]) -> float:
        """Return the least time for bytes that were touched last so many bytes ago: pairs of both.

        Caches may exclude each other's content, so that all up to a level hold bytes together.
        """
        least, held = sum(n for n, _ in accesses) / max(self._rates) / 1e9, 0
        for level, size in enumerate((self.l1_bytes, self.l2_bytes, self.l3_bytes), 1):
            held += size
            beyond = sum(n * max(0.0, 1.0 - held / distance) for n, distance in accesses if distance)
            least = max(least, beyond / max(self._rates[level:]) / 1e9)
        return least

    @property
    def _rates(self) -> tuple[float, ...]:
        return self.l1_gbs, self.l2_gbs, self.l3_gbs, self.read_gbs, self.copy_gbs

    def seconds(
        self, operations: Mapping[DType, float], nbytes: float = 0.0, working_set_bytes: float = float("inf")
    ) -> float:
        """Return the roofline of some work: the larger of its arithmetic and its traffic, in seconds."""
        compute = sum(count / self.flops_of(dtype) for dtype, count in operations.items()) / 1e9
        return max(compute, nbytes / self.bandwidth(working_set_bytes) / 1e9)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values, dtypes by name."""
        found = {name: getattr(self, name) for name in self.__slots__}
        return found | {"flops": {dtype.name: rate for dtype, rate in self.flops.items()}}


def machine_peaks(threads: int, *, measure_again: bool = False) -> MachinePeaks:
    """Return the ceilings of this machine with `threads` threads: about a second where they are not known.

    `measure_again` measures once more and keeps the larger of each figure. Raises: SettingError for a number
    of threads below one.
    """
    if threads < 1:
        raise SettingError("machine_peaks: at least one thread is needed", got=str(threads))
    known = _measured.get(threads) or _stored(threads)
    if known is None or measure_again:
        found = _measure(threads)
        known = found if known is None else _larger(known, found)
        object_cache().put(_key(threads), json.dumps(known.to_json()).encode())
    _measured[threads] = known
    return known


@lru_cache(maxsize=1)
def cpu_name() -> str:
    """Return the processor's name as the operating system gives it, else as LLVM calls it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or host_target().cpu


def _key(threads: int) -> str:
    return f"machine peaks {_VERSION}: {cpu_name()}, {os.cpu_count()} cores, {threads} threads"


def _stored(threads: int) -> MachinePeaks | None:
    """Return what an earlier process measured; the cache has checked that it is what was written."""
    payload = object_cache().get(_key(threads))
    if payload is None:
        return None
    fields = json.loads(payload)
    flops = {as_dtype(name): rate for name, rate in fields["flops"].items()}
    return MachinePeaks(**(fields | {"flops": flops}))


def _larger(a: MachinePeaks, b: MachinePeaks) -> MachinePeaks:
    flops = {dtype: max(rate, b.flops.get(dtype, 0.0)) for dtype, rate in a.flops.items()}
    rates = {name: max(getattr(a, name), getattr(b, name)) for name in _RATES}
    return dataclasses.replace(a, flops=flops, **rates)


_RATES: Final = ("read_gbs", "copy_gbs", "l1_gbs", "l2_gbs", "l3_gbs")


def _measure(threads: int) -> MachinePeaks:
    target = host_target()
    library, kernels = _load()
    l3_share = max(target.l3_bytes // threads, target.l2_bytes)  # of a thread
    largest = max(_MEMORY_BYTES, min(2 * l3_share, _MOST_BYTES))
    sizes = (target.l1d_bytes // 2, target.l2_bytes // 2, l3_share // 2, largest)
    with ThreadPoolExecutor(threads) as pool:
        bench = _Bench(pool, threads)
        flops = {d: bench.arithmetic(kernels[f"chain_{d.name}"], d) for d in multiply_adds(target)}
        # Products of bfloat16 are products of float32 where there is no instruction for them.
        flops = {bfloat16: flops[float32], **flops}
        buffers = [(_aligned(largest), _aligned(largest)) for _ in range(threads)]
        copies = [bench.sweep(kernels[name], buffers, largest) for name in ("copy", "stream")]
        l1, l2, l3, memory = (bench.sweep(kernels["read"], buffers, size) for size in sizes)
    del library  # kept until here: the code is its
    return MachinePeaks(
        threads=threads, cpu=cpu_name(), flops=flops,
        read_gbs=memory, copy_gbs=2 * max(copies), l1_gbs=l1, l2_gbs=l2, l3_gbs=l3,
        l1_bytes=target.l1d_bytes * threads, l2_bytes=target.l2_bytes * threads, l3_bytes=l3_share * threads,
    )  # fmt: skip


def _load() -> tuple[Library, dict[str, _Kernel]]:
    """Return the kernels of this machine by name, and the library that holds their code."""
    target = host_target()
    code = assemble(module_text(target), target)
    chains = [f"chain_{dtype.name}" for dtype in multiply_adds(target)]
    symbols = [*chains, "read", "copy", "stream"]
    library = Library([code], symbols)
    kernels: dict[str, _Kernel] = {}
    for symbol in symbols:
        words = 2 if symbol in chains else 4
        prototype = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * words)  # releases the interpreter's lock
        kernels[symbol] = prototype(library.addresses[symbol])
    return library, kernels


def _aligned(nbytes: int) -> np.ndarray[Any, Any]:
    """Return bytes that start on a page, each page touched."""
    page = 4096
    raw = np.ones(nbytes + page, np.uint8)
    start = -raw.ctypes.data % page
    return raw[start : start + nbytes]


class _Bench:
    """Runs one kernel on every thread at once and keeps the best rate."""

    def __init__(self, pool: ThreadPoolExecutor, threads: int) -> None:
        self.pool, self.threads = pool, threads

    def arithmetic(self, kernel: _Kernel, dtype: DType) -> float:
        """Return GFLOP/s of a chain of multiply-adds."""
        operands = np.full(DATA_BYTES // 4, 1e-3, np.float32)  # any bits do for the integers
        data = [operands.copy() for _ in range(self.threads)]
        calls = [_call(kernel, d.ctypes.data) for d in data]
        return operations_per_round(dtype, host_target()) * self._rounds_per_second(calls) / 1e9

    def sweep(self, kernel: _Kernel, buffers: list[Any], nbytes: int) -> float:
        """Return GB/s of passes over the first `nbytes` of each thread's buffer, one way."""
        nbytes -= nbytes % STEP_BYTES
        calls = [_call(kernel, a.ctypes.data, b.ctypes.data, nbytes) for a, b in buffers]
        return nbytes * self._rounds_per_second(calls) / 1e9

    def _rounds_per_second(self, calls: list[Callable[[int], None]]) -> float:
        """Return the most rounds that all threads together did in a second."""
        rounds, seconds = 1, self._seconds(calls, 1)
        while seconds < _SECONDS and rounds < 1 << 40:
            rounds = max(2 * rounds, int(rounds * _SECONDS / max(seconds, 1e-7)))
            seconds = self._seconds(calls, rounds)
        best = min(self._seconds(calls, rounds) for _ in range(_REPEATS))
        return rounds * self.threads / min(best, seconds)

    def _seconds(self, calls: list[Callable[[int], None]], rounds: int) -> float:
        """Return the time from the first thread's start to the last one's end."""
        ready = threading.Barrier(len(calls), timeout=_START_S)  # broken where a thread cannot be started

        def run(call: Callable[[int], None]) -> tuple[float, float]:
            ready.wait()
            begin = time.perf_counter()
            call(rounds)
            return begin, time.perf_counter()

        times = list(self.pool.map(run, calls))
        return max(end for _, end in times) - min(begin for begin, _ in times)


def _call(kernel: _Kernel, *arguments: int) -> Callable[[int], None]:
    return lambda rounds: kernel(*arguments, rounds)
