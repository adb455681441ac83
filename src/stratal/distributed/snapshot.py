"""Snapshots of a training, from which it goes on when its job is started again."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Protocol

from stratal.base.errors import AttributeValueError, DTypeError, FormatError
from stratal.distributed.shared_checkpoint import (
    SHARD_BYTES,
    load_whole,
    save_together,
    state_in_pieces,
)
from stratal.distributed.world import world
from stratal.formats.container import SINGLE_FILE
from stratal.formats.manifest import MANIFEST
from stratal.formats.saved import load, save
from stratal.formats.shards import checked_limit
from stratal.tensor.functions.random import get_rng_state, set_rng_state


class _HasState(Protocol):
    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any) -> Any: ...


_GENERATOR: Final = "generator"
_STEPS: Final = "steps"


class Snapshot:
    """The state of a training, of all that it is given and of the random generator: one file, or a folder.

    `parts`: models, optimizers, loaders, schedules, whatever has `state_dict` and `load_state_dict`. A path
    that ends in `.stratal` is a file that rank 0 writes. Any other is a folder to which each rank writes what
    it owns of a state that is sharded, in files of at most `shard_bytes` (4 GiB): nothing is gathered.
    Both are complete or not there; all ranks read all of it, so it lies where all of them see it. What some
    ranks wrote, any number of them loads.

    >>> import tempfile
    >>> import stratal as st
    >>> net = st.nn.Linear(2, 1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     snapshot = st.distributed.Snapshot(folder + "/run.stratal", net=net)
    ...     print(snapshot.load(), snapshot.save(), snapshot.load())
    False True True
    """

    def __init__(self, path: str | Path, *, shard_bytes: int | None = None, **parts: _HasState) -> None:
        """Raises: AttributeValueError, DTypeError."""
        self.path: Final = Path(path)
        self.steps = 0  # how often `save` was called, in this job and in those it goes on from
        self._parts: Final = parts
        self._in_one: Final = self.path.suffix == SINGLE_FILE
        if self._in_one and shard_bytes is not None:
            raise AttributeValueError(
                "Snapshot: shards are files of a folder", got=self.path.name,
                hint=f"a path that does not end in {SINGLE_FILE}",
            )  # fmt: skip
        self._shard_bytes: Final = checked_limit(shard_bytes) or SHARD_BYTES
        for name, part in parts.items():
            if name in (_GENERATOR, _STEPS):
                raise AttributeValueError("Snapshot: a name of its own", got=name, hint="name it otherwise")
            if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
                raise DTypeError("Snapshot: takes what has state_dict and load_state_dict",
                                 got=f"{name}, a {type(part).__name__}")  # fmt: skip

    def load(self) -> bool:
        """Go on from what was saved, if there is any; return whether. Raises: FormatError for other parts."""
        if not (self.path if self._in_one else self.path / MANIFEST).exists():
            return False
        saved = load(self.path)
        if not isinstance(saved, dict) or saved.keys() != {*self._parts, _GENERATOR, _STEPS}:
            raise FormatError(
                "Snapshot: the file holds other things", got=", ".join(map(str, saved)),
                hint=f"{self.path.name} is of another run: remove it, or name another one",
            )  # fmt: skip
        load_whole(self._parts, saved)
        set_rng_state(saved[_GENERATOR])
        self.steps = saved[_STEPS]
        return True

    def save(self, every: int = 1) -> bool:
        """Write at every so many calls; return whether. All ranks call it: state may be sharded."""
        if every < 1:
            raise AttributeValueError("Snapshot.save: every so many steps, at least 1", got=str(every))
        self.steps += 1
        if self.steps % every:
            return False
        own = {_GENERATOR: get_rng_state(), _STEPS: self.steps}
        if not self._in_one:
            save_together(self.path, {**state_in_pieces(self._parts), **own}, self._shard_bytes)
            return True
        state: dict[str, Any] = {name: part.state_dict() for name, part in self._parts.items()}
        if world().rank == 0:
            save({**state, **own}, self.path)
        return True
