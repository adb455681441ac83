"""Snapshots of a training, from which it goes on when its job is started again."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Protocol

from stratal.base.errors import AttributeValueError, DTypeError, FormatError
from stratal.distributed.world import world
from stratal.formats.saved import load, save
from stratal.tensor.functions.random import get_rng_state, set_rng_state


class _HasState(Protocol):
    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any) -> Any: ...


_GENERATOR: Final = "generator"
_STEPS: Final = "steps"


class Snapshot:
    """One file with the state of a training: of all that it is given, and of the random generator.

    `parts`: models, optimizers, loaders, schedules, whatever has `state_dict` and `load_state_dict`. Rank 0
    writes the file, whole or not at all; all ranks read it, so it lies where all of them see it.

    >>> import tempfile
    >>> import stratal as st
    >>> net = st.nn.Linear(2, 1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     snapshot = st.distributed.Snapshot(folder + "/run.stratal", net=net)
    ...     print(snapshot.load(), snapshot.save(), snapshot.load())
    False True True
    """

    def __init__(self, path: str | Path, **parts: _HasState) -> None:
        """Raises: AttributeValueError, DTypeError."""
        self.path: Final = Path(path)
        self.steps = 0  # how often `save` was called, in this job and in those it goes on from
        self._parts: Final = parts
        if self.path.suffix != ".stratal":
            raise AttributeValueError("Snapshot: is one file, named *.stratal", got=self.path.name)
        for name, part in parts.items():
            if name in (_GENERATOR, _STEPS):
                raise AttributeValueError("Snapshot: a name of its own", got=name, hint="name it otherwise")
            if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
                raise DTypeError("Snapshot: takes what has state_dict and load_state_dict",
                                 got=f"{name}, a {type(part).__name__}")  # fmt: skip

    def load(self) -> bool:
        """Go on from the file, if there is one; return whether. Raises: FormatError for other parts."""
        if not self.path.exists():
            return False
        saved = load(self.path)
        if not isinstance(saved, dict) or saved.keys() != {*self._parts, _GENERATOR, _STEPS}:
            raise FormatError(
                "Snapshot: the file holds other things", got=", ".join(map(str, saved)),
                hint=f"{self.path.name} is of another run: remove it, or name another one",
            )  # fmt: skip
        for name, part in self._parts.items():
            part.load_state_dict(saved[name])
        set_rng_state(saved[_GENERATOR])
        self.steps = saved[_STEPS]
        return True

    def save(self, every: int = 1) -> bool:
        """Write the file at every so many calls; return whether. All ranks call it: state may be sharded."""
        if every < 1:
            raise AttributeValueError("Snapshot.save: every so many steps, at least 1", got=str(every))
        self.steps += 1
        if self.steps % every:
            return False
        state: dict[str, Any] = {name: part.state_dict() for name, part in self._parts.items()}
        if world().rank == 0:
            save({**state, _GENERATOR: get_rng_state(), _STEPS: self.steps}, self.path)
        return True
