"""The normal distribution's counterpart on the circle."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from stratal.distributions import draws
from stratal.distributions.distribution import POSITIVE, REAL, Distribution, Rule
from stratal.special import i0e, i1e
from stratal.tensor.elementwise import cos, log
from stratal.tensor.state import no_grad
from stratal.tensor.tensor import Tensor


class VonMises(Distribution):
    """exp(concentration cos(x - loc)) / (2 pi I0(concentration)) of angles in [-pi, pi]."""

    parameters: ClassVar[dict[str, Rule]] = {"loc": REAL, "concentration": POSITIVE}
    loc: Tensor
    concentration: Tensor

    def __init__(self, loc: Any, concentration: Any, validate_args: bool | None = None) -> None:
        super().__init__(validate_args, loc=loc, concentration=concentration)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        with no_grad():
            turned = draws.von_mises(self._wide(self.concentration, sample_shape)) + self.loc
            return ((turned + math.pi) % (2 * math.pi) - math.pi).detach()

    def log_prob(self, value: Any) -> Tensor:
        less = cos(self._asked(value) - self.loc) - 1
        return self.concentration * less - math.log(2 * math.pi) - log(i0e(self.concentration))

    def entropy(self) -> Tensor:
        ratio = i1e(self.concentration) / i0e(self.concentration)
        return math.log(2 * math.pi) + log(i0e(self.concentration)) + self.concentration * (1 - ratio)

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        """The circular variance."""
        return 1 - i1e(self.concentration) / i0e(self.concentration)
