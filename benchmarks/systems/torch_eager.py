"""PyTorch op by op: fused optimizers, images in the memory format of the variant, inference mode."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.utils.fusion import fuse_conv_bn_eval

from benchmarks.cases import Case, as_product
from benchmarks.functions import FUNCTIONS, TORCH_STYLE, Function
from benchmarks.inference import INFERENCE, norms_of
from benchmarks.sizes import workload as workload_named
from benchmarks.structure import draw
from benchmarks.systems import TRAINED, Job
from benchmarks.task import Task

Compile = Callable[[Any], Any]
torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
torch.set_float32_matmul_precision("highest")


def build(task: Task, variant: str, model_file: Path, *, compiled: Compile = lambda f: f) -> Job:
    """Return the task; `compiled` wraps what a compiler can take over."""
    if task.suite in TRAINED:
        return _training(task, variant, compiled)
    if task.name in INFERENCE:
        model, inputs = inference(task.name, variant)
        return _without_gradients(compiled(model), inputs)
    return _function(FUNCTIONS[task.name], variant, compiled)


def build_case(case: Case, variant: str) -> Job:
    """Return a random contraction as a product of views where it is one, or a convolution."""
    x, w = (_as_tensor(array, variant) for array in case.inputs())
    found = as_product(case.spec) if case.spec else None
    if found is not None:
        x, w, out = x.permute(found.left), w.permute(found.right), found.out
        return _without_gradients(lambda x, w: torch.matmul(x, w).permute(out), [x, w])
    if case.spec:
        return _without_gradients(lambda x, w: torch.einsum(case.spec, x, w), [x, w])
    settings = dict(case.geometry)
    settings["stride"] = settings.pop("strides")
    name = f"conv{'_transpose' * case.transposed}{x.ndim - 2}d"
    convolve = getattr(torch.nn.functional, name)
    return _without_gradients(lambda x, w: convolve(x, w, **settings), [x, w])


def _as_tensor(array: np.ndarray[Any, Any], variant: str) -> Any:
    if array.dtype.name == "bfloat16":
        return _as_tensor(array.astype(np.float32), variant).to(torch.bfloat16)
    x = torch.from_numpy(array)
    if x.ndim == 5 and variant == "channels_last":
        return x.contiguous(memory_format=torch.channels_last_3d)
    return tensor(array, variant)


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
    workload = workload_named(task.name)
    model = load(workload.build(torch.nn), variant)
    optimizer = workload.optimizer(_Fused(), model.parameters())
    rng = np.random.default_rng(0)
    data = [tensor(array, variant) for array in (*workload.data(rng), *workload.rest(rng))]
    loss_of = compiled(lambda *tensors: workload.loss(torch.nn, model, *tensors))
    short = getattr(torch, task.autocast) if task.autocast else None

    def step() -> float:
        with torch.autocast("cpu", dtype=short, enabled=short is not None):
            loss = loss_of(*data)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return Job(step, lambda loss: [np.array(loss)])


def inference(name: str, variant: str) -> tuple[Any, list[Any]]:
    """Return a model in inference mode, its batch norms folded into its convolutions, and its inputs."""
    about = INFERENCE[name]
    model = load(about.build(torch.nn), variant).eval()
    for conv, norm in norms_of(model.state_dict()).items():
        fused = fuse_conv_bn_eval(model.get_submodule(conv), model.get_submodule(norm))
        model.set_submodule(conv, fused)
        model.set_submodule(norm, torch.nn.Identity())
    model = model.to(memory_format=memory_format(variant))
    return model, [tensor(array, variant) for array in about.inputs(np.random.default_rng(0))]


def _function(function: Function, variant: str, compiled: Compile) -> Job:
    inputs = [tensor(array, variant) for array in function.inputs()]
    if function.dtype == "bfloat16":
        inputs = [x.to(torch.bfloat16) for x in inputs]
    value = compiled(written(function))
    if not function.gradients:
        return _without_gradients(value, inputs)
    *primals, cotangent = (x.requires_grad_() for x in inputs)
    cotangent.requires_grad_(False)

    def call() -> Any:
        result = value(*primals)
        return result.detach(), *torch.autograd.grad(result, primals, cotangent)

    return Job(call, arrays)


def written(function: Function) -> Callable[..., Any]:
    """Return a function of the tables as PyTorch writes it."""
    write = (TORCH_STYLE | {"gemm_int8": lambda F, a, b: torch._int_mm(a, b)})[function.kind]
    return lambda *tensors: write(torch.nn.functional, *tensors, **function.settings)


def _without_gradients(function: Callable[..., Any], inputs: list[Any]) -> Job:
    def call() -> Any:
        with torch.inference_mode():
            return function(*inputs)

    return Job(call, arrays)


def arrays(result: Any) -> list[Any]:
    """Return results as NumPy arrays; bfloat16, which NumPy lacks, as float32."""
    results = result if isinstance(result, tuple) else (result,)
    return [x.float().numpy() if x.dtype == torch.bfloat16 else x.numpy() for x in results]
