"""Composites: agreement with PyTorch in value and gradient, stability, precision, names, random tensors."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ops_calls import RNG, agrees_with_torch, evaluated, gradients, normal, traced

import stratal as st
from stratal.base.dtypes import bfloat16, float16, float32, float64, uint64
from stratal.base.source import SourceLine
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import graph_input

KEY = np.uint64(2**63 + 11)
KINKS = np.array([-30.0, -2.0, -1.0, -0.0, 0.0, 1.0, 2.0, 30.0])


def functional() -> Any:
    return pytest.importorskip("torch").nn.functional


ACTIVATIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "relu": (lambda b, x: b.relu(x), lambda f, x: f.relu(x)),
    "leaky_relu": (lambda b, x: b.leaky_relu(x, slope=0.2), lambda f, x: f.leaky_relu(x, 0.2)),
    "elu": (lambda b, x: b.elu(x, alpha=0.7), lambda f, x: f.elu(x, 0.7)),
    "hardtanh": (lambda b, x: b.hardtanh(x, low=-1.0, high=2.0), lambda f, x: f.hardtanh(x, -1, 2)),
    "silu": (lambda b, x: b.silu(x), lambda f, x: f.silu(x)),
    "gelu": (lambda b, x: b.gelu(x), lambda f, x: f.gelu(x)),
    "gelu_tanh": (lambda b, x: b.gelu(x, approximate="tanh"), lambda f, x: f.gelu(x, approximate="tanh")),
    "softplus": (lambda b, x: b.softplus(x, beta=2.0, threshold=20.0), lambda f, x: f.softplus(x, 2.0, 20.0)),
}


@pytest.mark.torch
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_and_their_gradients_agree_with_torch_also_at_kinks(name: str) -> None:
    ours, theirs = ACTIVATIONS[name]
    f = functional()
    for x in (normal(40), KINKS):
        agrees_with_torch(ours, lambda x: theirs(f, x), x)


def test_relu_keeps_nan_and_stops_the_gradient_at_zero() -> None:
    x = np.array([np.nan, 0.0, -0.0, 1.0])
    got = evaluated(lambda b, x: b.relu(x), x)
    assert np.isnan(got[0])
    np.testing.assert_array_equal(gradients(lambda b, x: b.relu(x), np.ones(4), x)[0][1:], [0, 0, 1])


@pytest.mark.torch
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_agrees_with_torch(name: str, axis: int) -> None:
    f = functional()
    agrees_with_torch(
        lambda b, x: b.__getattr__(name)(x, axis=axis), lambda x: getattr(f, name)(x, axis), normal(3, 4, 5)
    )


def test_softmax_and_logsumexp_of_huge_logits_do_not_overflow() -> None:
    x = np.array([1e4, 1e4 - 1, -np.inf], np.float32)
    np.testing.assert_allclose(
        evaluated(lambda b, x: b.softmax(x, axis=0), x), [0.7310586, 0.26894143, 0], rtol=1e-6
    )
    np.testing.assert_allclose(
        evaluated(lambda b, x: b.logsumexp(x), x), 1e4 + np.log1p(np.exp(-1)), rtol=1e-6
    )
    nothing = np.full(3, -np.inf)
    assert evaluated(lambda b, x: b.logsumexp(x), nothing) == -np.inf


@pytest.mark.torch
def test_statistics_agree_with_torch() -> None:
    torch = pytest.importorskip("torch")
    x = normal(3, 4, 5)
    agrees_with_torch(lambda b, x: b.mean(x, axes=(0, 2)), lambda x: x.mean((0, 2)), x)
    agrees_with_torch(lambda b, x: b.variance(x, axes=(0, 2), correction=1), lambda x: x.var((0, 2)), x)
    agrees_with_torch(lambda b, x: b.logsumexp(x, axes=(1,)), lambda x: torch.logsumexp(x, 1), x)


@pytest.mark.torch
def test_normalisation_agrees_with_torch() -> None:
    f = functional()
    agrees_with_torch(
        lambda b, x, w, c: b.layer_norm(x, w, c, ndim=2), lambda x, w, c: f.layer_norm(x, (4, 5), w, c),
        normal(3, 4, 5), normal(4, 5), normal(4, 5),
    )  # fmt: skip
    agrees_with_torch(
        lambda b, x, w, c: b.group_norm(x, w, c, groups=2), lambda x, w, c: f.group_norm(x, 2, w, c),
        normal(3, 4, 5, 2), normal(4), normal(4),
    )  # fmt: skip
    agrees_with_torch(
        lambda b, x, w, c: b.batch_norm(x, w, c)[0], lambda x, w, c: f.batch_norm(x, None, None, w, c, True),
        normal(3, 4, 5, 2), normal(4), normal(4),
    )  # fmt: skip
    agrees_with_torch(
        lambda b, x, m, v, w, c: b.batch_norm_inference(x, m, v, w, c),
        lambda x, m, v, w, c: (x - m[:, None]) / (v[:, None] + 1e-5).sqrt() * w[:, None] + c[:, None],
        normal(3, 4, 5), normal(4), RNG.uniform(0.5, 2, 4), normal(4), normal(4),
    )  # fmt: skip


@pytest.mark.torch
def test_cross_entropy_of_composites_agrees_with_torch() -> None:
    f = functional()
    import torch

    target = RNG.integers(0, 5, (3, 4))
    agrees_with_torch(
        lambda b, x: b.nll(b.log_softmax(x, axis=1), b.const(target)),
        lambda x: f.cross_entropy(x, torch.tensor(target), reduction="none"),
        normal(3, 5, 4),
    )


@pytest.mark.torch
def test_binary_cross_entropy_is_stable_and_agrees_with_torch() -> None:
    f = functional()
    import torch

    x = np.concatenate([normal(8), [0.0, -0.0, 300.0, -300.0]])
    target, weight = RNG.uniform(0, 1, 12), RNG.uniform(0.5, 2, 12)
    loss = f.binary_cross_entropy_with_logits
    agrees_with_torch(
        lambda b, x, t: b.bce_with_logits(x, t), lambda x, t: loss(x, t, reduction="none"), x, target
    )
    agrees_with_torch(
        lambda b, x, t: b.bce_with_logits(x, t, b.const(weight)),
        lambda x, t: loss(x, t, reduction="none", pos_weight=torch.tensor(weight)), x, target,
    )  # fmt: skip


@pytest.mark.torch
@pytest.mark.parametrize(
    ("window", "stride", "ceil"), list(itertools.product((2, 3), (1, 2, 3), (False, True)))
)
def test_pooling_agrees_with_torch(window: int, stride: int, ceil: bool) -> None:
    f = functional()
    given = {"window": (window,) * 2, "strides": (stride,) * 2, "padding": (1, 1), "ceil_mode": ceil}
    x = normal(2, 3, 8, 7)
    agrees_with_torch(
        lambda b, x: b.max_pool(x, dilation=(1, 1), **given),
        lambda x: f.max_pool2d(x, window, stride, 1, 1, ceil),
        x,
    )
    for counted in (True, False):
        agrees_with_torch(
            lambda b, x, c=counted: b.avg_pool(x, count_include_pad=c, **given),
            lambda x, c=counted: f.avg_pool2d(x, window, stride, 1, ceil, c), x,
        )  # fmt: skip


@pytest.mark.torch
@pytest.mark.parametrize("size", [(1, 1), (2, 4), (3, 5), (4, 2)])
def test_adaptive_average_pooling_agrees_with_torch(size: tuple[int, int]) -> None:
    f = functional()
    agrees_with_torch(
        lambda b, x: b.adaptive_avg_pool(x, size=size),
        lambda x: f.adaptive_avg_pool2d(x, size),
        normal(2, 3, 8, 4),
    )


@pytest.mark.torch
def test_attention_agrees_with_torch() -> None:
    attend = functional().scaled_dot_product_attention
    import torch

    q, k, v = normal(2, 3, 5, 4), normal(2, 3, 6, 4), normal(2, 3, 6, 7)
    keep = RNG.random((5, 6)) < 0.7
    keep[:, 0] = True
    ours = lambda b, q, k, v, *m, **a: b.scaled_dot_product_attention(q, k, v, *m, **a)  # noqa: E731
    agrees_with_torch(ours, attend, q, k, v)
    agrees_with_torch(ours, lambda q, k, v, m: attend(q, k, v, m), q, k, v, normal(5, 6))
    agrees_with_torch(
        lambda b, q, k, v: ours(b, q, k, v, causal=True, scale=0.3),
        lambda q, k, v: attend(q, k, v, is_causal=True, scale=0.3), q, k, v,
    )  # fmt: skip
    agrees_with_torch(
        lambda b, q, k, v: ours(b, q, k, v, b.const(keep)),
        lambda q, k, v: attend(q, k, v, torch.tensor(keep)),
        q,
        k,
        v,
    )


def test_composites_of_half_precision_round_once() -> None:
    x = normal(16, 64).astype(np.float16)
    for compose in (
        lambda b, x: b.softmax(x, axis=1), lambda b, x: b.layer_norm(x), lambda b, x: b.gelu(x),
        lambda b, x: b.mean(x, axes=(1,)),
    ):  # fmt: skip
        exact = evaluated(compose, x.astype(np.float64)).astype(np.float16)
        got = evaluated(compose, x)
        assert got.dtype == np.float16 and np.mean(got == exact) > 0.99


def test_the_name_of_a_composite_stays_on_the_nodes_it_built() -> None:
    b = Builder((SourceLine("train.py", 12, "step"),))
    node = b.log_softmax(graph_input("x", TensorType(float32, (2, 3))))
    assert node.where[0].scope == ("log_softmax",)
    loss = b.bce_with_logits(*(graph_input(n, TensorType(float32, (2, 3))) for n in "yt"))
    inner = [n for n in (loss.inputs[0], *loss.inputs[0].inputs) if n.where]
    assert any(n.where[0].scope[0] == "bce_with_logits" for n in inner)


@pytest.mark.parametrize("dtype", [float16, bfloat16, float32, float64])
def test_uniform_numbers_lie_in_the_unit_interval_and_normal_ones_have_its_moments(dtype: Any) -> None:
    key = np.asarray(KEY)
    u = evaluated(lambda b, k: b.random_uniform(k, shape=(200, 500), dtype=dtype), key).astype(np.float64)
    assert u.min() >= 0 and u.max() < 1
    assert u.mean() == pytest.approx(0.5, abs=6e-3) and u.var() == pytest.approx(1 / 12, abs=1e-3)
    z = evaluated(lambda b, k: b.random_normal(k, shape=(200, 500), dtype=dtype), key).astype(np.float64)
    assert np.all(np.isfinite(z))
    assert [z.mean(), z.var(), (z**3).mean(), (z**4).mean()] == pytest.approx([0, 1, 0, 3], abs=0.1)


def test_a_part_of_a_random_tensor_does_not_depend_on_its_length() -> None:
    long, short = (
        evaluated(lambda b, k, n=n: b.random_uniform(k, shape=(n,)), np.asarray(KEY)) for n in (1000, 10)
    )
    np.testing.assert_array_equal(long[:10], short)


def test_keys_made_of_a_key_differ_from_it_and_from_each_other() -> None:
    key = np.asarray(KEY)
    many = evaluated(lambda b, k: b.random_split(k, count=1000), key)
    bits = evaluated(lambda b, k: b.random_bits(k, shape=(1000,), dtype=uint64), key)
    folded = [int(evaluated(lambda b, k, n=n: b.random_fold_in(k, b.const(n)), key)) for n in range(20)]
    assert len({*many.tolist(), *bits.tolist(), *folded, int(KEY)}) == 2021


def test_dropout_keeps_the_mean_and_the_cotangent_follows_the_mask() -> None:
    x, key = np.ones((300, 300)), np.asarray(KEY)
    drop = lambda b, x, k: b.dropout(x, k, p=0.25)  # noqa: E731
    out = evaluated(drop, x, key)
    assert set(np.unique(out)) == {0.0, 1 / 0.75} and out.mean() == pytest.approx(1, abs=0.01)
    (got,) = gradients(drop, np.ones_like(x), x, key)
    np.testing.assert_array_equal(got, out)


def test_random_integers_and_permutations_cover_their_range() -> None:
    key = np.asarray(KEY)
    drawn = evaluated(lambda b, k: b.random_integers(k, low=-3, high=4, shape=(7000,)), key)
    assert sorted(set(drawn.tolist())) == list(range(-3, 4)) and np.bincount(drawn + 3).min() > 850
    order = evaluated(lambda b, k: b.random_permutation(k, size=100), key)
    assert sorted(order.tolist()) == list(range(100)) and order.tolist() != list(range(100))


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_bernoulli_holds_as_often_as_asked(p: float) -> None:
    drawn = evaluated(lambda b, k: b.random_bernoulli(k, p=p, shape=(50000,)), np.asarray(KEY))
    assert drawn.mean() == pytest.approx(p, abs=0.01 if 0 < p < 1 else 0)


def test_composites_trace_to_primitives_only() -> None:
    graph = traced(lambda b, x: b.softmax(b.gelu(x), axis=1), normal(2, 3))
    assert all(n.op.name not in ("softmax", "gelu") for n in graph.nodes)


@pytest.mark.parametrize("correction", [0, 1, 2, 1.5])
def test_variances_divide_by_the_number_of_elements_less_the_correction(correction: float) -> None:
    x = np.random.default_rng(0).standard_normal((5, 4))
    for axis in (None, 0, 1):
        t, deviations = st.tensor(x), x - x.mean(axis, keepdims=True)
        number = x.size if axis is None else x.shape[axis]
        want = (deviations**2).sum(axis) / (number - correction)
        for function, power in ((st.var, 1.0), (st.std, 0.5)):
            found = function(t, axis=axis, correction=correction)
            np.testing.assert_allclose(np.asarray(found), want**power, rtol=1e-12)
