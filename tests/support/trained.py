"""A small problem and a small net, for tests of the trainer."""

from __future__ import annotations

from typing import Any

import numpy as np

import stratal as st
from stratal import nn, optim
from stratal.train import Trainer

LOSS = nn.functional.cross_entropy
RNG = np.random.default_rng(0)
X = RNG.normal(size=(70, 6)).astype(np.float32)
Y = (X[:, 0] + X[:, 1] > 0).astype(np.int64)


def small(seed: int = 0, dropout: float = 0.0) -> nn.Module:
    st.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 2))


def trainer_of(net: nn.Module, lr: float = 0.01, **options: Any) -> Trainer:
    return Trainer(net, loss=LOSS, optimizer=optim.Adam(net.parameters(), lr=lr), **options)


def bits(net: nn.Module) -> bytes:
    return b"".join(np.asarray(p.detach()).tobytes() for p in net.state_dict().values())


def batches(size: int = 32) -> list[tuple[Any, Any]]:
    return [(X[k : k + size], Y[k : k + size]) for k in range(0, len(X), size)]
