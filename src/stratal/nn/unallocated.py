"""Models without memory: modules built for their types alone, however large.

    with unallocated() as region:
        net = GPT2LMHeadModel(config)      # draws nothing, touches no memory

Each parameter made in the block is a leaf of its shape and dtype whose storage lies over one region that all
share. The system backs a page of it only when somebody writes there, and nobody does: initialisers return
at once. What computes with such values gets numbers of no meaning, and stays within the region.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

import numpy as np

from stratal.base.types import TensorType
from stratal.runtime.storage import Storage
from stratal.tensor.tensor import Tensor, hold


class Region:
    """Memory that is reserved and never touched, as large as the largest tensor over it."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)

    def tensor(self, type_: TensorType) -> Tensor:
        """Return a tensor of a type over the region."""
        nbytes = type_.nbytes
        if nbytes > self._memory.nbytes:
            self._memory = np.empty(nbytes, np.uint8)  # tensors made before stay over the smaller one
        array = self._memory[:nbytes].view(type_.dtype.np).reshape(type_.ints)
        return hold(Storage(type_, array))


_REGION: Final[ContextVar[Region | None]] = ContextVar("stratal_unallocated", default=None)
region_in_force = _REGION.get


@contextmanager
def unallocated(region: Region | None = None) -> Generator[Region]:
    """Let parameters that are made or copied in this block lie over a region, a new one unless given."""
    region = region or Region()
    token = _REGION.set(region)
    try:
        yield region
    finally:
        _REGION.reset(token)
