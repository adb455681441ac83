"""What the tactics of convolutions say before a graph is fused: whether tiles suit one, and how well.

Rewrites ask, which know no tactic (`optimize.asked`): what they choose pays with some algorithms alone.
"""

from __future__ import annotations

import math
from typing import Final

from stratal.base import settings
from stratal.base.dtypes import float32
from stratal.graph.node import Node
from stratal.ops.linear.conv import Conv
from stratal.ops.views.shapes import Permute
from stratal.schedule.tactics.winograd_stages import MOST_PHASES, TAPS

SHARE: Final = 1 / 3  # of the time of a direct sum, as measured
FEW_CHANNELS: Final = 16  # fewer do not fill a vector
CHANNELS: Final = 32  # and filters: with fewer, or
TILES: Final = 128  # fewer tiles of 4 x 4, direct sums may be faster, or
IDLE: Final = 2  # where tiles have more than so many elements per result
FEW_PHASES: Final = 12  # channels, phases counted, of convolutions with strides


def share_by_tiles(conv: Node) -> float:
    """Return the share of the time of direct sums that tiles take for a convolution whose operand is spread
    and padded in memory; 1 where it is not computed by tiles.
    """
    op, filters = conv.op, conv.inputs[1].aval
    assert isinstance(op, Conv)
    fits = filters.ints[2:] == (3, 3) and filters.dtype is float32 and min(filters.ints[:2]) >= FEW_CHANNELS
    plain = op.groups == 1 and all(n == 1 for n in (*op.strides, *op.rhs_dilation))
    return SHARE if settings.winograd.value and plain and fits else 1.0


def gradient_by_tiles(conv: Node) -> bool:
    """Return whether a convolution is a gradient of filters that is summed by tiles once its operand is
    padded in memory.
    """
    op = conv.op
    assert isinstance(op, Conv)
    plain = op.groups == 1 and all(n == 1 for n in (*op.strides, *op.rhs_dilation))
    wide = min(conv.aval.ints[:2]) >= FEW_CHANNELS and conv.aval.ints[2:] == (3, 3)
    return settings.winograd.value and plain and wide and conv.dtype is float32


def reads_edges(reader: Node, image: Node, *, channels_together: bool) -> bool:
    """Return whether a node reads 0 beyond the edges of an image about as fast as from a padded copy.

    Tiles read an element once or twice. So does a depthwise convolution whose vectors hold channels.
    """
    if not isinstance(reader.op, Conv):
        return False
    return _by_tiles(reader, image, channels_together) or (channels_together and _by_channels(reader, image))


def _by_channels(conv: Node, image: Node) -> bool:
    """Return whether a node convolves every channel of an image alone: a few elements for each product, with
    many channels that exist or not together.
    """
    if conv.inputs[0] is not image or conv.inputs[1] is image:
        return False
    groups: int = conv.op.attributes["groups"]
    return groups >= CHANNELS and groups == image.aval.ints[1]


def _by_tiles(conv: Node, image: Node, channels_together: bool) -> bool:
    """Return whether a node is a convolution of an image for which Winograd's algorithm is the fastest, or a
    gradient of filters that has this image in the place of its batch.
    """
    if len(conv.shape) != 4 or conv.dtype is not float32:
        return False
    op, (read, w) = conv.op, conv.inputs
    assert isinstance(op, Conv)
    of_filters = isinstance(read.op, Permute) and read.op.perm == (1, 0, 2, 3)
    if (read.inputs[0] if of_filters else read) is not image or w is image or not settings.winograd.value:
        return False
    plain = op.groups == 1 and all(d == 1 for d in (*op.rhs_dilation, *op.lhs_dilation))
    if not plain or any(p != (0, 0) for p in op.padding) or len(set(op.strides)) > 1:
        return False
    (n, filters, *size), (_, channels, *window), stride = conv.aval.ints, w.aval.ints, op.strides[0]
    if of_filters:  # the same convolution, seen from its gradient
        n, channels, size, window = channels, n, window, size
    tiles = n * math.prod(-(-extent // 4) for extent in size)
    full = 16 * tiles <= IDLE * n * math.prod(size)
    if window[0] != window[1] or filters < CHANNELS or tiles < TILES or not full:
        return False
    if stride > 1:
        phases = channels * stride**2
        return not of_filters and -(-window[0] // stride) in TAPS and FEW_PHASES <= phases <= MOST_PHASES
    return channels_together and window[0] == 3 and channels >= CHANNELS
