"""Hurwitz's zeta function and the incomplete gamma and beta functions: sums of as many terms as they need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from stratal.base.dtypes import float32, float64
from stratal.base.errors import NotDifferentiableError
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Sample, record
from stratal.ops.elementwise import incomplete_sums
from stratal.ops.families import SAMPLE_SHAPES, Elementwise


class Parametric(Elementwise):
    """A function of parameters and, last, of the number it is differentiated by."""

    kinds = "f"
    arity = 2
    not_lowered = "it adds up as many terms as its numbers ask for, which no expression of fixed length does"
    domain = (0.3, 4.0)

    def slope(self, b: Builder, *inputs: Node) -> Node:
        """Return the derivative by the last operand."""
        raise NotImplementedError

    def numpy(self, *arrays: Array) -> Array:
        function = getattr(incomplete_sums, self.name)
        with np.errstate(all="ignore"):
            return np.asarray(function(*(np.asarray(x, np.float64) for x in arrays)))

    def partials(self, b: Builder, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [None] * (len(inputs) - 1) + [self.slope(b, *inputs)]

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        if any(b.needed(k) for k in range(len(inputs) - 1)):
            raise self.in_parameters()
        return super().vjp(b, ct, out, *inputs)

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Node | None:
        if any(t is not None for t in tangents[:-1]):
            raise self.in_parameters()
        return super().jvp(b, tangents, out, *inputs)

    def in_parameters(self) -> NotDifferentiableError:
        return NotDifferentiableError(
            f"{self.name}: differentiable in its last operand only", hint="detach the parameters before it"
        )

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in (float32, float64):
            for shape in SAMPLE_SHAPES:
                yield Sample(cls(), (TensorType(dtype, shape),) * (cls.arity or 2), cls.domain, smooth=False)


@record
class Zeta(Parametric):
    """Hurwitz's zeta function, the sum of 1/(q + k)^s over k = 0, 1, ... for s > 1, q > 0.

    Infinite for s = 1 and for q = 0, -1, -2, ...; NaN for smaller s and other q below 0.
    """

    domain = (1.5, 4.0)

    def slope(self, b: Builder, *inputs: Node) -> Node:
        s, q = inputs
        slope: Node = b.neg(b.mul(s, b.zeta(b.add(s, b.like(s, 1)), q)))
        return slope


@record
class Gammainc(Parametric):
    """The regularised lower incomplete gamma function P(a, x), from 0 at x = 0 to 1; a >= 0, x >= 0."""

    def slope(self, b: Builder, *inputs: Node) -> Node:
        return gamma_density(b, *inputs)


@record
class Gammaincc(Parametric):
    """The regularised upper incomplete gamma function Q(a, x) = 1 - P(a, x), without cancellation."""

    def slope(self, b: Builder, *inputs: Node) -> Node:
        slope: Node = b.neg(gamma_density(b, *inputs))
        return slope


@record
class Betainc(Parametric):
    """The regularised incomplete beta function I_x(a, b), from 0 at x = 0 to 1 at x = 1; a > 0, b > 0."""

    arity = 3
    domain = (0.1, 0.9)

    def slope(self, b: Builder, *inputs: Node) -> Node:
        """x^(a-1) (1-x)^(b-1) / B(a, b)."""
        first, second, x = inputs
        one = b.like(x, 1)
        beta = b.sub(b.add(b.lgamma(first), b.lgamma(second)), b.lgamma(b.add(first, second)))
        powers = b.mul(b.pow(x, b.sub(first, one)), b.pow(b.sub(one, x), b.sub(second, one)))
        slope: Node = b.mul(powers, b.exp(b.neg(beta)))
        return slope


def gamma_density(b: Builder, a: Node, x: Node) -> Node:
    """Return x^(a-1) exp(-x) / gamma(a)."""
    power = b.pow(x, b.sub(a, b.like(a, 1)))
    density: Node = b.mul(power, b.exp(b.neg(b.add(x, b.lgamma(a)))))
    return density
