"""Rounding errors of the math records stay within their bounds, and native code gives the same bits."""

from __future__ import annotations

import math as python_math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from benchmarks import ulp
from benchmarks.ulp import REFERENCES, extended_is_wider
from tolerance import ulp_distance

import stratal as st
from stratal.base.dtypes import DType, float32, float64, int8, int64, uint8
from stratal.base.target import PLAIN, TARGETS
from stratal.graph.op import REGISTRY
from stratal.loops import math
from stratal.loops.expr import Buffer, Call, Expr, walk
from stratal.loops.interpret import evaluate
from stratal.loops.math import far_angles
from stratal.plan.host import host_target

Array = np.ndarray[Any, Any]
CASES = ulp.cases()
POINTS = 2000
WANTED = ("exp", "log", "tanh", "erf", "sin", "cos", "rsqrt")  # at most 2 ulp in float32 in their main ranges


def skip_unless_judged(dtype: DType) -> None:
    if dtype is float64 and not extended_is_wider():
        pytest.skip("no float wider than float64 on this machine")


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.name}-{c.dtype}-{c.ranges[0].spacing}")
def test_interpreted_errors_are_within_the_bound_the_record_states(case: ulp.Case) -> None:
    skip_unless_judged(case.dtype)
    row = ulp.measure(case, "interpreter", ulp.interpreted, POINTS)
    assert row.within, row


@pytest.mark.parametrize("name", WANTED)
def test_the_functions_of_inner_loops_are_within_two_ulps(name: str) -> None:
    main = next(c for c in CASES if c.name == name and c.dtype is float32)
    assert ulp.measure(main, "interpreter", ulp.interpreted, 20_000).worst_ulp <= 2.0


def test_powers_of_two_of_scores_are_accurate_and_vanish_before_they_underflow() -> None:
    x = np.linspace(-124.9, 126.9, 20_001, dtype=np.float32)
    got = evaluated(math.exp2_below, x)
    assert ulp_distance(got, np.exp2(x.astype(np.float64)).astype(np.float32)).max() <= 2
    low = np.array([-125.5, -1e9, -np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(evaluated(math.exp2_below, low), np.array([0, 0, 0, np.nan], np.float32))


def test_the_inverse_of_erf_of_float32_is_within_two_ulps() -> None:
    special = pytest.importorskip("scipy.special")
    one = np.float32(1).view(np.int32)
    bits = np.concatenate([np.arange(one - 30_000, one), np.linspace(0, one, 30_000).astype(np.int64)])
    x = np.concatenate([bits.astype(np.int32).view(np.float32), np.linspace(-1, 1, 30_001, dtype=np.float32)])
    want = special.erfinv(x.astype(np.float64))
    inside = np.abs(x) < 1
    got = evaluated(math.erfinv, x)
    error = np.abs(got[inside] - want[inside]) / np.spacing(np.abs(want[inside]).astype(np.float32))
    assert error.max() <= 2.0
    assert np.array_equal(got[~inside], want[~inside])
    outside = np.array([1.5, -1.0000001, np.inf, np.nan], np.float32)
    assert np.all(np.isnan(evaluated(math.erfinv, outside)))


@pytest.mark.sampled(8)
@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("target", ["avx512", "haswell"])
@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
def test_native_code_gives_the_bits_of_the_interpreter(target: str, dtype: DType, plain: bool) -> None:
    """With the instructions a target has beyond those of all machines, and without."""
    if not TARGETS[target].runs_on(host_target().arch, host_target().features):
        pytest.skip(f"this machine does not run {target} code")
    run = ulp.native(TARGETS[target], PLAIN if plain else None)
    for case in ulp.cases([dtype]):
        xs = ulp.operands(case, 500)
        got, want = run(case.name, xs), ulp.interpreted(case.name, xs)
        same = (got == want) | (np.isnan(got) & np.isnan(want))
        assert np.all(same), (case, [x[~same][:3] for x in xs], got[~same][:3], want[~same][:3])
        assert np.array_equal(np.signbit(got) | np.isnan(got), np.signbit(want) | np.isnan(want)), case


def evaluated(f: Callable[..., Expr], *xs: Array) -> Array:
    dtype = ulp.as_dtype(xs[0].dtype)
    loads = [Buffer(f"x{k}", dtype, ())[()] for k in range(len(xs))]
    return evaluate([f(*loads)], dict(zip(loads, xs, strict=True)), {})[0]


SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, 2.5, 1e-40, -1e-40, 1e-30, 1e13, -1e13,
           3e38, -3e38, np.inf, -np.inf, np.nan)  # fmt: skip
ONE_OPERAND = {
    "exp": "exp", "exp2": "exp2", "expm1": "expm1", "log": "log", "log2": "log2",
    "log1p": "log1p", "sinh": "sinh", "cosh": "cosh", "tanh": "tanh", "asinh": "arcsinh", "acosh": "arccosh",
    "atanh": "arctanh", "asin": "arcsin", "acos": "arccos", "atan": "arctan", "sqrt": "sqrt", "cbrt": "cbrt",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(ONE_OPERAND))
@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
def test_special_values_are_those_of_numpy(name: str, dtype: DType) -> None:
    with np.errstate(all="ignore"):
        x = np.array([*SPECIAL, np.finfo(dtype.np).smallest_subnormal, np.finfo(dtype.np).max], dtype.np)
        got, want = evaluated(getattr(math, name), x), getattr(np, ONE_OPERAND[name])(x)
    assert np.all(ulp_distance(got, want) <= 5), list(zip(x, got, want, strict=True))
    zeros = want == 0
    assert np.array_equal(np.signbit(got[zeros]), np.signbit(want[zeros]))


@pytest.mark.parametrize("name", ["erf", "erfc", "logistic"])
def test_special_values_without_a_counterpart_in_numpy(name: str) -> None:
    x = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0])
    got = evaluated({"erf": math.erf, "erfc": math.erfc, "logistic": math.sigmoid}[name], x)
    with np.errstate(all="ignore"):
        want = REFERENCES[name](x.astype(np.longdouble)).astype(np.float64)
    assert np.array_equal(got, want, equal_nan=True)


