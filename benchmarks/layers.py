"""Operations of the models' layers, forward, in the order of the model: a task's work is their sum."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from benchmarks.inference import BOTTLENECKS
from benchmarks.work import attention, convolution, dense


def mlp(batch: int, sizes: Sequence[int] = (784, 512, 512, 10)) -> list[float]:
    return [dense(batch, n_in, n_out) for n_in, n_out in pairwise(sizes)]


def lenet(
    batch: int, channels: Sequence[int] = (6, 16), widths: Sequence[int] = (120, 84), classes: int = 10
) -> list[float]:
    first = convolution(batch * 28 * 28, 1, channels[0], 5)
    second = convolution(batch * 10 * 10, channels[0], channels[1], 5)
    return [first, second, *mlp(batch, (25 * channels[1], *widths, classes))]


def resnet18(batch: int, width: int = 64, classes: int = 10) -> list[float]:
    layers = [convolution(batch * 32 * 32, 3, width, 3)]
    n_in = width
    for stage in range(4):
        n_out, pixels = width << stage, batch * (32 >> stage) ** 2
        layers += [convolution(pixels, n_in, n_out, 3)] + [convolution(pixels, n_out, n_out, 3)] * 3
        layers += [convolution(pixels, n_in, n_out, 1)] if stage else []
        n_in = n_out
    return [*layers, dense(batch, n_in, classes)]


def gpt(
    batch: int, layers: int = 6, d: int = 384, heads: int = 6, context: int = 256, vocab: int = 256
) -> list[float]:
    rows = batch * context
    block = [dense(rows, d, 3 * d), dense(rows, d, d), dense(rows, d, 4 * d), dense(rows, 4 * d, d)]
    block.append(attention(batch, heads, context, (context + 1) / 2, d // heads))
    return [0.0, *(block * layers), dense(rows, d, vocab)]  # the embedding looks up, it multiplies nothing


def lstm(batch: int, length: int = 64, inputs: int = 64, hidden: int = 256, classes: int = 10) -> list[float]:
    rows, gates = length * batch, 4 * hidden
    return [dense(rows, inputs, gates), dense(rows, hidden, gates), dense(batch, hidden, classes)]


def gcn(nodes: int, edges: int, inputs: int = 128, hidden: int = 64, classes: int = 10) -> list[float]:
    spread = 2.0 * edges  # a multiply and an add per edge and feature
    return [dense(nodes, inputs, hidden), spread * hidden, dense(nodes, hidden, classes), spread * classes]


def resnet50(batch: int) -> float:
    total, n_in, size = convolution(112 * 112, 3, 64, 7), 64, 56
    for stage, depth in enumerate(BOTTLENECKS):
        width, before, size = 64 << stage, size, 56 >> stage
        for index in range(depth):
            first = before if index == 0 else size
            total += convolution(first**2, n_in, width, 1) + convolution(size**2, width, width, 3)
            total += convolution(size**2, width, 4 * width, 1)
            total += convolution(size**2, n_in, 4 * width, 1) if index == 0 else 0.0
            n_in = 4 * width
    return batch * (total + dense(1, n_in, 1000))


def encoder(rows: int, keys: float, d: int = 768, layers: int = 12) -> float:
    """Return the blocks of BERT-base or GPT-2 small for so many rows, each attending to `keys` positions."""
    return layers * (dense(rows, d, 12 * d) + attention(1, 12, rows, keys, d // 12))
