"""Which lengths a transform can be cut into, and how: radices of its stages, two factors, longer lengths."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

PRIMES: Final = (2, 3, 5, 7, 11, 13)  # factors that a stage computes as they are
RADICES: Final = (16, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2)
"""Of a stage that is written out; more numbers would not stay in registers."""
LARGEST: Final = 127  # prime of a stage that takes as many steps; larger ones go by a longer length
MOST: Final = 1 << 12  # numbers of a line of which several lie in a core's cache


def rough_part(n: int) -> int:
    """Return what is left of a length without its small prime factors."""
    for p in PRIMES:
        while n % p == 0:
            n //= p
    return n


def is_smooth(n: int) -> bool:
    """Return whether a length has small prime factors only, and at most one more that is not large."""
    rest = rough_part(n)
    return rest == 1 or (rest <= LARGEST and all(rest % d for d in range(2, int(rest**0.5) + 1)))


@lru_cache(maxsize=1024)
def radices(n: int) -> tuple[int, ...]:
    """Return the radices of the stages for a smooth length: few stages, none much wider than the others."""
    if n == 1:
        return ()
    last = rough_part(n)
    if last > 1:  # whose stage has no factors between it and the next
        return (*radices(n // last), last)
    ways = [(r, *radices(n // r)) for r in RADICES if n % r == 0]
    return min(ways, key=lambda way: (len(way), sum(way), way))


@lru_cache(maxsize=1024)
def halves(n: int) -> tuple[int, int] | None:
    """Return two smooth factors of a length, as near to each other as can be; None if there are none."""
    for first in range(int(n**0.5), 1, -1):
        if n % first == 0 and is_smooth(first) and is_smooth(n // first):
            return n // first, first
    return None


@lru_cache(maxsize=1024)
def smooth_from(n: int) -> int:
    """Return the least length from `n` on that has the factors 2, 3 and 5 only and two factors of at most
    `MOST`.
    """
    while True:
        rest = n
        for p in (2, 3, 5):
            while rest % p == 0:
                rest //= p
        if rest == 1:
            return n
        n += 1
