"""Special functions, by the names of `scipy.special` and `torch.special`.

Floats of 16 bits are computed in float32, integers become float32. All are differentiable by all
arguments but counts. `polygamma` of more than 8 derivatives runs in NumPy, as the plan says; all
others are kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stratal.special import bessel, gammas, incomplete, information, normal
from stratal.special.bessel import *  # noqa: F403
from stratal.special.gammas import *  # noqa: F403
from stratal.special.incomplete import *  # noqa: F403
from stratal.special.information import *  # noqa: F403
from stratal.special.normal import *  # noqa: F403
from stratal.tensor.api.explained import explain_all

_MODULES = (bessel, gammas, incomplete, information, normal)
__all__ = sorted({name for module in _MODULES for name in module.__all__})
explain_all(globals())
if TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Tell type checkers that functions made of one record exist."""
