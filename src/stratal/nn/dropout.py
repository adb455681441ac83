"""Dropout layers: noise in training, nothing in evaluation."""

from __future__ import annotations

from stratal.base.errors import AttributeValueError
from stratal.nn import functional as F
from stratal.nn.module import Module
from stratal.tensor.tensor import Tensor


class _Dropout(Module):
    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise AttributeValueError(f"{type(self).__name__}: p must lie in [0, 1]", got=str(p))
        self.p, self.inplace = p, inplace

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"


class Dropout(_Dropout):
    """In training, zero each element with probability `p` and scale the rest by 1 / (1 - p)."""

    def forward(self, input: Tensor) -> Tensor:
        return F.dropout(input, self.p, self.training)


class Dropout1d(_Dropout):
    """In training, zero whole channels of [N, C, L] or [C, L] and scale the rest."""

    def forward(self, input: Tensor) -> Tensor:
        return F.dropout1d(input, self.p, self.training)


class Dropout2d(_Dropout):
    """In training, zero whole channels of [N, C, H, W] and scale the rest."""

    def forward(self, input: Tensor) -> Tensor:
        return F.dropout2d(input, self.p, self.training)


class Dropout3d(_Dropout):
    """In training, zero whole channels of [N, C, D, H, W] or [C, D, H, W] and scale the rest."""

    def forward(self, input: Tensor) -> Tensor:
        return F.dropout3d(input, self.p, self.training)


class AlphaDropout(_Dropout):
    """Dropout that keeps the mean 0 and variance 1 of SELU's values."""

    def forward(self, input: Tensor) -> Tensor:
        return F.alpha_dropout(input, self.p, self.training)


class FeatureAlphaDropout(_Dropout):
    """Alpha dropout of whole channels of [N, C, ...]."""

    def forward(self, input: Tensor) -> Tensor:
        return F.feature_alpha_dropout(input, self.p, self.training)
