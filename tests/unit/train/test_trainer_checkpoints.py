"""Checkpoints: a run that was killed at any moment and resumed has the bits of the run that was not."""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
import resource
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import resumed_training
from resumed_training import X, Y
from waiting import exit_code

import stratal as st
from stratal import nn, optim
from stratal.base.errors import FormatError, StratalError
from stratal.formats.files import FileWriteError
from stratal.train import CheckpointManager, DamagedCheckpointWarning, Trainer

PROCESSES = multiprocessing.get_context("forkserver")  # of one that has imported Stratal: started in no time
PROCESSES.set_forkserver_preload(["stratal.train", "stratal.data", "stratal.metrics"])  # not from this path
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "arrays": ("arrays", {}),
    "stream": ("stream", {"precision": "float16"}),
    "loader": ("loader", {"accumulate": 2, "clip_norm": 1.0}),
}


def small() -> Trainer:
    st.manual_seed(0)
    net = nn.Linear(6, 2)
    opt = optim.Adam(net.parameters(), lr=0.01)
    return Trainer(net, loss=nn.functional.cross_entropy, optimizer=opt)


def names(folder: Path) -> list[int]:
    return [int(p.name[5:14]) for p in CheckpointManager(folder).paths()]


class StopsAt:
    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_step_end(self, trainer: Any) -> None:
        if trainer.steps == self.steps:
            raise KeyboardInterrupt


