"""Rules of reductions, contractions and windows: axes that need no work, views absorbed in letters."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from stratal.base.dtypes import bfloat16, bool_, float16, float32, int8, int32, uint8
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.pattern import Apply, Attr, Full, Match, P, Rule, Var
from stratal.ops.linear.contract import parse_spec
from stratal.ops.reduce.reductions import Prod
from stratal.optimize.rules_views import concrete

x, y, ct = Var("x"), Var("y"), Var("ct")
F23, F3, F213 = (TensorType(float32, s) for s in ((2, 3), (3,), (2, 1, 3)))
F32, F34 = TensorType(float32, (3, 2)), TensorType(float32, (3, 4))
IDEMPOTENT = ("reduce_max", "reduce_min", "any", "all")
REDUCTIONS = ("sum", "prod", *IDEMPOTENT)
GEOMETRY = ("window", "strides", "dilation", "padding")
CUMULATIVE = ("cumsum", "cumprod", "cummax", "cummin")


def _over_units(m: Match) -> bool:
    if isinstance(m.root.op, Prod) and m.x.dtype.is_complex:
        return False  # it starts at 1, and 1 * z mixes both parts of an infinite z
    return concrete(m.x.aval) and all(m.x.shape[a] == 1 for a in m.axes)


def _reshaped(b: Builder, m: Match) -> Node:
    return m.x if not m.axes else b.reshape(m.x, shape=m.type.shape)


def _started(b: Builder, x: Node) -> Node:
    """A sum starts at 0, and 0 + -0.0 is 0: the addition stays, but there is nothing to reduce."""
    return b.add(x, b.like(x, 0)) if x.dtype.is_inexact else x


def _windows_of_one(m: Match) -> bool:
    """Return whether every element is a window, and there are no others."""
    ones = {*m.window, *m.strides} == {1} and {p for pair in m.padding for p in pair} == {0}
    return ones and concrete(m.x.aval)


def _of_broadcast(name: str, b: Builder, m: Match) -> Node | None:
    """Reduce the axes a broadcast kept; the others repeat a value, which `name` does not mind."""
    whole = m.root.inputs[0].aval
    if not concrete(whole, m.x.aval) or 0 in whole.shape:
        return None
    at = dict(zip(m.axes, range(len(m.axes)), strict=True))
    reduced = tuple(at[a] for a in m.reduced if a in at)
    if len(reduced) == len(m.reduced) and all(m.x.shape[k] != 1 for k in reduced):
        return None
    kept = [a for a in range(whole.ndim) if a not in m.reduced]
    small = b.op(name, m.x, axes=reduced) if reduced else m.x
    axes = tuple(kept.index(a) for a in m.axes if a in kept)
    return b.broadcast(small, shape=m.type.shape, axes=axes)


def _of_permute(name: str, b: Builder, m: Match) -> Node:
    """Reduce the axes where they were, then permute what is left, which is smaller."""
    reduced = tuple(sorted(m.perm[a] for a in m.axes))
    left = [a for a in m.perm if a not in reduced]
    rank = {a: k for k, a in enumerate(sorted(left))}
    return b.permute(b.op(name, m.x, axes=reduced), perm=tuple(rank[a] for a in left))


def _units_dropped(b: Builder, m: Match) -> Node:
    """Axes of size 1 leave a reduction: reshape them away first."""
    rest = [a for a in range(m.x.aval.ndim) if not (a in m.axes and m.x.shape[a] == 1)]
    small = b.reshape(m.x, shape=tuple(m.x.shape[a] for a in rest))
    return b.op(m.root.op.name, small, axes=tuple(rest.index(a) for a in m.axes if a in rest))


def _mixed_units(m: Match) -> bool:
    sizes = [m.x.shape[a] for a in m.axes]
    return concrete(m.x.aval) and 1 in sizes and any(n != 1 for n in sizes)


def _reduction_rules(name: str) -> list[Rule]:
    reduce = P[name]
    t = TensorType(bool_ if name in ("any", "all") else float32, (2, 1, 3))
    over_units = (lambda b, m: _started(b, _reshaped(b, m))) if name == "sum" else _reshaped
    rules = [
        Rule(f"{name}_over_units", reduce(x, "axes"), over_units, when=_over_units,
             examples=({"x": t, "axes": (1,)}, {"x": t, "axes": ()})),
        Rule(f"{name}_drops_units", reduce(x, "axes"), _units_dropped, when=_mixed_units,
             examples=({"x": t, "axes": (0, 1)},)),
    ]  # fmt: skip
    if name not in IDEMPOTENT:
        return rules
    return [
        *rules,
        Rule(f"{name}_{name}", reduce(reduce(x, axes=Attr("first")), axes=Attr("second")),
             reduce(x, axes=lambda m: joined(m.first, m.second, m.x.aval.ndim)),
             examples=({"x": t, "first": (1,), "second": (0,)},)),
        Rule(f"{name}_broadcast", reduce(P.broadcast(x, "shape", "axes"), axes=Attr("reduced")),
             partial(_of_broadcast, name),
             examples=({"x": t, "shape": (4, 2, 5, 3), "axes": (1, 2, 3), "reduced": (0, 1, 2)},)),
        Rule(f"{name}_permute", reduce(P.permute(x, "perm"), "axes"), partial(_of_permute, name),
             examples=({"x": t, "perm": (2, 0, 1), "axes": (1,)},)),
    ]  # fmt: skip


def joined(first: Sequence[int], second: Sequence[int], ndim: int) -> tuple[int, ...]:
    """Return the axes two reductions in a row remove together."""
    left = [a for a in range(ndim) if a not in first]
    return tuple(sorted([*first, *(left[a] for a in second)]))


# -- contractions --------------------------------------------------------------------------------------------
def _operand(side: int, view: Apply) -> Apply:
    return P.contract(*((view, y) if side == 0 else (y, view)), "spec", "dtype")


def _respelled(b: Builder, m: Match, side: int, node: Node, letters: str) -> Node | None:
    """Return the contraction with one operand and its letters replaced, unless that reorders the sum."""
    s = parse_spec(m.spec)
    left, right = (letters, s.right) if side == 0 else (s.left, letters)
    new = parse_spec(f"{left},{right}->{s.out}")
    if new.contracted != s.contracted:
        return None
    operands = (node, m.y) if side == 0 else (m.y, node)
    return b.contract(*operands, spec=f"{left},{right}->{s.out}", dtype=m.dtype)


def _absorb_permute(side: int, b: Builder, m: Match) -> Node | None:
    letters = parse_spec(m.spec)[side]
    before = "".join(letters[m.perm.index(k)] for k in range(len(m.perm)))
    return _respelled(b, m, side, m.x, before)


def _absorb_broadcast(side: int, b: Builder, m: Match) -> Node | None:
    """A broadcast axis that is a batch of both operands need not be there: the other operand has it."""
    s = parse_spec(m.spec)
    letters, whole = s[side], m.root.inputs[side].aval
    if not concrete(whole, m.x.aval):
        return None
    kept = {a: k for k, a in enumerate(m.axes) if m.x.shape[k] == whole.shape[a]}
    gone = [a for a, letter in enumerate(letters) if a not in kept and letter in s.batch]
    if not gone:
        return None
    rest = [a for a in range(whole.ndim) if a not in gone]
    used = [k for k, a in enumerate(m.axes) if a not in gone]
    small = b.reshape(m.x, shape=tuple(m.x.shape[k] for k in used))
    smaller = b.broadcast(
        small, shape=tuple(whole.shape[a] for a in rest), axes=tuple(rest.index(m.axes[k]) for k in used)
    )
    return _respelled(b, m, side, smaller, "".join(letters[a] for a in rest))


WIDENED = {int8: int32, uint8: int32, bfloat16: float32, float16: float32}
"""Dtypes whose products are summed in another anyway: widening the operands first changes no bit."""


def _widens(m: Match) -> bool:
    given = m.x.dtype, m.y.dtype
    together = given[0] is given[1] or all(d in (int8, uint8) for d in given)
    return together and m.root.dtype is m.wide and all(WIDENED.get(d) is m.wide for d in given)


def _permuted_result(b: Builder, m: Match) -> Node:
    s = parse_spec(m.spec)
    spec = f"{s.left},{s.right}->{''.join(s.out[k] for k in m.perm)}"
    return b.contract(m.x, m.y, spec=spec, dtype=m.dtype)


def _side_rules(side: int) -> list[Rule]:
    word = ("left", "right")[side]
    right, matrices, batches = (
        (F34, "mk,kn->mn", "bmk,bkn->bmn"),
        (TensorType(float32, (4, 3)), "nk,mk->mn", "bkn,bmk->bmn"),
    )[side]
    return [
        Rule(f"contract_permute_{word}", _operand(side, P.permute(x, "perm")), partial(_absorb_permute, side),
             examples=({"x": F32, "perm": (1, 0), "y": right, "spec": matrices, "dtype": None},)),
        Rule(f"contract_broadcast_{word}", _operand(side, P.broadcast(x, "shape", "axes")),
             partial(_absorb_broadcast, side),
             examples=({"x": F23, "shape": (5, 2, 3), "axes": (1, 2), "y": TensorType(float32, (5, 3, 4)),
                        "spec": batches, "dtype": None},)),
    ]  # fmt: skip


CONTRACTIONS = (
    *_side_rules(0),
    *_side_rules(1),
    Rule("contract_widened",
         P.contract(P.cast(x, dtype=Attr("wide")), P.cast(y, dtype=Attr("wide")), "spec", "dtype"),
         lambda b, m: b.contract(m.x, m.y, spec=m.spec, dtype=m.root.dtype), when=_widens,
         examples=tuple({"x": TensorType(dx, (2, 3)), "y": TensorType(dy, (3, 4)), "wide": WIDENED[dx],
                         "spec": "mk,kn->mn", "dtype": None}
                        for dx, dy in ((int8, int8), (uint8, int8), (bfloat16, bfloat16)))),
    Rule("permute_contract", P.permute(P.contract(x, y, "spec", "dtype"), "perm"), _permuted_result,
         examples=({"x": F23, "y": F34, "spec": "mk,kn->mn", "dtype": None, "perm": (1, 0)},)),
)  # fmt: skip


REDUCE = (
    *(rule for name in REDUCTIONS for rule in _reduction_rules(name)),
    *CONTRACTIONS,
    Rule("windows_of_one", P.window_reduce(x, *GEOMETRY, "kind"),
         lambda b, m: _started(b, m.x) if m.kind == "sum" else m.x, when=_windows_of_one,
         examples=tuple({"x": F23, "kind": kind, "padding": ((0, 0),) * 2}
                        | dict.fromkeys(GEOMETRY[:3], (1, 1)) for kind in ("sum", "max"))),
    *(Rule(f"{name}_of_one", P[name](x, "axis"), x,
           when=lambda m: concrete(m.x.aval) and m.x.shape[m.axis] == 1,
           examples=({"x": F213, "axis": 1},)) for name in CUMULATIVE),
)  # fmt: skip


# -- windows -------------------------------------------------------------------------------------------------


def _gated_before(b: Builder, m: Match) -> Node:
    """Gate the cotangents by the maxima, then scatter: a winner that is no positive number takes 0.

    Of relu, then max pooling, the gradient scatters cotangents to winners, and is 0 where relu's operand was
    not positive. A winner is positive where the window's maximum is: no mask of all elements need be kept.
    """
    index = m.root.inputs[2].inputs[1]
    geometry = {name: m.values[name] for name in GEOMETRY}
    best = b.window_reduce(index.inputs[0], kind="max", **geometry)
    zero = b.like(m.ct, 0)
    gated = b.op("select", b.le(best, b.like(best, 0)), zero, m.ct)
    return b.window_scatter(gated, index, shape=m.shape, **geometry)


_OFF = P.le(x, Full(0.0))
_CASES = (
    {"window": (1, 2, 2), "strides": (1, 2, 2), "dilation": (1, 1, 1), "padding": ((0, 0),) * 3},
    {"window": (1, 3, 3), "strides": (1, 2, 1), "dilation": (1, 1, 1), "padding": ((0, 0), (1, 1), (1, 0))},
)
_COUNTS = ((2, 2, 3), (2, 2, 5))

_SCATTERED = P.window_scatter(
    ct, P.window_argmax(P.select(_OFF, Full(0.0), x), *GEOMETRY), "shape", *GEOMETRY
)

WINDOWED = (
    Rule("relu_gate_of_maxima", P.select(_OFF, Full(0.0), _SCATTERED), _gated_before,
         examples=tuple({"x": TensorType(float32, (2, 4, 6)), "ct": TensorType(float32, count),
                         "shape": (2, 4, 6), **case} for case, count in zip(_CASES, _COUNTS, strict=True))),
)  # fmt: skip
