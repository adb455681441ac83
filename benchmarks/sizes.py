"""Other sizes of the training steps: every width three more and odd batches, and twice the work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

from benchmarks import layers, models
from benchmarks.models import WORKLOADS, Workload
from benchmarks.structure import num_parameters, state
from benchmarks.task import Task
from benchmarks.tasks import TASKS
from benchmarks.work import training

_STATE_WORDS = SimpleNamespace(SGD=lambda *_, **__: 1, Adam=lambda *_, **__: 2, AdamW=lambda *_, **__: 2)


@dataclass(frozen=True)
class Case:
    """One size of one training step: what changes in the workload, and the work that follows."""

    build: Callable[[Any], Any]
    data: Any
    layers: list[float]
    batch_bytes: int
    rest: Any = models.nothing


def _mlp(batch: int, *sizes: int) -> Case:
    data = models.images(batch, (sizes[0],))
    return Case(partial(models.mlp, sizes=sizes), data, layers.mlp(batch, sizes), 4 * batch * sizes[0])


def _lenet(batch: int, **sizes: Any) -> Case:
    data = models.images(batch, (1, 28, 28))
    return Case(partial(models.lenet, **sizes), data, layers.lenet(batch, **sizes), 4 * batch * 784)


def _resnet18(batch: int, **sizes: Any) -> Case:
    data = models.images(batch, (3, 32, 32))
    return Case(partial(models.resnet18, **sizes), data, layers.resnet18(batch, **sizes), 4 * batch * 3072)


def _lstm(batch: int, inputs: int = 64, **sizes: Any) -> Case:
    build, data = partial(models.lstm, inputs=inputs, **sizes), models.sequences(64, batch, inputs)
    return Case(build, data, layers.lstm(batch, inputs=inputs, **sizes), 4 * batch * 64 * inputs)


def _gpt(batch: int, context: int = 256, vocab: int = 256, **sizes: Any) -> Case:
    sizes |= {"context": context, "vocab": vocab}
    data = models.tokens(batch, context, vocab)
    return Case(partial(models.gpt, **sizes), data, layers.gpt(batch, **sizes), 8 * batch * (context + 1))


def _gcn(nodes: int, edges: int, inputs: int = 128, **sizes: Any) -> Case:
    sizes |= {"inputs": inputs}
    nbytes = 4 * nodes * (inputs + 1) + 12 * edges
    data, rest = models.images(nodes, (inputs,)), models.graph(nodes, edges)
    return Case(partial(models.gcn, **sizes), data, layers.gcn(nodes, edges, **sizes), nbytes, rest)


CASES: dict[str, Case] = {
    "mlp+odd": _mlp(33, 787, 515, 515, 13),
    "mlp+twice": _mlp(64, 784, 512, 512, 10),
    "mlp128+odd": _mlp(129, 787, 515, 515, 13),
    "mlp128+twice": _mlp(256, 784, 512, 512, 10),
    "lenet+odd": _lenet(65, channels=(9, 19), widths=(123, 87), classes=13),
    "lenet+twice": _lenet(128),
    "resnet18+odd": _resnet18(33, width=67, classes=13),
    "resnet18+twice": _resnet18(64),
    "lstm+odd": _lstm(33, inputs=67, hidden=259, classes=13),
    "lstm+twice": _lstm(64),
    "gpt+odd": _gpt(9, context=259, vocab=259, d=402),  # 67 for each of six heads
    "gpt+twice": _gpt(16),
    "gcn+odd": _gcn(20_003, 200_003, inputs=131, hidden=67, classes=13),
    "gcn+twice": _gcn(40_000, 400_000),
}


def workload(name: str) -> Workload:
    """Return a training workload of the tables, in whatever precision, or of another size."""
    base = WORKLOADS[name.partition("+")[0]]
    if name not in CASES:
        return base
    case = CASES[name]
    return replace(base, name=name, build=case.build, data=case.data, rest=case.rest)


def task(name: str) -> Task:
    """Return a task of the tables, or a training step of another size. Raises: KeyError."""
    if name not in CASES:
        return TASKS[name]
    case, base = CASES[name], TASKS[name.partition("+")[0]]
    words = workload(name).optimizer(_STATE_WORDS, None)
    work = training(case.layers, num_parameters(state(case.build)), words, case.batch_bytes)
    return replace(base, name=name, title=f"{base.title}: {name.partition('+')[2]}", work=work)
