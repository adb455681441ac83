"""The models of the benchmarks in plain jax: the same arithmetic as `models.py` and `inference.py`.

Parameters are dictionaries with the state-dict names. Linear weights are stored [in, out] and convolution
weights [h, w, in, out], images as [batch, h, w, channels]: the layouts XLA's CPU backend computes in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.inference import BOTTLENECKS

Parameters = Mapping[str, Any]
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def to_jax(state: Mapping[str, np.ndarray[Any, Any]], tables: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return weights in jax's layouts; matrices named in `tables` (embeddings) stay as they are."""
    found = {}
    for name, value in state.items():
        if value.ndim == 4:
            value = value.transpose(2, 3, 1, 0)
        elif value.ndim == 2 and not name.startswith(tables):
            value = value.T
        found[name] = jnp.array(np.ascontiguousarray(value))
    return found


def linear(p: Parameters, name: str, x: Any) -> Any:
    return x @ p[f"{name}.weight"] + p[f"{name}.bias"]


def conv(x: Any, w: Any, stride: int = 1, padding: int = 0) -> Any:
    """Return a convolution of [batch, h, w, channels] with [h, w, in, out]."""
    pads = [(padding, padding)] * 2
    return lax.conv_general_dilated(x, w, (stride, stride), pads, dimension_numbers=("NHWC", "HWIO", "NHWC"))


def max_pool(x: Any, size: int, stride: int, padding: int = 0) -> Any:
    pads = ((0, 0), (padding, padding), (padding, padding), (0, 0))
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, size, size, 1), (1, stride, stride, 1), pads)


def layer_norm(p: Parameters, name: str, x: Any, eps: float = 1e-5) -> Any:
    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + eps) * p[f"{name}.weight"] + p[f"{name}.bias"]


def batch_norm(p: Parameters, name: str, x: Any) -> Any:
    """Return batch normalisation with the statistics of the batch."""
    mean = x.mean((0, 1, 2))
    variance = jnp.square(x - mean).mean((0, 1, 2))
    return (x - mean) * (lax.rsqrt(variance + 1e-5) * p[f"{name}.weight"]) + p[f"{name}.bias"]


def attention(q: Any, k: Any, v: Any, *, causal: bool) -> Any:
    """Return attention over [batch, heads, time, d]."""
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) * q.shape[-1] ** -0.5
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, axis=-1), v)


def cross_entropy(logits: Any, labels: Any) -> Any:
    """Return the mean negative log-likelihood over all positions."""
    logs = jax.nn.log_softmax(logits.reshape(-1, logits.shape[-1]), axis=-1)
    return -jnp.take_along_axis(logs, labels.reshape(-1, 1), axis=1).mean()


# -- training models -------------------------------------------------------------------------------
def mlp(p: Parameters, x: Any) -> Any:
    return linear(p, "4", jax.nn.relu(linear(p, "2", jax.nn.relu(linear(p, "0", x)))))


def lenet(p: Parameters, x: Any) -> Any:
    x = max_pool(jax.nn.relu(conv(x, p["0.weight"], padding=2) + p["0.bias"]), 2, 2)
    x = max_pool(jax.nn.relu(conv(x, p["3.weight"]) + p["3.bias"]), 2, 2)
    x = x.transpose(0, 3, 1, 2).reshape(x.shape[0], -1)
    return linear(p, "11", jax.nn.relu(linear(p, "9", jax.nn.relu(linear(p, "7", x)))))


def resnet18(p: Parameters, x: Any) -> Any:
    def block(x: Any, name: str, stride: int) -> Any:
        y = jax.nn.relu(batch_norm(p, f"{name}.bn1", conv(x, p[f"{name}.conv1.weight"], stride, 1)))
        y = batch_norm(p, f"{name}.bn2", conv(y, p[f"{name}.conv2.weight"], 1, 1))
        if f"{name}.downsample.0.weight" in p:
            x = batch_norm(p, f"{name}.downsample.1", conv(x, p[f"{name}.downsample.0.weight"], stride))
        return jax.nn.relu(y + x)

    x = jax.nn.relu(batch_norm(p, "bn1", conv(x, p["conv1.weight"], 1, 1)))
    for stage in range(4):
        x = block(x, f"layer{stage + 1}.0", 1 if stage == 0 else 2)
        x = block(x, f"layer{stage + 1}.1", 1)
    return linear(p, "fc", x.mean((1, 2)))


