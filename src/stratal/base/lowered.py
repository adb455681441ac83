"""The one word graph/ and loops/ share: what a record's `lower` may return."""

from __future__ import annotations


class Lowered:
    """Base of `loops.Compute`, `loops.LoopBody` and `loops.Region`, so that siblings stay apart."""

    __slots__ = ()
