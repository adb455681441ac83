"""The tasks of the benchmarks: what is run, how much work it is, which ratio is the gate and which the aim.

A ratio is Stratal's time over the best peer's in the same run. Gates must be met; aims are what the floor
allows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from benchmarks import layers, models
from benchmarks.functions import CHAIN, FUNCTIONS
from benchmarks.inference import INFERENCE
from benchmarks.structure import num_parameters, state
from benchmarks.task import Table, Task
from benchmarks.work import F32, Work, attention, convolution, dense, sweep, training

SUITES = ("train", "mixed", "forward", "kernels")


def _parameters(name: str) -> int:
    return num_parameters(state(models.WORKLOADS[name].build))


TRAINING = (
    Task("mlp", "train", "MLP 784-512-512-10, batch 32, Adam",
         training(layers.mlp(32), _parameters("mlp"), 2, 32 * 784 * 4), 0.65, 0.55, cold_gate_s=1.0),
    Task("mlp128", "train", "MLP 784-512-512-10, batch 128, SGD momentum",
         training(layers.mlp(128), _parameters("mlp"), 1, 128 * 784 * 4), 0.80, 0.70, cold_gate_s=1.0),
    Task("lenet", "train", "LeNet-5, 1x28x28, batch 64, Adam",
         training(layers.lenet(64), _parameters("lenet"), 2, 64 * 784 * 4), 0.25, 0.12, images=True),
    Task("resnet18", "train", "ResNet-18, 3x32x32, batch 32, SGD momentum",
         training(layers.resnet18(32), _parameters("resnet18"), 1, 32 * 3072 * 4), 0.70, 0.55,
         tolerance=5e-3, images=True, cold_gate_s=3.0),
    Task("lstm", "train", "LSTM 64->256, sequence 64, batch 32, Adam",
         training(layers.lstm(32), _parameters("lstm"), 2, 64 * 32 * 64 * 4), 0.82, 0.72),
    Task("gpt", "train", "GPT, 6 layers, d 384, context 256, batch 8, AdamW",
         training(layers.gpt(8), _parameters("gpt"), 2, 8 * 257 * 8), 0.82, 0.76,
         cold_gate_s=2.5),
    Task("gcn", "train", "GCN 128-64-10, 20,000 nodes, 200,000 edges, Adam",
         training(layers.gcn(20_000, 200_000), _parameters("gcn"), 2, 20_000 * 129 * 4 + 200_000 * 12),
         0.30, 0.15),
)  # fmt: skip


# -- mixed precision -------------------------------------------------------------------------------
def _mixed(task: Task, gate: float, tolerance: float = 1e-2) -> Task:
    """Return a training step with products in bfloat16 and weights in float32."""
    work = replace(task.work, operations={"bfloat16": task.work.operations[F32]})
    return replace(
        task, name=f"{task.name}+bf16", suite="mixed", title=f"{task.title}: bfloat16 products", work=work,
        gate=gate, aim=None, tolerance=tolerance, cold_gate_s=None, peers=_MIXED_PEERS, autocast="bfloat16",
    )  # fmt: skip


_MIXED_PEERS = ("torch", "torch_compile")
MIXED = tuple(
    _mixed(task, 0.85, 5e-2 if task.name == "resnet18" else 1e-2)
    for task in TRAINING
    if task.name in ("mlp128", "resnet18", "lstm", "gpt")
)


# -- forward ---------------------------------------------------------------------------------------
def _inference(name: str, operations: float, lookups: int = 0, other_bytes: int = 0) -> Work:
    """Return the work of a model: of a table that is only looked up, the rest is not read."""
    parameters = num_parameters(state(INFERENCE[name].build)) - lookups
    return sweep({F32: operations}, 4.0 * parameters + other_bytes)


_SIZE = 4096 * 4096
FORWARD = (
    # Unrolled 2000 times, torch.compile has no program after minutes.
    Task("softmax_chain", "forward", f"softmax, {CHAIN} times on [1000]",
         sweep({F32: 5.0 * CHAIN * 1000}, 8e3), 0.50, 0.30, tolerance=1e-4, cold_gate_s=3.0,
         peers=("torch", "jax", "onnxruntime", "openvino")),
    Task("layernorm_gelu", "forward", "layernorm(gelu(x*w+b)+x), 4096x4096",
         sweep({F32: 16.0 * _SIZE}, 8.0 * _SIZE), 0.45, 0.35, tolerance=1e-4),
    Task("resnet50_b1", "forward", "ResNet-50, 224x224, batch 1",
         _inference("resnet50_b1", layers.resnet50(1), other_bytes=4 * 3 * 224**2), 0.98, 0.85, images=True),
    Task("resnet50_b16", "forward", "ResNet-50, 224x224, batch 16",
         _inference("resnet50_b16", layers.resnet50(16), other_bytes=64 * 3 * 224**2), 1.00, 0.80,
         images=True),
    Task("bert", "forward", "BERT-base, sequence 128, batch 1",
         _inference("bert", layers.encoder(128, 128), (30522 + 512) * 768), 1.00, 0.94),
    Task("gpt2_decode", "forward", "GPT-2 small, one token after 255 of the cache",
         _inference("gpt2_decode", layers.encoder(1, 256) + dense(1, 768, 50257), 1024 * 768,
                    4 * 24 * 12 * 255 * 64), 0.95, 0.80),
)  # fmt: skip


# -- kernels ---------------------------------------------------------------------------------------
_COMPILERS = ("torch", "torch_compile", "jax")
WORST_IN_TABLE = 1.05  # no kernel of a table may be slower than this
TABLES = (Table("gemm", 0.75, 0.60), Table("conv", 0.45, 0.35))


def _bytes(name: str, results: Iterable[tuple[int, ...]], itemsize: int = 4) -> float:
    return sum(float(math.prod(s)) * itemsize for s in (*FUNCTIONS[name].shapes, *results))


def _gemm(name: str, title: str, m: int, k: int, n: int, dtype: str = F32) -> Task:
    itemsize = {F32: 4, "bfloat16": 2, "int8": 1}[dtype]
    nbytes = itemsize * (m * k + k * n) + (2 if dtype == "bfloat16" else 4) * m * n
    work = sweep({dtype: dense(m, k, n)}, nbytes)
    if dtype == F32:
        peers = ("torch", "numpy", "jax")
        return Task(name, "kernels", title, work, WORST_IN_TABLE, tolerance=1e-4, table="gemm", peers=peers)
    tolerance = 0.0 if dtype == "int8" else 1e-2
    return Task(name, "kernels", title, work, 0.90, 0.80, tolerance=tolerance, peers=("torch", "jax"))


def _conv(name: str, batch: int, n_in: int, n_out: int, size: int, kernel: int, stride: int = 1) -> Task:
    out = size // stride
    work = sweep(
        {F32: convolution(batch * out * out, n_in, n_out, kernel)}, _bytes(name, [(batch, n_out, out, out)])
    )
    title = f"convolution {kernel}x{kernel}/{stride}, {n_in}->{n_out}, {size}x{size}, batch {batch}"
    return Task(name, "kernels", title, work, WORST_IN_TABLE, tolerance=1e-3, images=True, table="conv",
                peers=_COMPILERS)  # fmt: skip


def _attention(name: str, batch: int, heads: int, time: int) -> Task:
    operations = 3 * attention(batch, heads, time, (time + 1) / 2, 64)  # four products backward
    size = 4.0 * batch * heads * time * 64
    title = f"causal attention {batch}x{heads}x{time}x64, forward and backward"
    return Task(name, "kernels", title, sweep({F32: operations}, 8 * size), 0.75, 0.60, tolerance=1e-3,
                peers=_COMPILERS)  # fmt: skip


KERNELS = (
    _gemm("gemm_128", "GEMM 128^3", 128, 128, 128),
    _gemm("gemm_512", "GEMM 512^3", 512, 512, 512),
    _gemm("gemm_1024", "GEMM 1024^3", 1024, 1024, 1024),
    _gemm("gemm_64x1024x4096", "GEMM [64, 1024] x [1024, 4096]", 64, 1024, 4096),
    _gemm("gemm_8x1024x4096", "GEMM [8, 1024] x [1024, 4096]", 8, 1024, 4096),
    _gemm("gemm_1x1024x4096", "GEMM [1, 1024] x [1024, 4096]", 1, 1024, 4096),
    _conv("conv_64_32x32", 32, 64, 64, 32, 3),
    _conv("conv_64_56x56", 8, 64, 64, 56, 3),
    _conv("conv_128_28x28", 8, 128, 128, 28, 3),
    _conv("conv_stem", 8, 3, 64, 224, 7, 2),
    _conv("conv_1x1", 8, 64, 256, 56, 1),
    Task("softmax_rows", "kernels", "softmax of rows, 4096x4096", sweep({F32: 5.0 * _SIZE}, 8.0 * _SIZE),
         tolerance=1e-4, peers=_COMPILERS),
    _attention("attention_8x6x256", 8, 6, 256),
    _attention("attention_1x12x1024", 1, 12, 1024),
    _gemm("int8_gemm_512", "GEMM 512^3, int8 into int32", 512, 512, 512, "int8"),
    _gemm("int8_gemm_1024", "GEMM 1024^3, int8 into int32", 1024, 1024, 1024, "int8"),
    _gemm("bf16_gemm_512", "GEMM 512^3, bfloat16", 512, 512, 512, "bfloat16"),
    _gemm("bf16_gemm_1024", "GEMM 1024^3, bfloat16", 1024, 1024, 1024, "bfloat16"),
)  # fmt: skip

TASKS: dict[str, Task] = {task.name: task for task in (*TRAINING, *MIXED, *FORWARD, *KERNELS)}


def of_suites(suites: list[str]) -> list[Task]:
    """Return the tasks of some suites, in the order of the tables."""
    return [task for task in TASKS.values() if task.suite in suites]
