"""Collation: samples of one structure become one batch; others are refused by sample and field."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, namedtuple
from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal.data import DataLoader, default_collate, default_convert

pytestmark = pytest.mark.quick
Point = namedtuple("Point", "x label")


def plain(value: Any) -> Any:
    """Return a batch with lists for tensors and for tuples, which PyTorch makes lists."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if hasattr(value, "tolist"):
        return value.tolist()
    return [plain(v) for v in value] if isinstance(value, list | tuple) else value


BATCHES: dict[str, list[Any]] = {
    "numbers": [1, 2, 3],
    "truth values": [True, False],
    "floats": [0.5, 1.5],
    "text": ["a", "b"],
    "bytes": [b"a", b"b"],
    "text of NumPy": [np.str_("a"), np.str_("b")],
    "scalars": [np.float32(1), np.float32(2)],
    "arrays": [np.ones((2, 3)), np.zeros((2, 3))],
    "tuples": [(1, "a"), (2, "b")],
    "lists": [[1, 2], [3, 4]],
    "dicts": [{"x": np.ones(2), "name": "a"}, {"name": "b", "x": np.zeros(2)}],
    "nested": [{"p": Point([1, 2], ("a", b"x"))}, {"p": Point([3, 4], ("b", b"y"))}],
    "ordered": [OrderedDict(b=1, a=2), OrderedDict(b=3, a=4)],
    "empty containers": [((), {}), ((), {})],
}


@pytest.mark.torch
@pytest.mark.parametrize("case", BATCHES)
def test_a_batch_is_what_pytorch_makes_of_it(case: str) -> None:
    theirs = pytest.importorskip("torch").utils.data.default_collate(BATCHES[case])
    assert plain(default_collate(BATCHES[case])) == plain(theirs)


@pytest.mark.torch
@pytest.mark.parametrize("case", BATCHES)
def test_an_element_alone_is_what_pytorch_makes_of_it(case: str) -> None:
    theirs = pytest.importorskip("torch").utils.data.default_convert(BATCHES[case][0])
    assert plain(default_convert(BATCHES[case][0])) == plain(theirs)


def test_containers_stay_what_they_are() -> None:
    made = default_collate([Point(1, "a"), Point(2, "b")])
    assert isinstance(made, Point) and isinstance(made.x, st.Tensor) and made.label == ["a", "b"]
    assert type(default_collate(BATCHES["ordered"])) is OrderedDict
    assert default_collate([defaultdict(int, a=1)])["a"].tolist() == [1]
    assert type(default_collate(BATCHES["tuples"])) is tuple
    assert str(default_collate([0.5, 1.5]).dtype) == "f32"
    assert str(default_collate([np.float64(1), np.float64(2)]).dtype) == "f64"
    assert default_collate([st.ones(2) * 2, st.ones(2)]).tolist() == [[2, 2], [1, 1]]


WRONG: dict[str, tuple[list[Any], str]] = {
    "keys": ([{"x": 1, "y": 2}, {"x": 1, "z": 2}],
             r"same keys\n  got:   sample 4 has the keys \['x', 'y'\], sample 9 has the keys \['x', 'z'\]"),
    "keys below": ([{"a": {"x": 1}}, {"a": {}}], "the same keys in the field 'a'"),
    "no dict": ([{"x": 1}, 5], "sample 9 has a int"),
    "lengths": ([(1, 2), (1,)], "sample 4 has 2 elements, sample 9 has 1 elements"),
    "shapes": ([{"x": np.ones(2)}, {"x": np.ones(3)}],
               r"one shape in the field 'x'\n  got:   \(2,\) in sample 4 and \(3,\) in sample 9"),
    "an object": ([{"when": object()}] * 2, r"'when' is an array.*\n.*a builtins.object in sample 4"),
    "none beside a number": ([(1, 2), (1, None)], r"field '1' is an array.*\n.*NoneType in sample 9"),
    "none alone": ([{"x": None}] * 2, r"the field 'x' is an array.*\n.*NoneType in sample 4"),
    "none first": ([None, 1], r"a sample is an array.*\n.*NoneType in sample 4"),
    "text and numbers": ([("a",), (1,)], "sample 4 has a str, sample 9 has a int"),
    "an array of text": ([np.array(["a"])] * 2, "a numpy.ndarray in sample 4"),
    "a set": ([{1, 2}] * 2, "builtins.set in sample 4"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("workers", [0, 2])
def test_samples_that_differ_are_refused_by_sample_and_field(case: str, workers: int) -> None:
    rows, message = WRONG[case]
    data = [None] * 4 + [rows[0]] + [None] * 4 + [rows[1]]
    with pytest.raises(st.StratalError, match=message):
        list(DataLoader(data, batch_sampler=[[4, 9]], num_workers=workers))  # type: ignore[arg-type]


def test_tensors_of_a_data_set_can_be_read() -> None:
    data = st.data.TensorDataset(np.arange(3), st.ones(3, 2))
    assert [t.shape for t in data.tensors] == [(3,), (3, 2)] and isinstance(data.tensors[0], st.Tensor)


@pytest.mark.torch
@pytest.mark.parametrize("workers", [0, 2])
def test_data_sets_and_loaders_of_pytorch_are_taken(workers: int) -> None:
    torch = pytest.importorskip("torch")

    class Pairs(torch.utils.data.Dataset):  # type: ignore[misc, name-defined]
        def __len__(self) -> int:
            return 5

        def __getitem__(self, k: int) -> Any:
            return {"x": torch.full((2,), k), "y": f"n{k}"}

    class Stream(torch.utils.data.IterableDataset):  # type: ignore[misc, name-defined]
        def __iter__(self) -> Any:
            return iter(Pairs()[k] for k in range(5))

        def __len__(self) -> int:
            return 5

    for data in (Pairs(), Stream(), torch.utils.data.Subset(Pairs(), range(5))):
        for batches in (DataLoader(data, 3, num_workers=workers), st.data.Pipeline(data).batch(3)):
            found = list(batches)
            assert [b["x"][:, 0].tolist() for b in found] == [[0, 1, 2], [3, 4]]
            assert isinstance(found[0]["x"], st.Tensor) and found[1]["y"] == ["n3", "n4"]
    theirs = torch.utils.data.DataLoader(Pairs(), batch_size=2)
    rows = st.data.Pipeline(theirs).map(default_convert)
    assert [row["x"].shape for row in rows] == [(2, 2), (2, 2), (1, 2)]
    sampler = torch.utils.data.BatchSampler(torch.utils.data.SequentialSampler(Pairs()), 2, True)
    assert len(list(DataLoader(Pairs(), batch_sampler=sampler, num_workers=workers))) == 2
