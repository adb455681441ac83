"""Padded copies that their readers do without: convolutions by tiles read the image itself.

    y = pad(x); conv(y, w)  ->  conv(x or 0 beyond its edges, w)

Winograd's algorithm reads an element once or twice, to transform tiles of the image or to lay out its phases.
Choosing 0 there costs nothing to speak of, and copies took a tenth of the whole. Direct sums read an element
many times, and keep theirs; so it must be plain that they would be slower. Depthwise convolutions are bound
by memory: with channels side by side, a vector of them is there or not, and the copy took half of their time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from stratal.base import settings
from stratal.base.dtypes import float32
from stratal.graph.node import Const, Node

CHANNELS: Final = 32  # and filters: with fewer, or
TILES: Final = 128  # fewer tiles of 4 x 4, direct sums may be faster, or
IDLE: Final = 2  # where tiles have more than so many elements per result
PHASES: Final = range(12, 65)  # channels, phases counted, of convolutions with strides
TAPS: Final = range(3, 6)


def reads_through(pad: Node, readers: Sequence[Node], *, together: bool) -> bool:
    """Return whether all readers of a padded value may take it from what it pads.

    `together` says whether the channels of that lie side by side.
    """
    _, border = pad.inputs
    zero = isinstance(border.op, Const) and not border.op.value.array.any()
    dense = not any(pad.op.attributes["interior"])
    return (
        zero
        and dense
        and all(_by_tiles(r, pad, together) or (together and _by_channels(r, pad)) for r in readers)
    )


def _by_channels(conv: Node, image: Node) -> bool:
    """Return whether a node convolves every channel of an image alone: a few elements for each product, with
    many channels that exist or not together.
    """
    if conv.op.name != "conv" or conv.inputs[0] is not image or conv.inputs[1] is image:
        return False
    groups: int = conv.op.attributes["groups"]
    return groups >= CHANNELS and groups == image.aval.ints[1]


def _by_tiles(conv: Node, image: Node, together: bool) -> bool:
    """Return whether a node is a convolution of an image for which Winograd's algorithm is the fastest, or a
    gradient of filters that has this image in the place of its batch.
    """
    if conv.op.name != "conv" or len(conv.shape) != 4 or conv.dtype is not float32:
        return False
    op, (read, w) = conv.op.attributes, conv.inputs
    of_filters = read.op.name == "permute" and read.op.attributes["perm"] == (1, 0, 2, 3)
    if (read.inputs[0] if of_filters else read) is not image or w is image or not settings.winograd.value:
        return False
    plain = op["groups"] == 1 and all(d == 1 for d in (*op["rhs_dilation"], *op["lhs_dilation"]))
    if not plain or any(p != (0, 0) for p in op["padding"]) or len(set(op["strides"])) > 1:
        return False
    (n, filters, *size), (_, channels, *window), stride = conv.aval.ints, w.aval.ints, op["strides"][0]
    if of_filters:  # the same convolution, seen from its gradient
        n, channels, size, window = channels, n, window, size
    tiles = n * math.prod(-(-extent // 4) for extent in size)
    full = 16 * tiles <= IDLE * n * math.prod(size)
    if window[0] != window[1] or filters < CHANNELS or tiles < TILES or not full:
        return False
    if stride > 1:
        return not of_filters and -(-window[0] // stride) in TAPS and channels * stride**2 in PHASES
    return together and window[0] == 3 and channels >= CHANNELS
