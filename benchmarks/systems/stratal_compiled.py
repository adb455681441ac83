"""Stratal: the whole call under `st.compile`, one native program.

In the variant `channels_last`, functions of the tables take and give images with their channels innermost, as
PyTorch's tensors of that memory format lie; models order their values themselves.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import stratal as st
from benchmarks.cases import Case
from benchmarks.functions import FUNCTIONS, TORCH_STYLE, Function
from benchmarks.inference import INFERENCE
from benchmarks.sizes import workload as workload_named
from benchmarks.structure import draw
from benchmarks.systems import TRAINED, Job
from benchmarks.task import Task
from stratal import nn, optim


def build(task: Task, variant: str, model_file: Path) -> Job:
    """Return the task as a compiled function."""
    if task.suite in TRAINED:
        return _training(task)
    return _inference(task) if task.name in INFERENCE else function_job(FUNCTIONS[task.name], variant)


def build_case(case: Case, variant: str) -> Job:
    """Return a random contraction or convolution."""
    last = variant == "channels_last"
    x, w = (st.tensor(_channels_last(array) if last else array) for array in case.inputs())

    def value(*tensors: Any) -> Any:
        if not last:
            return _written(case, *tensors)
        return st.moveaxis(_written(case, *(st.moveaxis(t, -1, 1) for t in tensors)), 1, -1)

    compiled = st.compile(value)
    return Job(lambda: compiled(x, w), _channels_first if last else _arrays)


def _written(case: Case, x: Any, w: Any) -> Any:
    if case.spec:
        return st.einsum(case.spec, x, w)
    settings = dict(case.geometry)
    name = f"conv{'_transpose' * case.transposed}{x.ndim - 2}d"
    settings["stride"] = settings.pop("strides")
    return getattr(nn.functional, name)(x, w, **settings)


def _load(build: Any) -> Any:
    """Return a model with the weights every system starts from."""
    model = build(nn)
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    model.load_state_dict(draw(shapes))
    return model


def _training(task: Task) -> Job:
    workload = workload_named(task.name)
    model = _load(workload.build)
    optimizer = workload.optimizer(optim, model.parameters())
    rng = np.random.default_rng(0)
    data = [st.tensor(array) for array in (*workload.data(rng), *workload.rest(rng))]

    @st.compile
    def step(x: Any, y: Any, *rest: Any) -> Any:
        with st.autocast(dtype=task.autocast, enabled=task.autocast is not None):
            loss = workload.loss(nn, model, x, y, *rest)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return Job(lambda: float(step(*data)), lambda loss: [np.array(loss)])


def _inference(task: Task) -> Job:
    inference = INFERENCE[task.name]
    model = _load(inference.build).eval()
    inputs = [st.tensor(array) for array in inference.inputs(np.random.default_rng(0))]
    compiled = st.compile(lambda *tensors: model(*tensors))

    def call() -> Any:
        with st.inference_mode():
            return compiled(*inputs)

    return Job(call, _arrays)


def function_job(function: Function, variant: str = "") -> Job:
    """Return a function of the tables, compiled."""
    last = variant == "channels_last"
    inputs = [st.tensor(_channels_last(array) if last else array) for array in function.inputs()]
    if function.dtype == "bfloat16":
        inputs = [x.astype(st.bfloat16) for x in inputs]
    written = (TORCH_STYLE | {"gemm_int8": _gemm_int8})[function.kind]

    def value(*tensors: Any) -> Any:
        if not last:
            return written(nn.functional, *tensors, **function.settings)
        images = (st.moveaxis(x, -1, 1) for x in tensors)
        return st.moveaxis(written(nn.functional, *images, **function.settings), 1, -1)

    def with_gradients(*tensors: Any) -> Any:
        result, pullback = st.vjp(value, *tensors[:-1])
        return result, *pullback(tensors[-1])

    compiled = st.compile(with_gradients if function.gradients else value)
    return Job(lambda: compiled(*inputs), _channels_first if last else _arrays)


def _channels_last(images: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(np.moveaxis(images, 1, -1))


def _channels_first(result: Any) -> list[Any]:
    return [np.moveaxis(images, -1, 1) for images in _arrays(result)]


def _gemm_int8(F: Any, a: Any, b: Any) -> Any:
    return a.astype(st.int32) @ b.astype(st.int32)


def _arrays(result: Any) -> list[Any]:
    results = result if isinstance(result, tuple) else (result,)
    return [x.astype(st.float32).numpy() if x.dtype == st.bfloat16 else x.numpy() for x in results]
