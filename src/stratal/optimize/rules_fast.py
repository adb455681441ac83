"""Rules that hold in real arithmetic only: applied under `fast_math`, never by default.

They may change the last bits, the sign of a zero, or what happens to NaN and infinities.
"""

from __future__ import annotations

import math
from functools import partial

from stratal.base.dtypes import float32
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.pattern import Attr, Full, Match, P, Rule, Scalar, always
from stratal.optimize.rules_arithmetic import XY, F, S, X, real, x, y, z
from stratal.optimize.rules_reduce import joined
from stratal.optimize.rules_views import concrete

XYZ = ({"x": F, "y": F, "z": F},)
TWO = ({"x": F, "s": 3.0, "t": 0.7},)


def _floats(m: Match) -> bool:
    return bool(m.x.dtype.is_float)


def _constants(name: str, b: Builder, m: Match) -> Node:
    first, second = (complex(n.op.value.array) for n in (m.s, m.t))
    value = first + second if name == "add" else first * second
    return b.op(name, m.x, b.like(m.x, value.real if value.imag == 0 else value))


def _reciprocal(b: Builder, m: Match) -> Node | None:
    value = complex(m.s.op.value.array)
    return None if value == 0 else b.mul(m.x, b.like(m.x, (1 / value).real if value.imag == 0 else 1 / value))


def _sum_of_broadcast(b: Builder, m: Match) -> Node | None:
    """n equal terms are one term times n."""
    whole = m.root.inputs[0].aval
    if not concrete(whole, m.x.aval):
        return None
    repeated = [a for a in m.reduced if a not in m.axes or m.x.shape[m.axes.index(a)] != whole.shape[a]]
    if not repeated:
        return None
    times = math.prod(whole.shape[a] for a in repeated)
    kept = [a for a in range(whole.ndim) if a not in repeated]
    own = [k for k, a in enumerate(m.axes) if a not in repeated]
    small = b.broadcast(
        b.reshape(m.x, shape=tuple(m.x.shape[k] for k in own)),
        shape=tuple(whole.shape[a] for a in kept),
        axes=tuple(kept.index(m.axes[k]) for k in own),
    )
    total = b.sum(small, axes=tuple(kept.index(a) for a in m.reduced if a in kept))
    return b.mul(total, b.like(total, times))


def _fast(name: str, lhs, rhs, examples=X, when=_floats) -> Rule:  # type: ignore[no-untyped-def]  # as Rule
    return Rule(name, lhs, rhs, exact=False, when=when, examples=examples)


