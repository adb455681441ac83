"""Uncompiled code whose sizes change is compiled once for many sizes, and computes what it would for each."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from benchmarks.small_models import MODELS, training
from hypothesis import given, settings
from hypothesis import strategies as some

import stratal as st
from stratal import nn
from stratal.autodiff import trace
from stratal.base.dtypes import bfloat16, float16, float32
from stratal.base.session import SESSION
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph
from stratal.graph.node import Node, graph_input
from stratal.nn import functional as F
from stratal.tensor.lazy import program_cache, symbolic_sizes


def compiled_during(run: Callable[[], Any], reset: bool = True) -> tuple[Any, int]:
    if reset:
        SESSION.reset()
    before = program_cache.COMPILED[0]
    return run(), program_cache.COMPILED[0] - before


def losses(name: str, batches: list[tuple[np.ndarray[Any, Any], ...]]) -> list[float]:
    st.manual_seed(3)
    _, step = training(st, name, 0.1)
    return [step(*map(st.tensor, batch)) for batch in batches]


def batches(name: str, count: int, lengths: bool) -> list[Any]:
    rng = np.random.default_rng(0)
    found = []
    for _ in range(count):
        whole = MODELS[name].data(rng)
        rows = int(rng.integers(2, len(whole[0]) + 1))
        batch = tuple(array[:rows] for array in whole)
        if lengths:
            length = int(rng.integers(8, whole[0].shape[1] + 1))
            batch = tuple(a[:, :length].copy() if a.ndim == 2 else a for a in batch)
        found.append(batch)
    return found


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name, lengths, most", [
    ("text_cnn", False, 5), ("mlp", False, 5), pytest.param("transformer", False, 5, marks=pytest.mark.slow),
    pytest.param("siamese", False, 5, marks=pytest.mark.slow),
    pytest.param("gpt", True, 9, marks=pytest.mark.slow),
])  # fmt: skip
def test_training_on_batches_of_many_sizes(
    name: str, lengths: bool, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = batches(name, 12, lengths)
    got, compiled = compiled_during(lambda: losses(name, data))
    monkeypatch.setattr(symbolic_sizes, "program_for", lambda graph, compile_: None)
    wanted, _ = compiled_during(lambda: losses(name, data))
    np.testing.assert_allclose(got, wanted, rtol=2e-4)
    assert compiled <= most


@pytest.mark.sampled(5)
def test_a_text_that_grows_is_computed_turn_by_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    st.manual_seed(1)
    model, _ = training(st, "gpt", 0.0)
    model.eval()
    prompt = st.tensor(np.random.default_rng(1).integers(0, 65, (1, 3)))
    for p in model.parameters():
        p.numpy()
    got, compiled = compiled_during(lambda: model.generate(prompt, 16).numpy())
    assert compiled <= 8
    again = [model.generate(prompt, 16).numpy() for _ in range(3)]
    with st.eager():
        wanted = model.generate(prompt, 16).numpy()
    for text in (got, *again):
        np.testing.assert_array_equal(text, wanted)


CHAINS: dict[str, Callable[[Any], Any]] = {
    "softmax": lambda x: F.softmax(x, -1), "softmax over length": lambda x: F.softmax(x, 1),
    "mean": lambda x: x - x.mean(1, keepdim=True), "mean of all": lambda x: x * x.mean(),
    "var": lambda x: x / (1 + x.var(0, keepdim=True, correction=0)), "cumsum": lambda x: x.cumsum(1) * 0.1,
    "attention": lambda x: x + F.scaled_dot_product_attention(x, x, x),
    "products": lambda x: (x @ x.mT) @ x * 0.1,
    "causal": lambda x: x + F.scaled_dot_product_attention(x, x, x, is_causal=True),
    "layer norm": lambda x: F.layer_norm(x, (4,)), "slices": lambda x: st.cat([x[:, 1:], x[:, :1]], 1),
    "grow": lambda x: st.cat([x, x[:, -1:]], 1),
    "shrink": lambda x: x[:, : x.shape[1] - 1] if x.shape[1] > 2 else x, "flip": lambda x: x.flip(1),
    "max": lambda x: x - x.max(1, keepdim=True).values, "argmax": lambda x: x + x.argmax(1, keepdim=True),
    "sort": lambda x: x.sort(-1).values, "flat": lambda x: x.reshape(-1, 4).softmax(0).reshape(x.shape),
    "where": lambda x: st.where(x > x.mean(), x, 0.0),
    "range": lambda x: x + st.arange(x.shape[1])[None, :, None], "count": lambda x: x / x.shape[1],
    "roll": lambda x: st.roll(x, 1, 1), "pad": lambda x: F.pad(x, (0, 0, 1, 0))[:, 1:],
    "tril": lambda x: x @ st.ones(4, 4).tril(),
    "mask": lambda x: x.masked_fill((st.arange(x.shape[1]) % 2 == 0)[None, :, None], 0.5),
    "logsumexp": lambda x: x - x.logsumexp(1, keepdim=True),
}  # fmt: skip


@pytest.mark.sampled(7)
@given(
    some.lists(some.sampled_from(sorted(CHAINS)), min_size=2, max_size=6),
    some.lists(some.tuples(some.integers(1, 6), some.integers(1, 20)), min_size=3, max_size=6),
    some.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_chains_at_many_sizes_are_what_the_interpreter_computes(
    chain: list[str], shapes: list[tuple[int, int]], tracked: bool
) -> None:
    least = symbolic_sizes._LEAST_OPS
    symbolic_sizes._LEAST_OPS = 3  # type: ignore[misc]
    try:
        for rows, length in shapes:
            array = np.random.default_rng(rows * 100 + length).standard_normal((rows, length, 4)) * 0.5
            got, wanted = (_through(chain, array, tracked, how) for how in (False, True))
            for a, b in zip(got, wanted, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9, err_msg=str((chain, rows, length)))
    finally:
        symbolic_sizes._LEAST_OPS = least  # type: ignore[misc]


def _through(chain: list[str], array: Any, tracked: bool, eager: bool) -> list[Any]:
    def run() -> list[Any]:
        x = st.tensor(array).requires_grad_(tracked)
        y = x
        for name in chain:
            y = CHAINS[name](y)
        if not tracked:
            return [y.numpy(), y.sum().item()]
        (y * y).sum().backward()
        return [y.detach().numpy(), x.grad.numpy()]

    if not eager:
        return run()
    with st.eager():
        return run()


@pytest.mark.sampled(5)
def test_sizes_that_only_seem_to_follow_from_each_other() -> None:
    SESSION.reset()

    def run(rows: int, columns: int) -> tuple[float, float]:
        x = np.arange(rows * columns, dtype=np.float64).reshape(rows, columns) / 10
        t = st.tensor(x)
        for _ in range(20):
            t = t - t.mean(0, keepdim=True) * 0.5 + t.mean(1, keepdim=True) * 0.25
        y = x
        for _ in range(20):
            y = y - y.mean(0, keepdims=True) * 0.5 + y.mean(1, keepdims=True) * 0.25
        return t.sum().item(), y.sum()

    for rows, columns in [(8, 5), (7, 4), (6, 9), (12, 4), (5, 5), (2, 2), (9, 9), (3, 18), (1, 7), (7, 1)]:
        got, wanted = run(rows, columns)
        assert got == pytest.approx(wanted, rel=1e-9)


def test_states_of_changing_size_are_written_where_they_stand() -> None:
    SESSION.reset()
    for rows in (3, 5, 4, 7, 6):
        held = st.zeros(rows, 2)
        held.numpy()
        for k in range(30):
            held.mul_(0.5).add_(st.ones(rows, 2) * k)
        wanted = np.zeros((rows, 2), np.float32)
        for k in range(30):
            wanted = wanted * np.float32(0.5) + k
        np.testing.assert_array_equal(held.numpy(), wanted)


@pytest.mark.sampled(5)
def test_layers_with_statistics_in_changing_sizes() -> None:
    SESSION.reset()
    nets = []
    for _ in range(2):
        st.manual_seed(0)
        layers = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh()
        nets.append(nn.Sequential(*layers))

    def step(net: Any, x: Any) -> list[Any]:
        net.zero_grad()
        y = net(st.tensor(x))
        (y**2).mean().backward()
        grads = [p.grad for p in net.parameters()]
        return [t.numpy() for t in (y.detach(), *grads, *net.buffers())]

    for k, rows in enumerate((9, 5, 7, 4, 12, 3)):
        x = np.random.default_rng(k).standard_normal((rows, 6), np.float32)
        got = step(nets[0], x)
        with st.eager():
            wanted = step(nets[1], x)
        for a, b in zip(got, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


@pytest.mark.sampled(4)
def test_little_work_of_many_sizes_is_compiled_a_few_times() -> None:
    SESSION.reset()
    x = st.arange(200) * 1.0
    x.numpy()
    before = program_cache.COMPILED[0]
    for k in range(2, 60):
        assert x[:k].sum().item() == k * (k - 1) / 2
        assert st.zeros(k).sum().item() == 0
        np.testing.assert_allclose(st.softmax(x[:k] * 0.1, 0).sum().item(), 1.0, rtol=1e-5)
    assert program_cache.COMPILED[0] - before <= 30


LENGTHS: dict[str, Callable[[Any], Any]] = {
    "softmax": lambda x: st.softmax(x, -1),
    "sort": lambda x: st.sort(x)[0],
    "argsort downwards": lambda x: st.argsort(x, descending=True),
    "topk": lambda x: st.topk(x, 3)[1],
    "conv1d": lambda x: F.conv1d(x.reshape(1, 1, -1), st.full((1, 1, 3), 0.5)),
    "unfold": lambda x: x.unfold(0, 3, 1).exp(),
    "max_pool1d": lambda x: F.max_pool1d(x.reshape(1, 1, -1), 2),
    "layer_norm": lambda x: F.layer_norm(x, (x.shape[0],)),
    "cross_entropy": lambda x: F.cross_entropy(st.outer(x, x), (x * 0).long()),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", LENGTHS)
def test_the_third_new_length_of_a_call_compiles_nothing(name: str) -> None:
    function, rng = LENGTHS[name], np.random.default_rng(0)
    arrays = [rng.standard_normal(n).astype(np.float32) for n in (40, 49, 38, 45, 61, 52, 57)]

    def results(some: list[Any]) -> list[Any]:
        return [function(st.tensor(a)).numpy() for a in some]

    got = results(arrays[:3])
    more, compiled = compiled_during(lambda: results(arrays[3:]), reset=False)
    assert compiled == 0
    with st.eager():
        for a, value in zip(arrays, got + more, strict=True):
            np.testing.assert_allclose(value, function(st.tensor(a)).numpy(), rtol=1e-5, atol=1e-6)


def test_work_that_comes_again_in_the_sizes_it_had_is_not_taken_for_work_of_many() -> None:
    x = graph_input("x", TensorType(st.float32, (3, 4)))
    graph = Graph([x], [Builder().op("add", x, x)])
    assert symbolic_sizes.Generalization(graph, graph).sizes_of(graph) is None


def test_work_of_no_elements_is_compared_with_work_of_some() -> None:
    def graph(n: int, m: int) -> Graph:
        x, y = graph_input("x", TensorType(st.float32, (n,))), graph_input("y", TensorType(st.float32, (m,)))
        return Graph([x, y], [Builder().op("exp", y), Builder().op("exp", x)])

    with pytest.raises(st.StratalError, match="follows from no other"):
        symbolic_sizes.Generalization(graph(0, 6), graph(2, 9))


@pytest.mark.parametrize("factor", [3.0, 5.0])
@pytest.mark.parametrize("ops", [1, 60])
def test_a_graph_that_comes_again_with_the_same_sizes_takes_a_program_of_its_own(
    factor: float, ops: int
) -> None:
    def chain(b: Any, x: Node) -> list[Node]:
        for _ in range(ops):
            x = b.mul(x, b.like(x, factor))
        return [x]

    first, again = (trace(chain, [TensorType(float32, (n, 7))]) for n in (4, 4))
    family = symbolic_sizes.GraphFamily(first)
    for _ in range(5):
        assert family.program(again, lambda graph: None) is None
    assert not family.failures


def test_numbers_of_16_bits_are_told_from_sizes_without_warnings() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for dtype in (float16, float32, bfloat16):
            for value in (2.0, 65504.0, math.inf, 1e39, math.nan):
                found = symbolic_sizes._whole(Builder().const(value, dtype).op)
                assert found in (None, int(value) if math.isfinite(value) else None)
                assert found == value or value != 2.0 or dtype is bfloat16
