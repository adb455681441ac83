"""Checkpoints: a run that was killed at any moment and resumed has the bits of the run that was not."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import random
import resource
import shutil
import threading
import time
import warnings
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
from stratal.data import DataLoader, RandomSampler, TensorDataset
from stratal.formats.files import FileWriteError
from stratal.train import (
    ChangedProgramWarning,
    CheckpointManager,
    CSVLog,
    DamagedCheckpointWarning,
    EarlyStopping,
    Trainer,
)

PROCESSES = multiprocessing.get_context("forkserver")  # of one that has imported Stratal: started in no time
PROCESSES.set_forkserver_preload(["stratal.train", "stratal.data", "stratal.metrics"])  # not from this path
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "arrays": ("arrays", {}),
    "shards": ("shards", {}),
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
    kinds = list(KINDS) if kills > 2 else ["shards"]
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
        assert len(list(folder.iterdir())) <= 3
        for found in folder.iterdir():
            assert found.suffix == (".shards" if kind == "shards" else ".stratal")
            if kind == "shards":
                assert len(list(found.iterdir())) == len(manifest_files(found)) + 1 > 4


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
    return max((p.name for p in folder.glob("step-*")), default="")


def manifest_files(folder: Path) -> dict[str, Any]:
    """Return the files that the index of a checkpoint in shards names."""
    return {row["file"]: row for row in json.loads((folder / "manifest.json").read_text())["files"].values()}


def sharded(folder: Path, epochs: int = 1, **options: Any) -> tuple[CheckpointManager, Trainer]:
    manager, trainer = CheckpointManager(folder, shard_bytes=40, **options), small()
    trainer.fit([(X, Y)], epochs=epochs, checkpoints=manager)
    return manager, trainer


def test_a_checkpoint_in_shards_is_that_of_one_file_in_files_of_a_bounded_size(tmp_path: Path) -> None:
    manager, trainer = sharded(tmp_path / "shards", epochs=2)
    one = CheckpointManager(tmp_path / "one")
    small().fit([(X, Y)], epochs=2, checkpoints=one)
    last = manager.paths()[-1]
    files = manifest_files(last)
    assert {p.name for p in last.iterdir()} == {*files, "manifest.json"} and len(files) > 4
    tensors = [st.formats.load_tensors(last / f) for f in files if f.endswith(".safetensors")]
    assert all(len(t) == 1 or sum(a.nbytes for a in t.values()) <= 40 for t in tensors)
    found, expected = (m.load()["trainer"] for m in (manager, one))
    assert found["optimizer"]["state"][0].keys() == expected["optimizer"]["state"][0].keys()
    for name, value in expected["net"].items():
        assert np.array_equal(found["net"][name], value)
    resumed = small()  # one kind goes on from the other
    resumed.fit([(X, Y)], epochs=3, checkpoints=CheckpointManager(last.parent), resume=True)
    trainer.fit([(X, Y)], epochs=3, checkpoints=one, resume=True)
    assert np.array_equal(np.asarray(resumed.net.weight.detach()), np.asarray(trainer.net.weight.detach()))
    assert [p.name for p in CheckpointManager(last.parent).paths()] == [last.name, "step-000000003.stratal"]


@pytest.mark.parametrize("what", ["missing", "torn", "foreign", "swapped", "no index", "index"])
def test_a_shard_that_is_missing_torn_or_of_another_checkpoint_is_said_and_passed_over(
    tmp_path: Path, what: str
) -> None:
    manager, _ = sharded(tmp_path, epochs=2)
    first, last = manager.paths()
    files = [f for f in sorted(manifest_files(last)) if f.endswith(".safetensors")]
    said = "is damaged"
    if what == "missing":
        (last / files[1]).unlink()
        said = "a file of the manifest is missing"
    elif what == "torn":
        (last / files[1]).write_bytes((last / files[1]).read_bytes()[:-3])
    elif what == "foreign":
        other = [f for f in sorted(manifest_files(first)) if f.endswith(".safetensors")]
        (last / files[1]).write_bytes((first / other[1]).read_bytes())
    elif what == "swapped":
        (last / files[0]).rename(last / "aside")
        (last / files[1]).rename(last / files[0])
        (last / "aside").rename(last / files[1])
        said = "is damaged|is too large"
    elif what == "index":
        (last / "manifest.json").write_bytes((first / "manifest.json").read_bytes())
        said = "a file of the manifest is missing"
    else:
        (last / "manifest.json").unlink()
    if what == "no index":  # complete or not there
        assert manager.paths() == [first] and manager.load()["trainer"]["steps"] == 1
    else:
        with pytest.raises(FormatError, match=said):
            manager.load(last)
        with pytest.warns(DamagedCheckpointWarning, match=last.name):
            assert manager.load()["trainer"]["steps"] == 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DamagedCheckpointWarning)
        small().fit([(X, Y)], epochs=2, checkpoints=manager, resume=True)
    assert manager.load(last)["trainer"]["steps"] == 2
    assert {p.name for p in last.iterdir()} == {*manifest_files(last), "manifest.json"}


def test_what_a_kill_leaves_of_checkpoints_in_shards_is_removed_at_the_next_start(tmp_path: Path) -> None:
    manager, _ = sharded(tmp_path, epochs=2)
    first, last = manager.paths()
    half = tmp_path / "step-000000003.shards"
    half.mkdir()
    name = next(iter(manifest_files(last)))
    (half / name).write_bytes((last / name).read_bytes()[:10])
    (first / "manifest.json").unlink()  # killed while it was removed
    sharded_again = CheckpointManager(tmp_path, shard_bytes=40)
    small().fit([(X, Y)], epochs=2, checkpoints=sharded_again, resume=True)
    assert [p.name for p in tmp_path.iterdir()] == [last.name]


def test_shards_are_those_of_folders_and_of_checkpoints(tmp_path: Path) -> None:
    state = {"a": st.ones(3), "b": [st.zeros((2, 2)), 1.5]}
    st.save(state, tmp_path / "in_shards", shard_bytes=12)
    found = st.load(tmp_path / "in_shards")
    assert found["a"].tolist() == [1, 1, 1] and found["b"][0].shape == (2, 2) and found["b"][1] == 1.5
    assert len(list((tmp_path / "in_shards").iterdir())) == 4
    st.save({"nothing": 1}, tmp_path / "in_shards", shard_bytes=12)
    assert st.load(tmp_path / "in_shards") == {"nothing": 1}
    for path, model, said in (
        (tmp_path / "a.stratal", state, "shards are files of a folder"),
        (tmp_path / "model", nn.Linear(2, 2), "shards are those of a checkpoint"),
    ):
        with pytest.raises(StratalError, match=said):
            st.save(model, path, shard_bytes=12)
    for wrong in (0, -1, 1.5, True):
        with pytest.raises(StratalError, match="shard_bytes counts bytes"):
            st.save(state, tmp_path / "x", shard_bytes=wrong)  # type: ignore[arg-type]
    with pytest.raises(StratalError, match="at most 4000 shards"):
        st.save({"many": [st.zeros(1)] * 4001}, tmp_path / "x", shard_bytes=1)


def another_loss(outputs: Any, targets: Any) -> Any:
    return nn.functional.cross_entropy(outputs, targets) * 1.5


def test_resuming_tells_which_version_or_program_of_the_step_is_another_one(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path)
    small().fit([(X, Y)], epochs=1, checkpoints=manager)
    state = manager.load()
    ((key, programs),) = state["provenance"]["programs"].items()
    (digest,) = programs.values()
    assert key == "step of f32[90,6], i64[90]" and len(digest) == 32
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resumed = small()
        resumed.fit([(X, Y)], epochs=2, checkpoints=manager, resume=True)
    state = manager.load()
    state["provenance"] |= {"numpy": "1.2.3", "stratal": "0.0.9"}
    st.save(state, manager.paths()[-1])
    changed = small()
    net = changed.net
    other = Trainer(net, loss=another_loss, optimizer=changed.optimizer)
    with pytest.warns(ChangedProgramWarning) as caught:
        other.fit([(X, Y)], epochs=3, checkpoints=manager, resume=True)
    said = [str(w.message) for w in caught]
    assert f"Stratal is {st.__version__}, that of the run it goes on with was 0.0.9" in said[0]
    assert f"NumPy is {np.__version__}, that of the run it goes on with was 1.2.3" in said[1]
    (now,) = manager.load()["provenance"]["programs"][key].values()
    assert f"the program of the {key} is {now[:8]}, that of the run it goes on with was {digest[:8]}" in (
        said[2]
    )
    assert len(said) == 3 and all("bits may differ" in text for text in said)
    state = manager.load()
    (graph,) = state["provenance"]["programs"][key]
    state["provenance"]["programs"][key][graph] = "0" * 32  # the same graph, compiled otherwise
    st.save(state, manager.paths()[-1])
    again = Trainer(changed.net, loss=another_loss, optimizer=changed.optimizer)
    with pytest.warns(ChangedProgramWarning, match="with was 00000000"):
        again.fit([(X, Y)], epochs=4, checkpoints=manager, resume=True)


@pytest.mark.parametrize("options", [{"compiled": False}, {"accumulate": 2}], ids=str)
def test_what_is_not_compiled_has_no_programs_and_what_accumulates_has_two(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    net = nn.Linear(6, 2)
    opt = optim.Adam(net.parameters())
    trainer = Trainer(net, loss=nn.functional.cross_entropy, optimizer=opt, **options)
    manager = CheckpointManager(tmp_path)
    trainer.fit((X, Y), batch_size=30, checkpoints=manager)
    names = [key.partition(" of")[0] for key in manager.load()["provenance"]["programs"]]
    assert names == ([] if "compiled" in options else ["gradients", "update"])


@pytest.mark.sampled(8)
@pytest.mark.parametrize("options", [{}, {"accumulate": 2}, {"clip_norm": 0.1}], ids=str)
@pytest.mark.parametrize("rows", [24, 20])
@pytest.mark.parametrize("at", range(1, 6))
def test_a_run_resumed_before_a_batch_of_another_size_is_told_of_no_other_program(
    tmp_path: Path, at: int, rows: int, options: dict[str, Any]
) -> None:
    def run(folder: str, *callbacks: Any) -> Any:
        st.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))
        opt = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        trainer = Trainer(
            net, loss=nn.functional.cross_entropy, optimizer=opt, callbacks=callbacks, **options
        )
        manager = CheckpointManager(tmp_path / folder, every=1)
        given = {"epochs": 3, "batch_size": 8, "checkpoints": manager, "resume": True}
        trainer.fit((X[:rows], Y[:rows]), **given)
        return {name: np.asarray(p.detach()).tobytes() for name, p in net.named_parameters()}

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole = run("whole")
        with pytest.raises(KeyboardInterrupt):
            run("cut", StopsAt(at))
        assert run("cut") == whole


def test_a_program_of_any_size_is_compared_with_that_of_the_same_graph(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path)
    small().fit((X, Y), batch_size=40, epochs=1, checkpoints=manager)
    state = manager.load()
    programs = state["provenance"]["programs"]
    assert [*programs] == ["step of f32[40,6], i64[40]", "step of any size"]
    (graph,) = programs["step of any size"]
    programs["step of any size"][graph] = "0" * 32
    st.save(state, manager.paths()[-1])
    with pytest.warns(ChangedProgramWarning, match="the step of any size is .* with was 00000000"):
        small().fit((X, Y), batch_size=40, epochs=2, checkpoints=manager, resume=True)


def test_checkpoints_that_say_nothing_of_programs_are_read(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path)
    small().fit([(X, Y)], epochs=1, checkpoints=manager)
    state = manager.load()
    del state["provenance"]
    st.save(state, manager.paths()[-1])
    assert len(small().fit([(X, Y)], epochs=2, checkpoints=manager, resume=True)) == 2


def test_a_damaged_newest_checkpoint_does_not_cost_the_whole_one_before(tmp_path: Path) -> None:
    manager, trainer = CheckpointManager(tmp_path, keep_last=1), small()
    trainer.fit([(X, Y)], epochs=1, checkpoints=manager)
    last = tmp_path / "step-000000002.stratal"
    last.write_bytes(b"damaged")
    with pytest.warns(DamagedCheckpointWarning):
        assert manager.begin(resume=True)["trainer"]["steps"] == 1  # type: ignore[index]
    assert names(tmp_path) == [1, 2]  # killed here, it goes on from the first one again


def test_the_last_and_the_best_are_kept(tmp_path: Path) -> None:
    values = iter([3.0, 1.0, 2.0, float("nan"), 4.0, 1.5])

    class Scripted:
        def on_epoch_end(self, trainer: Any, row: dict[str, float]) -> None:
            row["value"] = next(values)

    trainer = small()
    trainer.callbacks.append(Scripted())
    manager = CheckpointManager(tmp_path, keep_last=2, keep_best=2, monitor="value", mode="min")
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


@pytest.mark.parametrize("replaced", [True, False])
def test_an_error_of_the_thread_that_writes_has_the_users_line_and_says_what_there_is(
    tmp_path: Path, replaced: bool
) -> None:
    class Removes:
        def on_step_end(self, trainer: Trainer) -> None:
            if trainer.steps == 2:
                manager.wait()  # for the first checkpoint: the second is the one that fails
                shutil.rmtree(folder)
                if replaced:
                    folder.write_text("in its way")

    folder = tmp_path / "run"
    trainer, manager = small(), CheckpointManager(folder)
    trainer.callbacks.append(Removes())
    with pytest.raises(FileWriteError, match="cannot write step-000000002") as caught:
        trainer.fit([(X, Y)], epochs=3, checkpoints=manager)
    assert [Path(line.file).name for line in caught.value.where] == [Path(__file__).name]
    assert "is whole" not in caught.value.hint and "no checkpoint of this run is left" in caught.value.hint


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

    def slow(state: Any, path: Path, **_: Any) -> None:
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
    with pytest.raises(StratalError, match="the callbacks with a state that it was saved with") as caught:
        trainer = small()
        trainer.callbacks.append(EarlyStopping("loss"))
        trainer.fit([(X, Y)], checkpoints=manager, resume=True)
    assert caught.value.got == "EarlyStopping for none"
    with pytest.raises(StratalError, match="with the data of the run"):
        small().fit([(X, Y)], validation=(X, Y), checkpoints=manager, resume=True)
    with pytest.raises(StratalError, match="no checkpoint has a monitored value"):
        manager.best()
    with pytest.raises(StratalError, match="monitors a column"):
        small().fit([(X, Y)], checkpoints=CheckpointManager(tmp_path / "other", keep_best=1))
    with pytest.raises(StratalError, match="keep_last counts checkpoints"):
        CheckpointManager(tmp_path, keep_last=0)
    with pytest.raises(StratalError, match="mode is"):
        CheckpointManager(tmp_path, mode="most")


def test_callbacks_without_a_state_come_and_go_between_a_run_and_its_resumption(tmp_path: Path) -> None:
    def run(epochs: int, *callbacks: Any) -> Trainer:
        trainer = small()
        trainer.callbacks.extend(callbacks)
        trainer.fit([(X, Y)], epochs=epochs, checkpoints=CheckpointManager(tmp_path), resume=True)
        return trainer

    stopping = EarlyStopping("loss", patience=9)
    run(1, CSVLog(tmp_path / "log.csv"), EarlyStopping("loss", patience=9))
    assert run(2, stopping).epoch == 2 and stopping.best < 1
    assert run(3, EarlyStopping("loss", patience=9), StopsAt(99)).epoch == 3
    state = CheckpointManager(tmp_path).load()["trainer"]
    state["callbacks"].insert(0, ["CSVLog", None])  # as older checkpoints have it
    trainer = small()
    trainer.callbacks.append(stopping)
    trainer.load_state_dict(state)
    assert trainer.epoch == 3


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


class OwnOrder:
    """A sampler as users write them: nothing of it says where it stands."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw

    def __iter__(self) -> Any:
        return iter(self.draw())

    def __len__(self) -> int:
        return 24


