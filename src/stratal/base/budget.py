"""What is asked of programs: a memory budget, and what it may do; arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from stratal.base import settings
from stratal.base.byte_sizes import parse_bytes
from stratal.base.errors import AttributeValueError


def checked_flag(caller: str, micro_batches: bool) -> bool:
    """Return whether a batch may be split. Raises: AttributeValueError for what is neither True nor False."""
    if not isinstance(micro_batches, bool):
        raise AttributeValueError(f"{caller}: micro_batches is True or False", got=repr(micro_batches),
                                  hint="how many parts there are the plan decides")  # fmt: skip
    return micro_batches


class Demands(NamedTuple):
    """What is asked of programs: a memory budget, and arithmetic; None is what the settings say."""

    budget: Budget | None = None
    math: str | None = None

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Compile as asked inside of the block."""
        with ExitStack() as stack:
            if self.budget is not None:
                stack.enter_context(self.budget.in_force())
            if self.math is not None:
                stack.enter_context(settings.math(self.math))
            yield


class Budget(NamedTuple):
    """Bytes that the plan of a program may need in all, and whether its batch may be split to keep them."""

    nbytes: int
    micro_batches: bool = False

    @classmethod
    def of(cls, caller: str, memory: int | str, micro_batches: bool) -> Budget:
        """Return what a caller was given as a budget. Raises: AttributeValueError."""
        return cls(parse_bytes(memory, f"{caller}: memory"), checked_flag(caller, micro_batches))

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Compile within the budget inside of the block; the setting may allow parts to every budget."""
        in_parts = self.micro_batches or settings.micro_batches.value
        with settings.memory(self.nbytes), settings.micro_batches(in_parts):
            yield
