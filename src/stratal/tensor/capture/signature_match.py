"""Signature match, the fast path: arguments of the same layouts as the last call's find its program.

A signature takes longer to build and to look up than a small program takes to run. Where all arguments are
tensors that hold a value and take no gradient, their layouts say as much: types are part of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from stratal.base.interrupts import ATOMIC
from stratal.base.settings import blocks_in_force
from stratal.runtime.storage import INVALIDATED
from stratal.tensor.capture.replay import Entry, FromArgument, results
from stratal.tensor.capture.results import Output
from stratal.tensor.lazy import program_cache
from stratal.tensor.tensor import Tensor, hold
from stratal.tensor.values.handle import CONSTANT, WITHOUT_HISTORY
from stratal.tensor.values.state import MODE

NO_MATCH: Final[Any] = object()  # in place of a result


class SignatureMatch:
    """What the last call ran, for calls whose arguments are like its own."""

    __slots__ = (
        "_acts", "_blocks", "_entry", "_guards", "_layouts", "_only", "_pick", "_program", "_token", "_views",
        "autocast", "grad", "part",
    )  # fmt: skip

    def __init__(self, entry: Entry, arguments: Sequence[Tensor]) -> None:
        assert entry.pinned_replay is not None
        self.grad: Final = MODE.grad
        self.autocast: Final = MODE.autocast
        self.part: Final = MODE.part
        self._blocks: Final = blocks_in_force()
        self._entry: Final = entry
        self._guards: Final = entry.guards
        self._token, self._program = entry.pinned_replay
        self._layouts: Final = [x._storage.layout for x in arguments if x._storage is not None]
        positions = [r.position for r in entry.varying_reads if isinstance(r, FromArgument)]
        self._pick: Final = None if positions == list(range(len(arguments))) else positions
        self._acts: Final = entry.acts
        only = entry.result if type(entry.result) is Output and not entry.effects else None
        alone = only is not None and only.shown is None and not WITHOUT_HISTORY[only.track]
        self._only: Final = only.number if only is not None and alone else -1
        self._views: Final = entry.alias.layouts is not None or bool(entry.written)

    @classmethod
    def of(cls, entry: Entry, arguments: Sequence[Any]) -> SignatureMatch | None:
        """Return what tells such calls; None where more than the layouts of tensors decides what runs."""
        changing = entry.once or entry.grads_before or entry.grad_links or entry.grad_shares
        if entry.pinned_replay is None or changing:
            return None
        if any(type(r) is not FromArgument for r in entry.varying_reads):
            return None
        if any(type(x) is not Tensor or x._track != CONSTANT or x._storage is None for x in arguments):
            return None
        alias = entry.alias
        if alias.constrains or any(alias.layouts or ()) or len(set(map(id, arguments))) < len(arguments):
            return None
        if entry.prelude:
            return None
        made = cls(entry, arguments)
        return made if made._picked(made._layouts) == made._program.layouts else None

    def _picked(self, found: list[Any]) -> list[Any]:
        """Return the items of the arguments the program reads, in its order."""
        return found if self._pick is None else [found[k] for k in self._pick]

    def _like_the_last(self, x: Tensor) -> bool:
        """Return whether an argument that is a view is none of what the program writes, and lies as any."""
        view = x._view
        assert view is not None
        return not view.memory.guarded and (self._entry.alias.layouts is None or view.is_contiguous)

    def run(self, arguments: Sequence[Any]) -> Any:
        """Return the result of such a call; `NO_MATCH` where it may be another, and nothing has run."""
        layouts, views = self._layouts, self._views
        if self._token is not INVALIDATED[0] or program_cache.WATCHERS or len(arguments) != len(layouts):
            return NO_MATCH
        if self._blocks is not blocks_in_force():
            return NO_MATCH
        addresses = []
        try:
            for x, layout in zip(arguments, layouts):  # noqa: B905 (strict takes longer)
                storage = x._storage
                if storage.layout is not layout or x._track or x._guarded:  # CONSTANT is 0
                    return NO_MATCH
                if views and x._view is not None and not self._like_the_last(x):
                    return NO_MATCH
                addresses.append(storage.address)
        except AttributeError:  # no tensor, or one without a value
            return NO_MATCH
        if len(set(addresses)) < len(addresses) or self._guards.failed() is not None:
            return NO_MATCH
        varying = addresses if self._pick is None else self._picked(addresses)
        if self._only >= 0:
            outputs = self._program.run(varying)
            return NO_MATCH if outputs is None else hold(outputs[self._only])
        if not self._acts:  # no block at all: even one that does nothing takes 0.4 us
            outputs = self._program.run(varying)
            return NO_MATCH if outputs is None else results(self._entry, outputs, arguments, {})
        with ATOMIC:
            outputs = self._program.run(varying)
            return NO_MATCH if outputs is None else results(self._entry, outputs, arguments, {})