def shuffled() -> list[int]:
    order = list(range(24))
    random.shuffle(order)
    return order


def rows_seen(folder: Path, make: Any, cut: int | None = None) -> list[int]:
    """Return the rows that a run of two epochs trains on, up to a step where it is interrupted."""
    st.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    seen: list[int] = []

    def step(x: Any, y: Any) -> Any:
        seen.extend(int(v) for v in np.asarray(x).reshape(-1))
        return (x * 0).sum()

    trainer = Trainer(nn.Linear(1, 1), step=step, compiled=False, callbacks=[StopsAt(cut or -1)])
    manager = CheckpointManager(folder, every=1)
    try:
        trainer.fit(make(), epochs=2, checkpoints=manager, resume=True, progress=False)
    except KeyboardInterrupt:
        del seen[-4:]  # of a step that no checkpoint has
    return seen


DATA = TensorDataset(np.arange(24, dtype=np.float32)[:, None], np.zeros(24, np.float32))
ORDERS: dict[str, Any] = {
    "np.random": lambda: DataLoader(DATA, 4, sampler=OwnOrder(lambda: np.random.permutation(24).tolist())),
    "random": lambda: DataLoader(DATA, 4, sampler=OwnOrder(shuffled), num_workers=2),
    "batches": lambda: DataLoader(
        DATA, batch_sampler=OwnOrder(lambda: np.random.permutation(24).reshape(6, 4).tolist())
    ),
    "ours": lambda: DataLoader(DATA, 4, sampler=RandomSampler(DATA)),
}


