"""Orders: permutations and splits that depend on nothing but their seed.

They rest on raw Philox words, whose stream NumPy promises never to change, so that a split named in a report
is the same split on every machine and in every release.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from stratal.base.counts import as_count
from stratal.base.errors import AttributeValueError

Array = np.ndarray[Any, Any]
_MASK: Final = (1 << 64) - 1


def permutation(count: int, seed: int, stream: int = 0) -> Array:
    """Return the numbers below `count` in an order that depends on `seed` and `stream` only."""
    key = np.array([seed & _MASK, stream & _MASK], np.uint64)
    return np.argsort(np.random.Philox(key=key).random_raw(count), kind="stable")


def stratified_split(labels: Any, test_share: float = 0.2, seed: int = 0) -> tuple[Array, Array]:
    """Return shuffled positions for training and testing, each label in both by its share.

    A label has a row in both at least; one of a single row is for training. Raises: AttributeValueError for a
    share outside (0, 1), and where no label has two rows.
    """
    if not 0 < test_share < 1:
        raise AttributeValueError("stratified_split: the share must lie between 0 and 1", got=str(test_share))
    found = np.asarray(labels)
    train: list[Array] = []
    test: list[Array] = []
    for stream, label in enumerate(np.unique(found), 1):
        positions = np.flatnonzero(found == label)
        positions = positions[permutation(len(positions), seed, stream)]
        cut = min(max(round(test_share * len(positions)), 1), len(positions) - 1)
        test.append(positions[:cut])
        train.append(positions[cut:])
    if not any(map(len, test)):
        raise AttributeValueError(
            "stratified_split: a label has rows to train on and to test with", got=f"{found.size} rows of "
            f"{len(train)} labels", hint="random_split takes rows without labels",
        )  # fmt: skip
    return _mixed(train, seed), _mixed(test, seed)


def positive(name: str, value: Any, what: str) -> int:
    """Return a count. Raises: AttributeValueError."""
    return as_count(f"{name}: {what} is a positive integer", value)


def span_of(positions: Array) -> slice | None:
    """Return positions that follow each other as a slice; None for others, and for none."""
    if not len(positions) or positions[0] < 0 or positions[-1] - positions[0] != len(positions) - 1:
        return None
    if not (positions[1:] - positions[:-1] == 1).all():
        return None
    return slice(int(positions[0]), int(positions[-1]) + 1)


def part_of(count: int, rank: int, ranks: int) -> slice:
    """Return which of `count` samples are those of a rank; the first ranks have one more.

    Raises: AttributeValueError where a rank would have none.
    """
    least, rest = divmod(count, ranks)
    if not least:
        raise starving(ranks, count)
    start = rank * least + min(rank, rest)
    return slice(start, start + least + (rank < rest))


def starving(ranks: int, rest: int, size: str = "") -> AttributeValueError:
    """Return the error for a batch that has no part for some ranks."""
    return AttributeValueError(
        f"shard: every batch has parts for all {ranks} ranks, of one size but for the last batch",
        got=f"{size}{rest} samples in the last batch",
        hint="a batch size the ranks divide; drop_last=True leaves the last batch out",
    )


def _mixed(parts: list[Array], seed: int) -> Array:
    joined = np.concatenate([np.empty(0, np.int64), *parts])
    return joined[permutation(len(joined), seed)]
