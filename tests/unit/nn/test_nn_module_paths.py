"""What a capture makes knows the module that made it, by its path below the root."""

from __future__ import annotations

from typing import Any

import numpy as np

import stratal as st
from stratal import nn


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return self.lin(x).relu() + x


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return x.exp()


def modules_of(function: Any) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for node in function.graph.nodes:
        for line in node.where:
            found.setdefault(node.op.name, set()).add(line.module)
    return found


def test_nodes_of_a_capture_know_their_module_and_gradients_too() -> None:
    net = Net()

    @st.compile
    def step(x: Any) -> Any:
        loss = (net(x) * 2).sum()
        loss.backward()
        return loss

    step(st.tensor(np.ones((2, 4), np.float32))).item()
    found = modules_of(step)
    assert found["contract"] == {"Net.blocks.0.lin", "Net.blocks.1.lin"}
    assert found["exp"] == {"Net"}
    assert "" in found["sum"]


def test_a_module_that_is_no_part_of_the_one_that_runs_is_its_own_root() -> None:
    outside = nn.Linear(4, 4)

    class Caller(nn.Module):
        def forward(self, x: Any) -> Any:
            return held[0](x).exp()

    held = [outside]
    caller = Caller()
    run = st.compile(lambda x: caller(x).sum())
    run(st.tensor(np.ones((2, 4), np.float32))).item()
    found = modules_of(run)
    assert found["contract"] == {"Linear"}
    assert found["exp"] == {"Caller"}


def test_hooks_run_once_in_a_capture() -> None:
    net, calls = nn.Linear(4, 4), []
    net.register_forward_hook(lambda module, args, result: calls.append(1))
    run = st.compile(lambda x: net(x).sum())
    x = st.tensor(np.ones((2, 4), np.float32))
    want = net(x).sum().item()
    calls.clear()
    assert run(x).item() == want
    assert len(calls) == 1
