"""Rounding to whole numbers that stay floats. The derivative is 0, also at the jumps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import record
from stratal.ops.families import Elementwise


class Rounding(Elementwise):
    """A rounding of floats: 16-bit floats hold every result exactly."""

    arity = 1
    kinds = "f"

    def partials(self, b: Builder, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [None]


@record
class Floor(Rounding):
    """The largest integer not above x."""

    ufunc = np.floor
    fn = "floor"


@record
class Ceil(Rounding):
    """The smallest integer not below x."""

    ufunc = np.ceil
    fn = "ceil"


@record
class Trunc(Rounding):
    """x rounded towards 0."""

    ufunc = np.trunc
    fn = "trunc"


@record
class Round(Rounding):
    """x rounded to the nearest integer, ties to even."""

    ufunc = np.rint
    fn = "rint"