@pytest.mark.parametrize("order", ORDERS)
def test_a_run_resumed_in_an_epoch_sees_each_row_of_a_drawn_order_once(tmp_path: Path, order: str) -> None:
    whole = rows_seen(tmp_path / "whole", ORDERS[order])
    cut = rows_seen(tmp_path / "cut", ORDERS[order], 9)
    np.random.seed(77)
    assert cut + rows_seen(tmp_path / "cut", ORDERS[order]) == whole


@pytest.mark.torch
@pytest.mark.parametrize("own", [False, True])
def test_a_run_resumed_in_an_epoch_of_pytorchs_loader_sees_each_row_once(tmp_path: Path, own: bool) -> None:
    torch = pytest.importorskip("torch")

    def make() -> Any:
        torch.manual_seed(5)
        rows = torch.utils.data.TensorDataset(torch.arange(24.0)[:, None], torch.zeros(24))
        given = {"generator": torch.Generator().manual_seed(3)} if own else {}
        return torch.utils.data.DataLoader(rows, batch_size=4, shuffle=True, **given)

    whole = rows_seen(tmp_path / "whole", make)
    cut = rows_seen(tmp_path / "cut", make, 9)
    assert cut + rows_seen(tmp_path / "cut", make) == whole


def test_an_order_that_cannot_be_had_again_is_refused_on_resume(tmp_path: Path) -> None:
    def make() -> Any:
        hidden = np.random.default_rng()  # of its own: no generator that a checkpoint holds
        return DataLoader(DATA, 4, sampler=OwnOrder(lambda: hidden.permutation(24).tolist()))

    rows_seen(tmp_path, make, 9)
    with pytest.raises(StratalError, match="goes on with the batches that it began with"):
        rows_seen(tmp_path, make)


@pytest.mark.parametrize(("change", "said"), [
    ({"batch_size": 6}, "batch_size 6 for 4"), ({"shuffle": False}, "shuffle False for True"),
    ({"dataset": [(np.zeros(1, np.float32), np.float32(0))] * 12}, "rows 12 for 24"),
])  # fmt: skip
def test_an_epoch_goes_on_in_the_batches_it_began_with(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    given = {"dataset": DATA, "batch_size": 4, "shuffle": True}
    rows_seen(tmp_path, lambda: DataLoader(**given), 9)
    with pytest.raises(StratalError, match=said):
        rows_seen(tmp_path, lambda: DataLoader(**given | change))