@pytest.mark.row("B6")
@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_interrupted_in_the_middle_of_epochs_and_resumed_has_the_bits_of_one_that_was_not(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, options = KINDS[kind]
    expected = resumed_training.run(tmp_path / "whole", data, options)
    made = resumed_training.trainer
    for steps in (2, 9):

        def interrupted(options: dict[str, Any], at: int = steps) -> Trainer:
            trainer = made(options)
            monkeypatch.setattr(trainer, "_updated", _interrupted(trainer._updated, trainer, at))
            return trainer

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(resumed_training, "trainer", interrupted)
            resumed_training.run(tmp_path / "cut", data, options)
        assert names(tmp_path / "cut")[-1] == steps
    np.random.seed(99)
    assert resumed_training.run(tmp_path / "cut", data, options) == expected
    assert resumed_training.run(tmp_path / "cut", data, options) == expected  # nothing is left to do


def _interrupted(updated: Any, trainer: Trainer, steps: int) -> Any:
    def call(*args: Any) -> None:
        updated(*args)
        if trainer.steps == steps:
            raise KeyboardInterrupt

    return call


@pytest.mark.row("B6")
@pytest.mark.sampled(2)
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kills", [2, pytest.param(100, marks=pytest.mark.slow)])
def test_runs_killed_at_random_moments_end_with_the_bits_of_one_that_was_not_and_leave_no_litter(
    tmp_path: Path, kills: int
) -> None:
    draws = random.Random(kills)
    kinds = list(KINDS) if kills > 2 else ["arrays"]
    expected = {kind: resumed_training.run(tmp_path / kind, *KINDS[kind]) for kind in kinds}
    done = 0
    while done < kills:
        kind = draws.choice(kinds)
        folder = tmp_path / f"run{done}" / kind
        for _ in range(draws.randint(2, 6) if kills > 2 else 2):
            process = _started(folder, kind)
            _wait_until_it_trains(folder, process)
            time.sleep(draws.uniform(0.0, 0.1))
            done += process.exitcode is None
            process.kill()
            process.join()
        assert _finished(folder, kind) == expected[kind]
        assert all(p.suffix == ".stratal" for p in folder.iterdir()) and len(list(folder.iterdir())) <= 3


def _started(folder: Path, kind: str) -> Any:
    folder.parent.mkdir(exist_ok=True, parents=True)
    process = PROCESSES.Process(target=resumed_training.work, args=(folder, *KINDS[kind], 1), daemon=True)
    process.start()
    return process


def _finished(folder: Path, kind: str) -> str:
    process = _started(folder, kind)
    process.join(100)
    assert process.exitcode == 0
    return (folder.parent / "result").read_text()


def _wait_until_it_trains(folder: Path, process: Any) -> None:
    before = _newest(folder)
    deadline = time.monotonic() + 60
    while _newest(folder) == before and process.exitcode is None and time.monotonic() < deadline:
        time.sleep(0.005)


def _newest(folder: Path) -> str:
    return max((p.name for p in folder.glob("step-*.stratal")), default="")


def test_the_last_and_the_best_are_kept(tmp_path: Path) -> None:
    values = iter([3.0, 1.0, 2.0, float("nan"), 4.0, 1.5])

    class Scripted:
        def on_epoch_end(self, trainer: Any, row: dict[str, float]) -> None:
            row["value"] = next(values)

    trainer = small()
    trainer.callbacks.append(Scripted())
    manager = CheckpointManager(tmp_path, keep_last=2, keep_best=2, monitor="value")
    trainer.fit([(X, Y)], epochs=5, checkpoints=manager)
    assert names(tmp_path) == [2, 3, 4, 5]
    assert manager.best() == CheckpointManager(tmp_path, monitor="value").best() == manager.paths()[0]
    trainer.fit([(X, Y)], epochs=6, checkpoints=manager, resume=True)
    assert names(tmp_path) == [2, 5, 6]
    assert manager.load(manager.best())["trainer"]["history"][-1]["value"] == 1.0
    most = CheckpointManager(tmp_path, monitor="value", mode="max")
    assert most.best().name == "step-000000005.stratal"


def test_every_so_many_updates_there_is_one_and_at_the_end_of_epochs(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, keep_last=10, every=2)
    small().fit((X, Y), batch_size=30, epochs=2, checkpoints=manager)
    assert names(tmp_path) == [2, 3, 4, 6]


def test_a_damaged_checkpoint_is_passed_over_with_a_warning(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path)
    whole = small()
    whole.fit([(X, Y)], epochs=3, checkpoints=manager)
    last = manager.paths()[-1]
    data = bytearray(last.read_bytes())
    data[len(data) // 2] ^= 1
    last.write_bytes(data)
    with pytest.raises(FormatError):
        manager.load(last)
    resumed = small()
    with pytest.warns(DamagedCheckpointWarning, match=last.name):
        resumed.fit([(X, Y)], epochs=3, checkpoints=manager, resume=True)
    assert names(tmp_path) == [2, 3] and manager.load()["trainer"]["steps"] == 3
    assert np.array_equal(np.asarray(resumed.net.weight.detach()), np.asarray(whole.net.weight.detach()))
    st.save({"epoch": 3}, last)
    with pytest.raises(FormatError, match="not a checkpoint of a Trainer"):
        manager.load(last)


def test_leftovers_of_a_kill_are_removed_at_the_next_start(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, keep_last=1)
    small().fit([(X, Y)], epochs=2, checkpoints=manager)
    (tmp_path / ".step-000000003.stratal.0123456789ab.stratal-draft").write_bytes(b"half")
    st.save({"older": 1}, tmp_path / "step-000000001.stratal")  # killed before it was removed
    (tmp_path / "notes.txt").write_text("mine")
    small().fit([(X, Y)], epochs=2, checkpoints=manager, resume=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["notes.txt", "step-000000002.stratal"]


def _child(work: Any) -> int:
    """Run in a forked child; return its exit code."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = work()
        finally:
            os._exit(code)
    return exit_code(child)


def test_a_full_disk_is_a_clear_error_and_the_last_checkpoint_stays(tmp_path: Path) -> None:
    manager, trainer = CheckpointManager(tmp_path), small()
    trainer.fit([(X, Y)], epochs=2, checkpoints=manager)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    state = manager.load()

    def full() -> int:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
        try:
            manager.save({"trainer": {**state["trainer"], "steps": 3}, "feeds": state["feeds"]})
            manager.wait()
        except FileWriteError as error:
            text = str(error)
            said = "cannot write step-000000003.stratal", "step-000000002.stratal is whole", "File too large"
            return 0 if all(part in text for part in said) else 2
        return 3

    assert _child(full) == 0
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_folder_that_cannot_be_written_is_a_clear_error_and_training_can_go_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, trainer = CheckpointManager(tmp_path), small()
    trainer.fit([(X, Y)], epochs=1, checkpoints=manager)

    def refused(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    read_only = pytest.raises(FileWriteError, match="Read-only file system")
    with monkeypatch.context() as patch, read_only as caught:
        patch.setattr("stratal.base.files.new_draft", refused)
        trainer.fit([(X, Y)], epochs=2, checkpoints=manager, resume=True)
    assert "step-000000001.stratal is whole" in caught.value.hint
    trainer.fit([(X, Y)], epochs=2, checkpoints=manager, resume=True)
    reference = small()
    reference.fit([(X, Y)], epochs=2)
    assert np.array_equal(np.asarray(trainer.net.weight.detach()), np.asarray(reference.net.weight.detach()))
    (tmp_path / "file").write_text("")
    with pytest.raises(FileWriteError, match="cannot use the folder file"):
        small().fit([(X, Y)], checkpoints=CheckpointManager(tmp_path / "file"))


def test_training_goes_on_while_a_checkpoint_is_written_and_what_is_written_is_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead, found = threading.Event(), []

    class Second:
        def on_epoch_begin(self, trainer: Any) -> None:
            if trainer.epoch == 1:
                ahead.set()

        def on_epoch_end(self, trainer: Any, row: Any) -> None:
            weights.append(np.asarray(trainer.net.weight.detach()).copy())

    def slow(state: Any, path: Path) -> None:
        found.append(ahead.wait(60))
        st.save(state, path)

    weights: list[Any] = []
    monkeypatch.setattr("stratal.train.checkpoints.save", slow)
    trainer, manager = small(), CheckpointManager(tmp_path, keep_last=3)
    trainer.callbacks.append(Second())
    trainer.fit([(X, Y)], epochs=3, checkpoints=manager)
    assert found == [True] * 3 and names(tmp_path) == [1, 2, 3]
    for path, expected in zip(manager.paths(), weights, strict=True):
        assert np.array_equal(np.asarray(manager.load(path)["trainer"]["net"]["weight"]), expected)


def test_what_does_not_fit_a_checkpoint_is_refused(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path / "run")
    with pytest.raises(FileNotFoundError):
        manager.load()
    small().fit([(X, Y)], checkpoints=manager)
    with pytest.raises(StratalError, match="checkpoints of another run"):
        small().fit([(X, Y)], checkpoints=manager)
    with pytest.raises(StratalError, match="with the callbacks it was saved with"):
        trainer = small()
        trainer.callbacks.append(StopsAt(99))
        trainer.fit([(X, Y)], checkpoints=manager, resume=True)
    with pytest.raises(StratalError, match="with the data of the run"):
        small().fit([(X, Y)], validation=(X, Y), checkpoints=manager, resume=True)
    with pytest.raises(StratalError, match="no checkpoint has a monitored value"):
        manager.best()
    with pytest.raises(StratalError, match="monitors a column"):
        small().fit([(X, Y)], checkpoints=CheckpointManager(tmp_path / "other", keep_best=1))
    with pytest.raises(StratalError, match="keep_last and every count from 1"):
        CheckpointManager(tmp_path, keep_last=0)
    with pytest.raises(StratalError, match="mode is"):
        CheckpointManager(tmp_path, mode="most")


def test_the_factor_of_losses_in_float16_is_part_of_a_checkpoint(tmp_path: Path) -> None:
    def made() -> Trainer:
        net = nn.Linear(6, 2)
        opt = optim.Adam(net.parameters())
        return Trainer(net, loss=nn.functional.cross_entropy, optimizer=opt, precision="float16")

    trainer, other = made(), made()
    trainer.step.scaler.update(4.0)
    trainer.fit([(X, Y)], checkpoints=CheckpointManager(tmp_path))
    other.load_state_dict(CheckpointManager(tmp_path).load()["trainer"])
    assert other.step.scaler.get_scale() == 4.0
