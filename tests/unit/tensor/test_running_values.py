"""What a training keeps from step to step, such as sums and averages, takes the same time in every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from python_calls import calls_and_depth

import stratal as st
from stratal import nn, optim
from stratal.tensor.lazy import program_cache

Update = Callable[[Any, Any, Any], Any]  # of what was kept, by a loss and a weight
KEPT: dict[str, tuple[Any, Update]] = {
    "sum": (0.0, lambda kept, loss, weight: kept + loss),
    "sum of numbers": (0.0, lambda kept, loss, weight: kept + float(loss)),
    "least": (1e9, lambda kept, loss, weight: st.minimum(loss, kept)),
    "average": (0.0, lambda kept, loss, weight: 0.75 * kept + 0.25 * loss),
    "average of weights": (0.0, lambda kept, loss, weight: 0.75 * kept + 0.25 * weight),
    "counts": (0.0, lambda kept, loss, weight: kept + (st.arange(8) == 3).float() * loss),
    "list": ((), lambda kept, loss, weight: (*kept, loss)),
}
SECOND = 128  # steps before the second measurement


class Run:
    """A training on made-up numbers, with something kept."""

    def __init__(self, update: Update, start: Any, compiled: bool) -> None:
        st.manual_seed(0)
        self.net = nn.Linear(4, 3)
        self.opt = optim.SGD(self.net.parameters(), lr=0.01)
        self.x, self.update, self.kept = st.randn(8, 4), update, start
        self.step = st.compile(self.plain) if compiled else self.plain

    def plain(self) -> Any:
        loss = (self.net(self.x) ** 2).mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss

    def steps(self, count: int) -> None:
        for _ in range(count):
            loss = self.step().detach()
            self.kept = self.update(self.kept, loss, self.net.weight.detach())


@pytest.mark.sampled(45)
@pytest.mark.parametrize("compiled", [False, True], ids=["lazy", "compiled"])
@pytest.mark.parametrize("kind", KEPT)
def test_later_steps_take_no_more_calls_and_few_programs(kind: str, compiled: bool) -> None:
    start, update = KEPT[kind]
    run = Run(update, start, compiled)
    before = program_cache.COMPILED[0]
    run.steps(64)
    first, _ = calls_and_depth(lambda: run.steps(64))
    run.steps(SECOND)
    later, _ = calls_and_depth(lambda: run.steps(64))
    assert later <= 1.25 * first + 500
    assert program_cache.COMPILED[0] - before <= 8
    with st.eager():
        slow = Run(update, start, False)
        slow.steps(64 + 64 + SECOND + 64)
    found, want = (np.array([float(v) for v in k]) if isinstance(k, tuple) else np.asarray(k)
                   for k in (run.kept, slow.kept))  # fmt: skip
    np.testing.assert_allclose(found, want, rtol=2e-5, atol=1e-6)  # an average may end near 0
