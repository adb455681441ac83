"""Special functions, by the names of `scipy.special` and `torch.special`.

Floats of 16 bits are computed in float32, integers become float32. All are differentiable, zeta and the
incomplete gamma and beta functions by their last argument. These, and `polygamma` of more than 8 derivatives,
run in NumPy, as the plan says; all others are kernels.
"""

from __future__ import annotations

from stratal.special import bessel, gammas, information, normal
from stratal.special.bessel import *  # noqa: F403
from stratal.special.gammas import *  # noqa: F403
from stratal.special.information import *  # noqa: F403
from stratal.special.normal import *  # noqa: F403

__all__ = sorted({*bessel.__all__, *gammas.__all__, *information.__all__, *normal.__all__})
