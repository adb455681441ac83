"""Convolution over any number of spatial axes: strided, dilated, padded, grouped, transposed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from stratal.base.cost import Cost
from stratal.base.dims import Dim, as_int, known_equal, upper_bound
from stratal.base.dtypes import bfloat16, bool_, float16, float32, float64, int64
from stratal.base.errors import AttributeValueError, ShapeError
from stratal.base.lowered import Lowered
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Reject, Sample, record
from stratal.loops.compute import Compute, arguments, fresh_axes
from stratal.loops.expr import cast, const, guard
from stratal.loops.index import add, floordiv, mul
from stratal.ops.families import moved_axis
from stratal.ops.linear import family
from stratal.ops.linear.family import Pairs

Sizes = tuple[int, ...]


@record
class Conv(family.Bilinear):
    """Cross-correlate `x` with the filters `w`: the convolution of deep learning (Dumoulin and Visin, 2016).

    out[n, o, y...] = sum over c, k of x[n, group(o)*C/groups + c, p...] * w[o, c, k...] with
    p = (y*stride + k*rhs_dilation - low) / lhs_dilation, where places outside `x` and between its dilated
    elements count 0. A transposed convolution is one with `lhs_dilation`. 16-bit floats accumulate in float32
    and round once; integers wrap. Attributes have one entry per spatial axis. Kernels may leave out products
    with places that count 0, which shows where a filter is not finite; PyTorch's do, too.

    Shapes: x [N, C, spatial...], w [O, C/groups, window...] -> [N, O, out...].
    """

    strides: tuple[int, ...]
    padding: Pairs
    lhs_dilation: tuple[int, ...]
    rhs_dilation: tuple[int, ...]
    groups: int

    def infer(self, *types: TensorType) -> TensorType:
        x, w = types
        dtype = family.result_dtype(self.name, types, None)
        if x.ndim < 2 or w.ndim != x.ndim:
            raise ShapeError(
                "conv: takes x [N,C,spatial...] and w [O,C/groups,window...]", got=f"{x} and {w}"
            )
        family.check_windows(
            self.name, x.ndim - 2, self.padding,
            strides=self.strides, lhs_dilation=self.lhs_dilation, rhs_dilation=self.rhs_dilation,
        )  # fmt: skip
        if self.groups < 1:
            raise AttributeValueError("conv: groups must be at least 1", got=str(self.groups))
        if not known_equal(x.shape[1], w.shape[1] * self.groups):
            raise ShapeError(
                "conv: channels of x must be groups times those of w",
                got=f"{x} and {w} with groups={self.groups}",
            )
        if isinstance(w.shape[0], int) and w.shape[0] % self.groups:
            raise ShapeError("conv: groups must divide the filters", got=f"{w} with groups={self.groups}")
        attributes = self.strides, self.padding, self.lhs_dilation, self.rhs_dilation
        out = [
            family.window_count(self.name, family.dilated(n, base), k, s, p, d)
            for n, k, s, p, base, d in zip(x.shape[2:], w.shape[2:], *attributes, strict=True)
        ]
        return TensorType(dtype, (x.shape[0], w.shape[0], *out))

    def ref(self, *arrays: Array) -> Array:
        """Gather the windows of each group into rows and multiply them with its filters."""
        x, w = (family.accumulating(a) for a in arrays)
        n, window, groups = x.shape[0], w.shape[2:], self.groups
        padded = family.spread(x, 2, self.padding, self.lhs_dilation)
        view = family.windows(padded, 2, window, self.strides, self.rhs_dilation)  # [n, c, out..., window...]
        spatial = view.shape[2 : 2 + len(window)]
        places, products = math.prod(spatial), w.shape[1] * math.prod(window)
        view = view.reshape(n, groups, w.shape[1], *spatial, *window)
        order = (1, 0, *range(3, 3 + len(spatial)), 2, *range(3 + len(spatial), view.ndim))
        rows = view.transpose(order).reshape(groups, n * places, products)
        filters = w.reshape(groups, w.shape[0] // groups, products).transpose(0, 2, 1)
        out = np.matmul(rows, filters).reshape(groups, n, *spatial, w.shape[0] // groups)
        out = out.transpose(1, 0, out.ndim - 1, *range(2, out.ndim - 1)).reshape(n, w.shape[0], *spatial)
        return np.ascontiguousarray(out, arrays[0].dtype)

    def lower(self, *types: TensorType) -> Lowered:
        x_type, w_type = types
        out, compute = self.infer(*types), types[0].dtype.compute
        x, w = arguments(*types)
        n, o, *places = fresh_axes(out.ints)
        c, *offsets = fresh_axes(w_type.ints[1:], "k")
        condition, at = family.window_reads(
            places, offsets, x_type.ints[2:], self.strides, self.padding, self.lhs_dilation, self.rhs_dilation
        )
        group = floordiv(o, max(w_type.ints[0] // self.groups, 1))
        channel = add(mul(group, w_type.ints[1]), c)
        operands = x[(n, channel, *at)], w[(o, c, *offsets)]
        terms = [guard(condition, cast(e, compute), const(0, compute)) for e in operands]
        return Compute((x, w), (n, o, *places), out.dtype, terms, reduce=(c, *offsets), combiner="dot")

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        x, w = inputs
        if ct.dtype.is_complex:
            x, w = b.conj(x), b.conj(w)
        return [
            self._backward_data(b, ct, x.aval, w) if b.needed(0) else None,
            self._backward_weights(b, ct, x, w.aval) if b.needed(1) else None,
        ]

    def _backward_data(self, b: Builder, ct: Node, x: TensorType, w: Node) -> Node:
        """Convolve the cotangent, dilated by the strides, with the flipped and transposed filters."""
        if known_equal(x.size, 0):
            return b.full(x, 0)
        window, spatial = w.shape[2:], tuple(range(2, x.ndim))
        if self.groups == 1:
            turned = b.op("permute", w, perm=(1, 0, *spatial))
        else:
            turned = family.exchanged(b, w, self.groups)
        turned = b.flip(turned, axes=spatial) if spatial else turned
        padding = []
        for k, (low, _) in enumerate(self.padding):
            reach = family.dilated(window[k], self.rhs_dilation[k]) - 1
            total = family.dilated(x.shape[2 + k], self.lhs_dilation[k]) + reach
            covered = family.dilated(ct.shape[2 + k], self.strides[k])
            padding.append((as_int(reach - low), as_int(total - covered - (reach - low))))
        ct, positive = family.crop_negative(b, ct, 2, tuple(padding), self.strides)
        return b.op(
            "conv", ct, turned, strides=self.lhs_dilation, padding=positive,
            lhs_dilation=self.strides, rhs_dilation=self.rhs_dilation, groups=self.groups,
        )  # fmt: skip

    def _backward_weights(self, b: Builder, ct: Node, x: Node, w: TensorType) -> Node:
        """Convolve `x` with the cotangent as filters, batch and channels exchanged, strides as dilation."""
        batch, _, *size = x.shape
        inputs = w.shape[1]
        spatial = tuple(range(2, w.ndim))
        padding = []
        for k, (low, _) in enumerate(self.padding):
            reach = family.dilated(w.shape[2 + k], self.rhs_dilation[k]) - 1
            covered = family.dilated(ct.shape[2 + k], self.strides[k])
            padding.append(
                (low, as_int(covered + reach - low - family.dilated(size[k], self.lhs_dilation[k])))
            )
        x, positive = family.crop_negative(b, x, 2, tuple(padding), self.lhs_dilation)
        if self.groups == 1:  # a mere permutation can share a padded copy of x with the forward convolution
            turned = b.op("permute", x, perm=(1, 0, *spatial))
        else:
            turned = b.reshape(x, shape=(batch, self.groups, inputs, *x.shape[2:]))
            turned = b.permute(turned, perm=(2, 1, 0, *range(3, w.ndim + 1)))
            turned = b.reshape(turned, shape=(inputs, self.groups * batch, *x.shape[2:]))
        result = b.conv(
            turned, b.permute(ct, perm=(1, 0, *spatial)), strides=self.rhs_dilation, padding=positive,
            lhs_dilation=self.lhs_dilation, rhs_dilation=self.strides, groups=self.groups,
        )  # fmt: skip
        return b.op("permute", result, perm=(1, 0, *spatial))

    def cost(self, *types: TensorType) -> Cost:
        """Two operations per product; those with padding are left out where sizes are known."""
        out, (x, w) = self.infer(*types), types
        work = 2.0 * math.prod(map(upper_bound, (*out.shape, *w.shape[1:])))
        if all(isinstance(n, int) for t in types for n in t.shape) and work:
            pairs = family.products_inside(x.ints[2:], w.ints[2:], self.attributes)
            work *= pairs / math.prod((*out.ints[2:], *w.ints[2:]))
        return Cost(work, float(types[0].nbytes + types[1].nbytes), float(out.nbytes))

    def batch(self, b: Builder, size: Dim, mapped: Sequence[bool], *inputs: Node) -> Node:
        """Rows are images more, filters more or, where both operands have them, groups more."""
        x, w = inputs
        if not mapped[1]:
            images = b.reshape(x, shape=(size * x.shape[1], *x.shape[2:]))
            out = b.op("conv", images, w, **self.attributes)
            return b.op("reshape", out, shape=(size, x.shape[1], *out.shape[1:]))
        groups, filters = self.groups, w.shape[1]
        if mapped[0]:
            groups *= size
            x = moved_axis(b, x, 0, 1)
            x = b.reshape(x, shape=(x.shape[0], size * x.shape[2], *x.shape[3:]))
            w = b.reshape(w, shape=(size * filters, *w.shape[2:]))
        else:  # the filters of one group stand side by side: rows go inside the groups
            w = b.reshape(w, shape=(size, groups, filters // groups, *w.shape[2:]))
            w = b.reshape(moved_axis(b, w, 0, 1), shape=(size * filters, *w.shape[3:]))
        out = b.op("conv", x, w, **(self.attributes | {"groups": groups}))
        n, places = out.shape[0], out.shape[2:]
        if mapped[0]:
            return moved_axis(b, b.reshape(out, shape=(n, size, filters, *places)), 1, 0)
        out = b.reshape(out, shape=(n, groups, size, filters // groups, *places))
        return b.op("reshape", moved_axis(b, out, 2, 0), shape=(size, n, filters, *places))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        def call(x: Sizes, w: Sizes, **given: object) -> tuple[Conv, Sizes, Sizes]:
            axes = len(x) - 2
            plain = {"strides": (1,) * axes, "padding": ((0, 0),) * axes, "lhs_dilation": (1,) * axes,
                     "rhs_dilation": (1,) * axes, "groups": 1}  # fmt: skip
            return cls(**(plain | given)), x, w  # type: ignore[arg-type]

        cases = [
            call((2, 3, 5, 6), (4, 3, 3, 2)),
            call((1, 2, 6, 5), (3, 2, 3, 3), padding=((1, 1), (1, 1))),
            call((1, 2, 7, 6), (3, 2, 3, 3), strides=(2, 2), padding=((1, 1), (0, 2))),
            call((1, 2, 7, 7), (2, 2, 2, 3), rhs_dilation=(2, 3)),
            call((1, 2, 3, 4), (2, 2, 3, 3), lhs_dilation=(2, 3), padding=((2, 1), (2, 2))),
            call((2, 4, 4, 5), (6, 2, 2, 2), groups=2, strides=(2, 1)),
            call((1, 3, 5, 5), (3, 1, 3, 3), groups=3, padding=((1, 1), (1, 1))),
            call((1, 1, 6, 6), (1, 1, 1, 1), strides=(4, 5)),
            call((1, 2, 3, 3), (2, 2, 1, 1), padding=((2, 0), (1, 3)), strides=(3, 3)),
            call((1, 1, 2, 9), (1, 1, 2, 2), strides=(1, 3), lhs_dilation=(3, 2), rhs_dilation=(2, 1),
                 padding=((1, 0), (0, 1))),
            call((2, 3, 8), (4, 3, 3), padding=((1, 1),)),
            call((1, 2, 3, 4, 4), (2, 2, 2, 3, 2), padding=((0, 1), (1, 1), (0, 0))),
            call((3, 4), (5, 4)),
            call((0, 2, 4, 4), (3, 2, 3, 3)),
            call((1, 1, 1, 1), (1, 1, 1, 1)),
            call((2, 8, 12, 12), (16, 8, 3, 3), padding=((1, 1), (1, 1))),
        ]  # fmt: skip
        for k, (op, x, w) in enumerate(cases):
            for dtype in (float32, float64) if k else (float32, float64, float16, bfloat16, int64):
                yield Sample(op, (TensorType(dtype, x), TensorType(dtype, w)))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        plain = cls((1, 1), ((0, 0), (0, 0)), (1, 1), (1, 1), 1)
        x, w = TensorType(float32, (2, 4, 5, 5)), TensorType(float32, (6, 4, 3, 3))
        yield Reject(plain, (x, TensorType(float32, (6, 3, 3, 3))), "channels")
        yield Reject(plain, (x, TensorType(float32, (6, 4, 7, 3))), "larger than")
        yield Reject(plain, (x, TensorType(float64, (6, 4, 3, 3))), "dtype")
        yield Reject(plain, (x, TensorType(float32, (6, 4, 3))), "takes x")
        yield Reject(plain, (x.with_dtype(bool_), w.with_dtype(bool_)), "bool")
        yield Reject(cls((1,), ((0, 0), (0, 0)), (1, 1), (1, 1), 1), (x, w), "strides")
        yield Reject(cls((1, 0), ((0, 0), (0, 0)), (1, 1), (1, 1), 1), (x, w), "at least 1")
        yield Reject(cls((1, 1), ((0, -1), (0, 0)), (1, 1), (1, 1), 1), (x, w), "padding")
        in_four = cls((1, 1), ((0, 0), (0, 0)), (1, 1), (1, 1), 4)
        yield Reject(in_four, (x, TensorType(float32, (6, 1, 3, 3))), "divide")
