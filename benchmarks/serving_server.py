"""A server whose dispatcher has another policy, as `python -m benchmarks.serving_server FOLDER --json FILE`.

All but the order of work is the same: front end, protocol, processes, metrics.

planned:    the server's own queue: deadlines, admission, batches by measured tables
shared:     one queue, the oldest request first, batches of all that waits, nothing refused or dropped
per_model:  a greedy dynamic batcher for each model, as Triton has: each model runs one batch at a time, of
            all that waits for it; there is a worker for each model, and the system shares out the cores

On SIGUSR2 the server, which must be idle, takes policy and SLAs (seconds by model) from the JSON that
`--control FILE` names, and removes the file: trials that differ by these need no new server.
With `--backend onnxruntime` the same server has sessions of onnxruntime as models (`serving_onnx`).

`--cores 0/1,2` gives the front end core 0 and the workers 1 and 2; `--record FILE` writes each batch that
ran: model, rows, seconds that were predicted (median, high quantile), seconds it took.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from stratal.serve.fleet import Fleet
from stratal.serve.planning_queue import Batch, DeadlineQueue
from stratal.serve.server import Listening, serve
from stratal.serve.service import Options, Service


class Planned(DeadlineQueue[Any]):
    """The server's queue; it notes what was predicted of each batch, and what came true."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int, float, float, float]] = []
        self.recording = False

    def observe(self, name: str, rows: int, seconds: float) -> None:
        if self.recording:
            typical, high = self.typical(name).latency(rows), self.table(name).latency(rows)
            self.seen.append((name.split("/")[0], rows, typical, high, seconds))
        super().observe(name, rows, seconds)


class Shared(DeadlineQueue[Any]):
    """Oldest first; a batch is all that waits for its model, up to its largest size."""

    def refusal(self, *_: Any) -> str:
        return ""

    def drop_late(self, now: float) -> list[Any]:
        return []

    def push(self, name: str, item: Any, rows: int, deadline: float) -> None:
        super().push(name, item, rows, item.arrived)  # no deadlines: the order is that of arrival

    def take(self, now: float) -> Batch[Any] | None:
        waiting = [(queue.entries[0], name) for name, queue in self._models.items() if self._free(name)]
        if not waiting:
            return None
        _, name = min(waiting, key=lambda pair: (pair[0].deadline, pair[0].number))
        queue = self._models[name]
        count, rows = 1, queue.entries[0].rows
        while count < len(queue.entries) and rows + queue.entries[count].rows <= queue.table.sizes[-1]:
            rows += queue.entries[count].rows
            count += 1
        seconds = queue.table.latency(rows)
        return Batch(name, queue.pop(count), rows, seconds, seconds)

    def _free(self, name: str) -> bool:
        return bool(self._models[name].entries)


class PerModel(Shared):
    """The same, with one batch of a model at a time: each model has a batcher and an instance of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._busy: set[str] = set()

    def take(self, now: float) -> Batch[Any] | None:
        batch = super().take(now)
        if batch is not None:
            self._busy.add(batch.model)
        return batch

    def observe(self, name: str, rows: int, seconds: float) -> None:
        super().observe(name, rows, seconds)
        self._busy.discard(name)

    def _free(self, name: str) -> bool:
        return name not in self._busy and super()._free(name)


POLICIES = {"planned": Planned, "shared": Shared, "per_model": PerModel}


def take_over(service: Service, policy: str, slas: Mapping[str, float] | None = None) -> Planned | Shared:
    """Give a service that has started, and is idle, the queue of a policy; tables are those of the start."""
    queue = POLICIES[policy]()
    queue.workers = service.dispatcher.queue.workers
    for name, sla in (slas or {}).items():
        service.registry.configs[name] = replace(service.registry.config(name), sla=sla)
    for model in service.registry.models.values():
        queue.add_model(model.key, model.table, service.sla(model.name), typical=model.typical)
    service.dispatcher.queue = queue
    return queue


def main() -> None:
    """Serve until SIGTERM; SIGUSR1 begins to record, SIGUSR2 takes another policy."""
    import signal

    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving_server", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--policy", choices=POLICIES, default="planned")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--cores", default="")
    parser.add_argument("--sla", type=float, default=60.0, help="seconds, where a model says nothing")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--grpc", action="store_true")
    parser.add_argument("--backend", choices=("stratal", "onnxruntime"), default="stratal")
    parser.add_argument("--control", type=Path)
    arguments = parser.parse_args()
    front, _, back = arguments.cores.partition("/")
    queues: list[Any] = []
    services: list[Service] = []
    if arguments.backend == "onnxruntime":
        Fleet.module = "benchmarks.serving_onnx"

    def started(address: str, grpc: str, service: Service) -> None:
        services.append(service)
        queues.append(take_over(service, arguments.policy))
        workers = [worker.pid for worker in service.dispatcher.workers]
        if front:
            os.sched_setaffinity(0, {int(core) for core in front.split(",")})
            for pid in workers:
                os.sched_setaffinity(pid, {int(core) for core in back.split(",")})
        told = {"address": address, "grpc": grpc, "pid": os.getpid(), "workers": workers}
        partial = arguments.json.with_suffix(".part")
        partial.write_text(json.dumps(told))
        partial.rename(arguments.json)

    def record(*_: Any) -> None:
        queues[0].recording = True

    def controlled(*_: Any) -> None:
        asked = json.loads(arguments.control.read_text())
        queues[0] = take_over(services[0], asked["policy"], asked["slas"])
        arguments.control.unlink()

    signal.signal(signal.SIGUSR1, record)
    signal.signal(signal.SIGUSR2, controlled)
    options = Options(workers=arguments.workers, sla=arguments.sla, most_seconds=120.0, load_seconds=300.0)
    listening = Listening(port=0, grpc_port=0 if arguments.grpc else None)
    serve(arguments.folder, listening, options, started)
    if arguments.record:
        arguments.record.write_text(json.dumps(queues[0].seen))


if __name__ == "__main__":
    main()
