"""Long scatter sums: sorted once, added up by rows, the same bits for any number of threads."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal.base import settings
from stratal.base.artifact import Launch, Once, flat
from stratal.base.errors import IndexOutOfRangeError
from stratal.base.target import TARGETS
from stratal.compiler import Lowerings, decided
from stratal.loops.stmt import Prefetch, statements
from stratal.optimize.canonical import choose_algorithms
from stratal.optimize.simplify import simplify
from stratal.plan.host import current_target
from stratal.schedule.tactics import convolutions

NODES, EDGES, FEATURES = 700, 9000, 40
RNG = np.random.default_rng(5)


def indices(kind: str) -> np.ndarray:
    """Return drawn indices: spread out, most of them one row (which spans chunks), or all of them one row."""
    spread = RNG.integers(0, NODES, EDGES)
    if kind == "spread":
        return spread
    return np.where(RNG.random(EDGES) < (0.9 if kind == "a hub" else 2.0), 17, spread)


def aggregate(x: st.Tensor, source: st.Tensor, target: st.Tensor, weight: st.Tensor) -> st.Tensor:
    sent = x[source] * weight.reshape((-1, 1))
    return st.zeros((NODES, x.shape[1]), dtype=x.dtype).index_add(0, target, sent)


def operands(kind: str, dtype: str = "float32", features: int = FEATURES) -> list[st.Tensor]:
    x, weight = RNG.standard_normal((NODES, features)), RNG.standard_normal(EDGES)
    return [
        st.tensor(x.astype(dtype)), st.tensor(indices("spread")), st.tensor(indices(kind)),
        st.tensor(weight.astype(dtype)),
    ]  # fmt: skip


def in_double(x: st.Tensor, source: st.Tensor, target: st.Tensor, weight: st.Tensor) -> np.ndarray:
    out = np.zeros((NODES, x.shape[1]))
    sent = x.numpy().astype(np.float64)[source.numpy()] * weight.numpy()[:, None]
    np.add.at(out, target.numpy(), sent)
    return out


def labels_of(step: Any) -> Counter[str]:
    """Return how often each kernel is launched, by its label."""
    return Counter(c.label for c in flat(step.program.executable.commands) if isinstance(c, Launch))


@pytest.mark.parametrize("features", [30, FEATURES, 150, 403])
@pytest.mark.parametrize("kind", ["spread", "a hub", "one row"])
def test_a_long_sum_equals_the_sum_in_double_precision(kind: str, features: int) -> None:
    step, given = st.compile(aggregate), operands(kind, features=features)
    got = step(*given).numpy()
    assert np.allclose(got, in_double(*given), rtol=1e-5, atol=2e-3)
    assert any("segment_sum" in label for label in labels_of(step))


def test_rows_nobody_names_are_zero() -> None:
    given = operands("one row")
    got = st.compile(aggregate)(*given).numpy()
    assert np.array_equal(np.flatnonzero(got.any(axis=1)), [17])
    assert not np.signbit(got[:17]).any()


@pytest.mark.parametrize("kind", ["spread", "a hub"])
def test_any_number_of_threads_gives_the_same_bits(kind: str) -> None:
    given = operands(kind)
    found = []
    for threads in (1, 2, 4):
        with settings.threads(threads):
            found.append(st.compile(aggregate)(*given).numpy().copy())
    assert np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2])


def test_the_gathered_and_scaled_slices_are_never_stored() -> None:
    step = st.compile(aggregate)
    step(*operands("spread"))
    assert all(v.type.size < EDGES * FEATURES for v in step.program.executable.values)


def gradient(x: st.Tensor, source: st.Tensor, target: st.Tensor, weight: st.Tensor) -> st.Tensor:
    """Two layers over one graph, as in a graph convolution."""

    def loss(x: st.Tensor) -> st.Tensor:
        h = st.tanh(aggregate(x, source, target, weight))
        return (aggregate(h, source, target, weight) ** 2).sum()

    return st.grad(loss)(x)


def test_long_slices_of_a_large_array_are_fetched_before_they_are_added() -> None:
    def fetched(features: int) -> set[str]:
        step = st.compile(aggregate)
        step(*operands("spread", features=features))
        kernels = decided(step.program.graph, TARGETS["avx512"]).draft.kernels.values()
        found = [s for k in kernels for s in statements(k.kernel.body) if isinstance(s, Prefetch)]
        return {str(s.buffer.shape) for s in found}

    assert fetched(403) == {str((NODES, 403))}, "what is gathered, not the indices or the weights"
    assert not fetched(16), "one vector a slice"
    assert not fetched(64), "the second cache holds all of it"


def test_two_layers_and_their_gradient_sort_each_index_once() -> None:
    step = st.compile(gradient)
    step(*operands("spread"))
    labels = labels_of(step)
    sums = sum(n for label, n in labels.items() if "segment_sum" in label)
    stages = labels["segments"]
    assert (stages, sums) == (2 * 3, 4 * 2)  # three stages each; the sum and the runs across chunks


def test_the_gradient_of_two_layers_equals_finite_differences() -> None:
    x, source, target, weight = operands("a hub", "float64")
    got = gradient(x, source, target, weight * 0.1).numpy()
    direction = got / np.linalg.norm(got)  # not one in which the derivative may all but vanish

    def loss(v: np.ndarray) -> float:
        h = np.tanh(in_double(st.tensor(v), source, target, weight * 0.1))
        return float((in_double(st.tensor(h), source, target, weight * 0.1) ** 2).sum())

    eps = 1e-6
    wanted = (loss(x.numpy() + eps * direction) - loss(x.numpy() - eps * direction)) / (2 * eps)
    assert np.isclose((got * direction).sum(), wanted, rtol=1e-6)


def carried_by(step: Any) -> list[list[str]]:
    """Return the dtypes of what each sorting of indices carries along."""
    graph = choose_algorithms(simplify(step.program.graph), Lowerings(), current_target(), convolutions)
    return [[str(x.dtype) for x in n.inputs[1:]] for n in graph.nodes if n.op.name == "segments"]


def test_indices_and_factors_are_carried_along_with_the_rows() -> None:
    step = st.compile(aggregate)
    step(*operands("spread"))
    assert carried_by(step) == [["i64", "f32"]]


def test_slices_that_lie_in_memory_stay_there_and_their_places_are_carried() -> None:
    x, source, target, weight = operands("a hub")

    def summed(slices: st.Tensor) -> st.Tensor:
        return st.zeros((NODES, FEATURES)).index_add(0, target, slices * weight.reshape((-1, 1)))

    step = st.compile(summed)
    slices = st.tensor(x.numpy()[source.numpy()])
    assert np.allclose(step(slices).numpy(), in_double(x, source, target, weight), rtol=1e-5, atol=2e-3)
    assert carried_by(step) == [["i32"]]


def test_factors_made_of_an_earlier_sum_over_the_index_are_not_carried() -> None:
    def twice(x: st.Tensor, source: st.Tensor, target: st.Tensor, weight: st.Tensor) -> st.Tensor:
        h = aggregate(x, source, target, weight)
        return aggregate(x, source, target, h[target].sum(axis=1))

    step, given = st.compile(twice), operands("spread")
    got = step(*given).numpy()
    x, source, target, _ = given
    factors = in_double(*given)[target.numpy()].sum(axis=1)
    wanted = in_double(x, source, target, st.tensor(factors))
    assert np.allclose(got, wanted, rtol=1e-4, atol=2e-2)
    assert carried_by(step) == [["i64", "f32", "i32"]], "one sorting serves both sums"


def test_an_index_that_is_held_is_sorted_once_whatever_the_factors() -> None:
    _, source, target, _ = operands("spread")
    step = st.compile(lambda x, weight: aggregate(x, source, target, weight))
    for given in (operands("spread"), operands("spread")):
        x, _, _, weight = given
        wanted = in_double(x, source, target, weight)
        assert np.allclose(step(x, weight).numpy(), wanted, rtol=1e-5, atol=2e-3)
    assert carried_by(step) == [["i32"]]
    once = tuple(c for c in step.program.executable.commands if isinstance(c, Once))
    assert "segments" in {c.label for c in flat(once) if isinstance(c, Launch)}


def test_an_embedding_sums_its_gradient_by_rows() -> None:
    words = RNG.integers(0, 50, (40, 250))
    up = RNG.standard_normal((40, 250, 32)).astype("float32")

    def loss(table: st.Tensor) -> st.Tensor:
        return (table[st.tensor(words)] * st.tensor(up)).sum()

    got = st.grad(loss)(st.ones((50, 32))).numpy()
    wanted = np.zeros((50, 32))
    np.add.at(wanted, words.ravel(), up.reshape(-1, 32).astype(np.float64))
    assert np.allclose(got, wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("bad", [-701, 700, 1 << 32])
@pytest.mark.parametrize("which", [1, 2])
def test_an_index_out_of_range_stops_the_sum(bad: int, which: int) -> None:
    given = operands("spread")
    broken = given[which].numpy().copy()
    broken[4321] = bad
    given[which] = st.tensor(broken)
    with pytest.raises(IndexOutOfRangeError, match="out of range"):
        st.compile(aggregate)(*given).numpy()
