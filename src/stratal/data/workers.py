"""Worker threads that make batches ahead of the loop that reads them, in order.

    tasks  queue -> N threads -> one future per task; the reader waits for futures in the order of tasks

A task runs in a copy of the reader's context, so that settings and modes hold there, too. What a task raises
is raised where its result is read, with the worker's traceback. No worker is joined: a reader that leaves
early cancels what has not begun, and a worker ends after the task at hand.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextvars import copy_context
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple, Protocol

from stratal.base.counts import as_count
from stratal.base.errors import AttributeValueError, StratalError

_POLL_S: Final = 1.0  # how often an idle worker looks whether its pool is still there
_END: Final = object()


class LoaderTimeoutError(StratalError, TimeoutError):
    """A batch that took longer than the `timeout` of its loader."""

    advice = "a longer timeout, or timeout=0 for none; a data set that waits may be stuck"


class WorkerInfo(NamedTuple):
    """Which worker runs: its number, how many there are, a seed of its own, and the data set they share."""

    id: int
    num_workers: int
    seed: int
    dataset: Any


class WorkerOptions(NamedTuple):
    """What a loader says of workers; see `DataLoader`."""

    num_workers: int = 0
    worker_init_fn: Callable[[int], Any] | None = None
    prefetch_factor: int = 2
    persistent_workers: bool = False
    timeout: float = 0


def checked_options(
    num_workers: int, worker_init_fn: Any, prefetch_factor: Any, persistent_workers: bool, timeout: float
) -> WorkerOptions:
    """Return options that make sense together. Raises: AttributeValueError, under PyTorch's conditions."""
    num_workers = as_count("DataLoader: num_workers is 0 or more", num_workers, 0)
    if not isinstance(timeout, int | float) or not timeout >= 0:
        raise AttributeValueError("DataLoader: timeout is 0 or more seconds", got=repr(timeout))
    if not num_workers and (prefetch_factor is not None or persistent_workers):
        name = "persistent_workers" if prefetch_factor is None else "prefetch_factor"
        raise AttributeValueError(
            f"DataLoader: {name} is for workers", got="num_workers=0", hint="num_workers=2"
        )
    if prefetch_factor is not None:
        prefetch_factor = as_count("DataLoader: prefetch_factor is 1 or more", prefetch_factor)
    return WorkerOptions(num_workers, worker_init_fn, prefetch_factor or 2, persistent_workers, timeout)


def get_worker_info() -> WorkerInfo | None:
    """Return which worker runs here; None outside of workers, and while an iterable data set is read."""
    return getattr(threading.current_thread(), "info", None)


class WorkerPool:
    """Threads that run tasks in the order in which they were submitted.

    Raises: what `worker_init_fn` raises in a worker, which each calls with its number before its first task.
    """

    def __init__(self, options: WorkerOptions, seed: int, dataset: Any) -> None:
        self.tasks: SimpleQueue[Any] = SimpleQueue()
        self._size = options.num_workers
        ready: list[Future[None]] = []
        for k in range(self._size):
            started: Future[None] = Future()
            ready.append(started)
            info = WorkerInfo(k, self._size, seed + k, dataset)
            _Worker(info, options.worker_init_fn, started, self.tasks, weakref.ref(self)).start()
        try:
            for started in ready:
                started.result()
        except BaseException:
            self.stop()
            del started, ready  # they hold the error, whose traceback shows this frame
            raise

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Return the future of a call."""
        future: Future[Any] = Future()
        self.tasks.put((future, copy_context(), function, arguments))
        return future

    def stop(self) -> None:
        """Let workers end after the tasks before."""
        for _ in range(self._size):
            self.tasks.put(None)


class _Worker(threading.Thread):
    """One thread of a pool. It ends when it is told to, or when its pool is gone."""

    def __init__(
        self, info: WorkerInfo, init: Callable[[int], Any] | None, started: Future[None],
        tasks: SimpleQueue[Any], pool: weakref.ref[WorkerPool],
    ) -> None:  # fmt: skip
        super().__init__(name=f"stratal-data-{info.id}", daemon=True)
        self.info: WorkerInfo | None = info
        self._prepare, self._ready = init, started
        self._tasks, self._pool = tasks, pool

    def run(self) -> None:
        _resolve(self._ready, self._prepare or _nothing, (self.info.id,) if self.info else ())
        del self._ready, self._prepare
        while True:
            try:
                task = self._tasks.get(timeout=_POLL_S)
            except Empty:
                if self._pool() is None:
                    return
                continue
            if task is None:
                return
            future, context, function, arguments = task
            if future.set_running_or_notify_cancel():
                context.run(_resolve, future, function, arguments)
            del task, future, context, function, arguments  # an idle worker holds no batch


def _nothing(number: int) -> None:
    """Prepare nothing."""


def _resolve(future: Future[Any], function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Give a future what a call returns or raises."""
    try:
        result = function(*arguments)
    except BaseException as error:
        error.add_note(f"raised in {threading.current_thread().name}, a worker of a DataLoader")
        future.set_exception(error)
        del future, function, arguments  # the error's traceback shows this frame: no cycle
        return
    future.set_result(result)