TWO_OPERANDS = {"pow": "power", "atan2": "arctan2", "remainder": "remainder", "fmod": "fmod",
                "floor_divide": "floor_divide", "copysign": "copysign"}  # fmt: skip


@pytest.mark.parametrize("name", sorted(TWO_OPERANDS))
@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
def test_special_pairs_are_those_of_numpy(name: str, dtype: DType) -> None:
    pairs = np.array(SPECIAL, dtype.np)
    x, y = (g.ravel() for g in np.meshgrid(pairs, pairs))
    if dtype is float64 and name in ("remainder", "fmod", "floor_divide"):  # exact for quotients below 2**100
        with np.errstate(all="ignore"):
            near = ~(np.abs(x / y) >= 2.0**100) | ~np.isfinite(x) | (y == 0)
        x, y = x[near], y[near]
    with np.errstate(all="ignore"):
        got, want = evaluated(getattr(math, name), x, y), getattr(np, TWO_OPERANDS[name])(x, y)
    distance = ulp_distance(got, want)
    assert np.all(distance <= (2 if name in ("pow", "atan2") else 0)), list(
        zip(x[distance > 0], y[distance > 0], got[distance > 0], want[distance > 0], strict=True)
    )
    zeros = want == 0
    assert np.array_equal(np.signbit(got[zeros]), np.signbit(want[zeros]))


@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
def test_remainders_and_quotients_are_numpys_to_the_bit(dtype: DType) -> None:
    rng = np.random.default_rng(0)
    x = (rng.normal(size=3000) * 10.0 ** rng.integers(-3, 12, 3000)).astype(dtype.np)
    y = np.where(rng.random(3000) < 0.5, rng.normal(size=3000), rng.integers(1, 9, 3000)).astype(dtype.np)
    x[:1000], y[:1000] = np.rint(x[:1000]), np.where(np.rint(y[:1000]) == 0, 1, np.rint(y[:1000]))
    for ours, numpys in (
        (math.remainder, np.remainder),
        (math.floor_divide, np.floor_divide),
        (math.fmod, np.fmod),
    ):
        assert np.array_equal(evaluated(ours, x, y), numpys(x, y))


@pytest.mark.parametrize("dtype", [int8, uint8, int64], ids=str)
def test_integer_division_and_powers_are_numpys(dtype: DType) -> None:
    rng, ends = np.random.default_rng(0), np.iinfo(dtype.np)
    x, y = (rng.integers(ends.min, ends.max, 2000, dtype.np, endpoint=True) for _ in range(2))
    y[:1000] = rng.integers(0, 7, 1000)
    x[0], y[0] = ends.min, ends.max
    with np.errstate(all="ignore"):
        assert np.array_equal(evaluated(math.integer_floor_divide, x, y), np.floor_divide(x, y))
        assert np.array_equal(evaluated(math.integer_remainder, x, y), np.remainder(x, y))
        exponent = np.where(y < 0, 0, y).astype(dtype.np)
        assert np.array_equal(evaluated(math.integer_power, x, exponent), np.power(x, exponent))


def test_a_negative_integer_power_is_the_inverse_rounded_to_zero() -> None:
    x, y = np.array([1, -1, -1, 2, 0, -3]), np.array([-5, -4, -3, -1, -1, -2])
    assert evaluated(math.integer_power, x, y).tolist() == [1, 1, -1, 0, 0, 0]


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 7, 10, -1, -3])
def test_a_constant_power_by_squaring(exponent: int) -> None:
    x = np.array([0.5, -2.0, 3.0])
    assert np.allclose(evaluated(lambda e: math.power_by_squaring(e, exponent), x), x**exponent, rtol=1e-15)


