"""Requests to batches to workers and back: who waits, what runs where, and what happens when a worker ends.

A worker that ends or hangs while it runs a batch is replaced; each request of the batch is tried once more,
by itself, if its deadline allows, or else is answered with an error that says so. A model whose batches bring
down `STRIKES` workers within `STRIKE_SECONDS` is quarantined: its requests are refused, the others go on.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from stratal.serve.extra import clock
from stratal.serve.fleet import FleetError, Process
from stratal.serve.frames import Head
from stratal.serve.metrics import Metrics
from stratal.serve.planning_latency import QUANTILE, Window
from stratal.serve.planning_queue import Batch, DeadlineQueue
from stratal.serve.protocol import Bytes, RequestError
from stratal.serve.registry import Loaded

STRIKES: Final = 2
STRIKE_SECONDS: Final = 600.0
UNDER_WAY: Final = 1e-3  # seconds that request and answer are between client and front end
MOST_RESERVE: Final = 0.1  # of a request's time, that is left to the front end
GRACE: Final = 1.0  # seconds after its deadline that a request in work may still be answered


class Answered(NamedTuple):
    """The bytes of a request's outputs, and seconds: that it waited, that its batch took a worker."""

    outputs: list[memoryview]
    queued: float
    computed: float


Done = Callable[[Answered | RequestError], None]  # called once, with what becomes of a request


@dataclass(eq=False, slots=True)
class Pending:
    """A request between arrival and answer."""

    model: Loaded
    rows: int
    inputs: Sequence[Bytes]
    arrived: float
    deadline: float
    done: Done
    retried: bool = False
    limit: asyncio.TimerHandle | None = None  # until it is answered

    @property
    def answered(self) -> bool:
        """Whether there is an answer already."""
        return self.limit is None

    def answer(self, found: Answered | RequestError) -> None:
        """Answer, unless there is an answer already."""
        if self.limit is not None:
            self.limit.cancel()
            self.limit = None
            self.done(found)

    def fail(self, status: int, rule: str, got: str = "") -> None:
        """Answer with an error, unless there is an answer already."""
        self.answer(RequestError(status, rule, got=got))


@dataclass(eq=False, slots=True)
class Run:
    """A batch that a worker runs."""

    worker: Process
    batch: Batch[Pending]
    started: float
    limit: asyncio.TimerHandle | None = None  # until it is answered


