"""What decides the bits of a run beside its state: versions, and the programs its step was compiled to.

    state := {"stratal": version, "numpy": version,
              "programs": {"step of f32[32,64], i64[32]": {graph's digest: program's digest},
                           "step of any size": {graph's digest: program's digest}}}

A step may be several graphs for batches of one type: gradients are begun, then added to. Of a graph that both
runs have, programs are compared; where they have none in common for some type, the step is another one. Which
sizes a program of any size is captured for, and up to which, depends on what came first, so that a resumed
run may have others.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from stratal.base import tree
from stratal.base.version import VERSION
from stratal.tensor.capture.compiled import Compiled
from stratal.tensor.tensor import Tensor

_VERSIONS: Final = {"stratal": VERSION, "numpy": np.__version__}
_ANY_SIZE: Final = "any size"
_NAMES: Final = {"stratal": "Stratal", "numpy": "NumPy"}


class ChangedProgramWarning(UserWarning):
    """A run goes on with another version, or another program of its step, than it was saved with: losses may
    differ in their last bits from those of the run that was not interrupted.
    """


class Provenance:
    """The programs of a step so far, and those of the run that it goes on with."""

    def __init__(self) -> None:
        self._programs: dict[str, dict[str, str]] = {}
        self._saved: dict[str, dict[str, str]] = {}  # of the run resumed
        self._noted: dict[str, int] = {}  # captures of each function so far
        self._told: set[str] = set()

    def note(self, step: Any, batch: Any) -> None:
        """Note the programs that a step was captured to for a batch. Warns: ChangedProgramWarning."""
        for name, compiled in compiled_parts(step).items():
            if compiled.captures == self._noted.get(name, 0):
                continue
            self._noted[name] = compiled.captures
            entry = compiled._last
            if entry is None or entry.lazily:  # such a call runs no program of its own
                continue
            types = ", ".join(str(x.type) for x in tree.leaves(batch) if isinstance(x, Tensor))
            key = f"{name} of {_ANY_SIZE if entry.sizes else types}"
            self._programs.setdefault(key, {})[entry.graph.digest] = entry.program.digest
            self._compare(key, at_end=False)

    def compare(self) -> None:
        """Compare what was captured so far with the run resumed. Warns: ChangedProgramWarning."""
        for key in self._programs:
            self._compare(key, at_end=True)

    def _compare(self, key: str, at_end: bool) -> None:
        now, saved = self._programs[key], self._saved.get(key, {})
        common = [graph for graph in now if graph in saved]
        other = next((graph for graph in common if now[graph] != saved[graph]), None)
        if other is not None:
            self._tell(key, now[other], saved[other])
        elif at_end and saved and not common and not key.endswith(_ANY_SIZE):
            self._tell(key, *(next(reversed(programs.values())) for programs in (now, saved)))

    def _tell(self, key: str, now: str, saved: str) -> None:
        if key not in self._told:
            self._told.add(key)
            _warn(f"the program of the {key} is {now[:8]}, that of the run it goes on with was {saved[:8]}")

    def state_dict(self) -> dict[str, Any]:
        """Return versions and digests."""
        keys = dict.fromkeys([*self._saved, *self._programs])
        return {**_VERSIONS, "programs": {key: self._programs.get(key) or self._saved[key] for key in keys}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Compare versions with those of the run that is resumed; programs are when they are captured.

        Warns: ChangedProgramWarning.
        """
        for name, now in _VERSIONS.items():
            if state[name] != now:
                _warn(f"{_NAMES[name]} is {now}, that of the run it goes on with was {state[name]}")
        self._saved, self._told = dict(state["programs"]), set()


def compiled_parts(step: Any) -> dict[str, Compiled]:
    """Return the compiled functions of a step by what they are."""
    found = step.programs if hasattr(step, "programs") else {"step": step}
    return {name: function for name, function in found.items() if isinstance(function, Compiled)}


def _warn(what: str) -> None:
    warnings.warn(f"fit: {what}: bits may differ", ChangedProgramWarning, stacklevel=4)
