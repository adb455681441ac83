"""Slices and batches of tensors that are computed later: few programs, and what stands there at the time."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

import stratal as st
from stratal import nn, optim
from stratal.tensor.lazy import program_cache


def test_batches_cut_from_a_data_set_are_not_compiled_one_by_one() -> None:
    data, net = st.randn(500, 8), nn.Sequential(nn.Linear(8, 4), nn.GELU(), nn.Linear(4, 8))
    opt, rng = optim.Adam(net.parameters()), random.Random(0)

    def step(x: Any) -> float:
        loss = (net(x) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return float(loss)

    def batch() -> Any:
        return st.stack([data[i : i + 16] for i in rng.sample(range(400), 3)])

    for _ in range(4):
        step(batch())
        batch().numpy()
    before = program_cache.COMPILED[0]
    for _ in range(6):
        step(batch())
        assert batch().shape == (3, 16, 8)
        batch().numpy()
    assert program_cache.COMPILED[0] == before


def test_slices_that_were_copied_are_what_stands_there_now() -> None:
    data = st.arange(20.0)
    for k in range(6):
        part = data[k : k + 3]
        y = part * 2
        data.mul_(1.5)
        assert y.tolist() == [2 * v for v in (np.arange(20.0) * 1.5**k)[k : k + 3]]
        assert part.tolist() == data.tolist()[k : k + 3]


def test_complex_constants_differ_by_the_signs_of_their_zeros() -> None:
    found = [(st.ones(1) * complex(zero, 1)).real.item() for zero in (-0.0, 0.0)]
    assert [*map(str, found)] == [str((1 * complex(zero, 1)).real) for zero in (-0.0, 0.0)]


def test_many_runs_over_slices_end() -> None:
    rng = random.Random(0)
    data = st.randn(40)
    for _ in range(300):
        start = rng.randrange(30)
        part = data[start : start + 5]
        whole = (part, data[start + 1 : start + 6] * 2, st.cat([part, data[:2]]))
        [x.tolist() for x in rng.sample(whole, rng.randrange(1, 4))]
