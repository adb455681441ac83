"""A memory budget of programs, and what it may do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from stratal.base import settings


class Budget(NamedTuple):
    """Bytes that the plan of a program may need in all, and whether its batch may be split to keep them."""

    nbytes: int
    micro_batches: bool = False

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Compile within the budget inside of the block; the setting may allow parts to every budget."""
        in_parts = self.micro_batches or settings.micro_batches.value
        with settings.memory(self.nbytes), settings.micro_batches(in_parts):
            yield
