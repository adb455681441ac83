"""Processes that must not outlive the one that started them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

_DEATH_SIGNAL: Final = 1  # PR_SET_PDEATHSIG of Linux


def die_with_parent(number: int = signal.SIGKILL, parent: int = 0) -> None:
    """Let the system send this process a signal when its parent ends, however that ends (Linux).

    `parent`: the process that should be it; this one ends now where that has gone already.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_DEATH_SIGNAL, number, 0, 0, 0)
    if parent and os.getppid() != parent:
        os._exit(1)
