"""Stratal: the whole call under `st.compile`, one native program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import stratal as st
from benchmarks.models import WORKLOADS
from benchmarks.structure import draw
from benchmarks.systems import Job, UnsupportedError
from benchmarks.tasks import Task
from stratal import nn, optim


def build(task: Task, variant: str, folder: Path) -> Job:
    """Return the task as a compiled function."""
    if task.suite == "train":
        return _training(task)
    raise UnsupportedError(f"no way to run {task.suite} tasks")


def _load(build: Any) -> Any:
    """Return a model with the weights every system starts from."""
    model = build(nn)
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    model.load_state_dict(draw(shapes))
    return model


def _training(task: Task) -> Job:
    workload = WORKLOADS[task.name]
    model = _load(workload.build)
    optimizer = workload.optimizer(optim, model.parameters())
    rng = np.random.default_rng(0)
    data = [st.tensor(array) for array in (*workload.data(rng), *workload.rest(rng))]

    @st.compile
    def step(x: Any, y: Any, *rest: Any) -> Any:
        loss = workload.loss(nn, model, x, y, *rest)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return Job(lambda: float(step(*data)), lambda loss: [np.array(loss)])
