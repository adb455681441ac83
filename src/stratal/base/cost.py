"""What work costs: floating-point operations and bytes moved, as estimated from types alone."""

from __future__ import annotations

from typing import NamedTuple


class Cost(NamedTuple):
    """Estimated work of an op or a kernel. Units: operations, bytes."""

    flops: float = 0.0
    read_bytes: float = 0.0
    written_bytes: float = 0.0

    @property
    def bytes(self) -> float:
        return self.read_bytes + self.written_bytes

    def __add__(self, other: tuple[object, ...]) -> Cost:
        assert isinstance(other, Cost)
        return Cost(*(a + b for a, b in zip(self, other, strict=True)))
