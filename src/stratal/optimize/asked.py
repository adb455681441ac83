"""What rewrites ask of tactics, which stand beside them and which they do not import."""

from __future__ import annotations

from typing import Protocol

from stratal.graph.node import Node


class ConvolutionTactics(Protocol):
    """What is known of the algorithms that compute convolutions; see `schedule.tactics.convolutions`."""

    def share_by_tiles(self, conv: Node, /) -> float: ...

    def gradient_by_tiles(self, conv: Node, /) -> bool: ...

    def reads_edges(self, reader: Node, image: Node, /, *, channels_together: bool) -> bool: ...
