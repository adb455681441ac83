"""The models of the acceptance tests, full size and small: one compiled training step of each."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import stratal as st
from stratal import nn, optim
from stratal.cli.examples import digits
from stratal.runtime.storage import Storage
from stratal.tensor.lazy import program_cache

sys.path.insert(0, str(Path(__file__).parents[2]))  # the benchmarks stand beside the tests

from benchmarks.models import WORKLOADS, Workload, gpt, images, mlp, resnet18, tokens

SMALL: dict[str, Workload] = {
    "mlp": replace(WORKLOADS["mlp"], build=partial(mlp, sizes=(20, 33, 17, 10)), data=images(8, (20,))),
    "lenet": replace(WORKLOADS["lenet"], data=images(4, (1, 28, 28))),
    "resnet18": replace(
        WORKLOADS["resnet18"], build=partial(resnet18, width=8), data=images(2, (3, 32, 32))
    ),
    "gpt": replace(
        WORKLOADS["gpt"], build=partial(gpt, layers=2, d=48, heads=3, context=24, vocab=40),
        data=tokens(2, 24, 40),
    ),
}  # fmt: skip
FULL: dict[str, Workload] = {
    "mlp": WORKLOADS["mlp"],
    "lenet": WORKLOADS["lenet"],
    "resnet18": replace(WORKLOADS["resnet18"], data=images(8, (3, 32, 32))),
    "gpt": replace(WORKLOADS["gpt"], data=tokens(2, 256, 256)),
}


@dataclass
class Step:
    """A compiled training step with its data; `call()` runs it once."""

    function: Any
    data: tuple[Any, ...]

    def call(self) -> Any:
        return self.function(*self.data)

    @property
    def program(self) -> Any:
        return self.function.program

    def recorded(self) -> Run:
        """Run once and return what went in, what came out and what the states became."""
        recorder = Recorder()
        with program_cache.watched(recorder):
            self.call()
        (only,) = recorder.runs
        return only


@dataclass
class Run:
    """One run of a program."""

    program: Any
    inputs: list[Storage]
    outputs: list[np.ndarray]
    states: list[np.ndarray]


class Recorder:
    """Runs programs and notes what went in, what came out and what the states became."""

    def __init__(self) -> None:
        self.runs: list[Run] = []

    def compiled(self, program: Any, started_ns: int) -> None: ...

    def run(self, program: Any, inputs: list[Storage]) -> list[Storage]:
        before = [Storage.copy_of(s.array, s.type) for s in inputs]
        outputs: list[Storage] = program.run(inputs)
        states = [np.array(inputs[k].array) for k in program.executable.states]
        self.runs.append(Run(program, before, [np.array(o.array) for o in outputs], states))
        return outputs


def training_step(workload: Workload) -> Step:
    """Return the compiled training step of a workload, run once already."""
    st.manual_seed(0)
    model = workload.build(nn)
    optimizer = workload.optimizer(optim, model.parameters())

    @st.compile
    def step(x: Any, y: Any) -> Any:
        loss = workload.loss(nn, model, x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    x, y = workload.data(np.random.default_rng(0))
    made = Step(step, (st.tensor(x), st.tensor(y)))
    made.call()
    return made


def demo_step() -> Step:
    """Return the training step of `stratal demo`."""
    training = digits.Training(epochs=1)
    made = Step(training.step, next(iter(training.loader)))
    made.call()
    return made


def steps(workloads: dict[str, Workload]) -> dict[str, Callable[[], Step]]:
    """Return the makers of the steps of some workloads, and of the demo's."""
    return {"demo": demo_step, **{name: partial(training_step, w) for name, w in workloads.items()}}
