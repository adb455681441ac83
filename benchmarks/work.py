"""How much work a task is by its definition: operations by dtype, and bytes that must move at least once.

Operations count a multiply and an add as two. Bytes are the compulsory ones: parameters, optimizer state,
inputs and results, each once; what a system stores and reads in between is its own business. Convolutions are
counted as direct ones, so an algorithm with fewer multiplications may come in below the floor.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

F32 = "float32"


@dataclass(frozen=True)
class Work:
    """Operations by dtype name, compulsory bytes, and how large what they touch is (for the cache level)."""

    operations: dict[str, float] = field(default_factory=dict)
    nbytes: float = 0.0
    working_set: float = 0.0


def dense(rows: float, n_in: int, n_out: int) -> float:
    """Return the operations of a matrix product."""
    return 2.0 * rows * n_in * n_out


def convolution(pixels: float, n_in: int, n_out: int, kernel: int) -> float:
    """Return the operations of a convolution with so many output pixels (of all images)."""
    return 2.0 * pixels * n_in * n_out * kernel * kernel


def attention(batch: int, heads: int, queries: int, keys: float, d: int) -> float:
    """Return the operations of scores and weighted sums; `keys` is the mean number a query may see."""
    return 4.0 * batch * heads * queries * keys * d


def training(layers: Iterable[float], parameters: int, state_words: int, batch_bytes: int) -> Work:
    """Return the work of a step from the operations of its forward layers.

    The backward pass is twice the forward one, but for the first layer, whose input needs no gradient.
    Weights and the optimizer's `state_words` per parameter are read and written.
    """
    first, *others = layers
    state = 4.0 * parameters * (1 + state_words)
    return Work({F32: 2 * first + 3 * sum(others)}, 2 * state + batch_bytes, state + batch_bytes)


def sweep(operations: dict[str, float], nbytes: float) -> Work:
    """Return the work of a function that reads and writes so many bytes, each once."""
    return Work(operations, nbytes, nbytes)
