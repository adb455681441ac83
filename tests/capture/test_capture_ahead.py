"""A capture ahead of any call is the one that the first call makes, and leaves nothing behind."""

from __future__ import annotations

import numpy as np
import pytest

import stratal as st
from stratal import nn, optim
from stratal.base.errors import CaptureError
from stratal.tensor.capture.ahead import captured_ahead


def test_a_capture_ahead_has_the_graph_of_the_first_call_and_changes_nothing() -> None:
    net = nn.Linear(4, 2)
    opt = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    seen: list[int] = []

    @st.compile
    def step(x: st.Tensor) -> st.Tensor:
        seen.append(len(seen))
        loss = (net(x) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    weight = net.weight.numpy().copy()
    ahead = captured_ahead(step, st.ones((3, 4)))
    assert step.captures == 0 and seen == [] and net.weight.grad is None
    assert np.array_equal(net.weight, weight)
    step(st.ones((3, 4)))
    assert step.captures == 1 and seen == [0] and step.graph.digest == ahead.graph.digest


def test_what_cannot_be_captured_is_refused_ahead_too() -> None:
    step = st.compile(lambda x: x if float(x.sum()) > 0 else -x)
    with pytest.raises(CaptureError):
        captured_ahead(step, st.ones(3))