@pytest.mark.parametrize("name", ["sign", "isnan", "isinf", "isfinite", "signbit"])
@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
def test_classes_of_numbers_are_those_of_numpy(name: str, dtype: DType) -> None:
    with np.errstate(over="ignore"):
        x = np.array(SPECIAL, dtype.np)
    assert np.array_equal(evaluated(getattr(math, name), x), getattr(np, name)(x), equal_nan=True)


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
def test_angles_up_to_the_largest_are_reduced_to_the_last_place(name: str, dtype: DType) -> None:
    exponents = np.random.default_rng(0).uniform(46.9, 128 if dtype is float32 else 1024, 2000)
    x = np.array([*2.0**exponents, 2.0**47, np.finfo(dtype.np).max]).astype(dtype.np)
    x[::2] *= -1
    want = np.array([getattr(python_math, name)(v) for v in x.tolist()])  # right to half a unit
    got = evaluated(getattr(math, name), x).astype(np.float64)
    bound = REGISTRY[name].ulp * np.spacing(np.abs(want).astype(dtype.np)) + 0.6 * np.spacing(np.abs(want))
    assert np.all(np.abs(got - want) <= bound), x[np.abs(got - want) > bound]
    ends = np.array([np.inf, -np.inf, np.nan], dtype.np)
    assert np.all(np.isnan(evaluated(getattr(math, name), ends)))


def test_a_branch_is_taken_by_any_lane_of_any_loop() -> None:
    x = np.linspace(-3, 3, 7 * 37).reshape(7, 37)
    x[1, 36], x[3, :], x[6, 0] = 1e300, 1e22, -np.inf
    with np.errstate(invalid="ignore"):
        rows, all_ = np.sum(np.sin(x) * x[:, :1], 1), np.cos(np.sin(x[3, 3]) + x)
    t = st.tensor(x)
    np.testing.assert_allclose(st.compile(lambda x: (st.sin(x) * x[:, :1]).sum(1))(t).numpy(), rows)
    np.testing.assert_allclose(st.compile(lambda x: st.cos(st.sin(x[3, 3]) + x))(t).numpy(), all_, rtol=1e-13)


def test_the_angle_nearest_to_a_multiple_of_a_quadrant_keeps_its_digits() -> None:
    """Its distance is known from the continued fraction of pi: Muller, "Elementary Functions", table 11.1."""
    x = np.ldexp(np.array([6381956970095103.0]), 797)
    assert evaluated(math.cos, x).tolist() == [-4.68716592425462761112e-19]
    assert evaluated(math.sin, x).tolist() == [1.0]


def test_the_digits_of_two_over_pi_are_those_of_machins_formula() -> None:
    one = 1 << 1400

    def arctangent_of_one_over(n: int) -> int:
        total, term, k = 0, one // n, 0
        while term:
            total, term, k = total + (-1) ** k * (term // (2 * k + 1)), term // (n * n), k + 1
        return total

    pi = 4 * (4 * arctangent_of_one_over(5) - arctangent_of_one_over(239))
    assert (2 * one << 1209) // pi == far_angles._DIGITS


COST = {  # operations of the expression in float32, bitcasts included: inner loops of softmax, GELU, dropout
    "exp": 16, "exp_below": 16, "exp_near": 13, "log": 36, "tanh": 34, "erf": 26, "sigmoid": 22, "sin": 35,
    "cos": 31, "rsqrt": 2,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(COST))
def test_inner_loop_functions_do_not_grow(name: str) -> None:
    expr = getattr(math, name)(Buffer("x", float32, ())[()])
    assert sum(isinstance(e, Call) for e in walk([expr])) <= COST[name]


def test_shorter_exponentials_give_the_bits_of_the_long_one() -> None:
    x = np.concatenate([np.linspace(-120, 65, 60_001), -np.logspace(-12, 2.2, 20_001)]).astype(np.float32)
    special = np.array([0.0, -0.0, -np.inf, np.nan, -87.33, -103.97, -104.0, -1e38], np.float32)
    payload = np.array([0x7FC00001, 0xFFC12345, 0x7FFFFFFF], np.uint32).view(np.float32)
    x = np.concatenate([x, special, payload])
    want = evaluated(math.exp, x)
    np.testing.assert_array_equal(evaluated(math.exp_below, x), want)
    near = ~((x < -87) | (x > 88))
    np.testing.assert_array_equal(
        evaluated(math.exp_near, x[near])[np.isfinite(x[near])], want[near & np.isfinite(x)]
    )
    assert np.isnan(evaluated(math.exp_near, x[np.isnan(x)])).all()
    assert want[x <= 0].max() == 1 and evaluated(math.exp, np.zeros(1, np.float32)) == 1
