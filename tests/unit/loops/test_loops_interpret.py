"""The reference interpreter of the loop IR: what it computes, to the bit, and what it refuses."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from lowered import evaluate_lowered

from stratal.base.dtypes import DType, bool_, float32, float64, int8, int32, int64, uint8, uint32, uint64
from stratal.base.errors import IndexOutOfRangeError, VerifyError
from stratal.base.types import TensorType
from stratal.loops import index
from stratal.loops.compute import Check, Compute, LoopBody, arguments, fresh_axes, pointwise
from stratal.loops.exact import apply
from stratal.loops.expr import Buffer, Expr, Var, call, cast, const, guard, lanes
from stratal.loops.interpret import evaluate, evaluate_compute, run_kernel
from stratal.loops.stmt import Fail, For, If, Kernel, Prefetch, Seq, Store

Array = np.ndarray[Any, Any]


def spread(dtype: np.dtype[Any], count: int, low: int, high: int, seed: int) -> Array:
    """Return random mantissas of both signs with exponents in [low, high)."""
    rng = np.random.default_rng(seed)
    size = np.ldexp(
        rng.integers(1 << 22, 1 << 23, count) / 2.0**22 + rng.random(count), rng.integers(low, high, count)
    )
    return (size * rng.choice([-1, 1], count)).astype(dtype)


def rounded_once(a: float, b: float, c: float, dtype: np.dtype[Any]) -> float:
    """Return a*b + c from exact fractions, rounded to nearest even once."""
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if dtype == np.float64:
        return exact.numerator / exact.denominator
    guess = np.float32(float(exact))
    near = [np.nextafter(guess, np.float32(-np.inf)), guess, np.nextafter(guess, np.float32(np.inf))]
    return float(min(near, key=lambda v: (abs(Fraction(float(v)) - exact), int(v.view(np.int32)) & 1)))


@pytest.mark.parametrize(
    ("dtype", "low", "high"), [(float32, -30, 30), (float64, -30, 30), (float64, -520, 500)]
)
def test_fma_rounds_once(dtype: DType, low: int, high: int) -> None:
    a, b, c = (spread(dtype.np, 400, low, high, seed) for seed in range(3))
    cancelling = -(a * b)
    for addend in (c, cancelling, c * 2.0**-40):
        addend = addend.astype(dtype.np)
        got = apply("fma", [a, b, addend], dtype)
        want = [
            rounded_once(float(x), float(y), float(z), dtype.np) for x, y, z in zip(a, b, addend, strict=True)
        ]
        assert np.array_equal(got, np.array(want, dtype.np))


def test_fma_of_special_values_is_that_of_the_product_and_sum() -> None:
    values = np.array([0.0, -0.0, 1.0, -2.0, np.inf, -np.inf, np.nan])
    a, b, c = (g.ravel() for g in np.meshgrid(values, values, values))
    with np.errstate(all="ignore"):
        assert np.array_equal(apply("fma", [a, b, c], float64), a * b + c, equal_nan=True)
        big, minus = np.array([1e308]), np.array([-np.inf])
        assert apply("fma", [big, big, minus], float64) == -np.inf  # the product is finite before it rounds


@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
def test_powers_of_two_scale_with_one_rounding(dtype: DType) -> None:
    info = np.finfo(dtype.np)
    low, inf = int(info.minexp), np.inf
    cases = [
        (1.0, 3, 8.0),
        (1.0, low - info.nmant, info.smallest_subnormal),
        (0.75, low - info.nmant - 1, 0.0),
    ]
    cases += [(1.9, info.maxexp, inf), (-2.0, inf, -inf), (0.0, -inf, 0.0)]
    cases += [(1.25, 10_000, inf), (-1.0, -10_000, -0.0), (np.nan, np.nan, np.nan)]
    a, b, want = (np.array(v, dtype.np) for v in zip(*cases, strict=True))
    got = apply("ldexp", [a, b], dtype)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(want))


def test_three_bits_pick_one_of_eight_constants() -> None:
    index = Buffer("x", uint32, ())[()]
    table = [const(v, float32) for v in (1, 2.5, -0.0, np.inf, 5, 6, 7, 8)]
    at = np.array([0, 1, 3, 7, 8, 0xFFFFFFFE], np.uint32)
    got = evaluate([call("pick8", index, *table)], {index: at}, {})[0]
    np.testing.assert_array_equal(got, np.array([1, 2.5, np.inf, 8, 1, 7], np.float32))
    with pytest.raises(VerifyError, match="pick8 takes a u32 and eight constants"):
        call("pick8", index, *table[:7], Buffer("y", float32, ())[()])


def test_casts_from_floats_truncate_and_saturate_and_nan_gives_zero() -> None:
    x = np.array([2.9, -2.9, 300.0, -300.0, np.inf, -np.inf, np.nan])
    assert apply("cast", [x], int8).tolist() == [2, -2, 127, -128, 127, -128, 0]
    assert apply("cast", [x], uint8).tolist() == [2, 0, 255, 0, 255, 0, 0]
    big = np.array([2.0**63, -(2.0**63), 2.0**64, 1e30])
    assert apply("cast", [big], int64).tolist() == [2**63 - 1, -(2**63), 2**63 - 1, 2**63 - 1]
    assert apply("cast", [big], uint64).tolist() == [2**63, 0, 2**64 - 1, 2**64 - 1]


def test_integer_division_truncates_and_a_divisor_of_zero_gives_zero() -> None:
    a, b = np.array([7, -7, 7, -7, 5, -128], np.int8), np.array([2, 2, -2, -2, 0, -1], np.int8)
    assert apply("idiv", [a, b], int8).tolist() == [3, -3, -3, 3, 0, -128]
    assert apply("irem", [a, b], int8).tolist() == [1, -1, 1, -1, 0, 0]


def test_shifts_by_the_width_or_more_leave_zero_or_the_sign() -> None:
    x, by = np.array([-8, 8, -8, 8], np.int32), np.array([1, 1, 40, 40], np.int32)
    assert apply("shr", [x, by], int32).tolist() == [-4, 4, -1, 0]
    assert apply("shl", [x, by], int32).tolist() == [-16, 16, 0, 0]


def test_mulhi_is_the_upper_half_of_the_product() -> None:
    rng = np.random.default_rng(0)
    for dtype, bits in ((uint32, 32), (uint64, 64)):
        a, b = (rng.integers(0, 2**bits - 1, 50, dtype=dtype.np) for _ in range(2))
        want = [(int(x) * int(y)) >> bits for x, y in zip(a, b, strict=True)]
        assert apply("mulhi", [a, b], dtype).tolist() == want


def test_a_guarded_load_does_not_happen_and_another_out_of_range_is_refused() -> None:
    x = TensorType(float32, (4,))
    shifted = lambda v: index.sub(v, 1)  # noqa: E731
    (a,), (i,) = arguments(x), fresh_axes((4,))
    padded = Compute((a,), (i,), float32, guard(index.less(0, i), a[shifted(i)], const(9, float32)))
    assert evaluate_compute(padded, [np.arange(4, dtype=np.float32)]).tolist() == [9, 0, 1, 2]
    with pytest.raises(VerifyError, match="outside the buffer"):
        evaluate_compute(Compute((a,), (i,), float32, a[shifted(i)]), [np.arange(4, dtype=np.float32)])


def test_reductions_combine_in_order_and_the_reduction_of_nothing_is_the_identity() -> None:
    x = np.array([[1e8, 1.0, -1e8, 1.0], [1.0, 2.0, 3.0, 4.0]], np.float32)
    (a,), (i, k) = arguments(TensorType(float32, (2, 4))), fresh_axes((2, 4))
    total = Compute((a,), (i,), float32, a[i, k], reduce=(k,), combiner="sum")
    assert evaluate_compute(total, [x]).tolist() == [1.0, 10.0]
    first = Compute((a,), (i,), int64, (a[i, k], k), reduce=(k,), combiner="argmax", result=1)
    x[1, 2] = np.nan
    assert evaluate_compute(first, [x]).tolist() == [0, 2]
    (e,), (r, c) = arguments(TensorType(float32, (2, 0))), fresh_axes((2, 0))
    most = Compute((e,), (r,), float32, e[r, c], reduce=(c,), combiner="max")
    assert evaluate_compute(most, [np.zeros((2, 0), np.float32)]).tolist() == [-np.inf, -np.inf]


def test_a_dot_uses_fma() -> None:
    (a, b), (k,) = arguments(*[TensorType(float32, (2,))] * 2), fresh_axes((2,))
    dot = Compute((a, b), (), float32, (a[k], b[k]), reduce=(k,), combiner="dot")
    x = np.array([-1.0, 1 + 2**-12], np.float32)
    y = np.array([1 + 2**-11, 1 + 2**-12], np.float32)
    assert evaluate_compute(dot, [x, y]) == np.float32(2.0**-24)


def test_checked_indices_out_of_range_are_an_error() -> None:
    table, where = arguments(TensorType(float32, (3,)), TensorType(int64, (2,)))
    (i,) = fresh_axes((2,))
    taken = Compute(
        (table, where), (i,), float32, table[where[i]], checks=[Check(1, 3, "take: index out of range")]
    )
    values = np.arange(3, dtype=np.float32)
    assert evaluate_compute(taken, [values, np.array([2, 0])]).tolist() == [2.0, 0.0]
    with pytest.raises(IndexOutOfRangeError, match="take"):
        evaluate_compute(taken, [values, np.array([2, 3])])


def test_lanes_combine_as_a_tree_of_halves() -> None:
    lane = Var("l", 4)
    x = Buffer("x", float32, (4,))
    values = np.array([1e8, 1.0, -1e8, 1.0], np.float32)
    assert evaluate([lanes("add", x[lane], lane)], {}, {x: values})[0] == np.float32(2.0)


def test_an_elementwise_compute_is_evaluated_over_all_its_axes() -> None:
    kind = TensorType(float32, (2, 3))
    compute = pointwise((kind, kind), bool_, lambda a, b: call("lt", a, b))
    x, y = np.arange(6, dtype=np.float32).reshape(2, 3), np.full((2, 3), 2.5, np.float32)
    assert np.array_equal(evaluate_compute(compute, [x, y]), x < y)


def running_sum(x: Buffer, out: Buffer) -> Kernel:
    row, step = Var("row", 2), Var("step", 4)
    before = index.sub(step, 1)
    carried = guard(index.less(0, step), out[row, before], const(0, float32))
    body = For(step, Store(out, (row, step), call("add", carried, x[row, step])))
    return Kernel("running_sum", [x], [out], For(row, body, "parallel"))


def test_a_kernel_runs_on_arrays_in_place() -> None:
    x, out = Buffer("x", float32, (2, 4)), Buffer("out", float32, (2, 4))
    values, result = np.arange(8, dtype=np.float32).reshape(2, 4), np.full((2, 4), np.nan, np.float32)
    assert run_kernel(running_sum(x, out), {x: values, out: result}) == 0
    assert np.array_equal(result, np.cumsum(values, axis=1))


def test_a_loop_body_runs_over_fresh_results() -> None:
    body = LoopBody(lambda args, outs: running_sum(args[0], outs[0]).body)
    values = np.ones((2, 4), np.float32)
    (got,) = evaluate_lowered(body, [values], [(float32, (2, 4))])
    assert got.tolist() == [[1, 2, 3, 4]] * 2


def test_a_fetch_changes_nothing() -> None:
    x, out, i = Buffer("x", int64, (4,)), Buffer("out", int64, (4,)), Var("i", 4)
    body = For(i, Seq([Prefetch(x, (i,)), Prefetch(out, (i,)), Store(out, (i,), x[i])]))
    values, result = np.arange(4), np.zeros(4, np.int64)
    assert run_kernel(Kernel("k", [x], [out], body), {x: values, out: result}) == 0
    assert result.tolist() == values.tolist() == [0, 1, 2, 3]


def test_a_failing_kernel_returns_its_code_and_stops() -> None:
    x, out, i = Buffer("x", int64, (4,)), Buffer("out", int64, (4,)), Var("i", 4)
    body = Seq([Fail(call("lt", x[i], const(0, int64)), 7), Store(out, (i,), x[i])])
    values, result = np.array([5, 6, -1, 8]), np.zeros(4, np.int64)
    assert run_kernel(Kernel("k", [x], [out], For(i, body)), {x: values, out: result}) == 7
    assert result.tolist() == [5, 6, 0, 0]


def test_a_store_outside_its_buffer_is_refused_and_a_branch_not_taken_does_nothing() -> None:
    out, i = Buffer("out", int64, (3,)), Var("i", 4)
    store = Store(out, (i,), i)
    with pytest.raises(VerifyError, match="outside the buffer"):
        run_kernel(Kernel("k", [], [out], For(i, store)), {out: np.zeros(3, np.int64)})
    result = np.zeros(3, np.int64)
    run_kernel(Kernel("k", [], [out], For(i, If(call("lt", i, const(3, int64)), store))), {out: result})
    assert result.tolist() == [0, 1, 2]


def test_locals_are_undefined_until_written() -> None:
    local, out = Buffer("acc", float32, (1,), space="register"), Buffer("out", float32, (1,))
    result = np.zeros(1, np.float32)
    run_kernel(Kernel("k", [], [out], Store(out, (const(0, int64),), local[0]), [local]), {out: result})
    assert np.isnan(result[0])


def test_integer_immediates_wrap_to_their_dtype() -> None:
    wide: Expr = const(-1, uint32)
    assert evaluate([cast(wide, uint64)], {}, {})[0] == 2**32 - 1
