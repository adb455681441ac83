"""Pipelines: steps over elements whose order depends on seed, epoch and position, and on nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as hs

from stratal.base.errors import AttributeValueError, CallOrderError, DTypeError, ShapeError
from stratal.data import BadRowError, DataLoader, Pipeline

pytestmark = pytest.mark.quick
DIGITS = list(range(10))


def ids(value: Any) -> list[int]:
    """Return the elements in what a pipeline yields, flat."""
    return [int(v) for part in value for v in np.ravel(np.asarray(part))] if isinstance(value, tuple) else [
        int(v) for v in np.ravel(np.asarray(value))
    ]  # fmt: skip


def test_steps_do_what_they_say() -> None:
    p = Pipeline(DIGITS)
    assert list(p.map(lambda x: x * x))[:4] == [0, 1, 4, 9]
    assert list(p.filter(lambda x: x % 3 == 0)) == [0, 3, 6, 9]
    assert [b.tolist() for b in p.batch(4)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [b.tolist() for b in p.batch(4, drop_last=True)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert list(p.batch(4, collate=sum).map(lambda s: -s)) == [-6, -22, -17]
    assert list(Pipeline([1, 2]).repeat(3)) == [1, 2, 1, 2, 1, 2]
    assert list(Pipeline.zip(p, Pipeline("abc"))) == [(0, "a"), (1, "b"), (2, "c")]
    assert list(Pipeline(iter("abc"))) == ["a", "b", "c"]
    mixed = list(Pipeline.mix([p, Pipeline(range(100, 130))], [1, 3]))
    assert sorted(mixed) == [*DIGITS, *range(100, 130)]
    assert [x for x in mixed if x < 100] == DIGITS and mixed[:3] != [0, 1, 2]


def test_lengths_are_known_where_they_can_be() -> None:
    p = Pipeline(DIGITS)
    made = (p, p.map(str), p.batch(4), p.batch(4, drop_last=True), p.repeat(3))
    assert [len(q) for q in made] == [10, 10, 3, 2, 30]
    assert len(Pipeline.zip(p, Pipeline("abc"))) == 3 and len(Pipeline.mix([p, p])) == 20
    assert [len(p.sharded(r, 4)) for r in range(4)] == [len(list(p.sharded(r, 4))) for r in range(4)]
    assert len(p.batch(4).sharded(1, 2)) == 3
    for unknown in (p.filter(bool), Pipeline(iter("ab")), p.repeat(), p.bucket(2, int, window=4)):
        with pytest.raises(DTypeError, match="shows in reading"):
            len(unknown)


def test_arrays_are_padded_to_the_longest_of_a_batch_or_to_a_length() -> None:
    rows = [{"tokens": np.arange(1, k + 1), "label": k} for k in (1, 3, 2)]
    (batch,) = Pipeline(rows).batch(3, pad={"tokens": 9})
    assert batch["tokens"].tolist() == [[1, 9, 9], [1, 2, 3], [1, 2, 9]]
    assert batch["label"].tolist() == [1, 3, 2]
    (batch,) = Pipeline([[], [1 << 60], np.ones(2, np.int32)]).batch(3, pad=0)  # an empty list has no type
    assert batch.tolist() == [[0, 0], [1 << 60, 0], [1, 1]] and str(batch.dtype) == "i64"
    (batch,) = Pipeline([[1], [1, 2]]).batch(2, pad=0)
    assert batch.tolist() == [[1, 0], [1, 2]]
    assert [x.tolist() for x in Pipeline([[1], [1, 2]]).pad(3)] == [[1, 0, 0], [1, 2, 0]]
    with pytest.raises(ShapeError, match=r"at most 2 rows\n  got:   3 in tokens"):
        list(Pipeline(rows).pad(2, {"tokens": 0}))


def test_buckets_hold_elements_of_like_keys() -> None:
    texts = ["a" * (7 * k % 20 + 1) for k in range(64)]
    batches = list(Pipeline(texts).bucket(4, len, window=32))
    assert sorted(t for b in batches for t in b) == sorted(texts)
    assert max(len(b[-1]) - len(b[0]) for b in batches) <= 3


def test_each_epoch_has_its_own_order_and_a_second_pipeline_the_same_ones() -> None:
    for window in (None, 10):
        first, second = (Pipeline(range(100)).shuffle(window, seed=3) for _ in range(2))
        epochs = [list(first) for _ in range(3)]
        assert epochs == [list(second) for _ in range(3)] and epochs[0] != epochs[1] != epochs[2]
        assert sorted(epochs[0]) == list(range(100))
    windows = np.sort(np.reshape(epochs[0], (10, 10)), axis=1)
    assert windows.ravel().tolist() == list(range(100))
    twice = list(Pipeline(range(20)).shuffle(seed=1).repeat(2))
    assert sorted(twice[:20]) == sorted(twice[20:]) and twice[:20] != twice[20:]
    order = [x.tolist() for x in DataLoader(range(20), 4, shuffle=True, seed=5)]  # type: ignore[arg-type]
    assert [x.tolist() for x in Pipeline(range(20)).shuffle(seed=5).batch(4)] == order


def test_random_changes_depend_on_the_position_alone() -> None:
    def noisy(x: int, rng: np.random.Generator) -> float:
        return x + rng.random()

    def made() -> Pipeline:
        return Pipeline(range(30)).filter(lambda x: x % 2 == 0).map(noisy, seed=4)

    plain = made()
    epochs = [list(plain), list(plain)]
    threads = made().prefetch(2, workers=3)
    assert [list(threads), list(threads)] == epochs and epochs[0] != epochs[1]
    parts = [list(made().sharded(r, 3)) for r in range(3)]
    assert sorted(flat(parts)) == epochs[0]


def test_bad_rows_are_raised_left_out_or_collected() -> None:
    class Rows:
        def __len__(self) -> int:
            return 6

        def __getitem__(self, k: int) -> int:
            if k in (2, 5):
                raise BadRowError("table.csv", k, "x", "'abc' is no float")
            return k

    with pytest.raises(BadRowError, match=r"table\.csv: row 2, column 'x'"):
        list(Pipeline(Rows()))
    assert list(Pipeline(Rows(), on_error="skip")) == [0, 1, 3, 4]
    kept = Pipeline(Rows(), on_error="collect").batch(3).prefetch(workers=2)
    assert [b.tolist() for b in kept] == [[0, 1, 3], [4]]
    found = [(e.file, e.row, e.column, e.reason) for e in kept.bad_rows]
    assert found == [("table.csv", k, "x", "'abc' is no float") for k in (2, 5)]
    with pytest.raises(AttributeValueError, match="on_error is one of"):
        Pipeline(Rows(), on_error="ignore")


def test_a_table_of_stages_says_where_time_goes() -> None:
    class Rows(list[int]):
        def __getitems__(self, positions: list[int]) -> list[int]:
            return [self[k] for k in positions]

    def double(x: int) -> int:
        return 2 * x

    for workers in (1, 3):
        p = Pipeline(Rows(range(30)), timed=True).map(double).filter(_odd).batch(4).prefetch(workers=workers)
        plain = Pipeline(range(0, 60, 2)).filter(_odd).batch(4)
        assert [b.tolist() for b in p] == [b.tolist() for b in plain]
        assert p.times is not None
        calls = {name: count for name, (count, _) in p.times.stages.items()}
        assert calls == {
            "1 read Rows": 30, "2 map double": 30, "3 filter _odd": 30, "4 batch": 5,
            "waited for data": 6, "in the loop": 5,
        }  # fmt: skip
        assert [line.split("  ")[0] for line in str(p.times).splitlines()] == ["stage", *calls]
    unread = Pipeline(Rows(range(3)), timed=True).batch(2)
    assert str(unread.times).splitlines()[1].split() == ["1", "read", "Rows", "0", "0.000", "-"]
    list(unread)
    assert unread.times is not None and unread.times.stages["1 read Rows"][0] == 3
    stream = Pipeline({"a": 1}.keys(), timed=True)
    list(stream)
    assert stream.times is not None and stream.times.stages["1 read dict_keys"][0] == 1
    assert Pipeline(Rows()).times is None


@pytest.mark.parametrize("workers", [1, 3])
def test_good_batches_come_before_the_error_behind_them(workers: int) -> None:
    def checked(x: int) -> bool:
        if x == 13:
            raise ValueError("no 13")
        return True

    def numbers() -> Iterator[int]:
        yield from range(13)
        raise ValueError("no 13")

    for p in (
        Pipeline(range(20)).filter(checked), Pipeline(range(20)).map(checked), Pipeline(numbers()),
    ):  # fmt: skip
        found = []
        with pytest.raises(ValueError, match="no 13"):
            found.extend(p.batch(4).prefetch(3, workers=workers))
        assert len(found) == 3


WRONG: dict[str, tuple[Callable[[], Any], type[Exception]]] = {
    "no data": (lambda: Pipeline(5), DTypeError),
    "a whole shuffle of a stream": (lambda: Pipeline(iter("ab")).shuffle(), CallOrderError),
    "a whole shuffle after a filter": (lambda: Pipeline("ab").filter(bool).shuffle(), CallOrderError),
    "two shuffles": (lambda: Pipeline("ab").shuffle().shuffle(), CallOrderError),
    "no window": (lambda: Pipeline("ab").shuffle(0), AttributeValueError),
    "no batch": (lambda: Pipeline("ab").batch(0), AttributeValueError),
    "a window below a batch": (lambda: Pipeline("ab").bucket(4, len, window=2), AttributeValueError),
    "no times": (lambda: Pipeline("ab").repeat(0), AttributeValueError),
    "no such rank": (lambda: Pipeline("ab").sharded(2, 2), AttributeValueError),
    "nothing to zip": (lambda: Pipeline.zip(), DTypeError),
    "a list to mix": (lambda: Pipeline.mix([[1], [2]]), DTypeError),  # type: ignore[list-item]
    "weights of another number": (lambda: Pipeline.mix([Pipeline("a")], [1, 2]), AttributeValueError),
    "batches mixed with elements": (
        lambda: Pipeline.mix([Pipeline("a"), Pipeline("a").batch(1)]), AttributeValueError,
    ),
    "parts that are sharded": (lambda: Pipeline.zip(Pipeline("ab").sharded(0, 2)), CallOrderError),
    "a sharded repeat": (lambda: Pipeline("ab").sharded(0, 2).repeat(), CallOrderError),
    "a batch too small for its ranks": (
        lambda: list(Pipeline("ab").batch(2).sharded(0, 3)), AttributeValueError,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_makes_no_sense_is_refused(case: str) -> None:
    call, error = WRONG[case]
    with pytest.raises(error):
        call()


def test_an_iterator_is_read_once_and_an_epoch_left_in_the_middle_is_over() -> None:
    once = Pipeline(iter("ab"))
    list(once)
    with pytest.raises(CallOrderError, match="read once"):
        list(once)
    p, q = (Pipeline(range(30)).shuffle(seed=1) for _ in range(2))
    epochs = [list(q), list(q)]
    next(iter(p))
    assert list(p) == epochs[1]


# -- order is a function of (seed, epoch, position) --------------------------------------------------------
def _odd(x: int) -> bool:
    return x % 3 != 0


SHAPES: dict[str, Callable[[int, int], Pipeline]] = {
    "elements": lambda n, seed: Pipeline(range(n)).shuffle(seed=seed),
    "windows": lambda n, seed: Pipeline(range(n)).shuffle(5, seed=seed),
    "windows of windows": lambda n, seed: Pipeline(range(n)).shuffle(4, seed=seed).shuffle(6, seed=seed),
    "filter": lambda n, seed: Pipeline(range(n)).shuffle(seed=seed).filter(_odd).shuffle(4, seed=seed),
    "stream": lambda n, seed: Pipeline(dict.fromkeys(range(n)).keys()).shuffle(3, seed=seed).map(abs),
    "repeat": lambda n, seed: Pipeline(range(n)).shuffle(seed=seed).filter(_odd).repeat(2),
    "mix": lambda n, seed: Pipeline.mix(
        [Pipeline(range(n)).shuffle(3, seed=seed), Pipeline(range(1000, 1000 + n // 2))], [2, 1], seed=seed
    ),
    "zip": lambda n, seed: Pipeline.zip(
        Pipeline(range(n)).shuffle(seed=seed), Pipeline(range(1000, 1000 + n)).filter(_odd)
    ),
}
ELEMENTS: dict[str, Callable[[int], Iterable[int]]] = {
    "filter": lambda n: list(filter(_odd, range(n))),
    "repeat": lambda n: 2 * list(filter(_odd, range(n))),
    "mix": lambda n: [*range(n), *range(1000, 1000 + n // 2)],
    "zip": lambda n: [x + 1000 for x in range(n) if _odd(x + 1000)],
}  # of shapes that change them; the others have all below n
ENDS: dict[str, Callable[[Pipeline], Pipeline]] = {
    "alone": lambda p: p,
    "batches": lambda p: p.batch(7, collate=list),
    "whole batches": lambda p: p.batch(7, collate=list, drop_last=True),
    "buckets": lambda p: p.bucket(7, str, window=16, collate=list, drop_last=True),
    "shuffled batches": lambda p: p.batch(7, collate=list, drop_last=True).shuffle(3, seed=2),
}


def run_ranks(
    made: Callable[[], Pipeline], ranks: int, steps: int | None, state: Any
) -> tuple[list[Any], Any]:
    """Run all ranks for some steps from a state; return what each step gave them together, and the state."""
    columns, states = [], []
    for rank in range(ranks):
        p = made().sharded(rank, ranks)
        if state is not None:
            p.load_state_dict(json.loads(state))
        column = []
        for value in p:
            column.append(value)
            if steps is not None and len(column) == steps:
                break
        columns.append(column)
        states.append(json.dumps(p.state_dict()))
    longest = max(map(len, columns))
    joined = [[c[k] for c in columns if k < len(c)] for k in range(longest)]
    return joined, states[0] if len({len(c) for c in columns}) == 1 else None


def flat(value: Any) -> list[Any]:
    return [x for v in value for x in flat(v)] if isinstance(value, list) else [value]


CASES = {
    "count": hs.integers(0, 80), "seed": hs.integers(0, 2**70), "epoch": hs.integers(0, 5),
    "workers": hs.integers(0, 4), "ranks": hs.tuples(hs.integers(1, 7), hs.integers(1, 7)),
    "steps": hs.integers(1, 12),
}  # fmt: skip


def check_order(
    shape: str, count: int, seed: int, epoch: int, workers: int, ranks: tuple[int, int], steps: int
) -> None:
    """Check all ends of a shape: some steps by some ranks, the rest by others, together all elements once."""
    start = json.dumps({"epoch": epoch, "next": None})
    for end in ENDS:

        def made(end: str = end) -> Pipeline:
            p = ENDS[end](SHAPES[shape](count, seed))
            return p.prefetch(2, workers=workers) if workers else p

        expected = run_ranks(lambda end=end: ENDS[end](SHAPES[shape](count, seed)), 1, None, start)[0]  # type: ignore[misc]
        if end in ("alone", "batches"):
            elements = [x[1] if isinstance(x, tuple) else x for x in flat(expected)]
            assert sorted(elements) == sorted(ELEMENTS.get(shape, range)(count))
        if end != "alone" and any(len(batch) < max(ranks) for (batch,) in expected):
            continue  # refused: a rank would have no part
        before, state = run_ranks(made, ranks[0], steps, start)
        if state is None:
            continue  # the epoch ended with fewer elements than ranks
        assert len(state) < 400
        ended = json.loads(state)["epoch"] != epoch
        after = [] if ended else run_ranks(made, ranks[1], None, state)[0]
        assert flat(before) + flat(after) == flat(expected)


@pytest.mark.row("F21")
@pytest.mark.parametrize("shape", SHAPES)
def test_every_element_comes_once_for_any_workers_ranks_and_a_resize_in_the_middle(shape: str) -> None:
    settings(max_examples=20)(given(**CASES)(lambda **case: check_order(shape, **case)))()


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_every_element_comes_once_in_hundreds_of_cases(shape: str) -> None:
    settings(max_examples=400)(given(**CASES)(lambda **case: check_order(shape, **case)))()


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_pipeline_resumes_after_any_element_reading_few_again(shape: str, end: str) -> None:
    def made() -> Pipeline:
        return ENDS[end](SHAPES[shape](50, 3))

    expected = list(made())
    for steps in range(1, len(expected) + 1):
        p = made()
        elements = iter(p)
        for _ in range(steps):
            next(elements)
        resumed = made()
        resumed.load_state_dict(json.loads(json.dumps(p.state_dict())))
        assert list(resumed) == expected[steps:]


OTHERS: dict[str, tuple[Callable[[], Pipeline], Callable[[], Pipeline], str]] = {
    "another seed": (
        lambda: Pipeline(range(30)).shuffle(seed=1), lambda: Pipeline(range(30)).shuffle(seed=2),
        r"shuffle\(seed=2\) for shuffle\(seed=1\)",
    ),
    "no shuffle": (
        lambda: Pipeline(range(30)).shuffle(seed=1), lambda: Pipeline(range(30)),
        r"nothing for shuffle\(seed=1\)",
    ),
    "fewer rows": (lambda: Pipeline(range(30)), lambda: Pipeline(range(29)), "29 rows for 30 rows"),
    "another batch size": (
        lambda: Pipeline(range(30)).batch(4), lambda: Pipeline(range(30)).batch(5),
        r"batch\(5\) for batch\(4\)",
    ),
    "another window": (
        lambda: Pipeline(range(30)).shuffle(5, seed=1).filter(_odd),
        lambda: Pipeline(range(30)).shuffle(6, seed=1).filter(_odd),
        r"shuffle\(6, seed=1\) for shuffle\(5, seed=1\)",
    ),
    "other changes": (
        lambda: Pipeline(range(30)).map(lambda x, rng: x, seed=1),
        lambda: Pipeline(range(30)).map(lambda x, rng: x, seed=2), r"map\(seed=2\) for map\(seed=1\)",
    ),
    "another mix": (
        lambda: Pipeline.mix([Pipeline(range(30)), Pipeline(range(9))], seed=1),
        lambda: Pipeline.mix([Pipeline(range(30)), Pipeline(range(8))], seed=1), r"\[8 rows\].*\[9 rows\]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHERS)
def test_an_epoch_does_not_go_on_in_other_steps(case: str) -> None:
    first, other, named = OTHERS[case]
    p = first()
    next(iter(p))
    state = json.loads(json.dumps(p.state_dict()))
    with pytest.raises(AttributeValueError, match=named):
        other().load_state_dict(state)
    first().map(str).prefetch().load_state_dict(state)  # what changes no position
    list(p)
    other().load_state_dict(p.state_dict())  # between epochs


def test_an_iterable_that_is_shorter_than_it_was_is_refused() -> None:
    p = Pipeline(dict.fromkeys(range(9)).keys())
    elements = iter(p)
    for _ in range(5):
        next(elements)
    shorter = Pipeline(dict.fromkeys(range(3)).keys())
    shorter.load_state_dict(p.state_dict())
    with pytest.raises(AttributeValueError, match="3, of at least 5"):
        list(shorter)


def test_a_resume_in_a_long_epoch_reads_no_more_than_a_window() -> None:
    class Counted:
        read = 0

        def __len__(self) -> int:
            return 1_000_000

        def __getitem__(self, k: int) -> int:
            self.read += 1
            return k

    source = Counted()

    def made() -> Pipeline:
        return Pipeline(source).filter(_odd).shuffle(50).bucket(5, abs, window=100).prefetch(2)

    p = made()
    elements = iter(p)
    values = [next(elements) for _ in range(300)]
    state = p.state_dict()
    values.append(next(elements))
    source.read = 0
    resumed = made()
    resumed.load_state_dict(state)
    assert next(iter(resumed)).tolist() == values[-1].tolist() and source.read < 700
