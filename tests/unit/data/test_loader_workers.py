"""Workers of a loader: threads that make the same batches in the same order, ahead of the loop."""

from __future__ import annotations

import contextlib
import gc
import itertools
import threading
import time
import traceback
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal.base.errors import AttributeValueError, CallOrderError, DTypeError
from stratal.data import (
    ChainDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    LoaderTimeoutError,
    Pipeline,
    TensorDataset,
    get_worker_info,
)

pytestmark = pytest.mark.quick


class Uneven:
    """Elements of which early ones take longer than later ones."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int, /) -> tuple[np.float32, str]:
        time.sleep(0.004 if index % 5 == 0 else 0)
        return np.float32(index), threading.current_thread().name


class Stream(IterableDataset[int]):
    """Numbers below a count; a worker that is told of itself would read its share alone."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        yield from range(0 if info is None else info.id, self.count, 1 if info is None else info.num_workers)


def values(loader: Any) -> list[Any]:
    return [np.asarray(batch[0] if isinstance(batch, tuple) else batch).tolist() for batch in loader]


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_batches_are_made_by_threads_and_come_in_order(workers: int) -> None:
    alone = DataLoader(Uneven(), 3, shuffle=True, seed=1)
    loader = DataLoader(Uneven(), 3, shuffle=True, seed=1, num_workers=workers, prefetch_factor=3)
    names = set()
    for _ in range(2):  # epochs
        expected, found = list(alone), list(loader)
        assert values(found) == values(expected)
        names |= {name for _, made in found for name in made}
    assert names <= {f"stratal-data-{k}" for k in range(workers)} and loader.num_workers == workers
    assert {name for _, made in expected for name in made} == {threading.current_thread().name}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_loader_with_workers_goes_on_where_the_other_stood(workers: int) -> None:
    options: dict[str, Any] = {"shuffle": True, "seed": 3, "num_workers": workers}
    expected = values(DataLoader(Uneven(), 3, **options))
    stopped = DataLoader(Uneven(), 3, **options)
    batches = iter(stopped)
    head = [values([next(batches)])[0] for _ in range(2)]
    resumed = DataLoader(Uneven(), 3, shuffle=True, num_workers=2 - workers)
    resumed.load_state_dict(stopped.state_dict())
    assert head + values(resumed) == expected


def test_an_error_in_a_worker_is_raised_in_the_loop_with_its_traceback() -> None:
    class Broken(Uneven):
        def __getitem__(self, index: int, /) -> Any:
            if index == 7:
                raise KeyError(f"no {index}")
            return super().__getitem__(index)

    seen = []
    with pytest.raises(KeyError, match="no 7") as caught:
        for x, _ in DataLoader(Broken(), 3, num_workers=2):
            seen += np.asarray(x).tolist()
    assert seen == [0, 1, 2, 3, 4, 5]
    text = "".join(traceback.format_exception(caught.value))
    assert "in __getitem__" in text and "raised in stratal-data-" in text


def test_worker_init_fn_runs_once_in_each_worker_before_its_first_batch() -> None:
    seen: list[tuple[int, Any]] = []
    loader = DataLoader(
        Uneven(), 2, num_workers=3, worker_init_fn=lambda k: seen.append((k, get_worker_info())), seed=5
    )
    list(loader)
    assert sorted(k for k, _ in seen) == [0, 1, 2]
    assert all((i.id, i.num_workers, i.seed) == (k, 3, 5 + k) for k, i in seen)
    assert all(info.dataset is loader.dataset for _, info in seen) and get_worker_info() is None
    list(loader)
    assert len(seen) == 6  # new workers
    seen.clear()
    lasting = DataLoader(Uneven(), 2, num_workers=3, worker_init_fn=lambda k: seen.append((k, None)),
                         persistent_workers=True)  # fmt: skip
    assert values(lasting) == values(lasting)
    assert len(seen) == 3

    def fails(number: int) -> None:
        raise OSError(f"no connection {number}")

    with pytest.raises(OSError, match="no connection 0"):
        list(DataLoader(Uneven(), 2, num_workers=2, worker_init_fn=fails))


