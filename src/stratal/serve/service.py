"""The service behind the routes: models are loaded and unloaded, workers kept alive, requests answered."""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from stratal.formats.files import FileWriteError
from stratal.serve.dispatcher import GRACE, Answered, Dispatcher, Done
from stratal.serve.extra import clock
from stratal.serve.fleet import Fleet, FleetError, ZygoteEndedError
from stratal.serve.metrics import Metrics
from stratal.serve.model_config import read_config
from stratal.serve.monitoring import Monitoring
from stratal.serve.protocol import InferRequest, RequestError
from stratal.serve.registry import Canary, Loaded, Registry, loaded_of
from stratal.serve.request_log import Call, RequestLog
from stratal.serve.rollout_state import Rollout, read_rollouts, write_rollouts

_ANOTHER: Final = "state: the artefact is another than when this version was chosen"
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
    state: Path | None = None  # remembers which versions were chosen


class Service:
    """Everything but HTTP. Lives in one event loop."""

    def __init__(self, folder: Path, options: Options, log: RequestLog | None = None) -> None:
        self.options = options
        self.log = log
        self.registry = Registry(folder)
        self.metrics = Metrics()
        self.dispatcher = Dispatcher(self.metrics, options.queue_limit, options.hang_seconds)
        self.dispatcher.on_lost = lambda: self._spawn(self._keep_alive())
        self.dispatcher.on_quarantine = self._out_of_service
        self.monitoring = Monitoring(self.metrics, log)
        self.fleet = Fleet()
        self.draining = False
        self._changing = asyncio.Lock()  # of models and workers, one change at a time
        self._tasks: set[asyncio.Task[None]] = set()

    # -- models ----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load every model of the folder, and fork the workers. Stderr names models that do not load."""
        chosen = read_rollouts(self.options.state) if self.options.state else {}
        self.fleet.start()
        for name in self.registry.found():
            try:
                if name not in chosen or not await self._restored(name, chosen[name]):
                    await self._load(name)
            except (FleetError, RequestError) as error:
                print(f"stratal: {name} is not served: {self.registry.failed[name]}", file=sys.stderr)
                if not self.fleet.alive:
                    raise FleetError("serve: the zygote ended", got=str(error.got)) from error
        async with self._changing:
            await self._fill()
        for name in self.registry.models:
            self._warn_of_variants(name)

    async def load(self, name: str, version: str = "", share: float | None = None) -> None:
        """Load a version of a model, by default the newest, or load it again, and let new workers take over.

        What was loaded under the name answers until the new one is ready, and ends what it began. With a
        `share` the version becomes a canary: it answers that share of the requests, the other one the rest,
        until `promote`, `rollback` or the next load. Raises: RequestError, FleetError.
        """
        await self._load(name, version, share)
        await self._remember(name, chosen=bool(version) or share is not None)
        self._warn_of_variants(name)

    def _warn_of_variants(self, name: str) -> None:
        for variant, why in self.registry.variants_missing(name).items():
            print(f"stratal: {name}: its variant {variant} does not answer for it: {why}", file=sys.stderr)

    async def _load(
        self, name: str, version: str = "", share: float | None = None, content: str = ""
    ) -> None:
        version, path = self.registry.located(name, version)
        if share is not None:
            self._check_canary(name, version)
        try:
            config = read_config(self.registry.folder, name)
            probed = await self.fleet.probe(str(path), self.options.load_seconds)
            model = loaded_of(name, version, probed)
            if content and model.facts["content"] != content:
                raise RequestError(400, _ANOTHER, got=f"version {version}")
            async with self._changing:
                if share is not None:
                    self._check_canary(name, version, model)
                await self._bring(model, path)
                self.registry.configs[name] = config
                self._switch(model, share)
        except (FleetError, RequestError) as error:
            self.registry.failed[name] = f"{error.rule}: {error.got}" if error.got else error.rule
            raise
        self.registry.failed.pop(name, None)

    def _check_canary(self, name: str, version: str, model: Loaded | None = None) -> None:
        """Return where a version can be a canary beside the one that answers. Raises: RequestError."""
        stable = self.registry.ready(name)
        if version == stable.version:
            raise RequestError(400, "canary: another version than the one that answers", got=version)
        if model is not None and model.signature.to_json() != stable.signature.to_json():
            raise RequestError(400, f"canary: inputs and outputs of version {stable.version}", got=version)

    async def _bring(self, model: Loaded, path: Path) -> None:
        """Let the zygote load a model, and new workers have it. Raises: FleetError."""
        answer, _ = await self.fleet.command(do="load", key=model.key, path=str(path))
        if answer["content"] != model.facts["content"]:
            raise FleetError("load: the artefact changed while it was loaded")
        if self.dispatcher.workers:
            await self._roll()

    def _switch(self, model: Loaded, share: float | None = None) -> None:
        """Send requests to a model that all workers have; what it replaces ends what it began."""
        name, registry = model.name, self.registry
        replaced = [registry.canaries.pop(name).model] if name in registry.canaries else []
        if share is not None:
            registry.canaries[name] = Canary(model, share)
        else:
            if (old := registry.models.get(name)) is not None and old.key != model.key:
                registry.previous[name] = old
                replaced.append(old)
            registry.models[name] = model
            self.metrics.ready.labels(name).set(1)
            self.monitoring.watch(model, registry.config(name))
        self.dispatcher.serve(model, self.sla(name))
        self._show_canary(name)
        for old in replaced:
            if old.key != model.key:
                self._spawn(self._let_go(old))

    def sla(self, name: str) -> float:
        """Return the seconds in which a model answers a request that does not ask for another time."""
        return self.registry.config(name).sla or self.options.sla

    def _show_canary(self, name: str) -> None:
        canary = self.registry.canaries.get(name)
        self.metrics.canary.labels(name).set(canary.share if canary else 0)

    async def promote(self, name: str) -> None:
        """Let a canary answer all requests. Raises: RequestError where there is none."""
        async with self._changing:
            canary = self.registry.canaries.get(name)
            if canary is None:
                raise RequestError(404, "promote: the model has no canary", got=name[:100])
            if canary.model.state != "READY":
                raise RequestError(503, f"promote: the canary is {canary.model.why}")
            self._switch(canary.model)
        await self._remember(name)

    async def rollback(self, name: str) -> None:
        """Take back the last change: end the canary, or let the version answer again that did before.

        Raises: RequestError where nothing was changed, FleetError where the version before is not as it was.
        """
        async with self._changing:
            await self._take_back(name)
        await self._remember(name)

    async def _take_back(self, name: str) -> None:
        canary = self.registry.canaries.pop(name, None)
        if canary is not None:
            self._show_canary(name)
            self._spawn(self._let_go(canary.model))
            return
        before = self.registry.previous.get(name)
        if before is None:
            raise RequestError(404, "rollback: no version answered before this one", got=name[:100])
        _, path = self.registry.located(name, before.version)
        await self._bring(before, path)
        before.state, before.why = "READY", ""
        self._switch(before)
        self.registry.previous.pop(name)

    # -- what was chosen, across restarts --------------------------------------------------------------------

    async def _restored(self, name: str, chosen: Rollout) -> bool:
        """Load the versions of a model that were chosen; return whether one answers. What fails is told."""
        try:
            await self._load(name, chosen.answers.version, content=chosen.answers.content)
        except (FleetError, RequestError) as error:
            self._not_restored(name, "the newest version is loaded", error)
            return False
        self.registry.chosen.add(name)
        try:
            if (before := chosen.previous) is not None:
                version, path = self.registry.located(name, before.version)
                probed = await self.fleet.probe(str(path), self.options.load_seconds)
                if probed["content"] != before.content:
                    raise RequestError(400, _ANOTHER, got=f"version {version}")
                self.registry.previous[name] = loaded_of(name, version, probed)
        except (FleetError, RequestError) as error:
            self._not_restored(name, "there is no rollback", error)
        try:
            if (canary := chosen.canary) is not None:
                await self._load(name, canary.version, canary.share, canary.content)
        except (FleetError, RequestError) as error:
            self._not_restored(name, "there is no canary", error)
        return True

    def _not_restored(self, name: str, so: str, error: FleetError | RequestError) -> None:
        print(f"stratal: {name}: {so}: {error.rule} {error.got}", file=sys.stderr)

    async def _remember(self, name: str, chosen: bool = True) -> None:
        """Write which versions were chosen; where that fails, stderr says so and the change stands."""
        (self.registry.chosen.add if chosen else self.registry.chosen.discard)(name)
        if self.options.state is None:
            return
        async with self._changing:
            try:
                await asyncio.to_thread(write_rollouts, self.options.state, self.registry.rollouts())
            except FileWriteError as error:
                print(f"stratal: after a restart {name} is not as now: {error.summary}", file=sys.stderr)

    async def _let_go(self, old: Loaded) -> None:
        """Forget a model that another took over from, once what it began is answered."""
        until = clock() + self.options.most_seconds + GRACE
        while self.dispatcher.unanswered(old) and clock() < until:
            await asyncio.sleep(0.05)
        async with self._changing:
            if old.key not in self.registry.loaded_keys():  # it may have come back meanwhile
                self.dispatcher.forget(old, "another version took over while it waited")
                with suppress(ZygoteEndedError):
                    await self.fleet.command(do="unload", key=old.key)

    async def unload(self, name: str) -> None:
        """Stop serving a model; what waits for it is answered with an error. Raises: RequestError."""
        model = self.registry.models.pop(name, None)
        if model is None:
            raise RequestError(404, "repository: the model is not loaded", got=name[:100])
        self.registry.previous.pop(name, None)
        canary = self.registry.canaries.pop(name, None)
        self.metrics.ready.labels(name).set(0)
        self.monitoring.forget(name)
        self._show_canary(name)
        gone = [model] if canary is None else [model, canary.model]
        for each in gone:
            self.dispatcher.forget(each, "it was unloaded while it waited")
        async with self._changing:
            with suppress(ZygoteEndedError):  # the next one does not load them
                for each in gone:
                    await self.fleet.command(do="unload", key=each.key)
                await self._roll()  # workers forked from now on do not have it
        await self._remember(name, chosen=False)

    def _out_of_service(self, model: Loaded) -> None:
        if self.registry.models.get(model.name) is model:
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
        """Start a zygote with the models of now; one that is gone from the folder takes no other along."""
        await self.fleet.restart()
        canaries = [canary.model for canary in self.registry.canaries.values()]
        for model in [*self.registry.models.values(), *canaries]:
            if model.state == "READY" and (why := await self._not_loaded_again(model)):
                model.state, model.why = "UNAVAILABLE", f"{why}: load it again"
                self.dispatcher.forget(model, model.why)
                self._out_of_service(model)

    async def _not_loaded_again(self, model: Loaded) -> str:
        """Load what a zygote had that ended; return why that is not possible. Raises: ZygoteEndedError."""
        try:
            _, path = self.registry.located(model.name, model.version)
            answer, _ = await self.fleet.command(do="load", key=model.key, path=str(path))
        except ZygoteEndedError:
            raise
        except (FleetError, RequestError) as error:
            return error.summary
        return "" if answer["content"] == model.facts["content"] else "its artefact changed"

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- requests --------------------------------------------------------------------------------------------

    async def infer(self, model: Loaded, request: InferRequest, call: Call) -> list[memoryview]:
        """Return the bytes of a model's outputs, as `submit` gives them. Raises: RequestError."""
        waiting: asyncio.Future[Answered | RequestError] = asyncio.get_running_loop().create_future()

        def done(found: Answered | RequestError) -> None:
            if not waiting.done():  # who asked may be gone
                waiting.set_result(found)

        self.submit(model, request, call, done)
        found = await waiting
        if isinstance(found, RequestError):
            raise found
        return found.outputs

    def submit(self, model: Loaded, request: InferRequest, call: Call, done: Done) -> None:
        """Give a request to a model; note in `call` what ran, and call `done` with what became of it.

        Where the model would refuse for lack of time, a cheaper variant answers, if there is one in time.
        Raises: RequestError where nothing runs; then `done` is not called.
        """
        call.version, call.rows = model.version, request.rows
        sla = self.sla(model.name)
        call.asked = sla if request.timeout is None else min(request.timeout, self.options.most_seconds)
        deadline = clock() + call.asked
        variants = self.registry.config(model.name).variants
        call.variant = model.name if variants else ""

        runs, why = model, ""  # why it is another model that runs

        def finished(found: Answered | RequestError) -> None:
            if isinstance(found, Answered):
                call.queued, call.computed = found.queued, found.computed
                if clock() > deadline:
                    self.metrics.late.labels(call.model).inc()
                if runs is not model:
                    self._note_variant(model, runs, call, why)
                asyncio.get_running_loop().call_soon(
                    self.monitoring.answered, runs, call, request.inputs, found.outputs
                )
            done(found)

        try:
            self.dispatcher.submit(model, request.rows, request.inputs, deadline, finished)
        except RequestError as refusal:
            if not request.variants:
                raise
            why, asked = refusal.got, (call.variant, call.version)
            for runs in self._variants(model, variants):
                call.variant, call.version = runs.name, runs.version
                with suppress(RequestError):
                    self.dispatcher.submit(runs, request.rows, request.inputs, deadline, finished)
                    return
            call.variant, call.version = asked
            raise

    def _variants(self, model: Loaded, names: Sequence[str]) -> Iterator[Loaded]:
        """Yield the models that can answer in another's place, the best first."""
        for name in names:
            if (variant := self.registry.variant(name, model.signature)) is not None:
                yield variant

    def _note_variant(self, model: Loaded, variant: Loaded, call: Call, why: str) -> None:
        self.metrics.variants.labels(model.name, variant.name).inc()
        if self.log is not None:
            told = {"id": call.id, "model": model.name, "switched_to": variant.name, "why": why}
            self.log.write(told)

    def answered(self, call: Call, code: str) -> None:
        """Count an inference request and log it, once its answer is sent; `code` is HTTP's or gRPC's."""
        known = call.model if call.model in self.registry.models else "unknown"
        seconds = call.seconds
        self.metrics.request(known, code, seconds)
        self.monitoring.counted(call, self.sla(call.model))
        if call.rows:  # it was given to a version
            self.metrics.version_request(call.variant or call.model, call.version, code, seconds)
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
