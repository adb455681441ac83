"""Run on every rank, with the name of a strategy and of what rank 1 does in the third step."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import stratal as st
from stratal import distributed as dist
from stratal import nn, optim

STRATEGY, FAULT = sys.argv[1:3]
RANK = dist.rank()
STRATEGIES = {
    "data": dist.data,
    "local steps": lambda: dist.data(local_steps=2),
    "virtual shards": lambda: dist.data(virtual_shards=6),
    "servers": dist.parameter_server,
    "zero 1": lambda: dist.zero(1),
    "zero 2": lambda: dist.zero(2),
    "zero 3": lambda: dist.zero(3),
}
OUTSIDE = ("data", "zero 1", "zero 2", "zero 3")  # compiled as a whole

net = nn.Linear(4, 3)
optimizer = optim.SGD(net.parameters(), lr=0.1)
odd = {"on": False}


def step(x: Any) -> Any:
    optimizer.zero_grad()
    if odd["on"] and FAULT == "raises":
        raise ValueError("broken rank")
    loss = (net(x) ** 2).mean() * (3.0 if odd["on"] and FAULT == "another program" else 1.0)
    loss.backward()
    optimizer.step()
    return loss.detach()


taken = dist.parallel(step if STRATEGY in OUTSIDE else st.compile(step), STRATEGIES[STRATEGY]())
taken = st.compile(taken) if STRATEGY in OUTSIDE else taken
for number in range(6):
    odd["on"] = RANK == 1 and number >= 2
    if odd["on"] and FAULT == "stops":
        os.kill(os.getpid(), signal.SIGSTOP)
    rows = 12 if odd["on"] and FAULT == "another shape" else 6
    taken(st.ones((rows, 4)) * (2.0 if FAULT == "raises" and odd["on"] else 1.0))
dist.barrier()
print("not noticed")
