"""Confidence in medians: what timings say without assuming how they are distributed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple


class Interval(NamedTuple):
    """A median with the interval that holds the true one at the stated confidence."""

    median: float
    low: float
    high: float


def median_interval(samples: Sequence[float], confidence: float = 0.95) -> Interval:
    """Return the median of independent samples between two of them, by the sign test.

    The number of samples below the true median is binomial with p = 1/2: the widest ranks k and n+1-k that
    leave out at most `1 - confidence` bound it. Below six samples, the smallest and the largest are returned.

    Raises: ValueError without samples.
    """
    if not samples:
        raise ValueError("median_interval: at least one sample is needed")
    ordered = sorted(samples)
    n = len(ordered)
    outside = (1 - confidence) / 2
    below, rank = 0.0, 0  # P(count <= rank - 1) stays within one tail
    if n <= 1000:
        while rank < (n - 1) // 2 and below + math.comb(n, rank) / 2**n <= outside:
            below += math.comb(n, rank) / 2**n
            rank += 1
    else:  # the binomial is normal here
        rank = int(n / 2 - statistics.NormalDist().inv_cdf(1 - outside) * math.sqrt(n) / 2)
    rank = max(rank - 1, 0)
    return Interval(statistics.median(ordered), ordered[rank], ordered[n - 1 - rank])
