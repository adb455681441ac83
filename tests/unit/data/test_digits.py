"""The digits and the loader: real data, one fixed split, orders that seeds and generators decide."""

from __future__ import annotations

import gzip
import hashlib
from importlib import resources
from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal.base.errors import AttributeValueError, CaptureError, FormatError, ShapeError, StratalError
from stratal.data import (
    ConcatDataset,
    DataLoader,
    Subset,
    TensorDataset,
    digits,
    digits_split,
    permutation,
    random_split,
    stratified_split,
)
from stratal.data.digits import SPLIT

pytestmark = pytest.mark.quick


def test_there_are_1797_digits_in_a_small_file() -> None:
    images, labels = digits()
    assert (images.shape, images.dtype) == ((1797, 1, 8, 8), np.float32)
    assert (labels.shape, labels.dtype) == ((1797,), np.int64)
    assert (images.min(), images.max()) == (0, 1)
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert len(resources.files("stratal.data").joinpath("digits.gz").read_bytes()) < 100_000


def test_the_digits_are_those_of_scikit_learn() -> None:
    theirs = pytest.importorskip("sklearn.datasets").load_digits()
    images, labels = digits()
    assert (images[:, 0] * 16 == theirs.images).all()
    assert (labels == theirs.target).all()


@pytest.mark.parametrize("damage", [lambda b: b[:-9], lambda b: b"x" + b, lambda b: gzip.compress(b"other")])
def test_a_damaged_package_file_is_refused(monkeypatch: pytest.MonkeyPatch, damage: Any) -> None:
    from pathlib import Path

    real = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: damage(real(path)))
    with pytest.raises(FormatError, match="damaged"):
        digits()


def test_the_split_is_stratified_shuffled_and_never_changes() -> None:
    train, test = digits_split()
    assert (len(train), len(test)) == (1438, 359)
    shares = np.bincount(test.arrays[1]) / np.bincount(digits().labels)
    assert np.abs(shares - 0.2).max() < 0.005
    assert (np.diff(test.arrays[1]) != 0).mean() > 0.8
    digest = hashlib.sha256(test.arrays[0].tobytes() + train.arrays[0].tobytes()).hexdigest()
    assert (SPLIT, digest[:16]) == ("stratified-80-20-seed-0", "e40301bb2c23d120")


def test_a_split_loses_and_repeats_nothing() -> None:
    labels = np.repeat(["a", "b", "c"], [10, 50, 1])
    train, test = stratified_split(labels, 0.3, seed=4)
    assert sorted([*train, *test]) == list(range(61))
    assert sorted(labels[test]) == ["a"] * 3 + ["b"] * 15
    with pytest.raises(AttributeValueError, match="between 0 and 1"):
        stratified_split(labels, 1.0)


def test_each_label_of_two_rows_or_more_is_in_both_parts_of_a_split() -> None:
    random = np.random.default_rng(0)
    for share in (0.01, 0.1, 0.5, 0.9, 0.99):
        sizes = random.integers(1, 12, 40)
        labels = np.repeat(np.arange(40), sizes)
        train, test = stratified_split(labels, share)
        assert sorted([*train, *test]) == list(range(len(labels)))
        left, right = (np.bincount(labels[part], minlength=40) for part in (train, test))
        assert (left >= 1).all() and ((right >= 1) == (sizes > 1)).all()
        assert (np.abs(right - share * sizes) <= 1).all()
    with pytest.raises(AttributeValueError, match="40 rows of 40 labels"):
        stratified_split(np.arange(40), 0.2)


def test_a_permutation_depends_on_seed_and_stream_only() -> None:
    assert sorted(permutation(100, 1)) == list(range(100))
    assert (permutation(100, 1) == permutation(100, 1)).all()
    assert (permutation(100, 1) != permutation(100, 2)).any()
    assert (permutation(100, 1, 1) != permutation(100, 1, 2)).any()


def rows(count: int = 10) -> TensorDataset:
    return TensorDataset(np.arange(count, dtype=np.float32), np.arange(count))


def order_of(loader: DataLoader) -> list[list[int]]:
    return [np.asarray(y).tolist() for _, y in loader]


