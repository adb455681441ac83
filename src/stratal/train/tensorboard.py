"""TensorBoard: a callback that writes the history as event files, by tensorboardX."""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from stratal.base.errors import AttributeValueError, MissingExtraError
from stratal.base.files import make_folder
from stratal.formats.files import writing
from stratal.train.callbacks import Training
from stratal.train.history import TIMES, Row

_VALIDATION: Final = "validation_"


class TensorBoard:
    """Writes each epoch's row, by the number of updates: `train/loss`, `validation/loss`, metrics alike,
    `time/samples_per_s`, and columns that callbacks before it added. `every` adds `train/step_loss`, the
    mean loss since the last, after so many updates.

    Files are written on the training thread and complete whenever the process dies. A run that is resumed, or
    begins anew in the folder, hides what TensorBoard had of later updates; the first mean after a start in
    the middle of an epoch is of the updates behind the first.
    Raises: MissingExtraError without tensorboardX; FileWriteError.
    """

    def __init__(self, folder: str | Path, *, every: int | None = None) -> None:
        if every is not None and every < 1:
            raise AttributeValueError("TensorBoard: every counts updates, from 1", got=repr(every))
        self.folder, self.every = Path(folder), every
        self._library = _tensorboardx()
        self._file: Any = None  # open from the first update to the end of a fit
        self._seen: tuple[float, int] | None = None  # loss times rows, and rows, up to the last point

    def on_fit_begin(self, trainer: Training) -> None:
        """Close what an earlier fit left open."""
        self._close()
        self._seen = None

    def on_epoch_begin(self, trainer: Training) -> None:
        """Begin the means of `train/step_loss` anew."""
        self._seen = 0.0, 0

    def on_step_end(self, trainer: Training) -> None:
        """Open the file where a fit has made its first update, and write the loss if it is due."""
        if self._file is None:
            self._open(trainer.steps)
        running = trainer.running
        if self._seen is None:  # resumed in the middle of an epoch: the sums are of earlier updates, too
            self._seen = running.loss, running.rows
        if self.every is not None and trainer.steps % self.every == 0:
            loss, rows = self._seen
            if running.rows > rows:
                self._write(trainer.steps, {"train/step_loss": (running.loss - loss) / (running.rows - rows)})
            self._seen = running.loss, running.rows

    def on_epoch_end(self, trainer: Training, row: Row) -> None:
        """Write the numbers of a row."""
        if self._file is None:
            self._open(trainer.steps)
        numbers = {k: float(v) for k, v in row.items() if isinstance(v, (int, float)) and k != "epoch"}
        self._write(trainer.steps, {_tag(name): value for name, value in numbers.items()})

    def on_fit_end(self, trainer: Training) -> None:
        """Close the file."""
        self._close()

    def _open(self, steps: int) -> None:
        with writing(self.folder.name, "TensorBoard: cannot use the folder {}"):
            make_folder(self.folder)
            # The library's own name has seconds; two fits of one second would share a file.
            suffix = f".{time.time_ns()}"
            self._file = self._library.writer.EventsWriter(str(self.folder / "events"), suffix)
            start = self._library.event.SessionLog(status=self._library.event.SessionLog.START)
            event = self._library.event.Event(wall_time=time.time(), step=steps, session_log=start)
            self._file.write_event(event)

    def _write(self, steps: int, values: Mapping[str, float]) -> None:
        summary = self._library.summary
        found = [summary.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        event = self._library.event.Event(
            wall_time=time.time(), step=steps, summary=summary.Summary(value=found)
        )
        with writing(self.folder.name, "TensorBoard: cannot write to the folder {}"):
            self._file.write_event(event)
            self._file.flush()  # a checkpoint of this update may follow, and no run writes it again

    def _close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            with writing(self.folder.name, "TensorBoard: cannot write to the folder {}"):
                file.close()


class _Library:
    """The parts of tensorboardX that write events."""

    def __init__(self) -> None:
        self.writer: Any = importlib.import_module("tensorboardX.event_file_writer")
        self.event: Any = importlib.import_module("tensorboardX.proto.event_pb2")
        self.summary: Any = importlib.import_module("tensorboardX.proto.summary_pb2")


def _tensorboardx() -> _Library:
    try:
        return _Library()
    except ImportError as error:
        raise MissingExtraError(
            "TensorBoard: needs tensorboardX", got=str(error), hint="pip install 'stratal[tensorboard]'"
        ) from error


def _tag(name: str) -> str:
    """Return the tag of a column: its group, and its name there."""
    if name in TIMES:
        return f"time/{name}"
    return f"validation/{name.removeprefix(_VALIDATION)}" if name.startswith(_VALIDATION) else f"train/{name}"
