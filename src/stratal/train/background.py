"""One piece of work at a time on a thread beside training, whose error is raised where it is waited for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from stratal.base import tree
from stratal.base.errors import StratalError
from stratal.tensor.tensor import Tensor


class Background:
    """Runs functions on a thread, each when the one before is done. The process does not end before them."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, work: Callable[[], None]) -> None:
        """Run a function, after what runs. Raises: what that raised."""
        self.wait()
        self._thread = threading.Thread(target=self._run, args=(work,), name="stratal-checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Wait for what runs. Raises: what it raised, once."""
        if self._thread is not None:
            self._thread.join()  # Ctrl-C ends the waiting, not the work
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error.at_caller() if isinstance(error, StratalError) else error

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._error = error


def copied(state: Any) -> Any:
    """Return a state whose tensors are arrays of their own: training may go on while it is written."""
    return tree.map(_copied, state)


def _copied(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return np.array(leaf.detach())
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf
