"""The error function and the logistic function."""

from __future__ import annotations

import math as pymath
from collections.abc import Sequence

import numpy as np

from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, record
from stratal.ops.families import Elementwise

_ERF = np.frompyfunc(pymath.erf, 1, 1)
_ERFC = np.frompyfunc(pymath.erfc, 1, 1)


class Special(Elementwise):
    """A function of one float."""

    arity = 1
    kinds = "f"


@record
class Erf(Special):
    """The error function."""

    def numpy(self, *arrays: Array) -> Array:
        return np.asarray(_ERF(arrays[0]), dtype=np.float64)

    def partials(self, b: Builder, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [_bell(b, inputs[0])]


@record
class Erfc(Special):
    """1 - erf(x), precise where erf is near 1."""

    def numpy(self, *arrays: Array) -> Array:
        return np.asarray(_ERFC(arrays[0]), dtype=np.float64)

    def partials(self, b: Builder, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [b.neg(_bell(b, inputs[0]))]


def _bell(b: Builder, x: Node) -> Node:
    """Return 2/sqrt(pi) * exp(-x*x), the derivative of erf."""
    return b.mul(b.like(x, 2 / pymath.sqrt(pymath.pi)), b.exp(b.neg(b.mul(x, x))))


@record
class Logistic(Special):
    """1 / (1 + exp(-x)), the sigmoid."""

    def numpy(self, *arrays: Array) -> Array:
        x = arrays[0]
        small = np.exp(-abs(x))
        return np.asarray(np.where(x < 0, small, 1) / (1 + small)).astype(x.dtype)

    def partials(self, b: Builder, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [b.mul(out, b.sub(b.like(out, 1), out))]
