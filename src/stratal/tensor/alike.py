"""Calls like the last one: arguments that find their capture, and its program, at a glance.

A signature takes longer to build and to look up than a small program takes to run. Where all arguments are
tensors that hold a value and take no gradient, their layouts say as much: types are part of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from stratal.base import tree
from stratal.runtime.storage import DISTURBED
from stratal.tensor import programs
from stratal.tensor.handles import CONSTANT
from stratal.tensor.replay import Entry, FromArgument, results
from stratal.tensor.state import MODE
from stratal.tensor.tensor import Tensor, hold

UNLIKE: Final[Any] = object()  # in place of a result


class Alike:
    """What the last call ran, for calls whose arguments are like its own."""

    __slots__ = (
        "_entry",
        "_guards",
        "_layouts",
        "_only",
        "_pick",
        "_program",
        "_token",
        "autocast",
        "grad",
    )

    def __init__(self, entry: Entry, arguments: Sequence[Tensor]) -> None:
        assert entry.steady is not None
        self.grad: Final = MODE.grad
        self.autocast: Final = MODE.autocast
        self._entry: Final = entry
        self._guards: Final = entry.guards
        self._token, self._program = entry.steady
        self._layouts: Final = [x._storage.layout for x in arguments if x._storage is not None]
        positions = [r.position for r in entry.varying_reads if isinstance(r, FromArgument)]
        self._pick: Final = None if positions == list(range(len(arguments))) else positions
        self._only: Final = entry.outs[0].number if entry.structure is tree.LEAF else -1

    @classmethod
    def of(cls, entry: Entry, arguments: Sequence[Any]) -> Alike | None:
        """Return what tells such calls; None where more than the layouts of tensors decides what runs."""
        if entry.steady is None or entry.once or entry.grads_before or entry.grad_links:
            return None
        if any(type(r) is not FromArgument for r in entry.varying_reads):
            return None
        if any(type(x) is not Tensor or x._track != CONSTANT or x._storage is None for x in arguments):
            return None
        made = cls(entry, arguments)
        return made if made._picked(made._layouts) == made._program.layouts else None

    def _picked(self, found: list[Any]) -> list[Any]:
        """Return the items of the arguments the program reads, in its order."""
        return found if self._pick is None else [found[k] for k in self._pick]

    def run(self, arguments: Sequence[Any]) -> Any:
        """Return the result of such a call; `UNLIKE` where it may be another, and nothing has run."""
        layouts = self._layouts
        if self._token is not DISTURBED[0] or programs.WATCHERS or len(arguments) != len(layouts):
            return UNLIKE
        addresses = []
        try:
            for x, layout in zip(arguments, layouts):  # noqa: B905 (strict takes longer)
                storage = x._storage
                if storage.layout is not layout or x._track:  # CONSTANT is 0
                    return UNLIKE
                addresses.append(storage.address)
        except AttributeError:  # no tensor, or one without a value
            return UNLIKE
        if len(set(addresses)) < len(addresses) or self._guards.failed() is not None:
            return UNLIKE
        outputs = self._program.run(addresses if self._pick is None else self._picked(addresses))
        if outputs is None:
            return UNLIKE
        return hold(outputs[self._only]) if self._only >= 0 else results(self._entry, outputs)
