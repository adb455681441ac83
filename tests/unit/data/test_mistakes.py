"""What is refused at once, where it would fail later or pass silently: functions, categories, padding."""

from __future__ import annotations

import importlib
from collections import namedtuple
from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal.base.errors import AttributeValueError, DTypeError, ShapeError
from stratal.data import Pipeline
from stratal.data.transforms import Compose, Normalize, On, OneHot, RandomFlip, ToFloat

pytestmark = pytest.mark.row("F21")

# -- categories ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("values", [["a", None], ["a", float("nan")], [None], [1.0, float("nan")]])
def test_missing_values_are_no_categories(values: list[Any]) -> None:
    with pytest.raises(AttributeValueError, match="a missing value is no category") as caught:
        OneHot.of(values)
    assert "is_complete" in caught.value.hint


def test_categories_are_of_one_type_unless_they_are_listed() -> None:
    with pytest.raises(DTypeError, match="one type") as caught:
        OneHot.of(["a", 1])
    assert caught.value.got == "int, str"
    assert OneHot(["a", 1, None])(1).tolist() == [0, 1, 0]
    with pytest.raises(AttributeValueError, match="missing value"):
        OneHot(["a", float("nan")])
    assert OneHot.of([True, 2, 0.5]).categories == [0.5, True, 2]


# -- functions -----------------------------------------------------------------------------------------------
def test_transforms_compose_from_a_list_as_in_torchvision() -> None:
    image = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)
    one, other = Compose(ToFloat(), Normalize(0.5, 0.5)), Compose([ToFloat(), Normalize(0.5, 0.5)])
    assert np.array_equal(one(image), other(image)) and not other.draws
    assert Compose([RandomFlip(1.0)]).draws and Compose([])(image) is image


@pytest.mark.parametrize("given", [
    lambda p: Compose(ToFloat(), [ToFloat()]), lambda p: Compose([3]), lambda p: Compose(ToFloat),
    lambda p: On(0, "x"), lambda p: On(0, [ToFloat()]), lambda p: p.map([abs]), lambda p: p.map(ToFloat),
    lambda p: p.filter(None), lambda p: p.batch(2, collate="stack"), lambda p: p.bucket(2, 0, window=2),
    lambda p: p.bucket(2, "length", window=2), lambda p: p.bucket(2, abs, window=2, collate=[]),
])  # fmt: skip
def test_what_is_no_function_is_refused_where_it_is_given(given: Any) -> None:
    with pytest.raises(DTypeError, match=r"takes a|is a function"):
        given(Pipeline(range(3)))


def test_a_class_of_your_own_is_a_function() -> None:
    assert list(Pipeline(["1", "2"]).map(int)) == [1, 2]


# -- padding -------------------------------------------------------------------------------------------------
Pair = namedtuple("Pair", "x y")


def test_one_value_pads_every_array_of_a_row_and_leaves_numbers_and_texts() -> None:
    rows = [{"x": np.arange(k), "y": [1.5] * k, "label": k, "name": f"n{k}"} for k in (1, 3)]
    (batch,) = Pipeline(rows).batch(2, pad=-1)
    assert batch["x"].tolist() == [[0, -1, -1], [0, 1, 2]] and batch["y"].tolist()[0] == [1.5, -1, -1]
    assert batch["label"].tolist() == [1, 3] and batch["name"] == ["n1", "n3"]
    (pair,) = Pipeline([Pair(np.arange(k), k) for k in (1, 2)]).batch(2, pad=7)
    assert isinstance(pair, Pair) and pair.x.tolist() == [[0, 7], [0, 1]] and pair.y.tolist() == [1, 2]
    (both,) = Pipeline([(np.arange(2), np.arange(2))] * 3).batch(3, pad=0)
    assert isinstance(both, tuple) and both[0].shape == both[1].shape == (3, 2)
    (padded,) = Pipeline([{"x": np.arange(2), "n": 2}]).pad(3)
    assert padded["x"].tolist() == [0, 1, 0] and padded["n"] == 2
    (nested,) = Pipeline([{"in": ({"x": np.arange(k)}, k)} for k in (1, 2)]).batch(2, pad=0)
    assert nested["in"][0]["x"].tolist() == [[0, 0], [0, 1]]


@pytest.mark.parametrize(("rows", "pad", "error", "words"), [
    ([{"n": 1}, {"n": 2}], {"n": 0}, ShapeError, "pad: n is an array"),
    ([1, 2], 0, ShapeError, "an element is an array"),
    ([{"x": np.arange(2)}, {"x": None}], 0, ShapeError, "'x' is an array"),
    ([np.arange(k, dtype=np.uint8) for k in (2, 3)], -1, DTypeError, "uint8 has the value.*\\n.*-1 for an"),
    ([np.arange(2), np.arange(3)], 0.5, DTypeError, "int64 has the value.*\\n.*0.5 for an"),
    ([np.arange(2), np.arange(3)], float("nan"), DTypeError, "int64 has the value.*\\n.*nan for an"),
    ([{"x": np.arange(2)}, {"z": np.arange(3)}], 0, st.StratalError, "the same keys"),
])  # fmt: skip
def test_what_cannot_be_padded_is_named(rows: list[Any], pad: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        list(Pipeline(rows).batch(2, pad=pad))


def test_floats_are_padded_with_what_they_round() -> None:
    rows = [np.ones(k, np.float32) for k in (1, 2)]
    for value in (0.1, np.float64(0.1), float("nan"), float("-inf")):
        (batch,) = Pipeline(rows).batch(2, pad=value)
        assert np.array_equal(batch.numpy()[0, 1], np.float32(value), equal_nan=True)


# -- names of other libraries --------------------------------------------------------------------------------
@pytest.mark.parametrize(("module", "name", "words"), [
    ("stratal.data.transforms", "ToTensor", "ToFloat"),
    ("stratal.data.transforms", "Resize", r"size=\(height, width\)"),
    ("stratal.data.transforms", "RandomHorizontalFlip", r"RandomFlip\(p\)"),
    ("stratal.data.transforms", "ColorJitter", r"map\(f, seed=0\)"),
    ("stratal.data", "DistributedSampler", "shard="),
])  # fmt: skip
def test_a_name_of_torchvision_is_shown_what_there_is_instead(module: str, name: str, words: str) -> None:
    with pytest.raises(ImportError, match=words):
        exec(f"from {module} import {name}", {})
    with pytest.raises(AttributeError, match=words):
        exec(f"import {module}\n{module}.{name}", {})
    assert not hasattr(importlib.import_module(module), name)


def test_other_names_that_are_not_there_fail_as_in_any_module() -> None:
    for module in ("stratal.data", "stratal.data.transforms"):
        with pytest.raises(ImportError, match="cannot import name 'Nothing'"):
            exec(f"from {module} import Nothing", {})
        assert not hasattr(importlib.import_module(module), "Nothing")
