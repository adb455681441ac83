"""In vectors: places of extremes along contiguous axes, runs towards the start of memory, whole quotients."""

from __future__ import annotations

import numpy as np
import pytest

import stratal as st
from stratal.base import settings

DTYPES = ["float32", "float64", "float16", "int32", "int64", "uint8", "bool"]
SHAPES = [(3, 1000), (1000,), (7, 33), (2, 64), (4, 65), (1, 7), (9, 5), (2, 3, 257), (40, 5), (64, 1)]


@pytest.mark.sampled(13)
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


@pytest.mark.sampled(4)
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


@pytest.mark.sampled(8)
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


def _integers(dtype: str, high: int) -> tuple[np.ndarray, np.ndarray]:
    """Return dividends and divisors up to a size: at the ends, by 0, and one less than multiples."""
    rng, ends = np.random.default_rng(0), np.iinfo(dtype)
    high = min(high, ends.max)
    low = ends.min if high == ends.max else max(-high, ends.min)
    x, y = (rng.integers(low, high, 3001, dtype, endpoint=True) for _ in range(2))
    y[:500] = rng.integers(max(low, -9), 9, 500, dtype)
    x[:7], y[:7] = [0, high, low, low, 0, high, 1], [0, high, 1, -1 if low else 1, high, 0, high]
    by = rng.integers(1, max(high // 100, 2), 1000, dtype)
    with np.errstate(over="ignore"):
        x[1000:2000], y[1000:2000] = by * rng.integers(1, 100, 1000, dtype) - by.dtype.type(1), by
    return x, y


@pytest.mark.parametrize("target", ["host", "haswell"])
@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "uint32", "int64", "uint64"])
def test_integers_are_divided_as_one_at_a_time(dtype: str, target: str) -> None:
    """Vectors divide as floats, 64-bit integers where all are below 2**53."""
    with settings.target(target):
        for high in (9, 1 << 24, (1 << 53) - 1, 1 << 53, 1 << 62, 1 << 64):
            x, y = _integers(dtype, high)
            given = st.tensor(x), st.tensor(y)
            results = st.compile(lambda x, y: (x // y, x % y, st.fmod(x, y)))(*given)
            with np.errstate(all="ignore"):
                wanted = x // y, x % y, np.fmod(x, y)
            for got, want in zip(results, wanted, strict=True):
                np.testing.assert_array_equal(got.numpy(), want)
            if dtype in ("int64", "uint64", "int8"):
                np.testing.assert_array_equal(st.gcd(*given).numpy(), np.gcd(x, y))


@pytest.mark.parametrize("target", ["host", "haswell"])
def test_remainders_of_floats_are_exact_whatever_the_quotient(target: str) -> None:
    """One step finds them where it is below 2**50; where a lane's is not, a function that takes six."""
    rng = np.random.default_rng(0)
    special = np.array([0.0, -0.0, 1.0, -2.5, 1e-45, -3e38, np.inf, -np.inf, np.nan], np.float32)
    pairs = [g.ravel() for g in np.meshgrid(special, special)]
    signs, sizes = rng.choice([-1, 1], (2, 4000)), np.exp(rng.uniform(-100, 88, (2, 4000)))
    sizes[:, :2000] = rng.exponential(10, (2, 2000))
    x, y = (np.concatenate([p, v]).astype(np.float32) for p, v in zip(pairs, signs * sizes, strict=True))
    with settings.target(target), np.errstate(all="ignore"):
        got = st.compile(lambda x, y: (st.fmod(x, y), x % y, x // y))(st.tensor(x), st.tensor(y))
        for ours, want in zip(got, (np.fmod(x, y), x % y, x // y), strict=True):
            np.testing.assert_array_equal(ours.numpy(), want)
            numbers = ~np.isnan(want)
            assert np.array_equal(np.signbit(ours.numpy())[numbers], np.signbit(want)[numbers])
