"""Worker processes: for data sets whose Python code holds the interpreter's lock.

    threads of a WorkerPool -> each asks one idle process: pipe    item -> head of the pickled batch
                                                           memory  its arrays, in one mapped file each

Processes are spawned. They end when their pipe does, so none outlives this process, however that ends. A
mapped file never has a name, its process inherits it: nothing is left on disk or in /dev/shm. Where that is
full, as of a container with 64 MB, a batch comes whole through the pipe, which costs two more copies.
"""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing
import os
import pickle
import signal
import tempfile
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from multiprocessing.connection import Connection
from multiprocessing.reduction import DupFd
from queue import SimpleQueue
from typing import IO, Any, Final, NamedTuple

from stratal.base.errors import DTypeError, StratalError
from stratal.data.workers import WorkerInfo, WorkerOptions, WorkerPool

_ALIGN: Final = 64  # bytes, of arrays in the mapped file
_GRACE_S: Final = 5.0  # for a process to end after it was told to
Work = Callable[[Any], Any]


class WorkerDiedError(StratalError, RuntimeError):
    """A worker process that ended before its batch was there."""

    advice = "SIGKILL is often the system's, for want of memory: fewer workers, or smaller batches"


class _Failed(NamedTuple):
    """What a process could not do."""

    error: BaseException
    trace: str


class ProcessPool:
    """Processes that compute `work(item)`, which they get once, as they start.

    `submit` ignores the function it is given: it is that of the pool. Raises: DTypeError for work that cannot
    be pickled, WorkerDiedError, and what `worker_init_fn` raises.
    """

    def __init__(self, options: WorkerOptions, seed: int, work: Work) -> None:
        self._idle: SimpleQueue[_Child] = SimpleQueue()
        self._children: list[_Child] = []
        try:
            for k in range(options.num_workers):
                self._children.append(_Child(k, options, seed, work))
            for child in self._children:
                child.ready()
                self._idle.put(child)
        except BaseException:
            self.stop()
            raise
        self._threads: WorkerPool | None = WorkerPool(options._replace(worker_init_fn=None), seed, None)

    @property
    def whole(self) -> bool:
        """Whether all processes are alive."""
        return all(child.process.is_alive() for child in self._children)

    def submit(self, function: Work, *arguments: Any) -> Future[Any]:
        """Return the future of the pool's work on an item."""
        assert self._threads is not None
        return self._threads.submit(_by_an_idle_child, self._idle, *arguments)

    def stop(self) -> None:
        """End the processes, whatever they do, and the threads after the tasks before."""
        for child in self._children:
            child.process.terminate()
        for child in self._children:
            child.end()
        if (threads := getattr(self, "_threads", None)) is not None:
            threads.stop()


def _by_an_idle_child(idle: SimpleQueue[_Child], item: Any) -> Any:
    child = idle.get()  # there are as many as threads
    try:
        return child.call(item)
    finally:
        idle.put(child)


