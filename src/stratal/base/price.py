"""Prices: what a graph should cost to run on a target, and which kernel costs how much of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple

from stratal.base.log import duration

Bound = Literal["compute", "memory", "latency", "host"]
HEAD: Final = ("share", "time", "runs", "bytes", "bound", "basis", "tactic", "kernel")


@dataclass(frozen=True, slots=True)
class KernelPrice:
    """What one kernel costs: seconds and bytes of one call, and how often a run calls it.

    `tactic` is the candidate it is made by, `bound` what takes the larger part of its time. `basis` says
    whether a tuning record measured it.
    """

    name: str
    tactic: str
    bound: Bound
    seconds: float
    bytes: float
    calls: float = 1.0
    basis: Literal["estimated", "measured"] = "estimated"

    @property
    def total_seconds(self) -> float:
        return self.seconds * self.calls

    def times(self, calls: float) -> KernelPrice:
        """Return the price of a kernel in a loop of so many turns."""
        return self if calls == 1 else replace(self, calls=self.calls * calls)


class Price(NamedTuple):
    """What a graph costs: seconds of one run, bytes its kernels touch, and the kernels in their order."""

    seconds: float
    bytes: float
    why: tuple[KernelPrice, ...]

    @classmethod
    def of(cls, kernels: Iterable[KernelPrice]) -> Price:
        """Return the price of kernels that run one after another."""
        why = tuple(kernels)
        return cls(sum(k.total_seconds for k in why), sum(k.bytes * k.calls for k in why), why)

    def times(self, calls: float) -> Price:
        """Return the price of running this so many times."""
        return Price.of(k.times(calls) for k in self.why)

    def __str__(self) -> str:
        """Return a table, the most expensive kernel first; equal kernels are one row."""
        found: dict[KernelPrice, float] = {}
        for kernel in self.why:
            one = replace(kernel, calls=1.0)
            found[one] = found.get(one, 0.0) + kernel.calls
        rows = sorted(
            (replace(kernel, calls=calls) for kernel, calls in found.items()), key=lambda k: -k.total_seconds
        )
        cells = [HEAD, *(_row(k, self.seconds) for k in rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]
        head = f"{duration(self.seconds)}, {_megabytes(self.bytes)}, {len(self.why)} kernels"
        return "\n".join([head, *lines])


def _row(kernel: KernelPrice, total: float) -> tuple[str, ...]:
    share = kernel.total_seconds / total if total else 0.0
    return (
        f"{share:.1%}", duration(kernel.total_seconds), f"{kernel.calls:g}",
        _megabytes(kernel.bytes * kernel.calls), kernel.bound, kernel.basis, kernel.tactic, kernel.name,
    )  # fmt: skip


def _megabytes(nbytes: float) -> str:
    return f"{nbytes / 1e6:.3g} MB"
