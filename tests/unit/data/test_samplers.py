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


class Permuted:
    """A sampler of somebody's, whose order is drawn anew in each epoch."""

    def __init__(self) -> None:
        self.epoch, self.position, self.rng = 0, 0, np.random.default_rng(3)

    def __len__(self) -> int:
        return 22

    def order(self) -> list[int]:
        return np.random.default_rng(self.epoch).permutation(22).tolist()


class OfGenerator(Permuted):
    def __iter__(self) -> Any:
        return iter(self.rng.permutation(22).tolist())

    def state_dict(self) -> Any:
        return self.rng.bit_generator.state

    def load_state_dict(self, state: Any) -> None:
        self.rng.bit_generator.state = state


class OfPosition(Permuted):
    """As torchdata's: it goes on where it stood."""

    def __iter__(self) -> Any:
        for place in self.order()[self.position :]:
            self.position += 1
            yield place
        self.epoch, self.position = self.epoch + 1, 0

    def state_dict(self) -> Any:
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: Any) -> None:
        self.epoch, self.position = state["epoch"], state["position"]


class OfEpochs(OfPosition):
    """Which counts epochs as they begin."""

    def __iter__(self) -> Any:
        self.epoch += 1
        return iter(self.order())


class OfEndedEpochs(OfPosition):
    def __iter__(self) -> Any:
        yield from self.order()
        self.epoch += 1


STATES: dict[str, Any] = {
    "random": lambda: RandomSampler(range(22)),
    "random of its own": lambda: RandomSampler(range(22), generator=st.Generator(3)),
    "more": lambda: RandomSampler(range(22), num_samples=30, generator=st.Generator(3)),
    "weighted": lambda: WeightedRandomSampler(np.arange(22), 17, generator=st.Generator(3)),
    "subset": lambda: SubsetRandomSampler(range(3, 20), generator=st.Generator(3)),
    "fixed": lambda: [3, 1, 4, 15, 9, 2, 6, 5, 8, 7], "sequential": lambda: SequentialSampler(range(22)),
    "its generator": OfGenerator, "its position": OfPosition, "its epoch": OfEpochs,
    "epochs that ended": OfEndedEpochs, "own order": lambda: None,
}  # fmt: skip
NUMBERS = st.data.TensorDataset(np.arange(22))


def loader_of(state: str, form: int) -> DataLoader:
    """Return a loader of batches of 4, of one of four forms."""
    sampler, workers = STATES[state](), form % 2 * 2
    if sampler is None:
        return DataLoader(NUMBERS, 4, shuffle=True, generator=st.Generator(3), num_workers=workers)
    if form < 2:
        return DataLoader(NUMBERS, 4, sampler=sampler, num_workers=workers)
    return DataLoader(NUMBERS, batch_sampler=BatchSampler(sampler, 4, True), num_workers=workers)  # type: ignore[arg-type]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("done", [0, 3, 5, 6, 8])
@pytest.mark.parametrize("form", range(4))
@pytest.mark.parametrize("state", STATES)
def test_a_loader_resumed_anywhere_goes_on_as_the_one_it_was_in_later_epochs_too(
    state: str, form: int, done: int
) -> None:
    def values(batches: Any) -> list[Any]:
        return [x.tolist() for (x,) in batches]

    st.manual_seed(2)
    stopped = loader_of(state, form)
    epochs, left = [iter(stopped)], done
    while left:  # an epoch's end is seen only by asking for a batch more
        if next(epochs[-1], None) is None:
            epochs.append(iter(stopped))
        else:
            left -= 1
    saved, drawn = stopped.state_dict(), st.get_rng_state()
    expected = values(epochs[-1]), values(stopped), values(stopped)
    resumed = loader_of(state, form)
    resumed.load_state_dict(saved)
    again = resumed.state_dict()
    st.set_rng_state(drawn)
    assert str(again) == str(saved)
    assert (values(resumed), values(resumed), values(resumed)) == expected
    between = loader_of(state, form)  # in no epoch
    between.load_state_dict(stopped.state_dict())
    drawn = st.get_rng_state()
    expected = values(stopped), values(stopped), []
    st.set_rng_state(drawn)
    assert (values(between), values(between), []) == expected


def test_a_sampler_whose_state_does_not_decide_on_its_order_is_refused() -> None:
    class Forgetful(OfGenerator):
        def state_dict(self) -> Any:
            return {}

        def load_state_dict(self, state: Any) -> None:
            pass

    def loader(sampler: Any) -> DataLoader:
        return DataLoader(NUMBERS, 4, sampler=sampler)

    stopped, resumed = loader(Forgetful()), loader(Forgetful())
    list(stopped)
    batches = iter(stopped)
    next(batches)
    resumed.load_state_dict(stopped.state_dict())
    with pytest.raises(st.StratalError, match="goes on in the order it began with") as caught:
        next(iter(resumed))
    assert caught.value.got == "another one of a Forgetful"
    for other in (Permuted(), iter(range(22))):
        with pytest.raises(st.StratalError, match="an order that can be had again"):
            loader(other).load_state_dict({**stopped.state_dict(), "batch": 0})
    own = DataLoader(NUMBERS, 4, shuffle=True, generator=st.Generator(1))
    with pytest.raises(st.StratalError, match="the generator it began with"):
        DataLoader(NUMBERS, 4, shuffle=True).load_state_dict(own.state_dict())
    own = loader(RandomSampler(range(22), generator=st.Generator(1)))
    with pytest.raises(st.StratalError, match="RandomSampler: goes on with the generator it began with"):
        loader(RandomSampler(range(22))).load_state_dict(own.state_dict())


def test_an_iterable_is_read_again_up_to_where_a_loader_stood_and_refused_where_it_gives_other_rows() -> None:
    class Rows(st.data.IterableDataset[Any]):
        def __init__(self, start: int) -> None:
            self.start = start

        def __iter__(self) -> Any:
            return iter([(k, f"row {k}", {1}) for k in range(self.start, self.start + 9)])

    def loader(start: int) -> DataLoader:
        return DataLoader(Rows(start), 2, collate_fn=lambda rows: [*zip(*rows, strict=True)])

    stopped = loader(0)
    batches = iter(stopped)
    next(batches)
    state, resumed = stopped.state_dict(), loader(0)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state and list(resumed) == list(batches)
    other = loader(1)
    other.load_state_dict(state)
    with pytest.raises(st.StratalError, match="goes on in the order it began with"):
        next(iter(other))


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
