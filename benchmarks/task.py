"""What a task of the benchmarks is."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.work import Work


@dataclass(frozen=True)
class Task:
    """One workload, in a suite. The ratio is Stratal's time over the best peer's in the same run."""

    name: str
    suite: str
    title: str
    work: Work
    gate: float | None = None  # the ratio that must be met
    aim: float | None = None  # the one the floor allows
    tolerance: float = 1e-3  # of losses |a-b| / max(|b|, 1), of results max|a-b| / max|b|
    images: bool = False  # has images, which libraries keep in one of two memory formats
    table: str | None = None  # its geometric mean is what the table's gate is about
    cold_gate_s: float | None = None  # of the first call with an empty cache
    peers: tuple[str, ...] | None = None  # only these; None: all that take its suite
    autocast: str | None = None  # the dtype of products in mixed precision, in every system


@dataclass(frozen=True)
class Table:
    """A group of kernels judged by the geometric mean of their ratios."""

    name: str
    gate: float
    aim: float
