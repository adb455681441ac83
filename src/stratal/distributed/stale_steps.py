"""How old the parameters were that workers of a parameter server went on with."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from stratal.distributed.collectives import all_gather, all_reduce
from stratal.distributed.parameter_server import served_by
from stratal.distributed.world import world
from stratal.optim.optimizer import Optimizer

Array = np.ndarray[Any, Any]


class Staleness(NamedTuple):
    """How old the parameters were that workers went on with.

    `steps`: [n, 5] int64, a row per step of a worker and server: server, worker, the number of the step, how
    many steps the slowest worker was behind when parameters were sent, and how many updates of other workers
    came between this worker's reading parameters and its own update.
    """

    bound: int
    steps: Array

    @property
    def measured(self) -> int:
        """The largest number of steps any worker was ahead of the slowest one when it got parameters."""
        return int(self.steps[:, 3].max(initial=0))

    def __str__(self) -> str:
        counts = np.bincount(self.steps[:, 3])
        shares = ", ".join(f"{k} in {n} steps" for k, n in enumerate(counts) if n) or "no steps"
        missed = float(self.steps[:, 4].mean()) if len(self.steps) else 0.0
        told = f"staleness {self.measured} of at most {self.bound}: {shares}"
        return f"{told}; {missed:.2f} updates missed in the mean"


def staleness(optimizer: Optimizer) -> Staleness:
    """Return the staleness of all steps of an optimizer so far; every rank calls it, and gets the same."""
    if world().size == 1:
        return Staleness(0, np.zeros((0, 5), np.int64))
    served = served_by(optimizer, "staleness")
    rows = served.serving.steps if served.serving is not None else []
    count = int(all_reduce(np.int64(len(rows)), "max"))
    own = np.full((count, 5), -1, np.int64)  # ranks that are no servers have no rows
    own[: len(rows), 0] = world().rank
    own[: len(rows), 1:] = rows if rows else 0
    found = all_gather(own)
    return Staleness(served.bound, found[found[:, 0] >= 0])
