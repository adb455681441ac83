"""The tasks of the benchmarks: what is run, how much work it is, which ratio is the gate and which the aim.

A ratio is Stratal's time over the best peer's in the same run. Gates must be met; aims are what the floor
allows.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks import models
from benchmarks.structure import num_parameters, state
from benchmarks.work import Work, attention, convolution, dense, training

SUITES = ("train", "forward", "kernels")


@dataclass(frozen=True)
class Task:
    """One workload. `table` names the group of kernels whose geometric mean is what counts."""

    name: str
    suite: str
    title: str
    work: Work
    gate: float | None = None
    aim: float | None = None
    tolerance: float = 1e-3  # of losses |a-b| / max(|b|, 1), of results max|a-b| / max|b|
    images: bool = False  # has images, which libraries keep in one of two memory formats
    table: str | None = None
    cold_gate_s: float | None = None
    peers: tuple[str, ...] | None = None  # only these; None: all that can


def _parameters(name: str) -> int:
    return num_parameters(state(models.WORKLOADS[name].build))


def _mlp(batch: int) -> list[float]:
    return [dense(batch, 784, 512), dense(batch, 512, 512), dense(batch, 512, 10)]


def _lenet(batch: int) -> list[float]:
    convolutions = [convolution(batch * 28 * 28, 1, 6, 5), convolution(batch * 10 * 10, 6, 16, 5)]
    return [*convolutions, dense(batch, 400, 120), dense(batch, 120, 84), dense(batch, 84, 10)]


def _resnet18(batch: int) -> list[float]:
    layers = [convolution(batch * 32 * 32, 3, 64, 3)]
    n_in, size = 64, 32
    for stage in range(4):
        n_out, size = 64 << stage, 32 >> stage
        pixels = batch * size * size
        layers += [convolution(pixels, n_in, n_out, 3)] + [convolution(pixels, n_out, n_out, 3)] * 3
        layers += [convolution(pixels, n_in, n_out, 1)] if stage else []
        n_in = n_out
    return [*layers, dense(batch, 512, 10)]


def _gpt(batch: int, context: int, d: int, layers: int, heads: int, vocab: int) -> list[float]:
    rows = batch * context
    block = [dense(rows, d, 3 * d), dense(rows, d, d), dense(rows, d, 4 * d), dense(rows, 4 * d, d)]
    block.append(attention(batch, heads, context, (context + 1) / 2, d // heads))
    return [0.0, *(block * layers), dense(rows, d, vocab)]  # the embedding looks up, it multiplies nothing


def _lstm(length: int, batch: int, inputs: int, hidden: int) -> list[float]:
    gates = 4 * hidden
    return [
        dense(length * batch, inputs, gates),
        dense(length * batch, hidden, gates),
        dense(batch, hidden, 10),
    ]


def _gcn(nodes: int, edges: int) -> list[float]:
    return [
        dense(nodes, 128, 64), 2.0 * edges * 64, dense(nodes, 64, 10), 2.0 * edges * 10,
    ]  # fmt: skip


TRAINING = (
    Task("mlp", "train", "MLP 784-512-512-10, batch 32, Adam",
         training(_mlp(32), _parameters("mlp"), 2, 32 * 784 * 4), 0.65, 0.55, cold_gate_s=1.0),
    Task("mlp128", "train", "MLP 784-512-512-10, batch 128, SGD momentum",
         training(_mlp(128), _parameters("mlp"), 1, 128 * 784 * 4), 0.80, 0.70, cold_gate_s=1.0),
    Task("lenet", "train", "LeNet-5, 1x28x28, batch 64, Adam",
         training(_lenet(64), _parameters("lenet"), 2, 64 * 784 * 4), 0.25, 0.12, images=True),
    Task("resnet18", "train", "ResNet-18, 3x32x32, batch 32, SGD momentum",
         training(_resnet18(32), _parameters("resnet18"), 1, 32 * 3072 * 4), 0.70, 0.55,
         tolerance=5e-3, images=True, cold_gate_s=3.0),
    Task("lstm", "train", "LSTM 64->256, sequence 64, batch 32, Adam",
         training(_lstm(64, 32, 64, 256), _parameters("lstm"), 2, 64 * 32 * 64 * 4), 0.82, 0.72),
    Task("gpt", "train", "GPT, 6 layers, d 384, context 256, batch 8, AdamW",
         training(_gpt(8, 256, 384, 6, 6, 256), _parameters("gpt"), 2, 8 * 257 * 8), 0.82, 0.76,
         cold_gate_s=2.5),
    Task("gcn", "train", "GCN 128-64-10, 20,000 nodes, 200,000 edges, Adam",
         training(_gcn(20_000, 200_000), _parameters("gcn"), 2, 20_000 * 129 * 4 + 200_000 * 12),
         0.30, 0.15),
)  # fmt: skip

TASKS: dict[str, Task] = {task.name: task for task in TRAINING}


def of_suites(suites: list[str]) -> list[Task]:
    """Return the tasks of some suites, in the order of the tables."""
    return [task for task in TASKS.values() if task.suite in suites]
