"""PyTorch op by op: fused optimizers, images in the memory format of the variant, inference mode."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.models import WORKLOADS
from benchmarks.structure import draw
from benchmarks.systems import Job, UnsupportedError
from benchmarks.tasks import Task

Compile = Callable[[Any], Any]
torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
torch.set_float32_matmul_precision("highest")


def build(task: Task, variant: str, folder: Path, *, compiled: Compile = lambda f: f) -> Job:
    """Return the task; `compiled` wraps what a compiler can take over."""
    if task.suite == "train":
        return _training(task, variant, compiled)
    raise UnsupportedError(f"no way to run {task.suite} tasks")


def memory_format(variant: str) -> Any:
    """Return PyTorch's name of a format."""
    return torch.channels_last if variant == "channels_last" else torch.contiguous_format


def load(model: Any, variant: str) -> Any:
    """Give a model the weights every system starts from, in a memory format."""
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    model.load_state_dict({name: torch.from_numpy(w) for name, w in draw(shapes).items()})
    return model.to(memory_format=memory_format(variant))


class _Fused:
    """`torch.optim` with every optimizer in its fused form."""

    def __getattr__(self, name: str) -> Any:
        return partial(getattr(torch.optim, name), fused=True)


def tensor(array: np.ndarray[Any, Any], variant: str) -> Any:
    """Return an array as a tensor, images in the format of the variant."""
    x = torch.from_numpy(array)
    return x.contiguous(memory_format=memory_format(variant)) if x.ndim == 4 else x


def _training(task: Task, variant: str, compiled: Compile) -> Job:
    workload = WORKLOADS[task.name]
    model = load(workload.build(torch.nn), variant)
    optimizer = workload.optimizer(_Fused(), model.parameters())
    rng = np.random.default_rng(0)
    data = [tensor(array, variant) for array in (*workload.data(rng), *workload.rest(rng))]
    loss_of = compiled(lambda *tensors: workload.loss(torch.nn, model, *tensors))

    def step() -> float:
        loss = loss_of(*data)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return Job(step, lambda loss: [np.array(loss)])