def gpt(p: Parameters, tokens: Any, heads: int = 6) -> Any:
    x = p["tok.weight"][tokens] + p["pos.weight"][: tokens.shape[1]]
    b, t, d = x.shape
    for layer in range(6):
        name = f"blocks.{layer}"
        h = linear(p, f"{name}.attn.qkv", layer_norm(p, f"{name}.ln1", x))
        q, k, v = h.reshape(b, t, 3, heads, d // heads).transpose(2, 0, 3, 1, 4)
        y = attention(q, k, v, causal=True).transpose(0, 2, 1, 3).reshape(b, t, d)
        x = x + linear(p, f"{name}.attn.proj", y)
        h = jax.nn.gelu(linear(p, f"{name}.fc1", layer_norm(p, f"{name}.ln2", x)), approximate=False)
        x = x + linear(p, f"{name}.fc2", h)
    return layer_norm(p, "norm", x) @ p["tok.weight"].T


def lstm(p: Parameters, x: Any) -> Any:
    # The inputs' part of all gates is one product before the loop.
    projected = x @ p["lstm.weight_ih_l0"] + (p["lstm.bias_ih_l0"] + p["lstm.bias_hh_l0"])

    def cell(carry: tuple[Any, Any], gates: Any) -> tuple[tuple[Any, Any], None]:
        h, c = carry
        i, f, g, o = jnp.split(gates + h @ p["lstm.weight_hh_l0"], 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

    zero = jnp.zeros((x.shape[1], p["lstm.weight_hh_l0"].shape[0]), x.dtype)
    (h, _), _ = lax.scan(cell, (zero, zero), projected)
    return linear(p, "head", h)


def gcn(p: Parameters, x: Any, source: Any, target: Any, coefficient: Any) -> Any:
    def spread(h: Any) -> Any:
        return jnp.zeros_like(h).at[target].add(h[source] * coefficient[:, None])

    return spread(linear(p, "linear2", jax.nn.relu(spread(linear(p, "linear1", x)))))


TRAINING: dict[str, Callable[..., Any]] = {
    "mlp": mlp, "mlp128": mlp, "lenet": lenet, "resnet18": resnet18, "gpt": gpt, "lstm": lstm, "gcn": gcn
}  # fmt: skip


# -- forward models: batch norms folded --------------------------------------------------------------
def _biased(p: Parameters, name: str, x: Any, stride: int = 1, padding: int = 0) -> Any:
    return conv(x, p[f"{name}.weight"], stride, padding) + p[f"{name}.bias"]


def resnet50(p: Parameters, x: Any) -> Any:
    def block(x: Any, name: str, stride: int) -> Any:
        y = jax.nn.relu(_biased(p, f"{name}.conv1", x))
        y = jax.nn.relu(_biased(p, f"{name}.conv2", y, stride, 1))
        y = _biased(p, f"{name}.conv3", y)
        if f"{name}.downsample.0.weight" in p:
            x = _biased(p, f"{name}.downsample.0", x, stride)
        return jax.nn.relu(y + x)

    x = max_pool(jax.nn.relu(_biased(p, "conv1", x, 2, 3)), 3, 2, 1)
    for stage, depth in enumerate(BOTTLENECKS):
        for index in range(depth):
            x = block(x, f"layer{stage + 1}.{index}", 2 if stage and index == 0 else 1)
    return linear(p, "fc", x.mean((1, 2)))


def bert(p: Parameters, tokens: Any, heads: int = 12) -> Any:
    x = p["tok.weight"][tokens] + p["pos.weight"][: tokens.shape[1]] + p["kind.weight"][0]
    x = layer_norm(p, "norm", x, 1e-12)
    b, t, d = x.shape
    for layer in range(12):
        name = f"layers.{layer}"
        projected = (linear(p, f"{name}.{part}", x) for part in ("query", "key", "value"))
        q, k, v = (y.reshape(b, t, heads, d // heads).transpose(0, 2, 1, 3) for y in projected)
        y = attention(q, k, v, causal=False).transpose(0, 2, 1, 3).reshape(b, t, d)
        x = layer_norm(p, f"{name}.ln1", x + linear(p, f"{name}.output", y), 1e-12)
        h = jax.nn.gelu(linear(p, f"{name}.fc1", x), approximate=False)
        x = layer_norm(p, f"{name}.ln2", x + linear(p, f"{name}.fc2", h), 1e-12)
    return x


def gpt2(p: Parameters, token: Any, past: Any, heads: int = 12) -> Any:
    x = p["tok.weight"][token] + p["pos.weight"][past.shape[4]]
    d, new = x.shape[-1], []
    for layer in range(12):
        name = f"blocks.{layer}"
        h = linear(p, f"{name}.qkv", layer_norm(p, f"{name}.ln1", x))
        q, k, v = h.reshape(1, 1, 3, heads, d // heads).transpose(2, 0, 3, 1, 4)
        keys, values = (jnp.concatenate([past[layer, i], u], 2) for i, u in ((0, k), (1, v)))
        y = attention(q, keys, values, causal=False).transpose(0, 2, 1, 3).reshape(1, 1, d)
        x = x + linear(p, f"{name}.proj", y)
        h = jax.nn.gelu(linear(p, f"{name}.fc1", layer_norm(p, f"{name}.ln2", x)), approximate=True)
        x = x + linear(p, f"{name}.fc2", h)
        new.append(jnp.stack([k, v]))
    return (layer_norm(p, "norm", x) @ p["tok.weight"].T)[:, 0], jnp.stack(new)


INFERENCE: dict[str, Callable[..., Any]] = {
    "resnet50_b1": resnet50, "resnet50_b16": resnet50, "bert": bert, "gpt2_decode": gpt2
}  # fmt: skip


# -- optimizers ------------------------------------------------------------------------------------
def sgd(lr: float, momentum: float) -> tuple[Any, Any]:
    """Return (slots of a parameter, update of one): stochastic gradient descent with momentum."""

    def update(w: Any, g: Any, slots: Any, t: Any) -> tuple[Any, Any]:
        velocity = momentum * slots[0] + g
        return w - lr * velocity, (velocity,)

    return 1, update


def adam(lr: float, weight_decay: float = 0.0) -> tuple[Any, Any]:
    """Return the same for Adam, or AdamW where there is decay; betas and eps are PyTorch's defaults."""

    def update(w: Any, g: Any, slots: Any, t: Any) -> tuple[Any, Any]:
        m, v = 0.9 * slots[0] + 0.1 * g, 0.999 * slots[1] + 0.001 * g * g
        scale = jnp.sqrt(1 - 0.999**t)
        step = lr / (1 - 0.9**t) * m / (jnp.sqrt(v) / scale + 1e-8)
        return w * (1 - lr * weight_decay) - step, (m, v)

    return 2, update
