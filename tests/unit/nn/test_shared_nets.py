"""Small networks of odd sizes applied to two inputs: all gradients are the interpreter's."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal import nn
from stratal.base import settings
from stratal.schedule import select
from stratal.schedule.result import Candidate


@pytest.fixture(autouse=True)
def _nothing_is_kept() -> Iterator[None]:
    """What is forced here must not be found by others."""
    with settings.cache_dir(None):
        yield


ACTIVATIONS = (nn.ReLU, nn.LeakyReLU, nn.Tanh, nn.GELU, nn.Identity)


def layer(rng: random.Random, dims: int, shape: tuple[int, ...]) -> Any:
    """Return a layer that takes images of this shape, channels first; a transposed one now and then."""
    channels, out = shape[0], rng.choice((3, 7, 9, 11, 14, 17))
    kinds = {1: (nn.Conv1d, nn.ConvTranspose1d), 2: (nn.Conv2d, nn.ConvTranspose2d)}[dims]
    kernel = rng.choice((1, 2, 3, 5, 5, 5))
    while kernel > min(shape[1:]) + 2:
        kernel -= 1
    options = {"stride": rng.choice((1, 2, 2, 2, 3)), "bias": rng.random() < 0.4}
    if rng.random() < 0.25:
        return kinds[1](channels, out, kernel, padding=min(1, kernel - 1), **options)
    return kinds[0](channels, out, kernel, padding=rng.choice((1, 1, kernel // 2)), **options)


def network(seed: int) -> tuple[Any, tuple[int, ...]]:
    """Return a network and the shape of a batch it takes."""
    rng = random.Random(seed)
    dims, batch = rng.choice((1, 2, 2, 2)), rng.choice((1, 4, 4, 5))
    shape = (rng.choice((1, 2, 3)), *(rng.choice((7, 8, 9, 11)) for _ in range(dims)))
    first, layers = shape, []
    for _ in range(rng.choice((2, 2, 3))):
        layers += [layer(rng, dims, shape), rng.choice(ACTIVATIONS)()]
        shape = tuple(nn.Sequential(*layers)(st.zeros((1, *first))).shape[1:])
        if min(shape[1:]) < 2:
            break
    if rng.random() < 0.4:
        layers += [nn.Flatten(), nn.Linear(int(np.prod(shape)), 3, bias=False)]
    return nn.Sequential(*layers), (batch, *first)


def gradients(net: Any, images: list[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    """Return the gradients of every parameter and of both inputs."""
    net.zero_grad()
    inputs = [st.tensor(a).requires_grad_(True) for a in images]
    loss = sum((net(x) ** 2).sum() for x in inputs)
    loss.backward()
    return [np.array(t.grad) for t in (*net.parameters(), *inputs)]


def more(*values: int) -> list[Any]:
    """Return parameters of the long run."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


@pytest.mark.sampled(15)
@pytest.mark.parametrize("seed", [*range(8), *more(*range(8, 200))])
def test_gradients_of_a_net_that_two_inputs_share_are_right(seed: int) -> None:
    check(*network(seed))


def check(net: Any, shape: tuple[int, ...]) -> None:
    """Compare the gradients of a net over two batches with those of the interpreter."""
    rng = np.random.default_rng(0)
    images = [rng.standard_normal(shape).astype(np.float32) for _ in range(2)]
    got = gradients(net, images)
    with st.eager():
        want = gradients(net, images)
    for a, b in zip(got, want, strict=True):
        assert np.max(np.abs(a - b)) <= 2e-4 * max(1.0, float(np.max(np.abs(b))))


@pytest.mark.sampled(10)
@pytest.mark.parametrize(("way", "batch"), [("as chosen", 4), ("winograd", 5)])
@pytest.mark.parametrize("size", [7, 11, *more(8)])
@pytest.mark.parametrize("channels", [7, 16, 23, *more(9)])
def test_phases_of_any_number_of_channels_are_stored_where_they_go(
    monkeypatch: pytest.MonkeyPatch, channels: int, size: int, way: str, batch: int
) -> None:
    """Loops over whole vectors of filters pass the last phase, and store nothing there."""
    known = select.candidates

    def offered(*problem: Any) -> list[Candidate]:
        found = list(known(*problem))
        return [c for c in found if c.algorithm.startswith(way)] or found

    monkeypatch.setattr(select, "candidates", offered)
    net = nn.Sequential(
        nn.Conv2d(2, channels, 5, 2, 1, bias=False),
        nn.LeakyReLU(0.2),
        nn.Conv2d(channels, 2 * channels, 5, 2, 1, bias=False),
    )
    check(net, (batch, 2, size, size))