class Turns:
    """Reads an iterable from several threads, item k by the task with number k.

    A data set that takes a share by `get_worker_info` is told of no worker, or most of it would be lost.
    """

    def __init__(self, items: Iterator[Any]) -> None:
        self._items, self._next, self._closed = items, 0, False
        self._turn = threading.Condition()

    def item(self, number: int) -> Any:
        """Return the item of a number, `_END` after the last one."""
        worker: Any = threading.current_thread()
        with self._turn:
            self._turn.wait_for(lambda: self._next == number or self._closed)
        if self._closed:
            return _END
        info, worker.info = getattr(worker, "info", None), None
        try:
            return next(self._items, _END)
        finally:
            worker.info = info
            with self._turn:
                self._next += 1
                self._turn.notify_all()

    def close(self) -> None:
        """Let no task wait for its turn any more: the one before it may have been cancelled."""
        self._closed = True
        with self._turn:
            self._turn.notify_all()


class Pool(Protocol):
    """What runs tasks."""

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Return the future of a call."""
        ...


def called(function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
    """Yield a function of items. As `map`, but a StopIteration that the function raises, from a `next` of
    its own, is a RuntimeError and not the end.
    """
    for item in items:
        yield function(item)


def in_order(
    pool: Pool, work: Callable[[Any], Any], items: Iterable[Any], ahead: int, timeout: float
) -> Iterator[Any]:
    """Yield `work(item)` in the order of items, which the reader's thread takes, `ahead` of them early.

    What taking an item raises is raised after the results of those before it.
    """
    waiting: deque[Future[Any]] = deque()
    taken = iter(items)
    try:
        while True:
            try:
                item = next(taken)
            except StopIteration:
                break
            except Exception:
                while waiting:
                    yield _result(waiting.popleft(), timeout)
                raise
            waiting.append(pool.submit(work, item))
            if len(waiting) > ahead:
                yield _result(waiting.popleft(), timeout)
        while waiting:
            yield _result(waiting.popleft(), timeout)
    finally:
        for future in waiting:
            future.cancel()


def in_order_read_by_workers(
    pool: Pool, work: Callable[[Any], Any], items: Iterator[Any], ahead: int, timeout: float
) -> Iterator[Any]:
    """Yield `work(item)` in the order of items, which workers take in turns, `ahead` of them early."""
    turns = Turns(items)

    def task(number: int) -> Any:
        item = turns.item(number)
        return _END if item is _END else work(item)

    try:
        for result in in_order(pool, task, count(), ahead, timeout):
            if result is _END:
                return
            yield result
    finally:
        turns.close()


def _result(future: Future[Any], timeout: float) -> Any:
    try:
        return future.result(min(timeout, threading.TIMEOUT_MAX) or None)
    except FutureTimeout:
        if future.done():  # the task raised it
            raise
        raise LoaderTimeoutError(f"DataLoader: a batch takes at most {timeout} s", got="none yet") from None
    except StratalError as error:
        error.at_caller()
        raise
    finally:
        del future  # it holds the error, whose traceback shows this frame
