"""Names and shapes of a model's state, without any library: an `nn` that only notes what a model declares.

state(models.gpt)      {"tok.weight": (256, 384), ...}, the keys of its state dict in their order
draw(state(...))       the same names with arrays: the weights every system starts from
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Shapes = dict[str, tuple[int, ...]]
EMBEDDINGS = ("tok", "pos", "kind")  # tables of vectors, drawn narrow as transformers have them


class Leaf:
    """A parameter or a buffer: its shape."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape


class Module:
    """Holds leaves and modules as attributes."""

    def leaves(self, prefix: str = "") -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield names and shapes in the order of declaration, own leaves before those of children."""
        for name, value in vars(self).items():
            if isinstance(value, Leaf):
                yield prefix + name, value.shape
        for name, value in vars(self).items():
            if isinstance(value, Module):
                yield from value.leaves(f"{prefix}{name}.")


class _Sequence(Module):
    def __init__(self, modules: Iterable[Module]) -> None:
        for index, module in enumerate(modules):
            setattr(self, str(index), module)


class _Linear(Module):
    def __init__(self, n_in: int, n_out: int, bias: bool = True) -> None:
        self.weight = Leaf(n_out, n_in)
        if bias:
            self.bias = Leaf(n_out)


class _Conv2d(Module):
    def __init__(
        self, n_in: int, n_out: int, kernel: int, *, stride: int = 1, padding: int = 0, bias: bool = True
    ) -> None:
        self.weight = Leaf(n_out, n_in, kernel, kernel)
        if bias:
            self.bias = Leaf(n_out)


class _LayerNorm(Module):
    def __init__(self, size: int, eps: float = 1e-5) -> None:
        self.weight, self.bias = Leaf(size), Leaf(size)


class _BatchNorm2d(_LayerNorm):
    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.running_mean, self.running_var = Leaf(size), Leaf(size)
        self.num_batches_tracked = Leaf()


class _Embedding(Module):
    def __init__(self, count: int, size: int) -> None:
        self.weight = Leaf(count, size)


class _LSTM(Module):
    def __init__(self, n_in: int, n_hidden: int) -> None:
        self.weight_ih_l0, self.weight_hh_l0 = Leaf(4 * n_hidden, n_in), Leaf(4 * n_hidden, n_hidden)
        self.bias_ih_l0, self.bias_hh_l0 = Leaf(4 * n_hidden), Leaf(4 * n_hidden)


def _nothing(*arguments: object, **settings: object) -> Module:
    return Module()


NN = SimpleNamespace(
    Module=Module, Linear=_Linear, Conv2d=_Conv2d, LayerNorm=_LayerNorm, BatchNorm2d=_BatchNorm2d,
    Embedding=_Embedding, LSTM=_LSTM, ModuleList=_Sequence, Sequential=lambda *modules: _Sequence(modules),
    ReLU=_nothing, GELU=_nothing, Tanh=_nothing, Flatten=_nothing, MaxPool2d=_nothing,
    AdaptiveAvgPool2d=_nothing, functional=None,
)  # fmt: skip


def state(build: Callable[[Any], Any]) -> Shapes:
    """Return the state-dict names of a model of `benchmarks.models` with their shapes."""
    return dict(build(NN).leaves())


def num_parameters(shapes: Shapes) -> int:
    """Return how many numbers an optimizer updates: all but the statistics of batch norms."""
    kept = ("running_mean", "running_var", "num_batches_tracked")
    return sum(math.prod(shape) for name, shape in shapes.items() if not name.endswith(kept))


def draw(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """Return weights by name: the same in every process, whatever else was drawn."""
    return {name: _draw(name, shape) for name, shape in shapes.items()}


def _draw(name: str, shape: tuple[int, ...]) -> Array:
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    owner, _, leaf = name.rpartition(".")
    if leaf == "num_batches_tracked":
        return np.zeros(shape, np.int64)
    if leaf == "running_var" or (leaf == "weight" and len(shape) == 1):
        return rng.uniform(0.8, 1.2, shape).astype(np.float32)
    if leaf == "running_mean" or leaf.startswith("bias"):
        return rng.uniform(-0.05, 0.05, shape).astype(np.float32)
    if owner.rpartition(".")[2] in EMBEDDINGS:
        return rng.standard_normal(shape, dtype=np.float32) * np.float32(0.02)
    bound = 1 / math.sqrt(math.prod(shape[1:]))
    values = rng.random(shape, dtype=np.float32)
    values *= 2 * bound
    values -= bound
    return values
