"""Checkpoints of a training run: files `step-000000120.stratal`, each complete by itself, checked on load.

Those in shards are folders `step-000000120.shards` (`formats.shards`), complete once their index is there.

    format        1
    stratal       the version that wrote it
    checkpoints   {file name: monitored value, or None} of all that stand when this one is written
    trainer       net, loss where it has parameters or buffers, optimizer, scaler, callbacks, metrics,
                  generators, epoch, steps, history
    feeds         where each source of data stands
    mode          which way the monitored column improves, "min" or "max"; older files have none
    provenance    versions, digests of the step's programs; older files have none

One is written on a thread of its own, from a copy of the state: to a draft, which is synced and renamed
(`formats.files`); older ones are removed afterwards. A process may die at any moment: what stands is whole,
and the next start removes what was left. Ranks write theirs together, before training goes on.
"""

from __future__ import annotations

import math
import os
import re
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from stratal.base.counts import as_count
from stratal.base.errors import AttributeValueError, FormatError
from stratal.base.files import folder_locked, ignoring_os_errors, make_folder, remove_drafts
from stratal.base.version import VERSION
from stratal.formats import load, save
from stratal.formats.container import SINGLE_FILE, remove_folder
from stratal.formats.files import FileWriteError, MissingFileError, writing
from stratal.formats.manifest import MANIFEST
from stratal.formats.shards import checked_limit
from stratal.train.background import Background, copied
from stratal.train.history import Row
from stratal.train.monitored import Monitor

_FORMAT: Final = 1
_SHARDS: Final = ".shards"
_NAME: Final = re.compile(rf"step-(\d{{9,18}})({re.escape(SINGLE_FILE)}|{re.escape(_SHARDS)})")
_PARTS: Final = {"format", "stratal", "checkpoints", "trainer", "feeds"}
_NEWER: Final = {"provenance", "mode"}


class DamagedCheckpointWarning(UserWarning):
    """A checkpoint that could not be read; an older one is used."""


class Ranks(Protocol):
    """What a manager asks of processes that train together: `stratal.distributed.Ranks`."""

    @property
    def rank(self) -> int: ...
    def barrier(self) -> None: ...
    def state_in_pieces(self, parts: Mapping[str, Any]) -> dict[str, Any]: ...
    def load_whole(self, parts: Mapping[str, Any], state: Mapping[str, Any]) -> None: ...
    def save(self, nest: Any, folder: Path, shard_bytes: int | None) -> None: ...


