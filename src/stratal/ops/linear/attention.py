"""Scaled dot-product attention and its gradient, as ops that never hold the scores as a whole.

With S = scale q k^T (-inf where a mask or causality hides a key), P = softmax(S) = exp(S - lse):

    attention       out = P v, lse = log sum exp(S)
    attention_grad  T = P (ct v^T - delta);  dq = scale T k,  dk = scale T^T q,  dv = P^T ct

The gradient makes P again from lse (Dao et al., "FlashAttention", 2022), so nothing of size L x S is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from stratal.base.cost import Cost
from stratal.base.dims import known_equal, upper_bound
from stratal.base.dtypes import bool_, float32, float64, int64
from stratal.base.errors import DTypeError, ShapeError
from stratal.base.lowered import Lowered
from stratal.base.types import TensorType, TupleType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Reject, Sample, record
from stratal.loops.compute import Nest
from stratal.ops.families import RowWise, or_zeros, total


@dataclass(frozen=True, repr=False)
class _Attention(RowWise):
    """What both ops share: the shapes of q, k, v and mask, and the weights P."""

    causal: bool
    scale: float
    products: ClassVar[int]  # of matrices, half of each where causal

    def lower(self, *types: TensorType) -> Lowered:
        return Nest("attention")

    def host_reason(self, *types: TensorType) -> str:
        if types[0].dtype is not float32:
            return "attention is scheduled for float32 alone"
        return "attention of nothing" if any(n == 0 for t in types for n in t.ints) else ""

    def cost(self, *types: TensorType) -> Cost:
        q, k, v = types[:3]
        d, e = upper_bound(q.shape[-1]), upper_bound(v.shape[-1])
        area = upper_bound(q.size) // max(1, d) * upper_bound(k.shape[-2])
        flops = self.products * area * (d + e) * (0.5 if self.causal else 1)
        return super().cost(*types)._replace(flops=float(flops))

    def _check(self, q: TensorType, k: TensorType, v: TensorType, mask: Sequence[TensorType]) -> None:
        if q.dtype not in (float32, float64) or {k.dtype, v.dtype} != {q.dtype}:
            raise DTypeError(f"{self.name}: takes float32 or float64, all the same", got=f"{q}, {k}, {v}")
        same = q.ndim == k.ndim == v.ndim >= 2 and all(
            known_equal(a, b) and known_equal(a, c)
            for a, b, c in zip(q.shape[:-2], k.shape[:-2], v.shape[:-2], strict=True)
        )
        if not same or not known_equal(q.shape[-1], k.shape[-1]) or not known_equal(k.shape[-2], v.shape[-2]):
            raise ShapeError(
                f"{self.name}: takes q [...,L,D], k [...,S,D] and v [...,S,E]", got=f"{q}, {k}, {v}"
            )
        for m in mask:
            scores = (*q.shape[:-1], k.shape[-2])
            if not m.dtype.is_bool or m.ndim != len(scores) or not all(map(known_equal, m.shape, scores)):
                raise ShapeError(f"{self.name}: takes a mask bool[...,L,S]", got=str(m))

    def _weights(self, q: Array, k: Array, lse: Array | None, mask: Sequence[Array]) -> tuple[Array, Array]:
        """Return P and lse, in float64."""
        s = self.scale * (q.astype(np.float64) @ np.swapaxes(k.astype(np.float64), -1, -2))
        keep = np.ones(s.shape, np.bool_)
        if self.causal:
            keep &= np.arange(s.shape[-1]) <= np.arange(s.shape[-2])[:, None]
        for m in mask:
            keep &= m
        s = np.where(keep, s, -np.inf)
        if lse is None:
            top = np.max(s, axis=-1, initial=-np.inf)
            with np.errstate(invalid="ignore", divide="ignore"):
                top = np.where(np.isneginf(top), 0.0, top)
                total = np.exp(s - top[..., None]).sum(-1)
                lse = top + np.log(np.where(total == 0, 1.0, total))
        with np.errstate(invalid="ignore"):
            p = np.exp(s - lse.astype(np.float64)[..., None])
        return p, lse

    def _p(self, b: Builder, q: Node, k: Node, lse: Node, mask: Sequence[Node]) -> Node:
        """Return P as a value of its own: derivatives of higher order hold it."""
        s = _times(b, self.scale, _mm(b, q, k, "LD,SD->LS"))
        if self.causal:
            mask = (*mask, lower_triangle(b, s))
        for m in mask:
            s = hidden(b, s, m)
        return b.exp(b.sub(s, _column(b, lse, s)))


def lower_triangle(b: Builder, scores: Node) -> Node:
    """Return where the key is not later than the query."""
    last = scores.aval.ndim - 1
    rows, columns = (b.iota(shape=scores.shape, axis=axis, dtype=int64) for axis in (last - 1, last))
    return b.op("le", columns, rows)


def hidden(b: Builder, scores: Node, keep: Node) -> Node:
    """Return scores, -inf where a mask does not keep them."""
    return b.op("select", keep, scores, b.like(scores, float("-inf")))


def _mm(b: Builder, x: Node, y: Node, spec: str) -> Node:
    """Multiply over the last two axes, which `spec` names; those in front are a batch."""
    batch = "abcdefgh"[: x.aval.ndim - 2]
    first, second, result = spec.translate(str.maketrans("LSDE", "wxyz")).replace("->", ",").split(",")
    return b.contract(x, y, spec=f"{batch}{first},{batch}{second}->{batch}{result}")


def _times(b: Builder, factor: float, x: Node) -> Node:
    return x if factor == 1 else b.mul(x, b.like(x, factor))


def _column(b: Builder, rows: Node, like: Node) -> Node:
    """Repeat one value per row over the last axis."""
    return b.broadcast(rows, shape=like.shape, axes=tuple(range(rows.aval.ndim)))


def _row_sum(b: Builder, x: Node) -> Node:
    return b.sum(x, axes=(x.aval.ndim - 1,))


@record
class Attention(_Attention):
    """softmax(scale q k^T) v over the last two axes, and the logarithm of each row's sum of exponentials.

    `causal` hides key j from query i where j > i, a bool mask where it is False. A row with every key hidden
    is 0, and so are its lse and its gradients. Error at most 1e-5 of the largest value in float32.

    Shapes: q [..., L, D], k [..., S, D], v [..., S, E] (, mask bool[..., L, S]) -> out [..., L, E], lse
    [..., L]. Source: Vaswani et al., 2017; Dao et al., 2022.
    """

    ulp = 64.0
    products = 2

    def check_arity(self, count: int) -> None:
        if count not in (3, 4):
            raise ShapeError("attention: takes q, k, v and perhaps a mask", got=f"{count} operands")

    def infer(self, *types: TensorType) -> TupleType:
        q, k, v, *mask = types
        self._check(q, k, v, mask)
        rows = q.shape[:-1]
        return TupleType([TensorType(q.dtype, (*rows, v.shape[-1])), TensorType(q.dtype, rows)])

    def ref(self, *arrays: Array) -> tuple[Array, ...]:
        q, k, v, *mask = arrays
        p, lse = self._weights(q, k, None, mask)
        return (p @ v.astype(np.float64)).astype(q.dtype), lse.astype(q.dtype)

    def vjp(self, b: Builder, ct: Any, out: Node, *inputs: Node) -> Sequence[Node | None]:
        ct_out, ct_lse = ct
        q, k, v, *mask = inputs
        result, lse = b.item(out, 0), b.item(out, 1)
        if ct_out is None:
            ct_out = b.like(result, 0)
        delta = _row_sum(b, b.mul(ct_out, result))
        if ct_lse is not None:
            delta = b.sub(delta, ct_lse)
        operands = (q, k, v, ct_out, lse, delta, *mask)
        grads = b.op("attention_grad", *operands, causal=self.causal, scale=self.scale)
        return (*(b.item(grads, i) for i in range(3)), *(None for _ in mask))

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Any:
        q, k, v, *mask = inputs
        dq, dk, dv = tangents[:3]
        p = self._p(b, q, k, b.item(out, 1), mask)
        ds = total(
            b,
            None if dq is None else _times(b, self.scale, _mm(b, dq, k, "LD,SD->LS")),
            None if dk is None else _times(b, self.scale, _mm(b, q, dk, "LD,SD->LS")),
        )
        if ds is None:
            return [None if dv is None else _mm(b, p, dv, "LS,SE->LE"), None]
        change = b.mul(p, ds)
        d_lse = _row_sum(b, change)
        dp = b.sub(change, b.mul(p, _column(b, d_lse, p)))
        moved = None if dv is None else _mm(b, p, dv, "LS,SE->LE")
        return [total(b, _mm(b, dp, v, "LS,SE->LE"), moved), d_lse]

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype, shape, causal, scale in (
            (float32, (2, 5, 5, 4, 3), False, 0.5), (float64, (2, 5, 5, 4, 3), True, 0.7),
            (float32, (1, 70, 70, 17, 33), True, 0.25), (float64, (2, 3, 6, 2, 2), False, 1.0),
            (float32, (3, 1, 1, 1, 1), True, 1.0), (float32, (0, 4, 4, 2, 2), False, 1.0),
            (float32, (2, 0, 4, 2, 2), False, 1.0),
        ):  # fmt: skip
            yield Sample(cls(causal=causal, scale=scale), _types(dtype, shape))
        masked = (*_types(float32, (2, 6, 40, 4, 3)), TensorType(bool_, (2, 6, 40)))
        yield Sample(cls(causal=False, scale=0.5), masked, draw=_with_mask(masked))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        q, k, v = _types(float32, (2, 5, 6, 4, 3))
        op = cls(causal=False, scale=1.0)
        yield Reject(op, (q, k, TensorType(float32, (2, 7, 3))), "takes q")
        yield Reject(op, (q, k, v, TensorType(float32, (2, 5, 6))), "mask")
        yield Reject(op, (q, k), "perhaps a mask")
        yield Reject(op, (q, k, TensorType(float64, (2, 6, 3))), "all the same")


@record
class AttentionGrad(_Attention):
    """The gradient of attention with respect to q, k and v.

    `ct` is the cotangent of its result, `lse` its second result, `delta` per row sum(ct out) less the
    cotangent of lse.

    Shapes: q [..., L, D], k [..., S, D], v [..., S, E], ct [..., L, E], lse and delta [..., L] (, mask)
    -> those of q, k, v.
    """

    name = "attention_grad"
    ulp = 256.0
    products = 5

    def check_arity(self, count: int) -> None:
        if count not in (6, 7):
            raise ShapeError("attention_grad: takes q, k, v, ct, lse, delta and perhaps a mask",
                             got=f"{count} operands")  # fmt: skip

    def infer(self, *types: TensorType) -> TupleType:
        q, k, v, ct, lse, delta, *mask = types
        self._check(q, k, v, mask)
        rows = q.shape[:-1]
        for given, shape in ((ct, (*rows, v.shape[-1])), (lse, rows), (delta, rows)):
            if given.dtype is not q.dtype or given.ndim != len(shape) or not all(
                map(known_equal, given.shape, shape)
            ):  # fmt: skip
                raise ShapeError("attention_grad: takes ct [...,L,E], lse and delta [...,L]", got=str(given))
        return TupleType([q, k, v])

    def ref(self, *arrays: Array) -> tuple[Array, ...]:
        q, k, v, ct, lse, delta, *mask = arrays
        p, _ = self._weights(q, k, lse, mask)
        wide_v, wide_ct = v.astype(np.float64), ct.astype(np.float64)
        with np.errstate(invalid="ignore"):
            t = p * (wide_ct @ np.swapaxes(wide_v, -1, -2) - delta.astype(np.float64)[..., None])
        swapped = np.swapaxes(t, -1, -2)
        grads = self.scale * (t @ k), self.scale * (swapped @ q), np.swapaxes(p, -1, -2) @ wide_ct
        return tuple(g.astype(q.dtype) for g in grads)

    def vjp(self, b: Builder, ct: Any, out: Node, *inputs: Node) -> Sequence[Node | None]:
        q, k, v, given, lse, delta, *mask = inputs
        to_q, to_k, to_v = or_zeros(b, ct, (q, k, v))
        p = self._p(b, q, k, lse, mask)
        apart = b.sub(_mm(b, given, v, "LE,SE->LS"), _column(b, delta, p))
        t = b.mul(p, apart)
        both = b.add(_mm(b, to_q, k, "LD,SD->LS"), _mm(b, q, to_k, "LD,SD->LS"))
        of_t = _times(b, self.scale, both)
        of_p = b.add(b.mul(of_t, apart), _mm(b, given, to_v, "LE,SE->LS"))
        of_dp, of_s = b.mul(of_t, p), b.mul(of_p, p)
        return (
            _times(b, self.scale, b.add(_mm(b, of_s, k, "LS,SD->LD"), _mm(b, t, to_k, "LS,SD->LD"))),
            _times(b, self.scale, b.add(_mm(b, of_s, q, "LS,LD->SD"), _mm(b, t, to_q, "LS,LD->SD"))),
            _mm(b, of_dp, given, "LS,LE->SE"),
            b.add(_mm(b, of_dp, v, "LS,SE->LE"), _mm(b, p, to_v, "LS,SE->LE")),
            b.neg(_row_sum(b, of_s)),
            b.neg(_row_sum(b, of_dp)),
            *(None for _ in mask),
        )

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Any:
        q, k, v, ct, lse, delta, *mask = inputs
        dq, dk, dv, dct, dlse, ddelta = or_zeros(b, tangents[:6], inputs[:6])
        p = self._p(b, q, k, lse, mask)
        apart = b.sub(_mm(b, ct, v, "LE,SE->LS"), _column(b, delta, p))
        t = b.mul(p, apart)
        ds = _times(b, self.scale, b.add(_mm(b, dq, k, "LD,SD->LS"), _mm(b, q, dk, "LD,SD->LS")))
        dp = b.mul(p, b.sub(ds, _column(b, dlse, p)))
        moved = b.add(_mm(b, dct, v, "LE,SE->LS"), _mm(b, ct, dv, "LE,SE->LS"))
        dt = b.add(b.mul(dp, apart), b.mul(p, b.sub(moved, _column(b, ddelta, p))))
        return [
            _times(b, self.scale, b.add(_mm(b, dt, k, "LS,SD->LD"), _mm(b, t, dk, "LS,SD->LD"))),
            _times(b, self.scale, b.add(_mm(b, dt, q, "LS,LD->SD"), _mm(b, t, dq, "LS,LD->SD"))),
            b.add(_mm(b, dp, ct, "LS,LE->SE"), _mm(b, p, dct, "LS,LE->SE")),
        ]

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype, shape, causal, scale in (
            (float32, (2, 5, 5, 4, 3), False, 0.5), (float64, (2, 5, 5, 4, 3), True, 0.7),
            (float32, (1, 70, 70, 17, 33), True, 0.25), (float32, (2, 3, 40, 2, 2), False, 1.0),
            (float32, (0, 4, 4, 2, 2), False, 1.0), (float32, (2, 4, 0, 2, 2), False, 1.0),
        ):  # fmt: skip
            q, k, v = _types(dtype, shape)
            rows = TensorType(dtype, q.shape[:-1])
            ct = TensorType(dtype, (*q.shape[:-1], shape[-1]))
            op = cls(causal=causal, scale=scale)
            yield Sample(op, (q, k, v, ct, rows, rows), domain=(0.2, 1.5))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        q, k, v = _types(float32, (2, 5, 6, 4, 3))
        rows = TensorType(float32, (2, 5))
        op = cls(causal=False, scale=1.0)
        yield Reject(op, (q, k, v, v, rows, rows), "takes ct")
        yield Reject(op, (q, k, v), "lse, delta")


def _types(dtype: Any, shape: tuple[int, ...]) -> tuple[TensorType, TensorType, TensorType]:
    n, rows, keys, d, e = shape
    return TensorType(dtype, (n, rows, d)), TensorType(dtype, (n, keys, d)), TensorType(dtype, (n, keys, e))


def _with_mask(types: Sequence[TensorType]) -> Any:
    def draw(rng: np.random.Generator) -> list[Array]:
        arrays = [rng.uniform(-2, 2, t.ints).astype(t.dtype.np) for t in types[:-1]]
        mask = rng.random(types[-1].ints) < 0.4
        mask[..., 3] = True  # no row is hidden as a whole
        return [*arrays, mask]

    return draw
