"""Rules of arithmetic, comparison and logic that hold to the bit: signed zeros, infinities and NaN included.

What is missing is missing on purpose: x + 0 loses the sign of -0.0, x * 0 and x - x lose NaN, x / x too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from stratal.base.dtypes import bool_, complex64, float32, int32
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.pattern import Full, Match, P, Rule, Scalar, Var

x, y, z, c = Var("x"), Var("y"), Var("z"), Var("c")
S = Scalar("s")
F, INTS, B = (TensorType(d, (2, 3)) for d in (float32, int32, bool_))
Z = TensorType(complex64, (2, 3))
Examples = tuple[Mapping[str, Any], ...]
X: Examples = ({"x": F},)
XY: Examples = ({"x": F, "y": F},)
BOOLS: Examples = ({"x": B},)
POWERS_OF_TWO: Examples = ({"x": F, "s": 4.0}, {"x": F, "s": -0.25})
INTEGERS: Examples = ({"x": INTS, "y": INTS},)
CXYZ: Examples = ({"c": B, "x": F, "y": F, "z": F},)


def real(m: Match) -> bool:
    """Complex arithmetic mixes both parts, so 1 and 0 are not neutral next to infinities."""
    return not m.x.dtype.is_complex


def integral(m: Match) -> bool:
    return not m.x.dtype.is_inexact


def is_bool(m: Match) -> bool:
    return bool(m.x.dtype.is_bool)


def _reciprocal(b: Builder, m: Match) -> Node | None:
    """x / c is x * (1 / c) to the bit where c is a power of two and 1 / c is as normal as c."""
    if not m.x.dtype.is_float:
        return None
    value = float(m.s.op.value.array)
    if abs(np.frexp(value)[0]) != 0.5 or not 2.0**-13 < abs(value) < 2.0**13:  # float16 holds both
        return None
    return b.mul(m.x, b.like(m.x, 1 / value))


def _times_negated(b: Builder, m: Match) -> Node:
    return b.mul(m.x, b.like(m.x, -m.s.op.value.array))


NEUTRAL = (
    Rule("add_negative_zero", P.add(x, Full(-0.0)), x, when=real, examples=X),
    Rule("sub_zero", P.sub(x, Full(0.0)), x, when=real, examples=X),
    Rule("negative_zero_sub", P.sub(Full(-0.0), x), P.neg(x), when=real, examples=X),
    Rule("mul_one", P.mul(x, Full(1.0)), x, when=real, examples=X),
    Rule("mul_minus_one", P.mul(x, Full(-1.0)), P.neg(x), when=real, examples=X),
    Rule("div_one", P.div(x, Full(1.0)), x, when=real, examples=X),
    Rule("div_minus_one", P.div(x, Full(-1.0)), P.neg(x), when=real, examples=X),
    Rule("div_power_of_two", P.div(x, S), _reciprocal, examples=POWERS_OF_TWO),
    Rule("pow_one", P.pow(x, Full(1.0)), x, when=real, examples=X),
    Rule("max_lowest", P.max(x, Full(float("-inf"))), x, when=real, examples=X),
    Rule("min_highest", P.min(x, Full(float("inf"))), x, when=real, examples=X),
    Rule("integer_mul_zero", P.mul(x, Full(0)), Full(0), when=integral, examples=({"x": INTS},)),
    Rule("integer_floordiv_one", P.floordiv(x, Full(1)), x, when=integral, examples=({"x": INTS},)),
    Rule("integer_rem_one", P.rem(x, Full(1)), Full(0), when=integral, examples=({"x": INTS},)),
    Rule("shl_zero", P.shl(x, Full(0)), x, examples=({"x": INTS},)),
    Rule("shr_zero", P.shr(x, Full(0)), x, examples=({"x": INTS},)),
    Rule("integer_sub_itself", P.sub(x, x), Full(0), when=integral, examples=({"x": INTS},)),
)

SIGNS = (
    Rule("neg_neg", P.neg(P.neg(x)), x, examples=X),
    Rule("add_neg", P.add(x, P.neg(y)), P.sub(x, y), examples=XY),
    Rule("sub_neg", P.sub(x, P.neg(y)), P.add(x, y), examples=XY),
    Rule("mul_neg_neg", P.mul(P.neg(x), P.neg(y)), P.mul(x, y), examples=XY),
    Rule("div_neg_neg", P.div(P.neg(x), P.neg(y)), P.div(x, y), when=real, examples=XY),
    Rule("abs_neg", P.abs(P.neg(x)), P.abs(x), when=lambda m: m.x.dtype.kind != "u", examples=X),
    Rule("abs_abs", P.abs(P.abs(x)), P.abs(x), examples=X),
    Rule("abs_square", P.abs(P.mul(x, x)), P.mul(x, x), when=lambda m: m.x.dtype.is_float, examples=X),
    Rule("mul_abs_abs", P.mul(P.abs(x), P.abs(x)), P.mul(x, x), when=real, examples=X),
    Rule("neg_mul_constant", P.neg(P.mul(x, S)), _times_negated, when=real, examples=({"x": F, "s": 3.0},)),
    Rule("mul_neg_constant", P.mul(P.neg(x), S), _times_negated, when=real, examples=({"x": F, "s": 3.0},)),
)

REPEATED = (
    Rule("max_itself", P.max(x, x), x, examples=X),
    Rule("min_itself", P.min(x, x), x, examples=X),
    Rule("max_max", P.max(P.max(x, y), y), P.max(x, y), examples=XY),
    Rule("min_min", P.min(P.min(x, y), y), P.min(x, y), examples=XY),
    Rule("floor_floor", P.floor(P.floor(x)), P.floor(x), examples=X),
    Rule("ceil_ceil", P.ceil(P.ceil(x)), P.ceil(x), examples=X),
    Rule("trunc_trunc", P.trunc(P.trunc(x)), P.trunc(x), examples=X),
    Rule("round_round", P.round(P.round(x)), P.round(x), examples=X),
    Rule("sign_sign", P.sign(P.sign(x)), P.sign(x), when=real, examples=X),
)

LOGIC = (
    Rule("not_not", P["not"](P["not"](x)), x, examples=BOOLS),
    Rule("and_itself", P["and"](x, x), x, examples=BOOLS),
    Rule("or_itself", P["or"](x, x), x, examples=BOOLS),
    Rule("and_true", P["and"](x, Full(True)), x, examples=BOOLS),
    Rule("and_false", P["and"](x, Full(False)), Full(False), examples=BOOLS),
    Rule("or_false", P["or"](x, Full(False)), x, examples=BOOLS),
    Rule("or_true", P["or"](x, Full(True)), Full(True), examples=BOOLS),
    Rule("xor_false", P["xor"](x, Full(False)), x, examples=BOOLS),
    Rule("xor_true", P["xor"](x, Full(True)), P["not"](x), examples=BOOLS),
    Rule("xor_itself", P["xor"](x, x), Full(False), when=is_bool, examples=BOOLS),
    Rule("and_absorbs_or", P["and"](x, P["or"](x, y)), x, examples=({"x": B, "y": B},)),
    Rule("or_absorbs_and", P["or"](x, P["and"](x, y)), x, examples=({"x": B, "y": B},)),
)

COMPARISONS = (
    Rule("not_eq", P["not"](P.eq(x, y)), P.ne(x, y), examples=XY),
    Rule("not_ne", P["not"](P.ne(x, y)), P.eq(x, y), examples=XY),
    Rule("integer_not_lt", P["not"](P.lt(x, y)), P.ge(x, y), when=integral, examples=INTEGERS),
    Rule("integer_not_le", P["not"](P.le(x, y)), P.gt(x, y), when=integral, examples=INTEGERS),
    Rule("integer_not_gt", P["not"](P.gt(x, y)), P.le(x, y), when=integral, examples=INTEGERS),
    Rule("integer_not_ge", P["not"](P.ge(x, y)), P.lt(x, y), when=integral, examples=INTEGERS),
    Rule("eq_true", P.eq(x, Full(True)), x, examples=BOOLS),
    Rule("ne_false", P.ne(x, Full(False)), x, examples=BOOLS),
    Rule("integer_eq_itself", P.eq(x, x), Full(True), when=integral, examples=({"x": INTS},)),
    Rule("integer_ne_itself", P.ne(x, x), Full(False), when=integral, examples=({"x": INTS},)),
    Rule("ne_itself", P.ne(x, x), P.isnan(x), when=lambda m: m.x.dtype.is_inexact, examples=X),
)

CHOICES = (
    Rule("select_true", P.select(Full(True), x, y), x, examples=XY),
    Rule("select_false", P.select(Full(False), x, y), y, examples=XY),
    Rule("select_same", P.select(c, x, x), x, examples=({"c": B, "x": F},)),
    Rule("select_not", P.select(P["not"](c), x, y), P.select(c, y, x), examples=({"c": B, "x": F, "y": F},)),
    Rule("select_again", P.select(c, P.select(c, x, y), z), P.select(c, x, z), examples=CXYZ),
    Rule("select_again_else", P.select(c, z, P.select(c, x, y)), P.select(c, z, y), examples=CXYZ),
    Rule("select_itself", P.select(x, Full(True), Full(False)), x, examples=BOOLS),
    Rule("select_its_complement", P.select(x, Full(False), Full(True)), P["not"](x), examples=BOOLS),
    Rule("select_or", P.select(x, Full(True), y), P["or"](x, y), examples=({"x": B, "y": B},)),
    Rule("select_and", P.select(x, y, Full(False)), P["and"](x, y), examples=({"x": B, "y": B},)),
)

PARTS = (
    Rule("conj_conj", P.conj(P.conj(x)), x, examples=({"x": Z},)),
    Rule("real_conj", P.real(P.conj(x)), P.real(x), examples=({"x": Z},)),
    Rule("imag_conj", P.imag(P.conj(x)), P.neg(P.imag(x)), examples=({"x": Z},)),
    Rule("real_complex", P.real(P.complex(x, y)), x, examples=XY),
    Rule("imag_complex", P.imag(P.complex(x, y)), y, examples=XY),
    Rule("complex_parts", P.complex(P.real(x), P.imag(x)), x, examples=({"x": Z},)),
)

ARITHMETIC = (*NEUTRAL, *SIGNS, *REPEATED, *LOGIC, *COMPARISONS, *CHOICES, *PARTS)