class CheckpointManager:
    """Keeps the last `keep_last` checkpoints of a run, and the `keep_best` best by a column of the history.

    `mode` is "min" for a loss and else that of the metric that is monitored; of others it must be given.
    One is written at the end of each epoch, and after every `every` updates where that is given, while
    training goes on; the next one waits for it. A folder has the checkpoints of one run, and
    one run at a time.
    With `shard_bytes` a checkpoint is a folder with files of at most so many bytes each, but for a tensor
    that is larger. With `ranks` each rank writes what it owns, and any number of ranks goes on from it.
    Raises: AttributeValueError.
    """

    def __init__(
        self, folder: str | Path, *, keep_last: int = 2, keep_best: int = 0, every: int | None = None,
        monitor: str = "validation_loss", mode: str | None = None, shard_bytes: int | None = None,
        ranks: Ranks | None = None,
    ) -> None:  # fmt: skip
        keep_last = as_count("CheckpointManager: keep_last counts checkpoints", keep_last)
        keep_best = as_count("CheckpointManager: keep_best counts checkpoints", keep_best, 0)
        if every is not None:
            every = as_count("CheckpointManager: every counts updates", every)
        if not isinstance(folder, str | Path) or "\0" in str(folder):
            raise AttributeValueError("CheckpointManager: takes the path of a folder", got=repr(folder))
        self.folder = Path(folder)
        self.keep_last, self.keep_best, self.every, self.monitor = keep_last, keep_best, every, monitor
        self.shard_bytes, self.ranks = checked_limit(shard_bytes), ranks
        self.monitored_column = monitor if keep_best else None
        self._monitor = Monitor(monitor, mode, "CheckpointManager")
        self._values: dict[str, float | None] = {}
        self._writing = Background()

    def __repr__(self) -> str:
        return f"<CheckpointManager of {self.folder}: the last {self.keep_last}, the best {self.keep_best}>"

    # -- reading ---------------------------------------------------------------------------------------------
    def paths(self) -> list[Path]:
        """Return the checkpoints that stand, oldest first. Raises: MissingFileError."""
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            raise MissingFileError("CheckpointManager: there is no folder", got=str(self.folder)) from None
        found = [self.folder / name for name in sorted(filter(_NAME.fullmatch, names), key=_steps)]
        return [path for path in found if path.suffix == SINGLE_FILE or (path / MANIFEST).exists()]

    def load(self, path: str | Path | None = None) -> dict[str, Any]:
        """Return what a checkpoint holds, every byte checked: of a path, or the last that can be read, with a
        warning for each that cannot.

        Raises: FormatError; MissingFileError where there is none.
        """
        self.wait()
        if path is not None:
            return _checked(load(path), Path(path).name)
        error: FormatError | None = None
        for found in reversed(self.paths()):
            try:
                return _checked(load(found), found.name)
            except FormatError as damaged:
                error = damaged
                warnings.warn(f"{found.name}: {damaged.summary}", DamagedCheckpointWarning, stacklevel=2)
        if error is not None:
            raise error
        raise MissingFileError("CheckpointManager: the folder has no checkpoint", got=str(self.folder))

    def best(self) -> Path:
        """Return the path of the best checkpoint by the monitored column. Raises: MissingFileError."""
        self.wait()
        values = self._values
        if not values:
            state = self.load()
            values = state["checkpoints"]
            self._monitor.mode = self._monitor.mode or state.get("mode")
        ranked = self._ranked(values)
        if not ranked:
            raise MissingFileError(
                "CheckpointManager: no checkpoint has a monitored value", got=str(self.folder),
                hint="CheckpointManager(.., keep_best=1), at the end of an epoch",
            )  # fmt: skip
        return self.folder / ranked[0]

    # -- what fit calls --------------------------------------------------------------------------------------
    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder for a block, a run: no other process trains in it meanwhile.

        Where the file system has no locks, that is not known. Raises: FileWriteError; AttributeValueError.
        """
        if not self._writes():
            yield
            return
        with ExitStack() as lock:
            with writing(self.folder.name, "CheckpointManager: cannot use the folder {}"):
                make_folder(self.folder)
                is_free = lock.enter_context(folder_locked(self.folder))
            if not is_free:
                raise AttributeValueError(
                    "fit: a folder of checkpoints has one run at a time", got=f"another run in {self.folder}",
                    hint="wait until it ends, or end it; a new folder begins another run",
                )  # fmt: skip
            yield

    def begin(self, resume: bool) -> dict[str, Any] | None:
        """Make the folder ready: remove what a run left that died. Returns the state to go on from, if any.

        Raises: FileWriteError; FormatError; AttributeValueError where the folder has checkpoints and the run
        is not to resume.
        """
        self.wait()
        if self._writes():
            with writing(self.folder.name, "CheckpointManager: cannot use the folder {}"):
                make_folder(self.folder)
                remove_drafts(self.folder)
            self._remove_incomplete()
        self._meet()
        self._values = {}
        found = self.paths()
        if not found:
            return None
        if not resume:
            raise AttributeValueError(
                "fit: the folder has checkpoints of another run", got=f"{found[-1].name} in {self.folder}",
                hint="resume=True goes on with it; a new folder begins anew",
            )  # fmt: skip
        state = self.load()
        self._values = dict(state["checkpoints"])
        kept = self._kept({path.name: self._values.get(path.name) for path in found})
        self._meet()
        self._remove_all_but({*kept, *(p.name for p in found if _steps(p.name) == state["trainer"]["steps"])})
        return state

    def due(self, steps: int) -> bool:
        """Return whether a checkpoint belongs after this many updates, epoch or not."""
        return self.every is not None and steps % self.every == 0

    def save(self, state: Mapping[str, Any], row: Row | None = None) -> Path:
        """Begin to write a checkpoint of a trainer's state; those no longer kept are removed when it stands.

        Raises: FileWriteError of the one before, if that could not be written; the checkpoints that stand are
        as they were.
        """
        self.wait()
        suffix = SINGLE_FILE if self.shard_bytes is None and self.ranks is None else _SHARDS
        path = self.folder / f"step-{state['trainer']['steps']:09d}{suffix}"
        value = None
        if self.keep_best and row is not None:
            value = self._monitor.of(row)
        kept = self._kept({**self._values, path.name: value})
        by = {"mode": self._monitor.mode} if self._monitor.mode else {}
        whole = copied({"format": _FORMAT, "stratal": VERSION, "checkpoints": kept, **by, **state})
        if self.ranks is not None:  # collectives of a thread beside training would meet its own
            self._write(path, whole)
        else:
            self._writing.start(lambda: self._write(path, whole))
        return path

    def wait(self) -> None:
        """Wait until what was saved stands. Raises: FileWriteError."""
        self._writing.wait()

    def _write(self, path: Path, whole: Mapping[str, Any]) -> None:
        try:
            if self.ranks is not None:
                self.ranks.save(whole, path, self.shard_bytes)
            else:
                save(whole, path, shard_bytes=self.shard_bytes)
        except FileWriteError as error:
            last = max((p.name for p in self._standing() if p.name in self._values), key=_steps, default="")
            hint = error.hint if not self._values else "no checkpoint of this run is left in its folder"
            taken = path.is_file() if path.suffix == _SHARDS else path.is_dir()
            mend = f"move away what has the name {path.name}" if taken else "make room"
            raise FileWriteError(
                f"CheckpointManager: cannot write {path.name}", got=error.got,
                hint=f"{last} is whole: {mend}, then fit(.., resume=True)" if last else hint,
            ) from error  # fmt: skip
        self._values = whole["checkpoints"]
        self._remove_all_but(self._values)

    def _standing(self) -> list[Path]:
        """Return the checkpoints that can be listed, oldest first."""
        try:
            return self.paths()
        except OSError:
            return []

    def _writes(self) -> bool:
        """Return whether this process removes files, and makes folders."""
        return self.ranks is None or self.ranks.rank == 0

    def _meet(self) -> None:
        if self.ranks is not None:
            self.ranks.barrier()

    # -- which are kept --------------------------------------------------------------------------------------
    def _ranked(self, values: Mapping[str, float | None]) -> list[str]:
        known = {name: v for name, v in values.items() if v is not None and not math.isnan(v)}
        if len(known) > 1:
            known = {name: self._monitor.sign() * v for name, v in known.items()}
        return sorted(known, key=lambda name: (known[name], _steps(name)))

    def _kept(self, values: Mapping[str, float | None]) -> dict[str, float | None]:
        names = sorted(values, key=_steps)
        best = self._ranked(values)[: self.keep_best] if self.keep_best else []
        chosen = {*names[-self.keep_last :], *best}
        return {name: values[name] for name in names if name in chosen}

    def _remove_all_but(self, kept: Collection[str]) -> None:
        for path in self.paths() if self._writes() else ():
            if path.name not in kept:
                with ignoring_os_errors():
                    remove = remove_folder if path.suffix == _SHARDS else os.unlink
                    remove(path)

    def _remove_incomplete(self) -> None:
        """Remove folders of shards whose index was never written, or is removed already."""
        for path in self.folder.glob(f"step-*{_SHARDS}"):
            if _NAME.fullmatch(path.name) and not (path / MANIFEST).exists():
                with ignoring_os_errors():
                    remove_folder(path)


def _steps(name: str) -> int:
    found = _NAME.fullmatch(name)
    return int(found[1]) if found else -1


def _checked(state: Any, name: str) -> dict[str, Any]:
    """Return what is a checkpoint. Raises: FormatError."""
    if not isinstance(state, dict) or {*state} - _NEWER != _PARTS or state["format"] != _FORMAT:
        raise FormatError(f"{name}: not a checkpoint of a Trainer", hint="st.load reads other files")
    return state
