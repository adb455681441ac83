"""Elastic steps: a rank that dies is left out, and the step it broke off is done again by the others.

    attempt                     every rank computes the mean gradients; parameters stay as they are
      -> all agree it is done   each updates
      -> else                   ranks that live find each other, number themselves anew, and attempt again

Agreement survives deaths: ranks that live get one answer, so that all update or none does. See: Bland,
Bouteiller, Herault, Bosilca and Dongarra, "Post-failure recovery of MPI communication capability: design and
rationale", 2013 (ULFM: revoke, agree, shrink).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TypeVar

from stratal.distributed.errors import RankLostError
from stratal.distributed.world import is_elastic, world

T = TypeVar("T")


def surviving(attempt: Callable[[], T]) -> T:
    """Return what an attempt returns once it was done on every rank that lives; it may be called again.

    Outside of an elastic job it is called once. Raises: what it raises, but for the loss of ranks;
    CollectiveTimeoutError where one does not answer.
    """
    if not is_elastic():
        return attempt()
    while True:
        lost: RankLostError | None = None
        try:
            found = attempt()
        except RankLostError as error:
            lost = error
        if world().agree(lost is None):
            return found
        leave_out_dead(lost)


def leave_out_dead(lost: RankLostError | None) -> None:
    """Go on as the world of ranks that live, and say so. Raises: RankLostError where all of them do."""
    began, before = time.monotonic(), world()
    left, ranks = before.without_dead()
    if left.size == before.size:
        raise lost or RankLostError("a step was not done on all ranks", got="no rank that died")
    if left.rank == 0:
        dead = ", ".join(str(r) for r in range(before.size) if r not in ranks)
        print(
            f"stratal: rank {dead} of {before.size} was lost; {left.size} go on, numbered anew, "
            f"{time.monotonic() - began:.2f} s after the others noticed",
            file=sys.stderr, flush=True,
        )  # fmt: skip
