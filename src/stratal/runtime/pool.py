"""The native thread pool: who runs programs.

One per thread count, shared by all programs, rebuilt in a forked child.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from stratal.base import foreign, native, settings
from stratal.base.interrupts import Lock
from stratal.runtime.loader import Library
from stratal.runtime.storage import aligned_empty

_pools: Final[dict[tuple[bytes, int], Pool]] = {}
_drivers: Final[dict[bytes, Library]] = {}
_lock = threading.RLock()  # re-entrant: Python's callbacks may compile, too
LOCK: Final = Lock()  # held by whoever runs a program, or decides what to run: one at a time

WORKER_SPIN_S: Final = 2e-3  # how long a thread without work looks for some: waking it takes 50 us and more
# How long the caller waits for the last chunks before it sleeps: who wakes it draws it to its own processor,
# and then both wait for one while another idles.
CALLER_SPIN_S: Final = 100e-6
CHUNKS_PER_THREAD: Final = 4  # of foreign calls, some of which may take longer than others


def _function(address: int, *arguments: type[ctypes._SimpleCData[Any]]) -> Callable[..., int]:
    return ctypes.CFUNCTYPE(ctypes.c_int64, *arguments)(address)


class _Method(ctypes.Structure):
    """A PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_FASTCALL: Final = 0x80  # METH_FASTCALL: positional arguments as an array


class Pool:
    """Native threads (the calling one counted) and the functions that use them.

    Its runners are called with `LOCK` held. That is re-entrant, because a host call may run another program.
    """

    def __init__(self, driver: Library, threads: int) -> None:
        int64, pointer, int32 = ctypes.c_int64, ctypes.c_void_p, ctypes.c_int32
        address = driver.addresses
        self.threads: Final = threads
        self._call: Final = _Method(b"stratal_call", address["stratal_call"], _FASTCALL, None)
        self.trace_chunk: Final = address["stratal_trace_chunk"]  # a kernel for TracedCalls
        self._driver: Final = driver  # keeps the functions mapped
        self._start: Final = _function(address["stratal_pool_start"], pointer, int64, int32, int32)
        self._stop: Final = _function(address["stratal_pool_stop"], pointer)
        self._stat: Final = _function(address["stratal_pool_stat"], pointer, int64)
        self._parallel_for: Final = _function(
            address["stratal_parallel_for"], pointer, pointer, pointer, int64
        )
        self._each_chunk: Final = address["stratal_each_chunk"]
        self._pause: Final = _function(address["stratal_pause"], int64)
        self._memory: Final = aligned_empty(_function(address["stratal_pool_bytes"], int64)(threads))
        self._memory[:] = 0
        self.address: Final = int(self._memory.ctypes.data)
        self.started = 0  # threads that run, this one counted; 0 before the first program

    def ensure_started(self) -> None:
        """Start the threads where they are not running: at first use and in a forked child.

        Call with `LOCK` held.
        """
        if self.started:
            return
        self._memory[:] = 0
        masked = _block_signals()
        try:
            pause_s = self._pause_seconds()
            spins = [max(1, round(wait / pause_s)) for wait in (WORKER_SPIN_S, CALLER_SPIN_S)]
            self.started = self._start(self.address, self.threads, *spins)
        finally:
            if masked is not None:
                signal.pthread_sigmask(signal.SIG_SETMASK, masked)

    def _pause_seconds(self) -> float:
        """Return how long one pause takes here, at least a nanosecond: the shortest of three tries."""
        times = []
        for _ in range(3):
            start = time.perf_counter()
            self._pause(1000)
            times.append(time.perf_counter() - start)
        return max(min(times) / 1000, 1e-9)

    def stop(self) -> None:
        """End the threads and wait for them: no region is open while `LOCK` is held, so each is idle."""
        with LOCK:
            if self.started:
                self._stop(self.address)
                self.started = 0

    def stats(self) -> dict[str, int]:
        """Return counts since the threads started: regions, chunks by the caller and by others, wake-ups."""
        names = {
            "regions": native.STAT_REGIONS,
            "caller_chunks": native.STAT_CALLER_CHUNKS,
            "worker_chunks": native.STAT_WORKER_CHUNKS,
            "wakes": native.STAT_WAKES,
        }
        return {name: self._stat(self.address, which) for name, which in names.items()}

    def call_each(self, function: int, count: int, arguments: list[foreign.Argument]) -> None:
        """Call a foreign function `count` times on the pool's threads: see `foreign.for_each`.

        Call with `LOCK` held, as host calls are.
        """
        self.ensure_started()
        share = max(1, count // (CHUNKS_PER_THREAD * self.threads))
        words = [function, count, share, *(word for argument in arguments for word in argument)]
        record = (ctypes.c_int64 * len(words))(*words)
        self._parallel_for(self.address, self._each_chunk, ctypes.addressof(record), -(-count // share))

    def runner(self, context: int) -> Callable[..., int]:
        """Return a function of the interpreter's own kind that runs what stands in a context.

        Its arguments are addresses for the slots the context names. Use it while the pool lives.
        """
        make = ctypes.pythonapi.PyCFunction_NewEx
        make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
        made: Callable[..., int] = make(ctypes.byref(self._call), context, None)
        return made


def _block_signals() -> set[signal.Signals] | None:
    """Block all signals, so that threads started next leave them to Python; return what was blocked."""
    if not hasattr(signal, "pthread_sigmask"):
        return None
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    return {s for s in before if isinstance(s, signal.Signals)}


def pool_for(driver: bytes, threads: int | None = None) -> Pool:
    """Return the pool of `threads` threads (default: the setting) that runs a driver's object code."""
    count = settings.threads.value if threads is None else threads
    with _lock:
        if driver not in _drivers:
            _drivers.setdefault(driver, Library([driver], native.DRIVER_SYMBOLS))
        if (driver, count) not in _pools:
            _pools.setdefault((driver, count), Pool(_drivers[driver], count))
        return _pools[driver, count]


def _stop_all() -> None:
    # A run that is still going, in a daemon thread, keeps the pools: the process ends under it.
    if LOCK.acquire(timeout=1.0):
        try:
            for pool in list(_pools.values()):
                pool.stop()
        finally:
            LOCK.release()


def _after_fork() -> None:
    _lock._at_fork_reinit()  # type: ignore[attr-defined]  # as the standard library does with its own
    for pool in list(_pools.values()):
        pool.started = 0  # the parent's threads
    if LOCK.acquire(blocking=False):
        LOCK.release()
    else:  # its holder did not come along, and what it ran died with it
        LOCK._at_fork_reinit()


atexit.register(_stop_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