class Dispatcher:
    """The queue, the workers, and the batches between them. All of it runs in the event loop."""

    def __init__(self, metrics: Metrics, queue_limit: int, hang_seconds: float) -> None:
        self.queue: DeadlineQueue[Pending] = DeadlineQueue()
        self.workers: list[Process] = []
        self.metrics = metrics
        metrics.queued.set_function(lambda: len(self.queue))
        self.on_lost: Callable[[], None] = lambda: None  # a worker is gone that should not be
        self.on_quarantine: Callable[[Loaded], None] = lambda _: None
        self._limit = queue_limit
        self._hang_seconds = hang_seconds
        self._retries: deque[Pending] = deque()
        self._strikes: dict[str, deque[float]] = {}
        self._unanswered: Counter[str] = Counter()
        self._running: set[Run] = set()
        self._own = Window(5e-4, 1e-3)  # seconds from a batch's answer to the last of its requests'
        self._tasks: set[asyncio.Task[None]] = set()

    # -- requests --------------------------------------------------------------------------------------------

    def submit(self, model: Loaded, rows: int, inputs: Sequence[Bytes], deadline: float, done: Done) -> None:
        """Queue a request; `done` is called with its outputs, or with what went wrong (500, 503, 504).

        It may be called before this returns. Raises: RequestError, 429, where it cannot be in time; then
        `done` is not called.
        """
        now = clock()
        if len(self.queue) >= self._limit:
            raise RequestError(429, "the queue is full", got=f"{self._limit} requests wait")
        free_at = [w.free_at for w in self.workers if not w.retiring]
        planned = deadline - self._reserve(deadline - now)
        if reason := self.queue.refusal(model.key, rows, planned, now, free_at):
            self.queue.ease(model.key, model.table, now)
            raise RequestError(429, f"{model.name}: cannot be in time", got=reason)
        self._unanswered[model.key] += 1

        def answered(found: Answered | RequestError) -> None:
            self._unanswered[model.key] -= 1
            done(found)

        pending = Pending(model, rows, inputs, now, deadline, answered)
        pending.limit = asyncio.get_running_loop().call_later(
            max(0.0, deadline - now) + GRACE, self._out_of_time, pending
        )
        self.queue.push(model.key, pending, rows, planned)
        if any(not w.busy and not w.retiring for w in self.workers):
            self.pump()

    def _reserve(self, left: float) -> float:
        """Return the seconds before its deadline at which a request should leave its worker.

        It waited in its socket about as long as the answers of a batch take to be written, its own answer
        waits for others of its batch, and both are under way for a while.
        """
        return min(2 * self._own.quantile(QUANTILE) + UNDER_WAY, MOST_RESERVE * max(0.0, left))

    @staticmethod
    def _out_of_time(pending: Pending) -> None:
        pending.fail(504, f"{pending.model.name}: no answer by the deadline")

    def unanswered(self, model: Loaded) -> int:
        """Return how many requests of a model wait or run."""
        return self._unanswered[model.key]

    def pump(self) -> None:
        """Give every idle worker a batch, as long as there are some."""
        now = clock()
        dropped = self.queue.drop_late(now)
        for worker in self.workers:
            if not worker.busy and not worker.retiring:
                batch = self._next(now)
                if batch is None:
                    break
                self._start(worker, batch, now)
        for late in dropped:
            late.fail(504, f"{late.model.name}: dropped, for it could not be in time any more")

    def _next(self, now: float) -> Batch[Pending] | None:
        while self._retries:
            pending = self._retries.popleft()
            if not pending.answered:
                seconds = pending.model.table.latency(pending.rows)
                return Batch(pending.model.key, [pending], pending.rows, seconds, seconds)
        return self.queue.take(now)

    def _start(self, worker: Process, batch: Batch[Pending], now: float) -> None:
        worker.busy, worker.free_at = True, now + batch.most
        inputs = len(batch.items[0].model.signature.inputs)
        parts = [p.inputs[k] for k in range(inputs) for p in batch.items]
        limit = max(self._hang_seconds, 20 * batch.most)
        run = Run(worker, batch, clock())
        run.limit = asyncio.get_running_loop().call_later(limit, self._hung, run)
        self._running.add(run)
        worker.send({"model": batch.model}, parts, partial(self._came, run))

    def _hung(self, run: Run) -> None:
        run.limit = None
        self._running.discard(run)
        self._brought_down(run, "hung", True)

    def _came(self, run: Run, found: tuple[Head, bytes] | FleetError) -> None:
        """Give the worker the next batch, then deliver what it answered; or replace it.

        Answers are written while the worker runs on: it waited a fifth of its time where that came first.
        """
        if run.limit is None:
            return  # it hung, and is replaced
        run.limit.cancel()
        run.limit = None
        worker, came = run.worker, clock()
        try:
            if isinstance(found, FleetError):
                raise found
            head, body = found
            answers = [] if "error" in head else self._answers(run, head, body, came)
        except FleetError:
            task = asyncio.get_running_loop().create_task(self._lost(run))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        self._running.discard(run)
        worker.busy, worker.free_at = False, 0.0
        if worker.retiring:
            worker.close()
        self.pump()
        for pending, answer in zip(run.batch.items, answers, strict=False):
            pending.answer(answer)
        if "error" in head:
            for pending in run.batch.items:
                pending.fail(503 if head.get("missing") else 500, f"{pending.model.name}: {head['error']}")
        self._own.add(clock() - came)

    async def _lost(self, run: Run) -> None:
        blamed = not await run.worker.zygote_ended()
        self._running.discard(run)
        self._brought_down(run, "ended", blamed)

    def _answers(self, run: Run, head: Head, body: bytes, came: float) -> list[Answered]:
        """Return each request's rows, and take note of the whole round trip: a plan must count that."""
        batch, model, seconds = run.batch, run.batch.items[0].model, came - run.started
        shared = _shared_out(batch, model, memoryview(body))
        self.queue.observe(batch.model, batch.rows, seconds)
        self.metrics.batch(model.name, batch.rows, abs(batch.seconds / max(1e-9, seconds) - 1))
        return [
            Answered(outputs, run.started - pending.arrived, head["seconds"])
            for pending, outputs in zip(batch.items, shared, strict=True)
        ]

    # -- workers ---------------------------------------------------------------------------------------------

    def add(self, worker: Process) -> None:
        """Take a new worker, and notice when it ends."""
        self.workers.append(worker)
        worker.ended.add_done_callback(lambda _: self._ended(worker))
        self.metrics.workers.set(len(self.workers))
        self.pump()

    def retire(self, worker: Process) -> None:
        """Give a worker nothing more; it ends after the batch it runs."""
        worker.retiring = True
        if not worker.busy:
            worker.close()

    def _ended(self, worker: Process) -> None:
        """A worker is gone. What it ran is dealt with where its answer was awaited."""
        if worker in self.workers:
            self.workers.remove(worker)
            self.metrics.workers.set(len(self.workers))
            if not worker.retiring:
                self.metrics.lost.labels("ended").inc()
                self.on_lost()

    def _brought_down(self, run: Run, how: str, blamed: bool) -> None:
        """Replace a worker; its model is `blamed` unless all workers ended, with their zygote."""
        worker, batch = run.worker, run.batch
        worker.kill()
        if how == "hung" and worker in self.workers:  # its end is noticed as well, but is no second loss
            self.workers.remove(worker)
            self.metrics.workers.set(len(self.workers))
            self.metrics.lost.labels("hung").inc()
            if not worker.retiring:
                self.on_lost()
        now = clock()
        model = batch.items[0].model
        if blamed and self._strike(batch.model, now) >= STRIKES:
            self._quarantine(model, batch.items)
        else:
            for pending in batch.items:
                self._again(pending, now, how)
        self.pump()

    def _strike(self, key: str, now: float) -> int:
        """Count one more worker that a model brought down; return how many of late."""
        strikes = self._strikes.setdefault(key, deque())
        strikes.append(now)
        while strikes[0] < now - STRIKE_SECONDS:
            strikes.popleft()
        return len(strikes)

    def _again(self, pending: Pending, now: float, how: str) -> None:
        name = pending.model.name
        if pending.retried:
            pending.fail(503, f"{name}: two workers {how} while they ran this request")
        elif now + pending.model.table.latency(pending.rows) > pending.deadline:
            pending.fail(503, f"{name}: the worker {how} while it ran this request, and its time is up")
        else:
            pending.retried = True
            self._retries.append(pending)

    def _quarantine(self, model: Loaded, running: Sequence[Pending]) -> None:
        model.state = "UNAVAILABLE"
        model.why = f"quarantined: it brought down {STRIKES} workers; load it again to try it again"
        for pending in [*running, *self.queue.remove_model(model.key)]:
            pending.fail(503, f"{model.name}: {model.why}")
        self.on_quarantine(model)

    def serve(self, model: Loaded, sla: float) -> None:
        """Queue for a model from now on; one that is queued for already keeps what waits."""
        self._strikes.pop(model.key, None)
        if not self.queue.knows(model.key):
            self.queue.add_model(model.key, model.table, sla, typical=model.typical)

    def forget(self, model: Loaded, why: str) -> None:
        """Stop serving a model: what waits for it is answered with an error."""
        self._strikes.pop(model.key, None)
        again = [p for p in self._retries if p.model.key == model.key]
        for pending in [*self.queue.remove_model(model.key), *again]:
            pending.fail(503, f"{model.name}: {why}")
        if not self._unanswered[model.key]:
            del self._unanswered[model.key]

    async def drained(self, seconds: float) -> None:
        """Wait until nothing waits or runs, at most so long."""
        deadline = clock() + seconds
        while (self._running or len(self.queue)) and clock() < deadline:
            await asyncio.sleep(0.01)


def _shared_out(batch: Batch[Pending], model: Loaded, body: memoryview) -> list[list[memoryview]]:
    """Return each request's part of every output."""
    outputs: list[list[memoryview]] = [[] for _ in batch.items]
    at = 0
    for spec in model.signature.outputs:
        for k, pending in enumerate(batch.items):
            nbytes = pending.rows * spec.row_bytes
            outputs[k].append(body[at : at + nbytes])
            at += nbytes
    if at != len(body):
        raise FleetError("worker: an answer of another length", got=f"{len(body)} bytes, not {at}")
    return outputs
