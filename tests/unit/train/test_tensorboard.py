"""The TensorBoard callback: TensorBoard's own reader finds the history in its files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from trained import X, Y, small, trainer_of

from stratal.base.errors import AttributeValueError, MissingExtraError
from stratal.formats.files import FileWriteError
from stratal.train import CheckpointManager, TensorBoard
from stratal.train.history import TIMES, Running
from stratal.train.recipes import problem_of, read_config, run


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return (step, value) of each tag, as TensorBoard reads them."""
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = events.EventAccumulator(str(folder))
    found.Reload()
    return {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def fitted(folder: Path, epochs: int, **options: Any) -> Any:
    trainer = trainer_of(small(), callbacks=[TensorBoard(folder, every=2)])
    trainer.fit((X, Y), epochs=epochs, batch_size=16, validation=(X, Y), **options)
    return trainer


@pytest.mark.row("B7")
def test_the_reader_of_tensorboard_finds_the_history(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    trainer = fitted(tmp_path / "runs" / "one", 3)
    found = scalars(tmp_path / "runs" / "one")
    per_epoch = trainer.steps // 3
    ends = [per_epoch, 2 * per_epoch, 3 * per_epoch]
    for tag, column in (("train/loss", "loss"), ("validation/loss", "validation_loss")):
        assert [step for step, _ in found[tag]] == ends
        assert [value for _, value in found[tag]] == pytest.approx(trainer.history[column], rel=1e-6)
    assert {f"time/{name}" for name in TIMES} <= set(found)
    assert [step for step, _ in found["train/step_loss"]] == list(range(2, trainer.steps + 1, 2))
    first = found["train/step_loss"][: per_epoch // 2]
    assert min(v for _, v in first) <= trainer.history["loss"][0] * 1.5


def test_a_resumed_run_hides_updates_that_are_made_again(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    manager = CheckpointManager(tmp_path / "checkpoints", keep_last=3)
    trainer = fitted(tmp_path / "tb", 3, checkpoints=manager)
    for path in manager.paths()[1:]:
        path.unlink()  # as if the process had died after epoch 1
    again = fitted(tmp_path / "tb", 3, checkpoints=CheckpointManager(tmp_path / "checkpoints"), resume=True)
    assert again.steps == trainer.steps
    found = scalars(tmp_path / "tb")["train/loss"]
    assert [value for _, value in found] == pytest.approx(trainer.history["loss"], rel=1e-6)
    assert len(list((tmp_path / "tb").iterdir())) == 2


def test_what_a_checkpoint_has_behind_it_is_in_the_file_before_the_process_can_die(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    seen: list[list[int]] = []

    class Manager(CheckpointManager):
        def save(self, *args: Any, **kwargs: Any) -> Any:
            seen.append([step for step, _ in scalars(tmp_path / "tb").get("train/step_loss", [])])
            return super().save(*args, **kwargs)

    fitted(tmp_path / "tb", 1, checkpoints=Manager(tmp_path / "checkpoints", every=2))
    assert seen[:2] == [[2], [2, 4]]


def test_a_mean_after_a_start_in_the_middle_of_an_epoch_is_not_of_the_updates_before(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")

    class Losses:
        """Gives the running sums of an epoch in which all losses up to update 2 are 100, and then 1."""

        steps = 2
        running = Running(loss=200.0, rows=2)

    board, trainer = TensorBoard(tmp_path, every=2), Losses()
    board.on_fit_begin(trainer)  # type: ignore[arg-type]
    for _ in range(4):
        trainer.steps += 1
        trainer.running.loss += 1.0
        trainer.running.rows += 1
        board.on_step_end(trainer)  # type: ignore[arg-type]
    board.on_fit_end(trainer)  # type: ignore[arg-type]
    assert scalars(tmp_path)["train/step_loss"] == [(4, 1.0), (6, 1.0)]


def test_a_folder_that_cannot_be_written_is_an_error_of_fit(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FileWriteError, match="TensorBoard: cannot use the folder"):
        fitted(tmp_path / "file", 1)


def test_a_configuration_may_ask_for_event_files(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    (tmp_path / "t.csv").write_text("x,y\n" + "1,a\n2,b\n" * 20)
    data, output = '[data]\npath = "t.csv"\ntarget = "y"\n', "[output]\ntensorboard = true\n"
    (tmp_path / "c.toml").write_text(f'kind = "table"\n{data}{output}[training]\nepochs = 2\n')
    config = read_config(tmp_path / "c.toml")
    run(config, problem_of(config), progress=False)
    assert len(scalars(tmp_path / "run" / "tensorboard")["validation/accuracy"]) == 2


def test_the_extra_is_named_where_the_library_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.startswith("tensorboardX")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(MissingExtraError, match=r"stratal\[tensorboard\]"):
        TensorBoard("runs")
    with pytest.raises(AttributeValueError, match="counts updates"):
        TensorBoard("runs", every=0)
