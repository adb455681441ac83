"""A training run that may be killed at any moment, for tests that compare it with one that was not."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import stratal as st
from stratal import nn, optim
from stratal.data import DataLoader, TensorDataset
from stratal.train import EMA, CheckpointManager, EarlyStopping, Schedule, Trainer

EPOCHS = 6
X = np.random.default_rng(0).normal(size=(90, 6)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)


class Augmented:
    """Rows with noise of NumPy's global generator: what is read depends on all that was drawn before."""

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, k: int) -> Any:
        return X[k] + 0.01 * np.random.normal(size=6).astype(np.float32), Y[k]


class Stream:
    """Batches without a loader or a length, in an order and with noise of NumPy's global generator."""

    def __iter__(self) -> Iterator[Any]:
        order = np.random.permutation(90)
        for k in range(0, 90, 16):
            rows = order[k : k + 16]
            yield X[rows] + 0.01 * np.random.normal(size=(len(rows), 6)), Y[rows]


def trainer(options: dict[str, Any]) -> Trainer:
    st.manual_seed(3)
    np.random.seed(3)
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))
    opt = optim.AdamW(net.parameters(), lr=0.01)
    schedule = Schedule(optim.lr_scheduler.CosineAnnealingLR(opt, T_max=30), per="step")
    return Trainer(
        net, loss=nn.functional.cross_entropy, optimizer=opt,
        metrics=[st.metrics.Accuracy(task="multiclass", num_classes=2)],
        callbacks=[EMA(net, 0.9), schedule, EarlyStopping(patience=5, restore_best=True)], **options,
    )  # fmt: skip


def run(folder: Path, data: str, options: dict[str, Any], every: int = 1) -> str:
    """Train, or go on where another process was killed, and return a hash of all that came of it."""
    made = trainer(options)
    sources: dict[str, Any] = {
        "arrays": (X, Y), "shards": (X, Y), "stream": Stream(),
        "loader": DataLoader(Augmented(), batch_size=16, shuffle=True, generator=st.Generator(5)),
    }  # fmt: skip
    shard_bytes = 300 if data == "shards" else None
    manager = CheckpointManager(folder, keep_best=1, every=every, shard_bytes=shard_bytes)
    sizes = {"batch_size": 16} if data in ("arrays", "shards") else {}
    validation = DataLoader(TensorDataset(X, Y), batch_size=90)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        history = made.fit(
            sources[data], epochs=EPOCHS, validation=validation, checkpoints=manager, resume=True, **sizes
        )
    found = hashlib.sha256(repr(history.results()).encode())
    state = made.state_dict()
    for value in [*state["net"].values(), *state["callbacks"][0][1].values(), state["random"]["stratal"]]:
        found.update(np.asarray(value.detach()).tobytes())
    for entries in state["optimizer"]["state"].values():
        for value in entries.values():
            found.update(np.asarray(value).tobytes())
    return found.hexdigest()


def work(folder: Path, data: str, options: dict[str, Any], every: int) -> None:
    """Run in a process of its own; leave the hash in a file beside the folder."""
    (folder.parent / "result").write_text(run(folder, data, options, every))
