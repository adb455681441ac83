"""The service behind the routes: models are loaded and unloaded, workers kept alive, requests answered."""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from stratal.serve.dispatcher import Dispatcher
from stratal.serve.fleet import Fleet, FleetError
from stratal.serve.metrics import Metrics
from stratal.serve.protocol import InferRequest, RequestError
from stratal.serve.registry import Loaded, Registry, loaded_of
from stratal.serve.request_log import Call, RequestLog

_PAUSE: Final = 0.5  # seconds before a worker is tried again that could not be forked


@dataclass(frozen=True)
class Options:
    """What a server is asked for. Times in seconds, sizes in bytes."""

    workers: int = 1
    sla: float = 1.0
    most_seconds: float = 60.0  # that a request may ask for
    body_limit: int = 64 << 20
    most_rows: int = 4096
    queue_limit: int = 1000
    read_seconds: float = 10.0  # between two pieces of a body
    load_seconds: float = 120.0
    hang_seconds: float = 10.0
    drain_seconds: float = 10.0


class Service:
    """Everything but HTTP. Lives in one event loop."""

    def __init__(self, folder: Path, options: Options, log: RequestLog | None = None) -> None:
        self.options = options
        self.log = log
        self.registry = Registry(folder)
        self.metrics = Metrics()
        self.dispatcher = Dispatcher(self.metrics, options.queue_limit, options.hang_seconds)
        self.dispatcher.on_lost = lambda: self._spawn(self._keep_alive())
        self.dispatcher.on_quarantine = self._quarantined
        self.fleet = Fleet()
        self.draining = False
        self._changing = asyncio.Lock()  # of models and workers, one change at a time
        self._tasks: set[asyncio.Task[None]] = set()

    # -- models ----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load every model of the folder, and fork the workers. Stderr names models that do not load."""
        self.fleet.start()
        for name in self.registry.found():
            try:
                await self._load(name)
            except (FleetError, RequestError) as error:
                print(f"stratal: {name} is not served: {self.registry.failed[name]}", file=sys.stderr)
                if not self.fleet.alive:
                    raise FleetError("serve: the zygote ended", got=str(error.got)) from error
        async with self._changing:
            await self._fill()

    async def load(self, name: str) -> None:
        """Load the newest version of a model, or load it again, and let new workers take over.

        What was loaded under the name answers until the new one is ready. Raises: RequestError, FleetError.
        """
        await self._load(name)

    async def _load(self, name: str) -> None:
        version, path = self.registry.newest(name)
        old = self.registry.models.get(name)
        try:
            probed = await self.fleet.probe(str(path), self.options.load_seconds)
            model = loaded_of(name, version, probed)
            async with self._changing:
                answer, _ = await self.fleet.command(do="load", key=model.key, path=str(path))
                if answer["content"] != probed["content"]:
                    raise FleetError("load: the artefact changed while it was loaded")
                if self.dispatcher.workers:
                    await self._roll()
        except (FleetError, RequestError) as error:
            self.registry.failed[name] = f"{error.rule}: {error.got}" if error.got else error.rule
            raise
        self.registry.failed.pop(name, None)
        self.registry.models[name] = model
        self.dispatcher.serve(model, self.options.sla)
        self.metrics.ready.labels(name).set(1)
        if old is not None and old.key != model.key:
            self._spawn(self._let_go(old))

    async def _let_go(self, old: Loaded) -> None:
        """Forget a model that another took over from, once what waits for it is answered."""
        until = asyncio.get_running_loop().time() + self.options.most_seconds
        while self.dispatcher.queue.waiting(old.key) and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(0.05)
        self.dispatcher.forget(old, "another version took over while it waited")
        await self.fleet.command(do="unload", key=old.key)

    async def unload(self, name: str) -> None:
        """Stop serving a model; what waits for it is answered with an error. Raises: RequestError."""
        model = self.registry.models.pop(name, None)
        if model is None:
            raise RequestError(404, "repository: the model is not loaded", got=name[:100])
        self.dispatcher.forget(model, "it was unloaded while it waited")
        self.metrics.ready.labels(name).set(0)
        async with self._changing:
            await self.fleet.command(do="unload", key=model.key)
            await self._roll()  # workers forked from now on do not have it

    def _quarantined(self, model: Loaded) -> None:
        self.metrics.ready.labels(model.name).set(0)
        print(f"stratal: {model.name} is {model.why}", file=sys.stderr)

    # -- workers ---------------------------------------------------------------------------------------------

    async def _roll(self) -> None:
        """Replace all workers by new ones, which have the models of now; batches that run are finished."""
        old = list(self.dispatcher.workers)
        fresh = [await self.fleet.fork() for _ in range(self.options.workers)]
        for worker in old:
            self.dispatcher.retire(worker)
        for worker in fresh:
            self.dispatcher.add(worker)

    async def _fill(self) -> None:
        """Fork workers until there are as many as asked for."""
        while not self.draining and self._missing() > 0:
            self.dispatcher.add(await self.fleet.fork())

    def _missing(self) -> int:
        return self.options.workers - sum(not w.retiring for w in self.dispatcher.workers)

    async def _keep_alive(self) -> None:
        """Replace what was lost: workers, and the zygote where it ended, too."""
        while not self.draining and self._missing() > 0:
            try:
                async with self._changing:
                    if not self.fleet.alive:
                        await self._restart()
                    await self._fill()
            except FleetError as error:
                print(f"stratal: no new worker yet: {error.rule} {error.got}", file=sys.stderr)
                await asyncio.sleep(_PAUSE)

    async def _restart(self) -> None:
        self.fleet.start()
        for model in self.registry.models.values():
            if model.state == "READY":
                _, path = self.registry.newest(model.name)
                answer, _ = await self.fleet.command(do="load", key=model.key, path=str(path))
                if answer["content"] != model.facts["content"]:
                    model.state, model.why = "UNAVAILABLE", "its artefact changed: load it again"
                    self.dispatcher.forget(model, model.why)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- requests --------------------------------------------------------------------------------------------

    async def infer(self, model: Loaded, request: InferRequest, call: Call) -> list[memoryview]:
        """Return the bytes of a model's outputs, and note in `call` what ran. Raises: RequestError."""
        call.version, call.rows = model.version, request.rows
        now = asyncio.get_running_loop().time()
        asked = (
            self.options.sla if request.timeout is None else min(request.timeout, self.options.most_seconds)
        )
        answered = await self.dispatcher.infer(model, request.rows, request.inputs, now + asked)
        call.queued, call.computed = answered.queued, answered.computed
        if asyncio.get_running_loop().time() > now + asked:
            self.metrics.late.labels(model.name).inc()
        return answered.outputs

    def answered(self, call: Call, code: str) -> None:
        """Count an inference request and log it, once its answer is sent; `code` is HTTP's or gRPC's."""
        known = call.model if call.model in self.registry.models else "unknown"
        self.metrics.requests.labels(known, code).inc()
        self.metrics.latency.labels(known).observe(call.seconds)
        if self.log is not None:
            self.log.write(call.to_json())

    def fault(self, call: Call) -> None:
        """Note the exception that is being handled, a fault of the server, to be found by the id."""
        call.failed(500, "internal error: the server's log has it")
        if self.log is None:
            traceback.print_exc()
        else:
            self.log.write({"id": call.id, "traceback": traceback.format_exc()})

    @property
    def ready(self) -> bool:
        """Whether requests can be answered."""
        return not self.draining and bool(self.dispatcher.workers)

    async def close(self) -> None:
        """Finish what is under way, within the limit, and end every process."""
        self.draining = True
        await self.dispatcher.drained(self.options.drain_seconds)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.fleet.close()
        if self.log is not None:
            self.log.close()