def test_an_error_of_a_worker_is_freed_without_the_collector() -> None:
    class Broken(Uneven):
        def __getitem__(self, index: int, /) -> Any:
            raise KeyError(index)

    def fails(number: int) -> None:
        raise OSError(number)

    gc.collect()
    gc.disable()
    try:
        for options in ({}, {"worker_init_fn": fails}):
            data = Broken()
            freed = weakref.ref(data)
            loader = DataLoader(data, 2, num_workers=2, **options)  # type: ignore[arg-type]
            with contextlib.suppress(KeyError, OSError):
                list(loader)
            del data, loader
            for _ in range(1000):
                if freed() is None:
                    break
                time.sleep(0.01)
            assert freed() is None
    finally:
        gc.enable()


def test_workers_end_when_a_loop_is_left_and_when_their_loader_is_gone() -> None:
    def count() -> int:
        return sum(t.name.startswith("stratal-data-") for t in threading.enumerate())

    def wait_for(number: int) -> None:
        for _ in range(1000):
            if count() <= number:
                return
            time.sleep(0.01)
        raise AssertionError(f"{count()} workers are left")

    gc.collect()  # what failed tests left
    wait_for(0)
    for _ in DataLoader(Uneven(), 2, num_workers=2):
        break
    wait_for(0)
    lasting = DataLoader(Uneven(), 2, num_workers=2, persistent_workers=True)
    list(lasting)
    assert count() == 2
    del lasting
    wait_for(0)


def test_a_batch_that_takes_longer_than_the_timeout_is_an_error() -> None:
    free = threading.Event()

    class Stuck(Uneven):
        def __getitem__(self, index: int, /) -> Any:
            free.wait(30)
            return index

    try:
        with pytest.raises(LoaderTimeoutError, match=r"at most 0\.05 s"):
            list(DataLoader(Stuck(), 2, num_workers=1, timeout=0.05))
    finally:
        free.set()


def test_at_most_prefetch_factor_batches_per_worker_are_made_ahead() -> None:
    made: list[int] = []

    class Noted(Uneven):
        def __getitem__(self, index: int, /) -> int:
            made.append(index)
            return index

    batches = iter(DataLoader(Noted(), 1, num_workers=2, prefetch_factor=2))
    next(batches)
    for _ in range(50):
        time.sleep(0.002)
    assert len(made) <= 5


