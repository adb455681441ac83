"""How many programs ordinary training compiles: a schedule, accumulation, train and eval in turn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal import nn, optim
from stratal.base import settings
from stratal.base.session import SESSION
from stratal.tensor import build
from stratal.tensor.lazy import program_cache

STEPS = 200


def batches(count: int) -> list[tuple[Any, Any]]:
    rng = np.random.default_rng(0)
    return [
        (st.tensor(rng.standard_normal((16, 4)).astype(np.float32)), st.tensor(rng.integers(0, 3, 16)))
        for _ in range(count)
    ]


@pytest.fixture
def as_new() -> None:
    """Forget which Python numbers changed where, and kept graphs: other tests ran the same lines."""
    SESSION.reset()


@pytest.mark.sampled(7)
@pytest.mark.usefixtures("as_new")
@pytest.mark.parametrize("optimizer", [optim.AdamW, lambda p, lr: optim.SGD(p, lr, momentum=0.9)])
@pytest.mark.parametrize("style", ["lazy", "compiled"])
def test_training_with_everything_that_changes_compiles_three_programs_at_most(
    style: str, optimizer: Any
) -> None:
    st.manual_seed(1)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 3))
    opt = optimizer(net.parameters(), 0.05)
    schedule = optim.lr_scheduler.CosineAnnealingLR(opt, STEPS)
    data = batches(6)

    def accumulate(x: Any, y: Any) -> Any:
        loss = nn.functional.cross_entropy(net(x), y) / 2
        loss.backward()
        return loss

    def update() -> None:
        opt.step()
        opt.zero_grad(set_to_none=style == "lazy")

    def predict(x: Any) -> Any:
        with st.no_grad():
            return net(x).argmax(1)

    if style == "compiled":
        for p in net.parameters():
            p.grad = st.zeros_like(p)
        accumulate, update, predict = map(st.compile, (accumulate, update, predict))
    before = program_cache.COMPILED[0]
    rates, losses = set(), []
    for k in range(STEPS):
        net.train()
        for half in range(2):
            loss = accumulate(*data[(2 * k + half) % 6])
        update()
        losses.append(float(loss))
        rates.add(schedule.get_last_lr()[0])
        schedule.step()
        net.eval()
        predict(data[k % 6][0]).numpy()
    assert program_cache.COMPILED[0] - before <= 3
    assert len(rates) > STEPS // 2
    assert np.mean(losses[-20:]) < np.mean(losses[:20])


@pytest.mark.usefixtures("as_new")
def test_a_composites_own_numbers_stay_constants_and_the_callers_become_inputs() -> None:
    x = st.ones(3)

    def varying(times: float) -> int:
        """Return how many places have numbers that change after calls with two constants and `times`."""
        found = np.asarray(x.clamp(0.1, 0.7) * times)
        np.testing.assert_array_equal(found, np.full(3, np.float32(0.7) * np.float32(times)))
        return list(build._SITES.values()).count(build._VARIES)

    assert [varying(times) for times in (2.0, 2.0, 2.0)] == [0, 0, 0]
    places = varying(3.0)  # where the call is kept, and where the number enters the graph
    before = program_cache.COMPILED[0]
    assert places > 0 and [varying(times) for times in (4.0, 5.0)] == [places, places]
    assert program_cache.COMPILED[0] == before


def test_programs_made_under_other_settings_are_other_programs() -> None:
    """Two functions of equal graphs share a program only while what shapes code is the same."""
    x = st.ones((64, 64))
    made = []
    for target, threads in (("host", 1), ("haswell", 1), ("haswell", 2), ("host", 1)):
        with settings.target(target), settings.threads(threads):
            step = st.compile(lambda a: (a @ a).sum())
            step(x)
            (st.ones((3, 3)) * threads).numpy()
            made.append(step)
    programs_made = [step.program for step in made]
    assert programs_made[0] is programs_made[3]
    assert len(set(map(id, programs_made))) == 3
    assert [p.made.target.name for p in programs_made[1:3]] == ["haswell", "haswell"]
    assert [p.executable.threads for p in programs_made[:3]] == [1, 1, 2]


def test_a_reason_names_what_differs_from_the_capture_that_is_most_alike() -> None:
    scaled = st.compile(lambda x, t: x * t, dynamic=False)
    for x, t in ((st.ones(64), 1.0), (st.ones(29), 1.0), (st.ones(64), 0.5)):
        scaled(x, t)
    assert scaled.reasons[1:] == [
        "argument 'x' changed from f32[64] to f32[29]",
        "argument 't' changed from 1.0 to 0.5",
    ]
