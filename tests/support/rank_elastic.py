"""Run on every rank of an elastic job: training by virtual shards; the rank 0 that is left prints a digest.

    rank_elastic.py --steps 12 --pause 0.1 --snapshot FILE --fault kill:2:3:before ...

A fault is of the rank that had that number when the job started for the first time.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import time
from typing import Any

import numpy as np

import stratal as st
from stratal import distributed as dist
from stratal import nn, optim
from stratal.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=8)
parser.add_argument("--pause", type=float, default=0.0)
parser.add_argument("--snapshot")
parser.add_argument("--fault", action="append", default=[])
options = parser.parse_args()
SHARDS, BATCH = 8, 24
BORN = dist.rank()


class Losses(list[float]):
    def state_dict(self) -> dict[str, Any]:
        return {"losses": list(self)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self[:] = state["losses"]


st.manual_seed(5)
net = nn.Sequential(nn.Linear(9, 33), nn.Tanh(), nn.Dropout(0.2), nn.Linear(33, 4))
optimizer = optim.AdamW(net.parameters(), lr=1e-2, eps=1e-3)
x = np.random.default_rng(1).standard_normal((options.steps * BATCH, 9)).astype(np.float32)
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), BATCH, shuffle=True, seed=3)
losses = Losses()


def train_step(x: Any, y: Any) -> Any:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


compiled = st.compile(train_step)


def fault(moment: str) -> None:
    for text in [] if resumed else options.fault:
        kind, rank, step, when = text.split(":")
        if (int(rank), int(step), when) != (BORN, len(losses), moment):
            continue
        if kind == "raise":
            raise ValueError("broken rank")
        if kind == "shape":
            dist.all_reduce(np.ones(3))
        os.kill(os.getpid(), signal.SIGSTOP if kind == "stop" else signal.SIGKILL)


def step(x: Any, y: Any) -> Any:
    fault("inside")  # the step as a whole: some of its shards
    return compiled(x, y)


taken = dist.parallel(step, dist.data(optimizer, virtual_shards=SHARDS, elastic=True))
snapshot = dist.Snapshot(
    options.snapshot or "none.stratal", net=net, optimizer=optimizer, loader=loader, losses=losses
)
resumed = bool(options.snapshot) and snapshot.load()
for batch in loader:
    fault("before")
    losses.append(float(taken(*batch)))
    if dist.rank() == 0:
        done = f"did step {len(losses)} at {time.monotonic():.3f}"
        print(f"process {os.getpid()} of {dist.world_size()} {done}", flush=True)
    if options.snapshot:
        snapshot.save(every=2)
    time.sleep(options.pause)
fault("behind")
if dist.rank() == 0:
    arrays = [np.float64(losses), *(p.detach().numpy() for p in net.parameters())]
    digest = hashlib.sha256(b"".join(a.tobytes() for a in arrays)).hexdigest()[:16]
    print(f"digest {digest} of {len(losses)} steps on {dist.world_size()} ranks", flush=True)
