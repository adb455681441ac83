"""Rows of the mission about fusion, layouts, attention and high-dimensional convolutions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from graphs import random_graph

import stratal as st
from stratal import nn
from stratal.compiler import Lowerings, prepare
from stratal.graph.op import REGISTRY
from stratal.loops.compute import Compute
from stratal.loops.lowering import is_contraction
from stratal.optimize.fuse import fuse
from stratal.optimize.layout import channels_last, choose_orders
from stratal.plan.host import current_target
from stratal.schedule.tactics import convolutions

F = nn.functional


# -- C12: classes of ops, and what they may be fused with ----------------------------------------------------
def fusability(lowered: object) -> str:
    """Return the class of an op by what it lowers to; the names are those of Chen et al. (TVM, 2018)."""
    if not isinstance(lowered, Compute):
        return "opaque"  # loops of its own, control flow, or the reference on the host
    if lowered.combiner is None:
        return "injective"
    return "complex-out-fusable" if is_contraction(lowered) else "reduction"


@pytest.mark.row("C12")
def test_every_op_has_a_class_that_follows_from_its_lowering() -> None:
    classes: dict[str, set[str]] = {}
    for name, record in REGISTRY.items():
        sample = next(iter(record.samples()), None)
        if sample is None:
            continue  # made of graphs or of a user's function: tested with those
        op, types = sample.op, sample.types
        lowered = None if op.host_reason(*types) else op.lower(*types)
        classes.setdefault(fusability(lowered), set()).add(name)
    assert set(classes) == {"opaque", "injective", "complex-out-fusable", "reduction"}
    assert {"add", "tanh", "reshape", "pad"} <= classes["injective"]
    assert {"sum", "reduce_max", "window_reduce"} <= classes["reduction"]
    assert {"contract", "conv"} <= classes["complex-out-fusable"]
    assert {"cond", "scan", "sort"} <= classes["opaque"]


@pytest.mark.row("C12")
@pytest.mark.parametrize("seed", range(25))
def test_no_partition_fuses_what_its_classes_forbid(seed: int) -> None:
    """Opaque ops stand alone; a sum of products begins a kernel, and no kernel has a second one."""
    graph = prepare(random_graph(seed)[0], current_target())
    lower_of = Lowerings()
    for group in fuse(graph, lower_of, choose_orders(graph, lower_of, current_target()), convolutions).groups:
        classes = [fusability(lower_of(m)) for m in group.members]
        assert "opaque" not in classes or len(classes) == 1, group
        assert "complex-out-fusable" not in classes[1:] or group.kind != "contract", group
        if group.kind == "pointwise":
            assert set(classes) == {"injective"}, group


# -- C13: layouts --------------------------------------------------------------------------------------------
def _plan(function: Callable[..., Any], *arguments: Any) -> Any:
    compiled = st.compile(function)
    compiled(*arguments)
    return compiled


@pytest.mark.row("C13")
def test_convolutions_in_a_row_pass_their_images_in_one_layout() -> None:
    """Only the first operand is turned; between two convolutions, no kernel changes a layout."""
    w = st.zeros((32, 32, 3, 3))

    def two(x: Any) -> Any:
        return F.conv2d(st.relu(F.conv2d(x, w, padding=1)), w, padding=1).sum()

    compiled = _plan(two, st.zeros((2, 32, 12, 12)))
    notes = compiled.program.log.of("layout")
    assert notes and all(str(channels_last(4)) in note.choice for note in notes)
    assert [k["tactic"] for k in compiled.plan.kernels].count("transpose") == 1


@pytest.mark.row("C13")
def test_conversions_that_undo_each_other_are_no_kernels() -> None:
    x = np.random.default_rng(0).standard_normal((3, 4, 5)).astype(np.float32)
    compiled = st.compile(lambda x: st.tanh(x.permute(2, 0, 1)).permute(1, 2, 0) + 1.0)
    np.testing.assert_allclose(compiled(st.tensor(x)).numpy(), np.tanh(x) + 1, rtol=1e-5)
    (kernel,) = compiled.plan.kernels
    assert kernel["tactic"] != "transpose"


@pytest.mark.row("C13")
@pytest.mark.parametrize(("batch", "channels", "last"), [(2, 64, 1), (64, 3, 0)])
def test_the_axis_that_fills_vectors_at_the_least_cost_is_innermost(
    batch: int, channels: int, last: int
) -> None:
    w = st.zeros((channels, channels, 3, 3))
    compiled = _plan(lambda x: F.conv2d(x, w, padding=1).sum(), st.zeros((batch, channels, 9, 9)))
    notes = compiled.program.log.of("layout")
    assert notes and all(f"{last})" in note.choice for note in notes)


# -- D15: attention without its scores, D14: convolutions of volumes -----------------------------------------
@pytest.mark.row("D14", "D15")
@pytest.mark.parametrize("causal", [False, True])
def test_attention_and_its_gradient_keep_nothing_of_the_size_of_the_scores(causal: bool) -> None:
    time, d = 320, 16
    rng = np.random.default_rng(0)
    q, k, v, ct = (rng.standard_normal((1, 1, time, d)).astype(np.float32) for _ in range(4))

    @st.compile
    def step(q: Any, k: Any, v: Any, ct: Any) -> Any:
        attend = lambda *x: F.scaled_dot_product_attention(*x, is_causal=causal)  # noqa: E731
        out, pullback = st.vjp(attend, q, k, v)
        return out, *pullback(ct)

    results = step(*map(st.tensor, (q, k, v, ct)))
    values = step.program.executable.values
    assert max(math.prod(value.type.ints) for value in values) < time * time
    assert step.program.executable.scratch_bytes < 4 * time * time
    for got, want in zip(results, _attention(q, k, v, ct, causal), strict=True):
        assert np.abs(got.numpy() - want).max() <= 1e-5 * max(1.0, np.abs(want).max())


def _attention(q: Any, k: Any, v: Any, ct: Any, causal: bool) -> list[Any]:
    """Return attention and its gradients in float64, by the whole matrix of weights."""
    q, k, v, ct = (x[0, 0].astype(np.float64) for x in (q, k, v, ct))
    scale = 1 / math.sqrt(q.shape[1])
    scores = q @ k.T * scale
    if causal:
        scores = np.where(np.tri(len(q), dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(1, keepdims=True))
    weights /= weights.sum(1, keepdims=True)
    dweights = ct @ v.T
    dscores = weights * (dweights - (dweights * weights).sum(1, keepdims=True)) * scale
    return [x[None, None] for x in (weights @ v, dscores @ k, dscores.T @ q, weights.T @ ct)]


@pytest.mark.row("D14")
def test_a_convolution_of_volumes_and_its_gradient_are_compiled() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 3, 5, 6, 7)), rng.standard_normal((4, 3, 2, 3, 3))

    @st.compile
    def step(x: Any, w: Any) -> Any:
        out, pullback = st.vjp(lambda x, w: F.conv3d(x, w, padding=(0, 1, 1)), x, w)
        return out, *pullback(st.ones_like(out))

    out, dx, dw = (r.numpy() for r in step(st.tensor(x), st.tensor(w)))
    padded = np.pad(x, [(0, 0), (0, 0), (0, 0), (1, 1), (1, 1)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, (2, 3, 3), (2, 3, 4))
    np.testing.assert_allclose(out, np.einsum("ncdhwijk,ocijk->nodhw", windows, w), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(dw, np.broadcast_to(windows.sum((0, 2, 3, 4)), w.shape), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose((dx * x).sum(), out.sum(), rtol=1e-9)
    assert not any(k["tactic"] == "host" for k in step.plan.kernels)
