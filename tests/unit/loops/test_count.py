"""Operations counted from loops."""

from __future__ import annotations

from stratal.base.dtypes import bool_, float32, int32
from stratal.loops.count import operations
from stratal.loops.expr import Buffer, Var, call, cast, const, guard, lanes
from stratal.loops.stmt import For, If, Seq, Store

A, B = Buffer("a", float32, (8, 64)), Buffer("b", float32, (8, 64))
ROW, COLUMN = Var("i", 8), Var("k", 64)


def test_a_multiply_add_is_two_operations_in_every_iteration() -> None:
    summed = Store(B, (ROW, 0), call("fma", A[ROW, COLUMN], A[ROW, COLUMN], B[ROW, 0]))
    assert operations(For(ROW, For(COLUMN, summed, "vector"), "parallel")) == 8 * 64 * 2


def test_indices_conditions_and_conversions_are_no_operations() -> None:
    moved = cast(cast(A[ROW, COLUMN + 1 - 1], int32), float32)
    chosen = guard(call("lt", ROW + 3, COLUMN), moved, const(0.0, float32))
    assert operations(For(ROW, For(COLUMN, Store(B, (ROW, COLUMN), chosen)))) == 0


def test_what_stores_in_a_row_share_is_counted_once() -> None:
    shared = A[ROW, COLUMN] * A[ROW, COLUMN]
    stores = Seq([Store(B, (ROW, COLUMN), shared + A[ROW, 0]), Store(A, (ROW, COLUMN), shared)])
    assert operations(For(ROW, For(COLUMN, stores))) == 8 * 64 * 2


def test_lanes_count_their_values_and_the_sums_of_them() -> None:
    total = lanes("add", A[ROW, COLUMN] * B[ROW, COLUMN], COLUMN)
    assert operations(For(ROW, Store(B, (ROW, 0), total))) == 8 * (64 + 63)


def test_of_two_branches_the_one_that_does_more_counts() -> None:
    more, less = Store(B, (ROW, 0), A[ROW, 0] * A[ROW, 1] + A[ROW, 2]), Store(B, (ROW, 0), A[ROW, 0])
    assert operations(For(ROW, If(const(True, bool_), less, more))) == 8 * 2


def test_products_of_words_count_what_they_multiply_and_add() -> None:
    words, sums = Buffer("w", int32, (8, 64)), Buffer("s", int32, (8,))
    dot = call("dot4", sums[ROW], words[ROW, COLUMN], words[ROW, COLUMN])
    assert operations(For(ROW, For(COLUMN, Store(sums, (ROW,), dot)))) == 8 * 64 * 8
