"""Mutation-aware dependency scheduler, queue-based.

    engine.push(closure, reads=[a], mutates=[b])
      -> an entry in the queue of a and one in that of b, in the order of the pushes
      -> granted by a when no writer is ahead of it, by b when nobody is ahead of it
      -> in the ready queue once every resource has granted it; a thread of the pool runs it, then releases

A resource is whatever a `Variable` stands for: a tensor, a buffer to recycle, a random generator, a network
channel, a file. Writers of one run in the order of their pushes, readers between two writers side by side,
so every program gives what its pushes in serial order give. No deadlock: an operation only ever waits for
operations pushed before it, and the pushes are one order. Operations over immutable values (`submit`) are the
special case in which each variable is written once.

Source: Chen et al., "MXNet: A Flexible and Efficient Machine Learning Library for Heterogeneous Distributed
Systems", 2015, section 3.2.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, NoReturn, TypeVar

from stratal.base.errors import AttributeValueError, CallOrderError, DTypeError
from stratal.base.interrupts import UNINTERRUPTIBLE
from stratal.engine.operation import EngineTimeoutError, Operation, Result, Variable

T = TypeVar("T")


class Engine:
    """A pool of threads that runs pushed operations as soon as what they name is free.

    Use it as a context manager, or call `close`. An operation that raises leaves what it mutates undefined:
    operations pushed before somebody waited, and that name it, are not run but fail with the same error;
    `wait` raises it and clears it.
    """

    def __init__(self, threads: int = 4, name: str = "engine") -> None:
        if threads < 1:
            raise AttributeValueError("Engine: takes at least one thread", got=str(threads))
        self.name: Final = name
        self.num_threads: Final = threads
        self._lock: Final = threading.Lock()
        self._work: Final = threading.Condition(self._lock)
        self._ready: deque[Operation] = deque()
        self._pending: dict[Operation, None] = {}  # in the order of the pushes
        self._untold: list[BaseException] = []  # failures that nobody has been given
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._variables = 0

    # -- pushing ---------------------------------------------------------------------------------------------
    def new_variable(self, name: str = "") -> Variable:
        """Return the tag of another resource; `name` is for messages."""
        self._variables += 1
        return Variable(name or f"v{self._variables}")

    def push(
        self, function: Callable[[], Any], *, reads: Iterable[Variable] = (),
        mutates: Iterable[Variable] = (), name: str = "",
    ) -> Operation:  # fmt: skip
        """Queue a closure that reads and mutates the named resources, and return at once.

        A resource that is named as both is mutated. May be called by any thread, also by operations.
        Raises: DTypeError for what is no Variable; CallOrderError on a closed engine.
        """
        touched = dict.fromkeys(reads, False) | dict.fromkeys(mutates, True)
        for variable in touched:
            if not isinstance(variable, Variable):
                raise DTypeError("push: reads and mutates are variables", got=type(variable).__name__,
                                 hint="v = engine.new_variable('weights') tags any resource")  # fmt: skip
        operation = Operation(self, function, touched, name or getattr(function, "__name__", "operation"))
        return self._enqueue(operation)

    def submit(self, function: Callable[..., T], *args: Any) -> Result[T]:
        """Queue `function(*args)` and return its future value; Results among `args` are replaced by values.

        This is the scheduler of a graph without mutation: its edges are the arguments.
        """
        variable, value = self.new_variable(), []  # type: Variable, list[T]

        def run() -> None:
            value.append(function(*(a._value[0] if isinstance(a, Result) else a for a in args)))

        reads = [a.variable for a in args if isinstance(a, Result)]
        name = getattr(function, "__name__", "operation")
        return Result(self.push(run, reads=reads, mutates=[variable], name=name), variable, value)

    def _enqueue(self, operation: Operation) -> Operation:
        with UNINTERRUPTIBLE, self._lock:
            if self._closed:
                raise CallOrderError(f"{self.name}: takes no operations any more", got="a push after close()")
            self._pending[operation] = None
            for variable, mutated in operation._touched.items():
                variable._queue.append((operation, mutated))
            self._grant(operation._touched or self._granted(operation))
            if self._ready and len(self._threads) < min(self.num_threads, len(self._pending)):
                name = f"{self.name}-{len(self._threads)}"
                self._threads.append(threading.Thread(target=self._run, name=name, daemon=True))
                self._threads[-1].start()
        return operation

    # -- granting: called with the lock held -----------------------------------------------------------------
    def _grant(self, released: Iterable[Variable]) -> None:
        """Let the heads of queues have their resources: one writer, or all readers before the next writer."""
        variables = deque(released)
        while variables and not self._closed:
            variable = variables.popleft()
            while variable._queue:
                operation, mutates = variable._queue[0]
                if variable._holders and (mutates or variable._written):
                    break
                variable._queue.popleft()
                variable._holders.append(operation)
                variable._written = mutates
                operation._missing -= 1
                if not operation._missing:
                    variables.extend(self._granted(operation))

    def _granted(self, operation: Operation) -> Iterable[Variable]:
        """Hand an operation that has all it names to the pool; return what it releases if it needs no run."""
        failure = next((v._error for v in operation._touched if v._error is not None), None)
        if operation._function is not None and failure is None:
            self._ready.append(operation)
            self._work.notify()
            return ()
        return self._finish(operation, failure)

    def _finish(self, operation: Operation, error: BaseException | None) -> Iterable[Variable]:
        """Say that an operation is done and return the resources that others can now have."""
        operation.error, operation._function = error, None
        touched, operation._touched = operation._touched, {}
        del self._pending[operation]
        for variable, mutated in touched.items():
            variable._holders.remove(operation)
            if mutated and error is not None:
                variable._error = error
        operation._done.set()
        return touched

    # -- the pool --------------------------------------------------------------------------------------------
    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._ready:
                    if self._closed:
                        return
                    self._work.wait()
                operation = self._ready.popleft()
                operation._started = time.monotonic()
                function = operation._function
            error: BaseException | None = None
            try:
                assert function is not None
                function()
            except BaseException as raised:
                error = raised
                error.add_note(f"raised by the operation {operation}")
            function = None  # an idle thread keeps nothing alive
            with self._lock:
                if error is not None:
                    self._untold.append(error)
                self._grant(self._finish(operation, error))
            del operation, error

    # -- waiting ---------------------------------------------------------------------------------------------
    def wait(self, *variables: Variable, timeout: float | None = None) -> None:
        """Return once all that was pushed on these resources is done.

        Raises: the failure that left one undefined, which is then cleared; EngineTimeoutError after `timeout`
        seconds, naming who holds what.
        """
        marker = self._enqueue(Operation(self, None, dict.fromkeys(variables, False), "wait"))
        self._await(marker, timeout)
        if marker.error is not None:
            with self._lock:
                for variable in variables:
                    variable._error = None
            self._raise(marker.error)

    def wait_all(self, timeout: float | None = None) -> None:
        """Return once nothing is pending. Raises: the first failure nobody was given yet; as `wait`."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._lock:
                operation = next(iter(self._pending), None)
            if operation is None:
                break
            self._await(operation, None if end is None else max(0.0, end - time.monotonic()))
        with self._lock:
            untold, self._untold = self._untold, []
        if untold:
            raise untold[0]

    def _raise(self, error: BaseException) -> NoReturn:
        with self._lock:
            self._untold = [e for e in self._untold if e is not error]
        raise error

    def _await(self, operation: Operation, timeout: float | None) -> None:
        if threading.current_thread() in self._threads and not operation.done:
            raise CallOrderError(
                "an operation of an engine waits for another one", got=f"{operation}",
                hint="name what it needs in reads: it then starts when that is done",
            )  # fmt: skip
        if not operation._done.wait(timeout):
            raise EngineTimeoutError(
                f"{self.name}: {operation.name} was not done in {timeout:g} s", got=self._blockers(operation)
            )

    def _blockers(self, operation: Operation) -> str:
        """Return in words what keeps an operation from being done."""
        with self._lock:
            if operation._started:
                return f"{operation} runs since {time.monotonic() - operation._started:.1f} s"
            held = {v.name: [o for o in v._holders if o is not operation] for v in operation._touched}
            parts = [f"{name} is held by {', '.join(map(repr, by[:3]))}" for name, by in held.items() if by]
            return "; ".join(parts) or f"{operation} is ready and all {self.num_threads} threads are busy"

    # -- the end ---------------------------------------------------------------------------------------------
    def close(self, timeout: float | None = None) -> None:
        """Wait for all operations, then end the threads.

        Raises: as `wait_all`. After `timeout` seconds what has not started is cancelled with CallOrderError,
        what runs is named in the EngineTimeoutError, and nothing more is waited for.
        """
        try:
            self.wait_all(timeout)
        finally:
            with UNINTERRUPTIBLE, self._lock:
                self._closed = True
                self._ready.clear()
                cancelled = CallOrderError(f"{self.name}: closed before this operation began")
                for operation in [o for o in self._pending if not o._started]:
                    operation.error, operation._function = cancelled, None
                    del self._pending[operation]
                    operation._done.set()
                self._work.notify_all()
                threads = self._threads if not self._pending else []
            for thread in threads:
                thread.join()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: object) -> None:
        self.close(None if error[0] is None else 5.0)  # bounded where the block failed