def test_settings_and_modes_of_the_loop_hold_in_workers() -> None:
    class Grads(Uneven):
        def __getitem__(self, index: int, /) -> bool:
            return st.is_grad_enabled()

    with st.no_grad():
        assert values(DataLoader(Grads(), 20, num_workers=1)) == [[False] * 20]
    assert values(DataLoader(Grads(), 20, num_workers=1)) == [[True] * 20]


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_an_iterable_is_read_once_in_order_whatever_the_number_of_workers(workers: int) -> None:
    loader = DataLoader(Stream(10), 4, num_workers=workers)
    assert values(loader) == values(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert values(DataLoader(Stream(10), 4, drop_last=True, num_workers=workers))[-1] == [4, 5, 6, 7]
    assert list(DataLoader(Stream(3), None, num_workers=workers)) == [0, 1, 2]
    assert values(DataLoader(Stream(2) + Stream(3), 5, num_workers=workers)) == [[0, 1, 0, 1, 2]]
    parts = [values(DataLoader(Stream(10), 4, shard=(r, 2), num_workers=workers)) for r in range(2)]
    assert parts == [[[0, 1], [4, 5], [8]], [[2, 3], [6, 7], [9]]]
    stopped = DataLoader(Stream(10), 4, num_workers=workers)
    next(iter(stopped))
    resumed = DataLoader(Stream(10), 4, num_workers=workers)
    resumed.load_state_dict(stopped.state_dict())
    assert values(resumed) == [[4, 5, 6, 7], [8, 9]]
    shorter = DataLoader(Stream(0), 4, num_workers=workers)
    shorter.load_state_dict(stopped.state_dict())
    with pytest.raises(AttributeValueError, match=r"batches that it had when it began\n.*0, of at least 1"):
        list(shorter)


def test_an_iterable_that_fails_says_so_in_its_turn() -> None:
    def rows() -> Iterator[int]:
        yield from range(5)
        raise OSError("the disk is gone")

    seen = []
    with pytest.raises(OSError, match="disk is gone"):
        for batch in DataLoader(rows(), 2, num_workers=3):
            seen += np.asarray(batch).tolist()
    assert seen == [0, 1, 2, 3]


def test_what_an_iterable_cannot_have_is_refused() -> None:
    for wrong in ({"shuffle": True}, {"sampler": [1]}, {"batch_sampler": [[1]]}):
        with pytest.raises(AttributeValueError, match="read in its own order"):
            DataLoader(Stream(3), **wrong)  # type: ignore[arg-type]
    with pytest.raises(DTypeError, match="or __iter__"):
        DataLoader(5)  # type: ignore[arg-type]
    once = DataLoader(iter(range(4)), 2)
    assert values(once) == [[0, 1], [2, 3]]
    with pytest.raises(CallOrderError, match="can be read once"):
        list(once)
    with pytest.raises(TypeError, match="does not know its length"):
        len(DataLoader(Stream(3)))
    assert len(DataLoader(ChainDataset([[1, 2], [3]]), 2)) == 2
    with pytest.raises(NotImplementedError, match="has no __iter__"):
        list(DataLoader(IterableDataset()))


def test_without_batches_elements_come_one_by_one_their_arrays_as_tensors() -> None:
    data = [{"x": np.arange(k), "name": f"n{k}", "y": k} for k in range(3)]
    loader = DataLoader(data, batch_size=None, num_workers=2)
    found = list(loader)
    assert len(loader) == 3 and [f["y"] for f in found] == [0, 1, 2] and found[2]["name"] == "n2"
    assert isinstance(found[2]["x"], st.Tensor) and found[2]["x"].shape == (2,)
    assert list(DataLoader(data, None, collate_fn=lambda row: row["y"], sampler=[2, 0])) == [2, 0]
    (row,) = DataLoader(TensorDataset(np.ones((1, 2), np.float32)), batch_size=None)
    assert row[0].shape == (2,)


def test_a_data_set_that_gives_many_elements_at_once_is_asked_once_a_batch() -> None:
    asked = []

    class Many:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int, /) -> int:
            raise AssertionError("one by one")

        def __getitems__(self, positions: list[int]) -> list[int]:
            asked.append(positions)
            return [10 * p for p in positions]

    assert values(DataLoader(Many(), 2)) == [[0, 10], [20, 30]] and asked == [[0, 1], [2, 3]]


def test_data_sets_may_say_what_their_elements_are() -> None:
    class Typed(Dataset[int]):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int, /) -> int:
            return index

    class Endless(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return itertools.count()

    assert values(DataLoader(Typed(), 3)) == [[0, 1, 2]]
    assert next(iter(DataLoader(Endless(), 2, num_workers=2))).tolist() == [0, 1]


class Exhausted:
    """A data set with the bug of an empty iterator's `next`."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, k: int) -> Any:
        return next(iter([float(k)] * (k != 13)))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stop_iteration_in_the_users_code_is_an_error_and_not_the_end_of_the_epoch(workers: int) -> None:
    def find(k: int) -> int:
        return next(iter([k] * (k != 13)))

    with pytest.raises(RuntimeError, match="StopIteration"):
        list(DataLoader(Exhausted(), batch_size=4, num_workers=workers))
    for pipeline in (
        Pipeline(Exhausted()).batch(4), Pipeline(range(20)).map(find).batch(4), Pipeline(range(20)).map(find),
        Pipeline(range(20)).filter(find).batch(4),
    ):  # fmt: skip
        with pytest.raises(RuntimeError, match="StopIteration"):
            list(pipeline.prefetch(2, workers=workers) if workers else pipeline)


@pytest.mark.parametrize("timeout", [float("nan"), -1, None, "5"])
def test_a_timeout_that_is_no_time_is_refused(timeout: Any) -> None:
    with pytest.raises(AttributeValueError, match="timeout is 0 or more seconds"):
        DataLoader([1, 2], num_workers=1, timeout=timeout)


@pytest.mark.parametrize("timeout", [float("inf"), 1e300, 10**400])
def test_a_timeout_beyond_any_time_is_none(timeout: float) -> None:
    assert len(list(DataLoader([1, 2], num_workers=1, timeout=timeout))) == 2
