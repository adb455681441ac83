"""Calling ops and composites on arrays, and comparing values and gradients with PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import stratal.ops  # noqa: F401  fills the registry
from stratal.autodiff.check import trace
from stratal.autodiff.vjp import vjp_graph
from stratal.base.dtypes import as_dtype
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph
from stratal.graph.interpret import interpret

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(7)


def normal(*shape: int) -> Array:
    return RNG.normal(size=shape)


def traced(function: Callable[..., Any], *arrays: Array) -> Graph:
    return trace(function, [TensorType(as_dtype(a.dtype), a.shape) for a in arrays])


def evaluated(function: Callable[..., Any], *arrays: Any) -> Array:
    """Return the first result of `function(b, *nodes)` at the given arrays."""
    inputs = [np.asarray(a) for a in arrays]
    return interpret(traced(function, *inputs), inputs)[0][0]


def gradients(function: Callable[..., Any], ct: Array, *arrays: Array) -> list[Array]:
    """Return the cotangents of the float arrays."""
    graph = vjp_graph(traced(function, *arrays), [a.dtype.kind == "f" for a in arrays])
    return interpret(graph, [*arrays, ct])[0]


def agrees_with_torch(
    ours: Callable[..., Any], theirs: Callable[..., Any], *arrays: Array, tol: float = 1e-10
) -> None:
    """Compare the value and every gradient in float64."""
    import torch

    tensors = [torch.tensor(a, requires_grad=a.dtype.kind == "f") for a in arrays]
    want = theirs(*tensors)
    got = evaluated(ours, *arrays)
    assert got.shape == tuple(want.shape)
    np.testing.assert_allclose(got, want.detach().numpy(), tol, tol)
    ct = normal(*got.shape)
    wanted = torch.autograd.grad(want, [t for t in tensors if t.requires_grad], torch.tensor(ct))
    for mine, other in zip(gradients(ours, ct, *arrays), wanted, strict=True):
        np.testing.assert_allclose(mine, other.numpy(), tol, tol)


def built(function: Callable[[Builder], Any]) -> Array:
    """Return what a function of the builder alone evaluates to."""
    return evaluated(function)
