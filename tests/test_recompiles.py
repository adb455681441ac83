"""How many programs ordinary training compiles: a schedule, accumulation, train and eval in turn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal import nn, optim
from stratal.tensor import programs

STEPS = 200


def batches(count: int) -> list[tuple[Any, Any]]:
    rng = np.random.default_rng(0)
    return [
        (st.tensor(rng.standard_normal((16, 4)).astype(np.float32)), st.tensor(rng.integers(0, 3, 16)))
        for _ in range(count)
    ]


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
    before = programs.COMPILED[0]
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
    assert programs.COMPILED[0] - before <= 3
    assert len(rates) > STEPS // 2
    assert np.mean(losses[-20:]) < np.mean(losses[:20])
