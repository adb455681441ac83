"""Matrix products, convolutions with bias, transposed convolutions."""

from __future__ import annotations

from collections.abc import Sequence

from stratal.base.dims import Dim, as_int, known_equal
from stratal.base.dtypes import DType
from stratal.base.errors import ShapeError
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.ops.composite.family import along, named
from stratal.ops.linear.family import Pairs, crop_negative, dilated, exchanged

_LETTERS = "abcdefghijlopqrstuvwxyz"  # m, k, n are taken by the matrices


@named
def matmul(b: Builder, x: Node, y: Node, *, dtype: DType | None = None) -> Node:
    """Multiply matrices as numpy.matmul: leading axes broadcast; a 1-d operand is a row or column.

    A batch axis that only one operand has becomes a free axis of the contraction: nothing is broadcast.
    """
    if x.aval.ndim == 0 or y.aval.ndim == 0:
        raise ShapeError(
            "matmul: takes at least one axis on each side", got=f"{x.aval} @ {y.aval}", hint="use *"
        )
    inner, outer = x.shape[-1], y.shape[-2] if y.aval.ndim > 1 else y.shape[-1]
    if not known_equal(inner, outer):
        raise ShapeError(
            "matmul: inner sizes differ",
            got=f"{x.aval} @ {y.aval}",
            hint=f"the second operand should have {inner} " + ("rows" if y.aval.ndim > 1 else "elements"),
        )
    left, right, batch = _batch_letters(x.shape[:-2], y.shape[:-2], f"{x.aval} @ {y.aval}")
    x, y = _without_ones(b, x, left), _without_ones(b, y, right)
    rows, columns = "m" if x.aval.ndim > len(left.replace("1", "")) + 1 else "", ""
    if y.aval.ndim > len(right.replace("1", "")) + 1:
        columns = "n"
    spec = f"{left}{rows}k,{right}k{columns}->{batch}{rows}{columns}".replace("1", "")
    return b.op("contract", x, y, spec=spec, dtype=dtype)


def _batch_letters(left: Sequence[Dim], right: Sequence[Dim], got: str) -> tuple[str, str, str]:
    """Return the letters of the batch axes of operands and result; "1" where an axis of 1 stretches."""
    rank = max(len(left), len(right))
    terms = ["", "", ""]
    for k in range(rank):
        a = left[k - rank + len(left)] if k >= rank - len(left) else None
        c = right[k - rank + len(right)] if k >= rank - len(right) else None
        letter = _LETTERS[k]
        stretched = [False, False]
        if a is not None and c is not None and not known_equal(a, c):
            stretched = [known_equal(a, 1), known_equal(c, 1)]
            if not any(stretched):
                raise ShapeError("matmul: batch sizes do not broadcast", got=got)
        for side, n in enumerate((a, c)):
            if n is not None:
                terms[side] += "1" if stretched[side] else letter
        terms[2] += letter
    return terms[0], terms[1], terms[2]


def _without_ones(b: Builder, x: Node, letters: str) -> Node:
    """Drop the batch axes marked "1"."""
    if "1" not in letters:
        return x
    keep = [n for k, n in enumerate(x.shape) if k >= len(letters) or letters[k] != "1"]
    return b.op("reshape", x, shape=tuple(keep))


@named
def linear(b: Builder, x: Node, weight: Node, bias: Node | None = None) -> Node:
    """Return x @ weight.T + bias, PyTorch's layout: weight [out, in], bias [out]."""
    if x.aval.ndim < 1 or weight.aval.ndim != 2 or not known_equal(x.shape[-1], weight.shape[1]):
        raise ShapeError(
            "linear: the last axis of x must be the weight's second",
            got=f"{x.aval} and {weight.aval}",
            hint=f"the input should end in {weight.shape[-1] if weight.shape else '?'}",
        )
    free = _LETTERS[: x.aval.ndim - 1]
    out = b.op("contract", x, weight, spec=f"{free}k,nk->{free}n")
    return out if bias is None else b.op("add", out, along(b, bias, out, (out.aval.ndim - 1,)))


@named
def convolution(
    b: Builder, x: Node, weight: Node, bias: Node | None = None, *, strides: tuple[int, ...], padding: Pairs,
    dilation: tuple[int, ...], groups: int = 1,
) -> Node:  # fmt: skip
    """Convolve x [N,C,...] with weight [O,C/groups,...] and add bias [O]."""
    ones = (1,) * len(strides)
    attributes = {"strides": strides, "padding": padding, "lhs_dilation": ones, "rhs_dilation": dilation}
    out = b.op("conv", x, weight, groups=groups, **attributes)
    return out if bias is None else b.op("add", out, along(b, bias, out, (1,)))


@named
def transposed_convolution(
    b: Builder, x: Node, weight: Node, bias: Node | None = None, *, strides: tuple[int, ...], padding: Pairs,
    output_padding: tuple[int, ...], dilation: tuple[int, ...], groups: int = 1,
) -> Node:  # fmt: skip
    """Transpose a convolution: x [N,C,...], weight [C,O/groups,...] -> [N,O,...], bias [O].

    Size: (n-1)*stride - low - high + dilation*(window-1) + output_padding + 1, as PyTorch's ConvTranspose.
    """
    channels, _, *window = weight.shape
    spatial = tuple(range(2, weight.aval.ndim))
    if len(spatial) != len(strides) or not known_equal(x.shape[1], channels):
        raise ShapeError("transposed_convolution: takes x [N,C,...] and weight [C,O/groups,...]",
                         got=f"{x.aval} and {weight.aval}")  # fmt: skip
    if isinstance(channels, int) and channels % groups:
        raise ShapeError(
            "transposed_convolution: groups must divide the channels", got=f"{weight.aval}, {groups}"
        )
    turned = b.flip(exchanged(b, weight, groups), axes=spatial)
    reach = [as_int(dilated(w, d)) - 1 for w, d in zip(window, dilation, strict=True)]
    pads = tuple(
        (r - low, r - high + extra)
        for r, (low, high), extra in zip(reach, padding, output_padding, strict=True)
    )
    x, positive = crop_negative(b, x, 2, pads, strides)
    attributes = {"padding": positive, "lhs_dilation": strides, "rhs_dilation": dilation}
    out = b.op("conv", x, turned, strides=(1,) * len(strides), groups=groups, **attributes)
    return out if bias is None else b.op("add", out, along(b, bias, out, (1,)))
