"""Real arithmetic rounds otherwise, and no worse: errors against float64 are at most three times as large."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import workloads
from benchmarks.models import Workload, images
from benchmarks.optimiser_networks import NETWORKS
from benchmarks.structure import draw
from search_networks import B, in_dtype
from test_random_programs import random_graph

import stratal as st
from stratal import nn
from stratal.base import settings
from stratal.base.dtypes import float64
from stratal.compiler import compile_graph
from stratal.graph.graph import Graph
from stratal.graph.interpret import interpret
from stratal.runtime.storage import Storage
from stratal.search.found import REWRITTEN

F = nn.functional
Arrays = Sequence[np.ndarray]
LEAST = 1.5e-7  # what a sum of some numbers may err by, whose own error happens to be less: an ulp or so


def worse(exact: Arrays, real: Arrays, wide: Arrays) -> list[str]:
    """Return which results err by more than three times as much, in the Euclidean norm."""
    found = []
    for k, (a, b, want) in enumerate(zip(exact, real, wide, strict=True)):
        want = want.astype(np.float64)
        size = float(np.linalg.norm(want)) or 1.0
        before, after = (float(np.linalg.norm(x.astype(np.float64) - want)) / size for x in (a, b))
        if not after <= 3 * max(before, LEAST):
            found.append(f"{k}: {before:.2g} became {after:.2g}")
    return found


def rewrites(compiled: Any) -> int:
    """Return how many rewrites the program of a compiled function chose."""
    return sum(d.choice == REWRITTEN for d in compiled.program.log.of("search"))


# -- networks ----------------------------------------------------------------------------------------
class Residual(nn.Module):
    """Two convolutions with batch norms beside a projection 1x1 and another of the same image."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.first = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.conv, self.second = nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.beside, self.projection = (nn.Conv2d(8, 16, k, padding=k // 2, bias=False) for k in (3, 1))
        self.head = nn.Linear(16, 10)

    def forward(self, x: st.Tensor) -> st.Tensor:
        x = F.relu(self.first(self.stem(x)))
        y = F.relu(self.second(self.conv(x))) + (self.beside(x) + self.projection(x))
        return self.head(F.relu(y).mean((2, 3)))


def residual(_: Any) -> Residual:
    return Residual()


SMALL = {
    **workloads.SMALL,
    "residual": replace(workloads.SMALL["resnet18"], build=residual, data=images(2, (3, 10, 10))),
}


def learnt(model: nn.Module) -> nn.Module:
    """Return a model with statistics and weights that are not those it is built with."""
    shapes = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    model.load_state_dict(draw(shapes))
    return model


def forward(model: nn.Module) -> Callable[..., Any]:
    model.eval()
    return lambda *inputs: [model(*inputs)]


def training(workload: Workload, model: nn.Module, rest: Sequence[Any]) -> Callable[..., Any]:
    """Return a function of a batch: its loss and the gradients of all parameters."""
    model.train()
    parameters = list(model.parameters())

    def step(x: Any, y: Any) -> list[Any]:
        for p in parameters:
            p.grad = None
        loss = workload.loss(nn, model, x, y, *rest)
        loss.backward()
        return [loss, *(p.grad for p in parameters)]

    return step


def compared(
    function: Callable[..., Any], widen: Callable[[], Any], *draws: Sequence[Any]
) -> tuple[list[str], int]:
    """Run a function in both arithmetics, then in float64; return what is worse over all draws of inputs
    together, and how many rewrites.
    """
    runs, real = [], st.compile(function, math="real")
    for run in (st.compile(function), real):
        runs.append(_together([run(*inputs) for inputs in draws]))
    widen()
    wide = [[t.double() if t.dtype is st.float32 else t for t in inputs] for inputs in draws]
    return worse(*runs, _together([function(*inputs) for inputs in wide])), rewrites(real)


def _together(results: Sequence[Sequence[Any]]) -> list[Any]:
    return [np.stack([np.array(t.numpy()) for t in one]) for one in zip(*results, strict=True)]


def of_workload(workload: Workload, *, trained: bool) -> tuple[list[str], int]:
    st.manual_seed(0)
    model = workload.build(nn)
    rng = np.random.default_rng(0)
    x, y = (st.tensor(a) for a in workload.data(rng))
    rest = [st.tensor(a) for a in workload.rest(rng)]
    if trained:
        return compared(training(workload, model, rest), model.double, [x, y])
    with st.no_grad():
        return compared(forward(learnt(model)), model.double, [x, *rest])


TRAINED = pytest.mark.parametrize("trained", [False, True], ids=["forward", "gradients"])


@pytest.mark.row("C2")
@pytest.mark.row("C3")
def test_a_network_errs_at_most_three_times_as_much_with_real_arithmetic() -> None:
    found, count = of_workload(SMALL["residual"], trained=False)
    assert not found and count


@pytest.mark.row("C10")
def test_gradients_err_at_most_three_times_as_much_with_real_arithmetic() -> None:
    assert not of_workload(SMALL["mlp"], trained=True)[0]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.row("C10")
@TRAINED
@pytest.mark.parametrize("name", sorted(SMALL))
def test_small_workloads_err_at_most_three_times_as_much(name: str, trained: bool) -> None:
    assert not of_workload(SMALL[name], trained=trained)[0]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.row("C10")
@TRAINED
@pytest.mark.parametrize("name", sorted(workloads.FULL))
def test_workloads_of_full_size_err_at_most_three_times_as_much(name: str, trained: bool) -> None:
    assert not of_workload(workloads.FULL[name], trained=trained)[0]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.row("C10")
@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_networks_of_full_size_err_at_most_three_times_as_much(name: str) -> None:
    model = learnt(NETWORKS[name].build(nn))
    draws = [[st.tensor(a) for a in NETWORKS[name].inputs(np.random.default_rng(seed))] for seed in range(4)]
    with st.no_grad():
        assert not compared(forward(model), model.double, *draws)[0]


# -- random programs ---------------------------------------------------------------------------------
def programs_that_are_worse(seeds: range) -> tuple[list[str], int]:
    """Compile random graphs in both arithmetics; return what is worse, and how many were rewritten."""
    found, rewritten = [], 0
    for seed in seeds:
        rng = np.random.default_rng(seed)
        plain = random_graph(rng)
        roots = [B.tanh(o) for o in plain.outputs]
        graph = Graph(plain.inputs, roots)
        arrays = [rng.standard_normal(i.shape).astype(np.float32) * np.float32(0.5) for i in graph.inputs]
        wide, _ = interpret(in_dtype(graph, float64), [a.astype(np.float64) for a in arrays])
        runs = []
        for math in ("exact", "real"):
            with settings.math(math):
                program = compile_graph(graph)
            given = [Storage.copy_of(a, i.aval) for a, i in zip(arrays, graph.inputs, strict=True)]
            runs.append([np.array(o.array) for o in program.run(given)])
        rewritten += any(d.choice == REWRITTEN for d in program.log.of("search"))
        found += [f"seed {seed}, {text}" for text in worse(*runs, list(map(np.asarray, wide)))]
    return found, rewritten


@pytest.mark.row("C10")
def test_random_programs_err_at_most_three_times_as_much_with_real_arithmetic() -> None:
    found, rewritten = programs_that_are_worse(range(5))
    assert not found and rewritten


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.row("C10")
def test_many_random_programs_err_at_most_three_times_as_much_with_real_arithmetic() -> None:
    found, rewritten = programs_that_are_worse(range(100, 600))
    assert not found and rewritten >= 50
