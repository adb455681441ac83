"""Samplers: what positions they give, how often, and that a resumed loader goes on in the same order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

pytestmark = pytest.mark.quick


def test_each_sampler_gives_the_positions_it_says() -> None:
    assert list(SequentialSampler("abc")) == [0, 1, 2]
    assert sorted(RandomSampler(range(50))) == list(range(50))
    more = list(RandomSampler(range(5), num_samples=12))
    assert sorted(more[:5]) == sorted(more[5:10]) == list(range(5)) and len(set(more[10:])) == 2
    drawn = list(RandomSampler(range(5), replacement=True, num_samples=2000))
    assert np.bincount(drawn).min() > 300 and len(drawn) == 2000
    assert sorted(SubsetRandomSampler([7, 3, 5])) == [3, 5, 7]
    assert list(BatchSampler(range(5), 2, False)) == [[0, 1], [2, 3], [4]]
    assert list(BatchSampler(range(5), 2, True)) == [[0, 1], [2, 3]]


def test_weights_are_shares_of_the_draws() -> None:
    st.manual_seed(0)
    counts = np.bincount(list(WeightedRandomSampler([1.0, 0.0, 3.0], 8000)))
    assert counts[1] == 0 and abs(counts[2] / 8000 - 0.75) < 0.02
    assert sorted(WeightedRandomSampler(st.tensor([0.1, 0.0, 3.0]), 2, replacement=False)) == [0, 2]


@pytest.mark.torch
@pytest.mark.parametrize(
    "made",
    [
        lambda d: d.SequentialSampler(range(7)), lambda d: d.RandomSampler(range(7)),
        lambda d: d.RandomSampler(range(7), num_samples=17),
        lambda d: d.RandomSampler(range(7), replacement=True, num_samples=9),
        lambda d: d.SubsetRandomSampler([4, 2]), lambda d: d.WeightedRandomSampler([1, 2], 5),
        lambda d: d.BatchSampler(range(7), 3, False),
        lambda d: d.BatchSampler(d.RandomSampler(range(7)), 3, True),
    ],
)  # fmt: skip
def test_samplers_have_the_length_and_positions_of_pytorchs(made: Any) -> None:
    theirs, ours = made(pytest.importorskip("torch").utils.data), made(st.data)
    assert len(ours) == len(theirs) == len(list(ours))
    assert {type(p) for p in ours} == {type(p) for p in theirs}
    assert [np.shape(p) for p in ours] == [np.shape(p) for p in theirs]


@pytest.mark.torch
@pytest.mark.parametrize(
    "made",
    [
        lambda d: d.RandomSampler([]), lambda d: d.RandomSampler([1], num_samples=0),
        lambda d: d.WeightedRandomSampler([1, 2], 0), lambda d: d.WeightedRandomSampler([[1, 2]], 1),
        lambda d: list(d.WeightedRandomSampler([0, 0], 1)),
        lambda d: list(d.WeightedRandomSampler([-1, 2], 1)),
        lambda d: list(d.WeightedRandomSampler([1, 2], 3, replacement=False)),
        lambda d: d.BatchSampler([1], 0, False), lambda d: list(d.Sampler()),
    ],
)  # fmt: skip
def test_what_pytorch_refuses_is_refused(made: Any) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises((ValueError, RuntimeError, TypeError)):
        made(torch.utils.data)
    with pytest.raises(st.StratalError):
        made(st.data)


def test_orders_follow_manual_seed_or_a_generator_and_differ_from_epoch_to_epoch() -> None:
    samplers = RandomSampler(range(40)), SubsetRandomSampler(range(40)), WeightedRandomSampler([1] * 40, 40)
    for sampler in samplers:
        st.manual_seed(1)
        first, second = list(sampler), list(sampler)
        st.manual_seed(1)
        assert first == list(sampler) and first != second
    a, b = (RandomSampler(range(40), generator=st.Generator(3)) for _ in range(2))
    assert list(a) == list(b)
    with pytest.raises(st.StratalError, match="takes a generator"):
        RandomSampler(range(3), generator=np.random.default_rng())  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batched", [False, True])
def test_a_resumed_loader_goes_on_in_the_order_its_sampler_drew(workers: int, batched: bool) -> None:
    def loader() -> DataLoader:
        sampler: Sampler = WeightedRandomSampler(np.ones(40), 30)
        data = st.data.TensorDataset(np.arange(40))
        if batched:
            return DataLoader(data, batch_sampler=BatchSampler(sampler, 4, False), num_workers=workers)  # type: ignore[arg-type]
        return DataLoader(data, 4, sampler=sampler, num_workers=workers)

    def values(batches: Any) -> list[Any]:
        return [x.tolist() for (x,) in batches]

    st.manual_seed(2)
    expected = values(loader())
    st.manual_seed(2)
    stopped = loader()
    batches = iter(stopped)
    head = [next(batches)[0].tolist() for _ in range(3)]
    resumed = loader()
    resumed.load_state_dict(stopped.state_dict())
    st.manual_seed(9)
    assert head + values(resumed) == expected
    assert values(resumed) != expected
