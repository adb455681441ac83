"""Rules of views and conversions: chains of them become one, those that move nothing vanish."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stratal.base.dtypes import DType, bfloat16, bool_, float16, float32, float64, int8, int32, uint8
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.pattern import Attr, Full, Match, P, Rest, Rule, Var
from stratal.ops.views.boxes import Concatenate

x, y, v = Var("x"), Var("y"), Var("v")
ROW = TensorType(float32, (10,))
F23, F3, F1, F4 = (TensorType(float32, s) for s in ((2, 3), (3,), (1, 3), (2, 3, 4, 1)))
SCALAR = TensorType(float32, ())


def concrete(*types: TensorType) -> bool:
    """Return whether every size is an int: rules that reason about sizes leave symbols alone."""
    return all(isinstance(n, int) for t in types for n in t.shape)


def fixed(m: Match) -> bool:
    return concrete(m.type, m.x.aval)


def unmoved(m: Match) -> bool:
    return bool(m.x.type == m.root.type)


# -- reshape and permute -------------------------------------------------------------------------------------
def moves_only_units(perm: Sequence[int], shape: Sequence[Any]) -> bool:
    """Return whether a permutation keeps the order of all axes longer than 1."""
    long = [a for a in perm if shape[a] != 1]
    return long == sorted(long)


def unit_axes_added(small: Sequence[int], large: Sequence[int]) -> list[int] | None:
    """Return the axis of `large` each axis of `small` becomes if only axes of size 1 are added, else None."""
    at: list[int] = []
    for k, n in enumerate(large):
        if len(at) < len(small) and small[len(at)] == n:
            at.append(k)
        elif n != 1:
            return None
    return at if len(at) == len(small) else None


def _broadcast_of_reshape(b: Builder, m: Match) -> Node | None:
    """A reshape that only adds unit axes before a broadcast is part of the broadcast."""
    inner = m.root.inputs[0]
    if not concrete(m.x.aval, inner.aval):
        return None
    at = unit_axes_added(m.x.shape, inner.shape)
    if at is None:
        return None
    return b.broadcast(m.x, shape=m.shape, axes=tuple(m.axes[k] for k in at))


def _permute_of_broadcast(b: Builder, m: Match) -> Node:
    """Permute what is broadcast, which is smaller, and broadcast to the permuted shape."""
    at = {a: k for k, a in enumerate(m.perm)}  # where each axis of the broadcast goes
    order = sorted(range(len(m.axes)), key=lambda k: at[m.axes[k]])
    small = b.permute(m.x, perm=tuple(order))
    return b.broadcast(small, shape=m.type.shape, axes=tuple(at[m.axes[k]] for k in order))


SHAPES = (
    Rule("reshape_nothing", P.reshape(x), x, when=unmoved, examples=({"x": F23, "shape": (2, 3)},)),
    Rule("reshape_reshape", P.reshape(P.reshape(x, shape=Attr("inner")), "shape"), P.reshape(x, "shape"),
         examples=({"x": F23, "inner": (3, 2), "shape": (6,)},)),
    Rule("permute_nothing", P.permute(x, "perm"), x, when=lambda m: m.perm == tuple(range(len(m.perm))),
         examples=({"x": F23, "perm": (0, 1)},)),
    Rule("permute_permute", P.permute(P.permute(x, perm=Attr("p")), perm=Attr("q")),
         P.permute(x, perm=lambda m: tuple(m.p[k] for k in m.q)),
         examples=({"x": F4, "p": (1, 3, 0, 2), "q": (2, 0, 1, 3)}, {"x": F23, "p": (1, 0), "q": (1, 0)})),
    Rule("permute_units", P.permute(x, "perm"), P.reshape(x, shape=lambda m: m.type.shape),
         when=lambda m: fixed(m) and moves_only_units(m.perm, m.x.shape),
         examples=({"x": F4, "perm": (0, 3, 1, 2)},)),
    Rule("broadcast_nothing", P.broadcast(x), x, when=unmoved,
         examples=({"x": F23, "shape": (2, 3), "axes": (0, 1)},)),
    Rule("broadcast_units", P.broadcast(x), P.reshape(x, shape=lambda m: m.type.shape),
         when=lambda m: fixed(m) and m.type.size == m.x.aval.size and m.x.aval.ndim > 0,
         examples=({"x": F23, "shape": (1, 2, 3, 1), "axes": (1, 2)},)),
    Rule("broadcast_broadcast",
         P.broadcast(P.broadcast(x, shape=Attr("via"), axes=Attr("inner")), "shape", axes=Attr("outer")),
         P.broadcast(x, "shape", axes=lambda m: tuple(m.outer[a] for a in m.inner)),
         examples=({"x": F3, "via": (1, 3), "inner": (1,), "shape": (4, 2, 3), "outer": (1, 2)},)),
    Rule("broadcast_reshape", P.broadcast(P.reshape(x, shape=Attr("via")), "shape", "axes"),
         _broadcast_of_reshape, examples=({"x": F3, "via": (3, 1), "shape": (2, 3, 4), "axes": (1, 2)},)),
    Rule("permute_broadcast", P.permute(P.broadcast(x, "axes", shape=Attr("via")), "perm"),
         _permute_of_broadcast,
         examples=({"x": F23, "via": (2, 4, 3), "axes": (0, 2), "perm": (2, 1, 0)},
                   {"x": SCALAR, "via": (2, 4), "axes": (), "perm": (1, 0)})),
    Rule("reshape_filled", P.reshape(P.broadcast(x, shape=Attr("via"), axes=()), "shape"),
         P.broadcast(x, "shape", axes=()), examples=({"x": SCALAR, "via": (2, 3), "shape": (6,)},)),
)  # fmt: skip


# -- slice, pad, flip, concatenate ---------------------------------------------------------------------------
def _slice_of_slice(b: Builder, m: Match) -> Node:
    start = tuple(a + s * c for a, s, c in zip(m.start, m.step, m.start2, strict=True))
    step = tuple(s * t for s, t in zip(m.step, m.step2, strict=True))
    sizes = m.type.shape
    start = tuple(a if n else 0 for a, n in zip(start, sizes, strict=True))  # nothing may begin past the end
    stop = tuple(a + (n - 1) * s + 1 if n else 0 for a, n, s in zip(start, sizes, step, strict=True))
    return b.slice(m.x, start=start, stop=stop, step=step)


def _slice_of_pad(b: Builder, m: Match) -> Node | None:
    """A slice that stays inside what was padded does not see the padding."""
    inner = m.x.aval
    if not concrete(m.type, inner) or any(m.interior) or not all(isinstance(n, int) for n in m.low):
        return None
    start = tuple(a - lo for a, lo in zip(m.start, m.low, strict=True))
    stop = tuple(a - lo for a, lo in zip(m.stop, m.low, strict=True))
    if any(a < 0 for a in start) or any(
        e > n or e < a for a, e, n in zip(start, stop, inner.shape, strict=True)
    ):
        return None
    return b.slice(m.x, start=start, stop=stop, step=m.step)


def _slice_of_concatenate(b: Builder, m: Match) -> Node | None:
    """A slice that stays inside one piece reads that piece."""
    begin = 0
    for piece in m.xs:
        if not concrete(piece.aval):
            return None
        end = begin + piece.shape[m.axis]
        if begin <= m.start[m.axis] and m.stop[m.axis] <= end and m.start[m.axis] < m.stop[m.axis]:
            shift = [begin if k == m.axis else 0 for k in range(piece.aval.ndim)]
            start = tuple(a - s for a, s in zip(m.start, shift, strict=True))
            stop = tuple(a - s for a, s in zip(m.stop, shift, strict=True))
            return b.slice(piece, start=start, stop=stop, step=m.step)
        begin = end
    return None


def _slice_of_broadcast(b: Builder, m: Match) -> Node | None:
    """Slices along axes a broadcast adds or stretches only change its shape."""
    whole = m.root.inputs[0].aval
    if not concrete(m.type, whole, m.x.aval):
        return None
    for k, a in enumerate(m.axes):
        if m.x.shape[k] != 1 and (m.start[a], m.stop[a], m.step[a]) != (0, whole.shape[a], 1):
            return None
    if any(m.x.shape[k] == 1 and m.type.shape[a] == 0 for k, a in enumerate(m.axes)):
        return None
    return b.broadcast(m.x, shape=m.type.shape, axes=m.axes)


def _flip_of_broadcast(b: Builder, m: Match) -> Node | None:
    """Flipping an axis along which all is equal does nothing."""
    if not concrete(m.x.aval):
        return None
    real = {a for k, a in enumerate(m.axes) if m.x.shape[k] != 1}
    kept = tuple(a for a in m.flipped if a in real)
    return None if kept == m.flipped else b.flip(m.root.inputs[0], axes=kept)


def _pad_of_pad(b: Builder, m: Match) -> Node | None:
    if any(m.interior) or any(m.interior2):
        return None
    low = tuple(a + c for a, c in zip(m.low, m.low2, strict=True))
    high = tuple(a + c for a, c in zip(m.high, m.high2, strict=True))
    return b.pad(m.x, m.v, low=low, high=high, interior=m.interior)


def _flat_concatenate(b: Builder, m: Match) -> Node | None:
    pieces: list[Node] = []
    for piece in m.xs:
        same = isinstance(piece.op, Concatenate) and piece.op.axis == m.axis
        pieces += piece.inputs if same else [piece]
    kept = [p for p in pieces if p.shape[m.axis] != 0] or pieces[:1]
    if len(kept) == len(m.xs) and all(a is c for a, c in zip(kept, m.xs, strict=True)):
        return None
    return b.concatenate(*kept, axis=m.axis)


_SLICED = ("start", "stop", "step")
_PADDED = ("low", "high", "interior")

PIECES = (
    Rule("slice_all", P.slice(x), x, when=unmoved,
         examples=({"x": F23, "start": (0, 0), "stop": (2, 3), "step": (1, 1)},)),
    Rule("slice_slice",
         P.slice(P.slice(x, *_SLICED), start=Attr("start2"), stop=Attr("stop2"), step=Attr("step2")),
         _slice_of_slice, when=fixed,
         examples=({"x": ROW, "start": (1,), "stop": (9,), "step": (2,),
                    "start2": (1,), "stop2": (4,), "step2": (2,)},
                   {"x": ROW, "start": (3,), "stop": (10,), "step": (3,),
                    "start2": (3,), "stop2": (3,), "step2": (1,)})),
    Rule("slice_pad", P.slice(P.pad(x, v, *_PADDED), *_SLICED), _slice_of_pad,
         examples=({"x": ROW, "v": SCALAR, "low": (2,), "high": (1,), "interior": (0,),
                    "start": (3,), "stop": (8,), "step": (2,)},)),
    Rule("slice_concatenate", P.slice(P.concatenate(Rest("xs"), "axis"), *_SLICED), _slice_of_concatenate,
         examples=({"xs": (F23, F23), "axis": 0, "start": (2, 0), "stop": (4, 3), "step": (1, 2)},)),
    Rule("slice_broadcast", P.slice(P.broadcast(x, "shape", "axes"), *_SLICED), _slice_of_broadcast,
         examples=({"x": F3, "shape": (4, 3), "axes": (1,),
                    "start": (1, 0), "stop": (4, 3), "step": (2, 1)},)),
    Rule("pad_nothing", P.pad(x, v), x, when=unmoved,
         examples=({"x": F23, "v": SCALAR, "low": (0, 0), "high": (0, 0), "interior": (0, 0)},)),
    Rule("pad_pad",
         P.pad(P.pad(x, v, low=Attr("low2"), high=Attr("high2"), interior=Attr("interior2")), v, *_PADDED),
         _pad_of_pad,
         examples=({"x": ROW, "v": SCALAR, "low": (1,), "high": (0,), "interior": (0,),
                    "low2": (2,), "high2": (3,), "interior2": (0,)},)),
    Rule("flip_flip", P.flip(P.flip(x, axes=Attr("inner")), axes=Attr("outer")),
         P.flip(x, axes=lambda m: tuple(sorted(set(m.inner) ^ set(m.outer)))),
         examples=({"x": F23, "inner": (0, 1), "outer": (1,)}, {"x": F23, "inner": (1,), "outer": (1,)})),
    Rule("flip_nothing", P.flip(x, "axes"), x,
         when=lambda m: concrete(m.x.aval) and all(m.x.shape[a] <= 1 for a in m.axes),
         examples=({"x": F1, "axes": (0,)}, {"x": F23, "axes": ()})),
    Rule("flip_broadcast", P.flip(P.broadcast(x, "shape", "axes"), axes=Attr("flipped")), _flip_of_broadcast,
         examples=({"x": F23, "shape": (2, 4, 3), "axes": (0, 2), "flipped": (1, 2)},)),
    Rule("concatenate_one", P.concatenate(x), x, examples=({"x": F23, "axis": 0},)),
    Rule("concatenate_flat", P.concatenate(Rest("xs"), "axis"), _flat_concatenate,
         when=lambda m: concrete(*(n.aval for n in m.xs)),
         examples=({"xs": (F23, TensorType(float32, (0, 3)), F1), "axis": 0},)),
)  # fmt: skip


# -- casts ---------------------------------------------------------------------------------------------------
_FLOAT_DIGITS = {float16: (11, 15), bfloat16: (8, 127), float32: (24, 127), float64: (53, 1023)}


def lossless(a: DType, b: DType) -> bool:
    """Return whether every value of `a` is a value of `b`."""
    if a is b or a.is_bool:
        return True
    if b.is_bool:
        return False
    if a.is_integer and b.is_integer:
        return a.bits <= b.bits if a.kind == b.kind else a.kind == "u" and a.bits < b.bits
    if a.is_integer and b.is_float:
        digits, exponent = _FLOAT_DIGITS[b]
        return a.bits - (a.kind == "i") <= min(digits, exponent)
    if a.is_float and b.is_float:
        return all(p <= q for p, q in zip(_FLOAT_DIGITS[a], _FLOAT_DIGITS[b], strict=True))
    return False


def _casts_join(m: Match) -> bool:
    """cast(cast(x, via), to) is cast(x, to) if `via` loses nothing and both ways round or wrap alike."""
    source, via, to = m.x.dtype, m.via, m.to
    if not lossless(source, via):
        return False
    saturates, wraps = via.is_float and to.is_integer, source.is_integer
    return not (saturates and wraps) or lossless(source, to)


_CAST_EXAMPLES = tuple(
    {"x": TensorType(source, (2, 3)), "via": via, "to": to}
    for source, via, to in (
        (float32, float64, float32),
        (float16, float32, bfloat16),
        (int8, int32, float32),
        (uint8, float32, int32),
        (bool_, float32, int32),
        (float32, float64, int32),
        (bool_, int32, bool_),
        (int8, float32, int8),
    )
)

CASTS = (
    Rule("cast_nothing", P.cast(x), x, when=unmoved, examples=({"x": F23, "dtype": float32},)),
    Rule("cast_cast", P.cast(P.cast(x, dtype=Attr("via")), dtype=Attr("to")), P.cast(x, dtype=Attr("to")),
         when=_casts_join, examples=_CAST_EXAMPLES),
    Rule("bitcast_nothing", P.bitcast(x), x, when=unmoved, examples=({"x": F23, "dtype": float32},)),
    Rule("bitcast_bitcast", P.bitcast(P.bitcast(x, dtype=Attr("via")), dtype=Attr("to")),
         P.bitcast(x, dtype=Attr("to")), examples=({"x": F23, "via": int32, "to": float32},)),
    Rule("cast_of_flag_back", P.ne(P.cast(x), Full(0.0)), x, when=lambda m: m.x.dtype.is_bool,
         examples=({"x": TensorType(bool_, (2, 3)), "dtype": float32},)),
)  # fmt: skip

MARKS = (
    Rule("stop_gradient_done", P.stop_gradient(x), x, examples=({"x": F23},)),
    Rule("straight_through_done", P.straight_through(x, y), x, examples=({"x": F23, "y": F23},)),
)

VIEWS = (*SHAPES, *PIECES, *CASTS)
