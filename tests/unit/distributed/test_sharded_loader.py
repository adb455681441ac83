"""Loaders that give each rank its part of every batch."""

from __future__ import annotations

import numpy as np
import pytest

from stratal.base.errors import AttributeValueError
from stratal.data import DataLoader, TensorDataset


@pytest.mark.row("F1")
@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("shuffle", [False, True])
def test_ranks_together_see_the_batches_of_one_process_each_sample_once(size: int, shuffle: bool) -> None:
    dataset = TensorDataset(np.arange(96))
    whole = DataLoader(dataset, 12, shuffle=shuffle, seed=5)
    loaders = [DataLoader(dataset, 12, shuffle=shuffle, seed=5, shard=(r, size)) for r in range(size)]
    for _ in range(2):  # epochs
        seen = []
        for (batch,), *parts in zip(whole, *loaders, strict=True):
            joined = np.concatenate([np.asarray(part) for (part,) in parts])
            np.testing.assert_array_equal(joined, np.asarray(batch))
            seen += joined.tolist()
            assert {len(np.asarray(part)) for (part,) in parts} == {12 // size}
        assert sorted(seen) == list(range(96))


def test_the_last_batch_is_shared_out_too_and_a_resumed_shard_goes_on() -> None:
    loaders = [DataLoader(TensorDataset(np.arange(29)), 8, shard=(r, 2)) for r in range(2)]
    last = [np.asarray(list(loader)[-1][0]).tolist() for loader in loaders]
    assert last == [[24, 25, 26], [27, 28]]
    first = DataLoader(TensorDataset(np.arange(32)), 8, shuffle=True, seed=1, shard=(1, 2))
    again = DataLoader(TensorDataset(np.arange(32)), 8, shuffle=True, seed=1, shard=(1, 2))
    batches = iter(first)
    next(batches)
    again.load_state_dict(first.state_dict())
    rest = [np.asarray(x).tolist() for (x,) in again]
    assert rest == [np.asarray(x).tolist() for (x,) in batches]


def test_shards_that_would_starve_or_disagree_are_refused() -> None:
    dataset = TensorDataset(np.arange(25))
    with pytest.raises(AttributeValueError, match="a shard is"):
        DataLoader(dataset, 8, shard=(2, 2))
    with pytest.raises(AttributeValueError, match="a seed decides"):
        DataLoader(dataset, 8, shuffle=True, shard=(0, 2))
    with pytest.raises(AttributeValueError, match="parts for all 3 ranks"):
        DataLoader(dataset, 8, shard=(0, 3))
    with pytest.raises(AttributeValueError, match="parts for all 2 ranks"):
        DataLoader(dataset, 8, shard=(0, 2))
    with pytest.raises(AttributeValueError, match="loader's own order"):
        DataLoader(dataset, 8, sampler=range(25), shard=(0, 2))
    assert len(DataLoader(dataset, 8, drop_last=True, shard=(0, 2))) == 3
