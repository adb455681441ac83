"""Dropout layers: noise in training, nothing in evaluation."""

from __future__ import annotations

from stratal.nn import functional as F
from stratal.nn.applied import Applied
from stratal.nn.functional.noise import check_share


class _Dropout(Applied):
    _options, _shown = ("p", "training"), ("p", "inplace")

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        check_share(type(self).__name__, p)
        self.p, self.inplace = p, inplace


class Dropout(_Dropout, function=F.dropout):
    """In training, zero each element with probability `p` and scale the rest by 1 / (1 - p)."""


class Dropout1d(_Dropout, function=F.dropout1d):
    """In training, zero whole channels of [N, C, L] or [C, L] and scale the rest."""


class Dropout2d(_Dropout, function=F.dropout2d):
    """In training, zero whole channels of [N, C, H, W] and scale the rest."""


class Dropout3d(_Dropout, function=F.dropout3d):
    """In training, zero whole channels of [N, C, D, H, W] or [C, D, H, W] and scale the rest."""


class AlphaDropout(_Dropout, function=F.alpha_dropout):
    """Dropout that keeps the mean 0 and variance 1 of SELU's values."""


class FeatureAlphaDropout(_Dropout, function=F.feature_alpha_dropout):
    """Alpha dropout of whole channels of [N, C, ...]."""
