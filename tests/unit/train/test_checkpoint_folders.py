"""Folders of checkpoints: one run at a time, names that are taken, and what makes a manager."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from resumed_training import X, Y

import stratal as st
from stratal import nn, optim
from stratal.base.errors import AttributeValueError
from stratal.data import DataLoader, TensorDataset
from stratal.formats.files import FileWriteError
from stratal.train import CheckpointManager, Trainer

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["stratal.train"])


def small() -> Trainer:
    st.manual_seed(0)
    net = nn.Linear(6, 2)
    opt = optim.Adam(net.parameters(), lr=0.01)
    return Trainer(net, loss=nn.functional.cross_entropy, optimizer=opt)


@pytest.mark.parametrize("folder", [None, "a\0b", 3, b"a"])
def test_what_is_no_path_of_a_folder_is_refused(folder: Any) -> None:
    with pytest.raises(AttributeValueError, match="takes the path of a folder"):
        CheckpointManager(folder)


def train_in(folder: Path, begun: Any, go_on: Any) -> None:
    class Waits:
        def on_epoch_begin(self, trainer: Any) -> None:
            begun.set()
            go_on.wait(60)

    trainer = small()
    trainer.callbacks.append(Waits())
    trainer.fit((X, Y), batch_size=8, checkpoints=CheckpointManager(folder), resume=True, progress=False)


@pytest.mark.parametrize("ends", ["by itself", "killed"])
def test_a_folder_has_one_run_at_a_time_and_is_free_when_that_has_ended(ends: str, tmp_path: Path) -> None:
    begun, go_on = PROCESSES.Event(), PROCESSES.Event()
    other = PROCESSES.Process(target=train_in, args=(tmp_path / "run", begun, go_on), daemon=True)
    other.start()
    assert begun.wait(60)
    before = sorted(tmp_path.rglob("*"))

    def fit() -> None:
        small().fit((X, Y), batch_size=8, checkpoints=CheckpointManager(tmp_path / "run"), resume=True,
                    progress=False)  # fmt: skip

    for _ in range(2):
        with pytest.raises(AttributeValueError, match="one run at a time"):
            fit()
    assert sorted(tmp_path.rglob("*")) == before
    if ends == "killed":
        other.kill()
    else:
        go_on.set()
    other.join(60)
    assert other.exitcode == (0 if ends == "by itself" else -9)
    fit()
    fit()
    assert CheckpointManager(tmp_path / "run").paths()


def test_a_folder_is_free_after_a_run_that_failed(tmp_path: Path) -> None:
    class Fails:
        def on_fit_begin(self, trainer: Any) -> None:
            raise KeyError("on purpose")

    manager = CheckpointManager(tmp_path)
    for _ in range(2):
        with pytest.raises(KeyError):
            trainer = small()
            trainer.callbacks.append(Fails())
            trainer.fit((X, Y), checkpoints=manager)
    small().fit((X, Y), batch_size=8, checkpoints=CheckpointManager(tmp_path), progress=False)


@pytest.mark.parametrize("shard_bytes", [None, 1 << 20])
def test_a_name_of_a_checkpoint_that_is_taken_is_said_and_not_for_want_of_room(
    shard_bytes: int | None, tmp_path: Path
) -> None:
    trainer = small()
    taken = tmp_path / f"step-{3 * -(-len(X) // 8):09d}.{'stratal' if shard_bytes is None else 'shards'}"

    class Takes:
        def on_epoch_begin(self, trainer: Any) -> None:
            if trainer.epoch == 2:
                taken.write_text("mine") if shard_bytes else taken.mkdir()

    trainer.callbacks.append(Takes())
    with pytest.raises(FileWriteError, match=f"move away what has the name {taken.name}"):
        trainer.fit((X, Y), batch_size=8, epochs=3, progress=False,
                    checkpoints=CheckpointManager(tmp_path, shard_bytes=shard_bytes))  # fmt: skip
    assert taken.exists()


def test_counts_are_of_numpy_too_and_neither_fractions_nor_truths(tmp_path: Path) -> None:
    for count in (1, np.int64(1), np.uint8(1)):
        trainer = small()
        manager = CheckpointManager(tmp_path / repr(count), keep_last=count, keep_best=count, every=count,
                                    monitor="loss")  # fmt: skip
        trainer.fit((X, Y), epochs=count, batch_size=8 * count, checkpoints=manager, progress=False)
        assert trainer.epoch == 1
        loader = DataLoader(TensorDataset(X), 8 * count, num_workers=count, prefetch_factor=count)
        assert len(list(loader)) == -(-len(X) // 8)


@pytest.mark.parametrize("wrong", [1.5, True, 0, np.float32(1), "1", np.int64(-1)])
def test_what_is_no_count_is_refused(wrong: Any, tmp_path: Path) -> None:
    rows = TensorDataset(X)
    for call in (
        lambda: CheckpointManager(tmp_path, every=wrong),
        lambda: CheckpointManager(tmp_path, keep_last=wrong),
        lambda: small().fit((X, Y), epochs=wrong),
        lambda: small().fit((X, Y), batch_size=wrong),
        lambda: Trainer(small().net, loss=nn.functional.cross_entropy, accumulate=wrong,
                        optimizer=optim.SGD(small().net.parameters(), lr=0.1)),
        lambda: DataLoader(rows, wrong),
        lambda: DataLoader(rows, num_workers=1, prefetch_factor=wrong),
    ):
        with pytest.raises(AttributeValueError, match="a whole number from 1 on"):
            call()
