"""Windows as columns and back (unfold, fold), and the axes that shuffling layers exchange."""

from __future__ import annotations

from stratal.base.errors import AttributeValueError, ShapeError
from stratal.graph.op import REGISTRY
from stratal.nn.dimensions import Sizes, per_axis
from stratal.tensor.build import apply
from stratal.tensor.functions.creation import zeros
from stratal.tensor.functions.shapes import flatten as flatten
from stratal.tensor.functions.shapes import narrow, pad_constant, permute_dims, slice_op, stack, transpose
from stratal.tensor.tensor import Tensor, fresh


def _places(name: str, n: int, window: int, stride: int, dilation: int) -> int:
    """Return how many windows fit into n elements. Raises: ShapeError for none."""
    count = (n - dilation * (window - 1) - 1) // stride + 1
    if count < 1:
        raise ShapeError(
            f"{name}: the window is larger than the padded axis",
            got=f"{window} elements {dilation} apart in {n}",
        )
    return count


def _spread(x: Tensor, axis: int, window: int, stride: int, dilation: int, count: int) -> Tensor:
    """Replace an axis by (element of the window, window): [..., n, ...] -> [..., window, count, ...]."""
    if (stride, dilation) == (window, 1):  # patches: a view with its axes exchanged
        split = narrow(x, axis, 0, count * window).reshape(
            (*x.shape[:axis], count, window, *x.shape[axis + 1 :])
        )
        return transpose(split, axis, axis + 1)
    pieces = []
    for k in range(window):
        start, stop = [0] * x.ndim, list(x.shape)
        start[axis], stop[axis] = k * dilation, k * dilation + (count - 1) * stride + 1
        pieces.append(slice_op(x, start, stop, [stride if a == axis else 1 for a in range(x.ndim)]))
    return stack(pieces, axis=axis)


def _gathered(x: Tensor, axis: int, size: int, stride: int, dilation: int) -> Tensor:
    """Add up windows where they lie: [..., window, count, ...] -> [..., size, ...]; transposes `_spread`."""
    window, count = (int(n) for n in x.shape[axis : axis + 2])
    rest = x.ndim - 1
    if (stride, dilation) == (window, 1):
        joined = transpose(x, axis, axis + 1).reshape((*x.shape[:axis], count * window, *x.shape[axis + 2 :]))
        return pad_constant(joined, [(0, size - count * window if a == axis else 0) for a in range(rest)])
    zero = zeros((), dtype=x.dtype)
    total: Tensor | None = None
    for k in range(window):
        start, stop = [0] * x.ndim, list(x.shape)
        start[axis], stop[axis] = k, k + 1
        piece = slice_op(x, start, stop, [1] * x.ndim).reshape((*x.shape[:axis], *x.shape[axis + 1 :]))
        low = k * dilation
        high = size - low - (count - 1) * stride - 1
        sizes = [[n if a == axis else 0 for a in range(rest)] for n in (low, high, stride - 1)]
        piece = apply(REGISTRY["pad"](*map(tuple, sizes)), piece, zero)
        total = piece if total is None else total + piece
    assert total is not None
    return total


def _window(name: str, *sizes: Sizes) -> list[tuple[int, ...]]:
    names = ("kernel_size", "stride", "dilation")
    return [per_axis(f"{name}: {what}", size, 2) for what, size in zip(names, sizes, strict=True)]


def unfold(
    input: Tensor, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1
) -> Tensor:
    """Return every window of an image as a column. Shapes: [N, C, H, W] -> [N, C * KH * KW, windows]."""
    if input.ndim not in (3, 4):
        raise ShapeError("unfold: takes 3 or 4 axes", got=f"shape {list(input.shape)}")
    window, steps, gaps = _window("unfold", kernel_size, stride, dilation)
    pads = per_axis("unfold: padding", padding, 2, 0)
    lead = input.ndim - 2
    x = pad_constant(input, [(0, 0)] * lead + [(p, p) for p in pads])
    counts = [
        _places("unfold", int(n), w, s, d)
        for n, w, s, d in zip(x.shape[lead:], window, steps, gaps, strict=True)
    ]
    x = _spread(x, lead, window[0], steps[0], gaps[0], counts[0])
    x = _spread(x, lead + 2, window[1], steps[1], gaps[1], counts[1])
    x = permute_dims(x, (*range(lead), lead, lead + 2, lead + 1, lead + 3))
    channels = int(input.shape[lead - 1]) * window[0] * window[1]
    return x.reshape((*input.shape[: lead - 1], channels, counts[0] * counts[1]))