FAST = (
    _fast("fast_add_zero", P.add(x, Full(0.0)), x, when=real),
    _fast("fast_zero_sub", P.sub(Full(0.0), x), P.neg(x), when=real),
    _fast("fast_mul_zero", P.mul(x, Full(0.0)), Full(0.0)),
    _fast("fast_sub_itself", P.sub(x, x), Full(0.0)),
    _fast("fast_div_itself", P.div(x, x), Full(1.0)),
    _fast("fast_div_constant", P.div(x, S), _reciprocal, examples=({"x": F, "s": 3.0},)),
    _fast("fast_add_constants", P.add(P.add(x, S), Scalar("t")), partial(_constants, "add"), examples=TWO),
    _fast("fast_mul_constants", P.mul(P.mul(x, S), Scalar("t")), partial(_constants, "mul"), examples=TWO),
    _fast("fast_neg_sub", P.neg(P.sub(x, y)), P.sub(y, x), examples=XY),
    _fast("fast_sub_of_add", P.sub(P.add(x, y), y), x, examples=XY),
    _fast("fast_add_of_sub", P.add(P.sub(x, y), y), x, examples=XY),
    _fast("fast_factor_add", P.add(P.mul(x, y), P.mul(x, z)), P.mul(x, P.add(y, z)), examples=XYZ),
    _fast("fast_factor_sub", P.sub(P.mul(x, y), P.mul(x, z)), P.mul(x, P.sub(y, z)), examples=XYZ),
    _fast("fast_div_of_mul", P.div(P.mul(x, y), y), x, examples=XY),
    _fast("fast_div_div", P.div(P.div(x, y), z), P.div(x, P.mul(y, z)), examples=XYZ),
    _fast("fast_square", P.pow(x, Full(2.0)), P.mul(x, x)),
    _fast("fast_cube", P.pow(x, Full(3.0)), P.mul(P.mul(x, x), x)),
    _fast("fast_root", P.pow(x, Full(0.5)), P.sqrt(x)),
    _fast("fast_inverse_root", P.pow(x, Full(-0.5)), P.rsqrt(x)),
    _fast("fast_inverse", P.pow(x, Full(-1.0)), P.div(Full(1.0), x)),
    _fast("fast_pow_zero", P.pow(x, Full(0.0)), Full(1.0)),
    _fast("fast_rsqrt", P.div(Full(1.0), P.sqrt(x)), P.rsqrt(x)),
    _fast("fast_div_sqrt", P.div(x, P.sqrt(y)), P.mul(x, P.rsqrt(y)), examples=XY),
    _fast("fast_square_of_sqrt", P.mul(P.sqrt(x), P.sqrt(x)), x),
    _fast("fast_sqrt_of_square", P.sqrt(P.mul(x, x)), P.abs(x)),
    _fast("fast_log_exp", P.log(P.exp(x)), x),
    _fast("fast_exp_log", P.exp(P.log(x)), x),
    _fast("fast_exp_exp", P.mul(P.exp(x), P.exp(y)), P.exp(P.add(x, y)), examples=XY),
    _fast("fast_div_exp", P.div(x, P.exp(y)), P.mul(x, P.exp(P.neg(y))), examples=XY),
    _fast("fast_log_of_sqrt", P.log(P.sqrt(x)), P.mul(P.log(x), Full(0.5))),
    _fast("fast_log1p", P.log(P.add(x, Full(1.0))), P.log1p(x)),
    _fast("fast_expm1", P.sub(P.exp(x), Full(1.0)), P.expm1(x)),
    _fast("fast_logistic", P.div(Full(1.0), P.add(P.exp(P.neg(x)), Full(1.0))), P.logistic(x)),
    _fast("fast_logistic_complement", P.sub(Full(1.0), P.logistic(x)), P.logistic(P.neg(x))),
    _fast("fast_sin_neg", P.sin(P.neg(x)), P.neg(P.sin(x))),
    _fast("fast_cos_neg", P.cos(P.neg(x)), P.cos(x)),
    _fast("fast_tanh_neg", P.tanh(P.neg(x)), P.neg(P.tanh(x))),
    _fast("fast_sum_sum", P.sum(P.sum(x, axes=Attr("first")), axes=Attr("second")),
          P.sum(x, axes=lambda m: joined(m.first, m.second, m.x.aval.ndim)),
          examples=({"x": F, "first": (1,), "second": (0,)},), when=always),
    _fast("fast_sum_neg", P.sum(P.neg(x), "axes"), P.neg(P.sum(x, "axes")),
          examples=({"x": F, "axes": (1,)},)),
    _fast("fast_sum_scaled", P.sum(P.mul(x, S), "axes"),
          lambda b, m: b.mul(total := b.sum(m.x, axes=m.axes), b.like(total, m.s.op.value.array)),
          examples=({"x": F, "axes": (1,), "s": 0.3},)),
    _fast("fast_sum_broadcast", P.sum(P.broadcast(x, "shape", "axes"), axes=Attr("reduced")),
          _sum_of_broadcast,
          examples=({"x": F, "shape": (4, 2, 3), "axes": (1, 2), "reduced": (0, 2)},), when=always),
    _fast("fast_scaled_contract", P.contract(P.mul(x, S), y, "spec", "dtype"),
          lambda b, m: b.mul(
              full := b.contract(m.x, m.y, spec=m.spec, dtype=m.dtype), b.like(full, m.s.op.value.array)),
          when=lambda m: m.root.dtype is m.x.dtype and m.x.dtype.is_float,
          examples=({"x": F, "y": TensorType(float32, (3, 2)), "spec": "mk,kn->mn", "dtype": None,
                     "s": 0.3},)),
)  # fmt: skip
