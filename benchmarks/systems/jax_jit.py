"""jax: the whole call under `jax.jit`, parameters and optimizer state donated."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import jax_models
from benchmarks.models import WORKLOADS
from benchmarks.structure import EMBEDDINGS, draw, state
from benchmarks.systems import Job, UnsupportedError
from benchmarks.tasks import Task

jax.config.update("jax_default_matmul_precision", "highest")
_OPTIMIZERS = SimpleNamespace(
    SGD=lambda _, **settings: jax_models.sgd(**settings),
    Adam=lambda _, **settings: jax_models.adam(**settings),
    AdamW=lambda _, **settings: jax_models.adam(**settings),
)


def build(task: Task, variant: str, folder: Path) -> Job:
    """Return the task as a jitted function."""
    if task.suite == "train":
        return _training(task)
    raise UnsupportedError(f"no way to run {task.suite} tasks")


def array(value: np.ndarray[Any, Any]) -> Any:
    """Return an array on jax's device: images with their channels last, integers of 32 bits."""
    if value.ndim == 4:
        value = value.transpose(0, 2, 3, 1)
    return jnp.array(np.ascontiguousarray(value))


def _training(task: Task) -> Job:
    workload = WORKLOADS[task.name]
    forward = jax_models.TRAINING[task.name]
    weights = draw(state(workload.build))
    learned = {name: w for name, w in weights.items() if not name.endswith(jax_models.STATISTICS)}
    parameters = jax_models.to_jax(learned, tables=EMBEDDINGS)
    num_slots, update = workload.optimizer(_OPTIMIZERS, None)
    slots = {name: (jnp.zeros_like(w),) * num_slots for name, w in parameters.items()}
    slots = jax.tree.map(jnp.copy, slots)  # donated, each must have memory of its own
    rng = np.random.default_rng(0)
    data = [array(value) for value in (*workload.data(rng), *workload.rest(rng))]

    def loss_of(parameters: Any, x: Any, y: Any, *rest: Any) -> Any:
        return jax_models.cross_entropy(forward(parameters, x, *rest), y)

    def step(held: Any, *data: Any) -> Any:
        parameters, slots, t = held
        loss, gradients = jax.value_and_grad(loss_of)(parameters, *data)
        t = t + 1
        new = {name: update(parameters[name], gradients[name], slots[name], t) for name in parameters}
        return loss, ({n: w for n, (w, _) in new.items()}, {n: s for n, (_, s) in new.items()}, t)

    compiled = jax.jit(step, donate_argnums=0)
    held = [(parameters, slots, jnp.float32(0))]

    def call() -> float:
        loss, held[0] = compiled(held[0], *data)
        jax.block_until_ready(held[0])
        return float(loss)

    return Job(call, lambda loss: [np.array(loss)])
