"""Transforms: what they compute, what they draw, and what they refuse."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal.base.errors import AttributeValueError, CallOrderError, ShapeError
from stratal.data import Pipeline
from stratal.data.transforms import (
    CenterCrop,
    Compose,
    Normalize,
    On,
    OneHot,
    RandomCrop,
    RandomFlip,
    Standardize,
    ToFloat,
)

pytestmark = pytest.mark.quick
IMAGE = np.arange(2 * 4 * 6, dtype=np.uint8).reshape(2, 4, 6)


def test_crops_and_flips_move_pixels_and_change_none() -> None:
    assert (CenterCrop((2, 4))(IMAGE) == IMAGE[:, 1:3, 1:5]).all() and CenterCrop(3)(IMAGE).shape == (2, 3, 3)
    rng = np.random.default_rng(0)
    assert (RandomFlip(1)(IMAGE, rng) == IMAGE[:, :, ::-1]).all()
    assert (RandomFlip(1, vertical=True)(IMAGE, rng) == IMAGE[:, ::-1]).all()
    assert (RandomFlip(0)(IMAGE, rng) == IMAGE).all()
    crops = {RandomCrop(3)(IMAGE, rng).tobytes() for _ in range(200)}
    windows = {
        IMAGE[:, top : top + 3, left : left + 3].tobytes() for top in range(2) for left in range(4)
    }
    assert crops == windows
    padded = np.pad(IMAGE, ((0, 0), (2, 2), (2, 2)))
    assert RandomCrop((8, 10), padding=2)(IMAGE, rng).tolist() == padded.tolist()


def test_images_are_normalised_by_channel() -> None:
    assert ToFloat()(np.array([[[0, 255]]], np.uint8)).tolist() == [[[0, 1]]]
    made = Normalize([0.5, 0.25], [0.5, 2])(IMAGE)
    want = (IMAGE / np.float32(255) - np.array([0.5, 0.25], np.float32)[:, None, None]) / [[[0.5]], [[2]]]
    np.testing.assert_allclose(made, want, rtol=1e-6)
    assert made.dtype == np.float32
    np.testing.assert_allclose(Normalize(1, 2)(np.ones((3, 2, 2)) * 5), 2)


def test_columns_are_standardised_and_encoded() -> None:
    x = np.random.default_rng(0).normal(50, 3, (500, 3)) * [1, 0, 1e6]
    made = np.stack([Standardize.of(x)(row) for row in x])
    np.testing.assert_allclose(made.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(made.std(0), [1, 0, 1], atol=1e-6)
    assert Standardize.of([1, 3])(5) == 3 and Standardize(0, 2)(4) == 2
    encoded = OneHot.of(["b", "a", "b"])
    assert encoded.categories == ["a", "b"] and encoded("b").tolist() == [0, 1]
    assert OneHot.of(np.array([3, 1]))(np.int64(3)).tolist() == [0, 1]
    assert OneHot("ab", unknown="zeros")("c").tolist() == [0, 0]


def test_fields_of_elements_are_transformed_with_draws_of_their_own() -> None:
    Pair = namedtuple("Pair", "image label")
    change = Compose(RandomCrop(3, padding=1), RandomFlip(), ToFloat())
    for element, field in (({"image": IMAGE, "label": 1}, "image"), ((IMAGE, 1), 0), (Pair(IMAGE, 1), 0)):
        pipeline = Pipeline([element] * 20).map(On(field, change), seed=3)
        first, second = list(pipeline), list(pipeline)
        assert type(first[0]) is type(element) and first[0][field].shape == (2, 3, 3)
        assert len({x[field].tobytes() for x in first}) > 5
        assert [x[field].tolist() for x in first] != [x[field].tolist() for x in second]
        again = Pipeline([element] * 20).map(On(field, change), seed=3).prefetch(2, workers=3)
        assert [x[field].tolist() for x in again] == [x[field].tolist() for x in first]


def upper(text: str) -> str:
    return text.upper()


def test_functions_of_ones_own_are_composed() -> None:
    assert Compose(upper, len)("abc") == 3
    assert On("a", upper)({"a": "x", "b": 1}) == {"a": "X", "b": 1}

    def noisy(x: float, rng: np.random.Generator) -> float:
        return x + rng.random()

    noisy.draws = True  # type: ignore[attr-defined]
    assert Compose(float, noisy)(1, np.random.default_rng(0)) == 1 + np.random.default_rng(0).random()


WRONG: dict[str, tuple[Callable[[], Any], type[st.StratalError]]] = {
    "no generator": (lambda: RandomFlip()(IMAGE), CallOrderError),
    "a crop without a seed": (lambda: list(Pipeline([IMAGE]).map(RandomCrop(2))), CallOrderError),
    "an image too small": (lambda: CenterCrop(5)(IMAGE), ShapeError),
    "a crop too large": (lambda: RandomCrop(5)(IMAGE, np.random.default_rng()), ShapeError),
    "no channels": (lambda: CenterCrop(2)(IMAGE[0]), ShapeError),
    "no size": (lambda: CenterCrop(0), AttributeValueError),
    "no probability": (lambda: RandomFlip(2), AttributeValueError),
    "no deviation": (lambda: Normalize(0, 0), AttributeValueError),
    "another number of channels": (lambda: Normalize([0, 0, 0], 1)(IMAGE), ShapeError),
    "no values": (lambda: Standardize.of([]), AttributeValueError),
    "values that are not finite": (lambda: Standardize.of([1, np.nan]), AttributeValueError),
    "no categories": (lambda: OneHot([]), AttributeValueError),
    "categories twice": (lambda: OneHot("aa"), AttributeValueError),
    "an unknown category": (lambda: OneHot("ab")("c"), AttributeValueError),
    "another way": (lambda: OneHot("ab", unknown="skip"), AttributeValueError),
}


def test_the_middle_is_where_torchvision_has_it() -> None:
    for height in range(1, 12):
        image = np.broadcast_to(np.arange(height)[None, :, None], (1, height, height))
        for size in range(1, height + 1):
            found, first = CenterCrop(size)(image), round((height - size) / 2.0)  # its formula
            assert found[0, :, 0].tolist() == list(range(first, first + size))


@pytest.mark.parametrize("case", WRONG)
def test_what_makes_no_sense_is_refused(case: str) -> None:
    call, error = WRONG[case]
    with pytest.raises(error):
        call()