class _Child:
    """A process, the pipe to it, and the file through which arrays come back."""

    def __init__(self, number: int, options: WorkerOptions, seed: int, work: Work) -> None:
        self.number = number
        self.connection, theirs = multiprocessing.Pipe()
        self._file = _nameless()
        info = WorkerInfo(number, options.num_workers, seed + number, None)
        self.process = multiprocessing.get_context("spawn").Process(
            target=_serve, args=(theirs, _Inherited(self._file), info, options.worker_init_fn, work),
            name=f"stratal-data-{number}", daemon=True,
        )  # fmt: skip
        try:
            self.process.start()
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise DTypeError(
                'DataLoader: with workers="processes" the data set and its functions can be pickled',
                got=str(error), hint="define them at the top of a module; threads take anything",
            ) from None  # fmt: skip
        finally:
            theirs.close()

    def ready(self) -> None:
        """Wait until the process is prepared. Raises: WorkerDiedError, what its preparation raised."""
        self._answer()

    def call(self, item: Any) -> Any:
        """Return what the process makes of an item. Raises: WorkerDiedError, what it raised there."""
        try:
            self.connection.send(item)
        except (BrokenPipeError, OSError):
            raise self._died() from None
        return self._answer()

    def _answer(self) -> Any:
        try:
            head, spans = self.connection.recv()
        except (EOFError, OSError):
            raise self._died() from None
        buffers: list[Any] = []
        if spans:
            with mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                buffers = [bytearray(memoryview(mapped)[start:stop]) for start, stop in spans]
        found = pickle.loads(head, buffers=buffers)  # noqa: S301 (of our own process, by a private pipe)
        if isinstance(found, _Failed):
            where = f"raised in process {self.number}, a worker of a DataLoader:"
            found.error.add_note(f"{where}\n{found.trace}")
            raise found.error
        return found

    def _died(self) -> WorkerDiedError:
        self.process.join(_GRACE_S)
        code = self.process.exitcode
        how = f"exit code {code}" if code is None or code >= 0 else signal.Signals(-code).name
        return WorkerDiedError(
            "DataLoader: worker processes live until their batches are there",
            got=f"worker {self.number} (process {self.process.pid}) ended: {how}",
        )

    def end(self) -> None:
        """Wait for the process that was told to end, and close what it shared."""
        self.process.join(_GRACE_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join(_GRACE_S)


def _nameless() -> IO[bytes]:
    """Return a file without a name: in memory, or where that may not be had in the folder for such files."""
    try:
        return tempfile.TemporaryFile(dir="/dev/shm")
    except OSError:
        return tempfile.TemporaryFile()


class _Inherited:
    """An open file, for a process that is spawned: pickled, it is a descriptor of the same file there."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def __reduce__(self) -> tuple[Callable[[Any], IO[bytes]], tuple[Any]]:
        return _opened, (DupFd(self._file.fileno()),)


def _opened(descriptor: Any) -> IO[bytes]:
    return os.fdopen(descriptor.detach(), "r+b")


def _serve(connection: Connection, file: IO[bytes], info: WorkerInfo, init: Any, work: Work) -> None:
    """Answer items until the pipe ends. Ctrl-C is for the process that reads the batches."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    owner: Any = getattr(work, "__self__", None)
    setattr(threading.current_thread(), "info", info._replace(dataset=getattr(owner, "dataset", None)))  # noqa: B010
    with file:
        if not _answered(connection, file, _prepared, (init, info.id)):
            return
        with contextlib.suppress(EOFError, OSError):  # the reader is gone
            while True:
                _answered(connection, file, work, (connection.recv(),))


def _prepared(init: Callable[[int], Any] | None, number: int) -> None:
    if init is not None:
        init(number)


def _answered(connection: Connection, file: Any, function: Callable[..., Any], arguments: Any) -> bool:
    """Send what a call returns or raises; return whether it returned."""
    try:
        found, good = function(*arguments), True
        head, buffers = _pickled(found)
    except BaseException as error:
        good, trace = False, "".join(traceback.format_exception(error))
        found = _Failed(error, trace)
        try:
            head, buffers = _pickled(found)
            pickle.loads(head, buffers=buffers)  # noqa: S301 (our own)
        except Exception:  # an error of a kind that cannot be sent
            found = _Failed(RuntimeError(f"{type(error).__name__}: {error}"), trace)
            head, buffers = _pickled(found)
    try:
        spans = _written(file, buffers)
    except OSError:  # the file system is full
        os.ftruncate(file.fileno(), 0)
        head, spans = pickle.dumps(found, protocol=5), []
    connection.send((head, spans))
    return good


def _pickled(value: Any) -> tuple[bytes, list[memoryview]]:
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return head, [buffer.raw() for buffer in buffers]


def _written(file: Any, buffers: list[memoryview]) -> list[tuple[int, int]]:
    """Write buffers to a file, which grows; return where each lies. Raises: OSError where it cannot grow."""
    spans, at = [], 0
    for buffer in buffers:
        spans.append((at, at + buffer.nbytes))
        at += -(-buffer.nbytes // _ALIGN) * _ALIGN
    if at > os.fstat(file.fileno()).st_size:
        os.ftruncate(file.fileno(), at)
    for (start, _), buffer in zip(spans, buffers, strict=True):
        done = 0
        while done < buffer.nbytes:
            done += os.pwrite(file.fileno(), buffer[done:], start + done)
    return spans