def fold(
    input: Tensor, output_size: Sizes, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0,
    stride: Sizes = 1
) -> Tensor:
    """Add up columns as windows of an image: the transpose of `unfold`.

    Shapes: [N, C * KH * KW, windows] -> [N, C, H, W].
    """
    if input.ndim not in (2, 3):
        raise ShapeError("fold: takes 2 or 3 axes", got=f"shape {list(input.shape)}")
    window, steps, gaps = _window("fold", kernel_size, stride, dilation)
    size = per_axis("fold: output_size", output_size, 2)
    pads = per_axis("fold: padding", padding, 2, 0)
    padded = [n + 2 * p for n, p in zip(size, pads, strict=True)]
    counts = [_places("fold", n, w, s, d) for n, w, s, d in zip(padded, window, steps, gaps, strict=True)]
    channels, rest = divmod(int(input.shape[-2]), window[0] * window[1])
    if rest or int(input.shape[-1]) != counts[0] * counts[1]:
        raise ShapeError(
            "fold: takes columns of a window each, one per place",
            got=f"shape {list(input.shape)}",
            hint=f"axis -2 is a multiple of {window[0] * window[1]}, axis -1 is {counts[0] * counts[1]}",
        )
    lead = input.ndim - 1
    x = input.reshape((*input.shape[: lead - 1], channels, *window, *counts))
    x = permute_dims(x, (*range(lead), lead, lead + 2, lead + 1, lead + 3))
    x = _gathered(x, lead + 2, padded[1], steps[1], gaps[1])
    x = _gathered(x, lead, padded[0], steps[0], gaps[0])
    return pad_constant(x, [(0, 0)] * lead + [(-p, -p) for p in pads])


# -- shuffling -----------------------------------------------------------------------------------------------
def _factor(name: str, factor: int) -> int:
    if not isinstance(factor, int) or factor < 1:
        raise AttributeValueError(f"{name}: the factor is a positive int", got=repr(factor))
    return factor


def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """Turn channels into space: [..., C r r, H, W] -> [..., C, H r, W r]. See: Shi et al. 2016."""
    r = _factor("pixel_shuffle", upscale_factor)
    if r == 1:
        return fresh(input)
    if input.ndim < 3 or int(input.shape[-3]) % (r * r):
        raise ShapeError(f"pixel_shuffle: axis -3 is a multiple of {r * r}", got=f"shape {list(input.shape)}")
    *lead, channels, height, width = input.shape
    x = input.reshape((*lead, int(channels) // (r * r), r, r, height, width))
    n = len(lead)
    x = permute_dims(x, (*range(n + 1), n + 3, n + 1, n + 4, n + 2))
    return x.reshape((*lead, int(channels) // (r * r), height * r, width * r))


def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """Turn space into channels: [..., C, H r, W r] -> [..., C r r, H, W]."""
    r = _factor("pixel_unshuffle", downscale_factor)
    if input.ndim < 3 or int(input.shape[-1]) % r or int(input.shape[-2]) % r:
        raise ShapeError(
            f"pixel_unshuffle: the last two axes are multiples of {r}", got=f"shape {list(input.shape)}"
        )
    *lead, channels, height, width = input.shape
    height, width = int(height) // r, int(width) // r
    x = input.reshape((*lead, channels, height, r, width, r))
    n = len(lead)
    x = permute_dims(x, (*range(n + 1), n + 2, n + 4, n + 1, n + 3))
    return x.reshape((*lead, channels * r * r, height, width))


def channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """Deal the channels (axis 1) of every group to all groups in turn. See: Zhang et al. 2017."""
    _factor("channel_shuffle", groups)
    if input.ndim < 3 or int(input.shape[1]) % groups:
        raise ShapeError(
            "channel_shuffle: groups must divide the channels (axis 1 of at least 3)",
            got=f"{groups} for shape {list(input.shape)}",
        )
    if groups == 1:
        return fresh(input)
    batch, channels, *rest = input.shape
    x = input.reshape((batch, groups, int(channels) // groups, *rest))
    return permute_dims(x, (0, 2, 1, *range(3, x.ndim))).reshape(input.shape)