def test_batches_cover_the_data_in_order_and_the_last_may_be_short() -> None:
    loader = DataLoader(rows(), 4)
    assert order_of(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert len(loader) == 3
    loader = DataLoader(rows(), 4, drop_last=True)
    assert order_of(loader) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert len(loader) == 2


def test_every_epoch_has_its_own_order_and_a_second_loader_the_same_ones() -> None:
    first, second = (DataLoader(rows(100), 10, shuffle=True, seed=3) for _ in range(2))
    epochs = [order_of(first) for _ in range(3)]
    assert epochs == [order_of(second) for _ in range(3)]
    assert epochs[0] != epochs[1] != epochs[2]
    assert sorted(y for batch in epochs[0] for y in batch) == list(range(100))
    assert order_of(DataLoader(rows(100), 10, shuffle=True, seed=4)) != epochs[0]


def shuffled(**options: Any) -> list[list[int]]:
    return order_of(DataLoader(rows(100), 10, shuffle=True, **options))


def split(**options: Any) -> list[list[int]]:
    return [[int(y) for _, y in part] for part in random_split(rows(100), [70, 30], **options)]


@pytest.mark.parametrize("draw", [shuffled, split])
def test_orders_and_splits_follow_manual_seed_or_their_generator(draw: Any) -> None:
    def seeded(seed: int) -> Any:
        st.manual_seed(seed)
        return draw()

    first = seeded(0)
    assert draw() != first == seeded(0) != seeded(1)
    state = st.get_rng_state()
    again = draw()
    st.set_rng_state(state)
    assert draw() == again
    five, other, six = (draw(generator=st.Generator(k)) for k in (5, 5, 6))
    assert five == other != six
    assert draw(seed=5) == draw(seed=5) != draw(seed=6)
    for options in ({"seed": 1, "generator": st.Generator()}, {"generator": np.random.default_rng(0)}):
        with pytest.raises(StratalError, match="takes a"):
            draw(**options)
    with pytest.raises(CaptureError, match=r"drawn outside of programs|loop over it outside"):
        st.compile(lambda x: (x, draw())[0])(st.ones(2))


def test_a_split_is_not_the_first_order_of_a_loader() -> None:
    orders = []
    for source in ({"seed": 3}, {"generator": st.Generator(3)}, {}):
        orders += [sum(map(tuple, draw(**source)), ()) for draw in (split, shuffled)]
    assert len(set(orders)) == len(orders)


def test_epochs_of_one_loader_follow_the_generator_as_they_begin() -> None:
    loader = DataLoader(rows(100), 10, shuffle=True)
    epochs = []
    for _ in range(2):
        st.manual_seed(0)
        epochs.append([order_of(loader), order_of(loader)])
    assert epochs[0] == epochs[1] and epochs[0][0] != epochs[0][1]


@pytest.mark.parametrize("batches", [0, 2, 4])
def test_a_loader_that_draws_goes_on_where_the_other_stood(batches: int) -> None:
    st.manual_seed(0)
    stopped = DataLoader(rows(), 3, shuffle=True)
    for _ in zip(range(batches), stopped, strict=False):
        pass
    state, generator = stopped.state_dict(), st.get_rng_state()
    stopped.load_state_dict(state)
    expected = order_of(stopped) + order_of(stopped)
    st.set_rng_state(generator)
    resumed = DataLoader(rows(), 3, shuffle=True)
    resumed.load_state_dict(state)
    assert order_of(resumed) + order_of(resumed) == expected


def test_samplers_decide_on_positions_and_batches() -> None:
    odd = [k for k in range(10) if k % 2]
    loader = DataLoader(rows(), 2, sampler=odd)
    assert len(loader) == 3 and order_of(loader) == [[1, 3], [5, 7], [9]]
    assert order_of(DataLoader(rows(), 2, sampler=iter(odd), drop_last=True)) == [[1, 3], [5, 7]]
    assert order_of(DataLoader(rows(), 2, sampler=st.tensor([4, 2]))) == [[4, 2]]
    loader = DataLoader(rows(), batch_sampler=[[1], [2, 3, 4]])
    assert len(loader) == 2 and order_of(loader) == [[1], [2, 3, 4]]
    loader.load_state_dict({"seed": None, "epoch": 0, "batch": 1})
    assert order_of(loader) == [[2, 3, 4]]


def test_options_that_contradict_each_other_are_refused() -> None:
    options = {"persistent_workers": True, "prefetch_factor": 2, "timeout": 5, "num_workers": 2}
    assert order_of(DataLoader(rows(4), 4, **options)) == [[0, 1, 2, 3]]
    assert order_of(DataLoader(rows(4), 4, worker_init_fn=print)) == [[0, 1, 2, 3]]
    refused: list[dict[str, Any]] = [
        {"presistent_workers": True}, {"persistent_workers": True}, {"prefetch_factor": 2},
        {"num_workers": -1}, {"num_workers": 1, "prefetch_factor": 0}, {"timeout": -1},
        {"num_workers": 2, "multiprocessing_context": "fork"}, {"num_workers": 2, "in_order": False},
        {"pin_memory_device": "cuda"}, {"batch_size": None, "drop_last": True},
        {"batch_size": None, "shard": (0, 1)}, {"sampler": [1], "shuffle": True},
        {"batch_sampler": [[1]], "drop_last": True}, {"batch_sampler": [[1]], "batch_size": 4},
    ]  # fmt: skip
    for wrong in refused:
        with pytest.raises(AttributeValueError, match="DataLoader: "):
            DataLoader(rows(), **wrong)


def test_a_resumed_loader_goes_on_where_the_other_stood() -> None:
    whole = DataLoader(rows(), 3, shuffle=True, seed=1)
    expected = order_of(whole) + order_of(whole)
    stopped = DataLoader(rows(), 3, shuffle=True, seed=1)
    seen = []
    for k, (_, y) in enumerate(stopped):
        seen.append(np.asarray(y).tolist())
        if k == 1:
            state = stopped.state_dict()
            break
    resumed = DataLoader(rows(), 3, shuffle=True)
    resumed.load_state_dict(state)
    assert seen + order_of(resumed) + order_of(resumed) == expected


def test_an_epoch_left_in_the_middle_is_over() -> None:
    whole = DataLoader(rows(), 3, shuffle=True, seed=1)
    epochs = [order_of(whole), order_of(whole)]
    left = DataLoader(rows(), 3, shuffle=True, seed=1)
    next(iter(left))
    assert order_of(left) == epochs[1]


def test_any_data_set_with_a_length_and_elements_will_do() -> None:
    class Squares:
        def __len__(self) -> int:
            return 5

        def __getitem__(self, index: int, /) -> dict[str, Any]:
            if index >= 5:
                raise IndexError
            return {"x": np.full((2,), index, np.float32), "y": index * 0.5}

    (batch,) = DataLoader(Squares(), 5)
    assert batch["x"].shape == (5, 2)
    assert str(batch["y"].dtype) == "f32"
    (batch,) = DataLoader(Subset(Squares(), [4, 1]), 2)
    assert np.asarray(batch["y"]).tolist() == [2.0, 0.5]


def test_data_sets_are_split_and_joined() -> None:
    whole = rows(10)
    parts = random_split(whole, [7, 3], seed=2)
    assert [len(part) for part in parts] == [7, 3]
    found = [int(part[k][0]) for part in parts for k in range(len(part))]
    assert sorted(found) == sorted(int(whole[k][0]) for k in range(10))
    assert [len(part) for part in random_split(whole, [0.55, 0.25, 0.2])] == [6, 2, 2]
    joined = ConcatDataset(parts)
    assert [int(joined[k][0]) for k in range(-10, 0)] == found
    (batch,) = DataLoader(parts[0], 7)
    assert np.asarray(batch[0])[0] == found[0]
    lists = list(
        DataLoader(joined, 4, collate_fn=lambda elements: len(elements), num_workers=2, pin_memory=True)
    )
    assert lists == [4, 4, 2]
    with pytest.raises(IndexError):
        joined[10]
    for lengths in ([5, 4], [0.5, 0.4], [11, -1]):
        with pytest.raises(AttributeValueError, match="add up"):
            random_split(whole, lengths)
    with pytest.raises(AttributeValueError, match="at least one"):
        ConcatDataset([])


def test_bad_data_and_batch_sizes_are_refused() -> None:
    for arrays in ((), (np.zeros(3), np.zeros(4)), (np.float32(1),)):
        with pytest.raises(ShapeError, match="one number of rows"):
            TensorDataset(*arrays)
    with pytest.raises(AttributeValueError, match="at least one"):
        DataLoader(rows(), 0)
