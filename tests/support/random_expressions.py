"""Random small graphs of ops that are tensor expressions: arithmetic, moves, products, windows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

from stratal.base.errors import StratalError
from stratal.graph.builder import Builder
from stratal.graph.node import Node

B = Builder()


def extended(draw: Callable[[int], int], values: list[Node]) -> Node | None:
    """Return one op on some of the values; None where its record refuses it."""
    x, y = (values[draw(len(values))] for _ in range(2))
    ndim = x.aval.ndim
    kind = draw(16)
    perms = list(itertools.permutations(range(ndim)))
    axes = tuple(a for a in range(ndim) if draw(2))
    low, high = [draw(2) for _ in range(ndim)], [draw(2) for _ in range(ndim)]
    fill = B.const(draw(3), x.dtype)
    try:
        if kind < 3:
            return B.op(("add", "mul", "sub")[kind], x, y)
        if kind == 3:
            return B.neg(x)
        if kind == 4:
            return B.permute(x, perm=perms[draw(len(perms))])
        if kind == 5:
            return B.sum(x, axes=axes)
        if kind == 6:
            return B.op(("reduce_max", "reduce_min", "prod")[draw(3)], x, axes=axes)
        if kind == 7:
            return B.op(("max", "min")[draw(2)], x, y)
        if kind == 8:
            size = math.prod(x.shape)
            shapes = [(size,), (1, size), *((d, size // d) for d in range(2, size) if size % d == 0)]
            return B.reshape(x, shape=shapes[draw(len(shapes))])
        if kind == 9:
            return B.concatenate(x, y, axis=draw(max(ndim, 1)))
        if kind == 10:
            step = tuple(1 + draw(2) for _ in range(ndim))
            return B.slice(x, start=tuple(low), stop=tuple(n - h for n, h in zip(x.shape, high)), step=step)  # noqa: B905
        if kind == 11:
            between = tuple(draw(2) for _ in range(ndim))
            return B.pad(x, fill, low=tuple(low), high=tuple(high), interior=between)
        if kind == 12:
            return B.flip(x, axes=axes)
        if kind == 13:
            specs = ["mk,kn->mn", "mk,nk->mn", "k,k->", "m,n->mn", "mk,k->m", "mk,mk->m", "mn,mn->mn"]
            return B.contract(x, y, spec=specs[draw(len(specs))])
        if kind == 14:
            return B.broadcast(x, shape=(2, *x.shape), axes=tuple(range(1, ndim + 1)))
        image, filters = (B.reshape(v, shape=(1, v.shape[0], v.shape[1])) for v in (x, y))
        apart = {k: (1 + draw(2),) for k in ("strides", "lhs_dilation", "rhs_dilation")}
        return B.conv(image, filters, padding=((draw(2), draw(3)),), groups=1, **apart)
    except (StratalError, IndexError):
        return None
