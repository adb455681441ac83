"""Places of extremes along contiguous axes in vectors, and vectors that run towards the start of memory."""

from __future__ import annotations

import numpy as np
import pytest

import stratal as st
from stratal.base import settings

DTYPES = ["float32", "float64", "float16", "int32", "int64", "uint8", "bool"]
SHAPES = [(3, 1000), (1000,), (7, 33), (2, 64), (4, 65), (1, 7), (9, 5), (2, 3, 257), (40, 5), (64, 1)]


@pytest.mark.parametrize("target", ["host", "haswell"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_first_of_equal_extremes_is_found_in_every_lane(dtype: str, target: str) -> None:
    rng = np.random.default_rng(0)
    with settings.target(target):
        for shape in SHAPES:
            for scale, nans in ((100, 0.0), (2, 0.0), (2, 0.02)):  # many equal values with a small scale
                values = np.abs(rng.standard_normal(shape) * scale).round().astype(dtype)
                if dtype.startswith("float"):
                    values *= rng.choice([-1, 1], shape).astype(dtype)
                    values[rng.random(shape) < nans] = np.nan
                for name in ("argmax", "argmin"):
                    along, whole = st.compile(lambda x, n=name: (getattr(x, n)(axis=-1), getattr(x, n)()))(
                        st.tensor(values)
                    )
                    np.testing.assert_array_equal(along.numpy(), getattr(values, name)(-1))
                    np.testing.assert_array_equal(whole.numpy(), getattr(values, name)())


@pytest.mark.parametrize("worst", [-np.inf, np.inf])
def test_among_values_no_better_than_none_the_first_is_found(worst: float) -> None:
    for shape in SHAPES:
        values = np.full(shape, worst, np.float32)
        for better, places in ((None, ()), (-worst, (-1,)), (np.nan, (-1, 0)), (0.0, (shape[-1] // 2,))):
            for place in places:
                values[..., place] = better
            x = st.tensor(values)
            for name in ("argmax", "argmin"):
                for axis in (None, 0, -1):
                    found = st.compile(lambda x, n=name, a=axis: getattr(x, n)(axis=a))(x)
                    np.testing.assert_array_equal(found.numpy(), getattr(values, name)(axis))


@pytest.mark.parametrize("target", ["host", "haswell"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_axes_are_read_backwards(dtype: str, target: str) -> None:
    rng = np.random.default_rng(0)
    with settings.target(target):
        for shape in SHAPES:
            values = np.abs(rng.standard_normal(shape) * 5).astype(dtype)
            x = st.tensor(values)
            flipped, cut, joined = st.compile(
                lambda x: (
                    st.flip(x, -1),
                    x[..., ::-1][..., 1:],
                    st.concatenate([x, st.flip(x, -1)], axis=-1),
                )
            )(x)
            np.testing.assert_array_equal(flipped.numpy(), values[..., ::-1])
            np.testing.assert_array_equal(cut.numpy(), values[..., ::-1][..., 1:])
            np.testing.assert_array_equal(joined.numpy(), np.concatenate([values, values[..., ::-1]], -1))
