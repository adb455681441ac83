"""jax: the whole call under `jax.jit`, parameters and optimizer state donated."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import jax_models
from benchmarks.cases import Case
from benchmarks.functions import CHAIN, FUNCTIONS, Function
from benchmarks.inference import INFERENCE, folded
from benchmarks.sizes import workload as workload_named
from benchmarks.structure import EMBEDDINGS, draw, state
from benchmarks.systems import Job, UnsupportedError
from benchmarks.task import Task

jax.config.update("jax_default_matmul_precision", "highest")
_OPTIMIZERS = SimpleNamespace(
    SGD=lambda _, **settings: jax_models.sgd(**settings),
    Adam=lambda _, **settings: jax_models.adam(**settings),
    AdamW=lambda _, **settings: jax_models.adam(**settings),
)


def build(task: Task, variant: str, model_file: Path) -> Job:
    """Return the task as a jitted function."""
    if task.suite == "train":
        return _training(task)
    return _inference(task.name) if task.name in INFERENCE else _function(FUNCTIONS[task.name])


def build_case(case: Case, variant: str) -> Job:
    """Return a random contraction, or a convolution with its channels last."""
    if case.dtype not in ("float32", "bfloat16"):
        raise UnsupportedError("only what is timed")
    x, w = (jnp.array(value) for value in case.inputs())
    if case.spec:
        compiled = jax.jit(partial(jnp.einsum, case.spec))
        return Job(lambda: jax.block_until_ready(compiled(x, w)), _arrays)
    letters = "DHW"[5 - x.ndim :]
    numbers = (f"N{letters}C", f"{letters}IO", f"N{letters}C")
    x, w = jnp.moveaxis(x, 1, -1), _filters(case, w)
    compiled = jax.jit(partial(jax.lax.conv_general_dilated, dimension_numbers=numbers, **_geometry(case)))
    return Job(lambda: jax.block_until_ready(compiled(x, w)), lambda y: _arrays(jnp.moveaxis(y, -1, 1)))


def _filters(case: Case, w: Any) -> Any:
    """Return filters as [window..., in, out], those of a transposed convolution turned."""
    if not case.transposed:
        return jnp.moveaxis(w, (0, 1), (-1, -2))
    groups, (inputs, outputs, *window) = case.geometry["groups"], w.shape
    w = jnp.flip(w, range(2, w.ndim)).reshape(groups, inputs // groups, outputs, *window)
    w = w.transpose(*range(3, w.ndim), 1, 0, 2)
    return w.reshape(*window, inputs // groups, groups * outputs)


def _geometry(case: Case) -> dict[str, Any]:
    """Return the settings of a convolution as jax names them."""
    g = case.geometry
    if not case.transposed:
        return {"window_strides": g["strides"], "padding": [(p, p) for p in g["padding"]],
                "rhs_dilation": g["dilation"], "feature_group_count": g["groups"]}  # fmt: skip
    axes = zip(case.shapes[1][2:], g["padding"], g["dilation"], g["output_padding"], strict=True)
    padding = [(d * (k - 1) - p, d * (k - 1) - p + e) for k, p, d, e in axes]
    return {"window_strides": (1,) * len(padding), "padding": padding, "lhs_dilation": g["strides"],
            "rhs_dilation": g["dilation"], "feature_group_count": g["groups"]}  # fmt: skip


def array(value: np.ndarray[Any, Any]) -> Any:
    """Return an array on jax's device: images with their channels last, integers of 32 bits."""
    if value.ndim == 4:
        value = value.transpose(0, 2, 3, 1)
    return jnp.array(np.ascontiguousarray(value))


def _training(task: Task) -> Job:
    workload = workload_named(task.name)
    forward = jax_models.TRAINING[task.name.partition("+")[0]]
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


def _inference(name: str) -> Job:
    about, forward = INFERENCE[name], jax_models.INFERENCE[name]
    weights = jax_models.to_jax(folded(draw(state(about.build))), tables=EMBEDDINGS)
    inputs = [
        jnp.array(x.transpose(0, 2, 3, 1) if x.ndim == 4 else x)
        for x in about.inputs(np.random.default_rng(0))
    ]
    compiled = jax.jit(forward)
    return Job(lambda: jax.block_until_ready(compiled(weights, *inputs)), _arrays)


def _function(function: Function) -> Job:
    inputs = [jnp.array(x) for x in function.inputs()]
    if function.dtype == "bfloat16":
        inputs = [x.astype(jnp.bfloat16) for x in inputs]
    images = function.kind == "convolution"
    if images:
        inputs = [inputs[0].transpose(0, 2, 3, 1), inputs[1].transpose(2, 3, 1, 0)]
    value = partial(_WRITTEN[function.kind], **function.settings)

    def with_gradients(*tensors: Any) -> Any:
        result, pullback = jax.vjp(value, *tensors[:-1])
        return result, *pullback(tensors[-1])

    compiled = jax.jit(with_gradients if function.gradients else value)
    return Job(
        lambda: jax.block_until_ready(compiled(*inputs)),
        lambda y: [y.transpose(0, 3, 1, 2)] if images else _arrays(y),
    )


def _layernorm_gelu(x: Any, w: Any, b: Any) -> Any:
    y = jax.nn.gelu(x * w + b, approximate=False) + x
    mean = y.mean(-1, keepdims=True)
    variance = jnp.square(y - mean).mean(-1, keepdims=True)
    return (y - mean) * jax.lax.rsqrt(variance + 1e-5)


def _chain(x: Any) -> Any:
    return jax.lax.fori_loop(0, CHAIN, lambda _, y: jax.nn.softmax(y, axis=-1), x)


_WRITTEN: dict[str, Callable[..., Any]] = {
    "gemm": lambda a, b: a @ b,
    "gemm_int8": lambda a, b: jax.lax.dot(a, b, preferred_element_type=jnp.int32),
    "convolution": jax_models.conv,
    "softmax": lambda x: jax.nn.softmax(x, axis=-1),
    "softmax_chain": _chain,
    "layernorm_gelu": _layernorm_gelu,
    "attention": partial(jax_models.attention, causal=True),
}


def _arrays(result: Any) -> list[Any]:
    results = result if isinstance(result, tuple) else (result,)
    return [np.asarray(x.astype(jnp.float32) if x.dtype == jnp.bfloat16 else x) for x in results]
