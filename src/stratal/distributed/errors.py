"""What can go wrong between ranks."""

from __future__ import annotations

from stratal.base.errors import StratalError


class CollectiveTimeoutError(StratalError, TimeoutError):
    """A collective that the other ranks did not join in time; the message names them."""

    advice = "every rank must make the same collectives in the same order; init(timeout=...) waits longer"


class ProgramMismatchError(StratalError, RuntimeError):
    """Ranks that run different programs: another collective, shape, dtype or compiled plan."""

    advice = "every rank must make the same collectives, of the same shapes, in the same order"


class RankLostError(StratalError, RuntimeError):
    """A rank that ended, or was killed, while others wait for it."""

    advice = "what that rank printed last tells why; start the job again from its last checkpoint"
