"""Positions as layers: waves added to tokens, and rotations of queries and keys. Neither has parameters."""

from __future__ import annotations

from typing import Any

from stratal.base.errors import AttributeValueError, ShapeError
from stratal.nn import functional as F
from stratal.nn.applied import changed
from stratal.nn.module import Module
from stratal.tensor.tensor import Tensor


class SinusoidalPositions(Module):
    """Add to every token the sinusoidal vector of its position, then apply dropout.

    Shapes: [L, N, d_model], or [N, L, d_model] with `batch_first`; [L, d_model]. `offset` is the position of
    the first token. See: Vaswani et al. 2017, section 3.5.
    """

    def __init__(
        self, d_model: int, dropout: float = 0.0, base: float = 10000.0, batch_first: bool = False
    ) -> None:
        super().__init__()
        if d_model < 2 or d_model % 2:
            raise AttributeValueError("SinusoidalPositions: features come in pairs", got=f"{d_model}")
        self.d_model, self.dropout, self.base, self.batch_first = d_model, dropout, base, batch_first

    def forward(self, input: Tensor, offset: Any = 0) -> Tensor:
        if input.ndim not in (2, 3) or int(input.shape[-1]) != self.d_model:
            raise ShapeError(
                f"SinusoidalPositions: takes 2 or 3 axes, the last of {self.d_model}",
                got=f"shape {list(input.shape)}",
            )
        axis = 1 if self.batch_first and input.ndim == 3 else 0
        length = input.shape[axis]
        waves = F.sinusoidal_positions(length, self.d_model, self.base, offset=offset, dtype=input.dtype)
        if input.ndim == 3 and axis == 0:
            waves = waves.reshape((length, 1, self.d_model))
        return F.dropout(input + waves, self.dropout, self.training)

    def extra_repr(self) -> str:
        others = changed(self, dropout=0.0, batch_first=False)
        return ", ".join([f"{self.d_model}, base={self.base}", *others])


class RotaryEmbedding(Module):
    """Rotate pairs of features of queries or keys by angles in proportion to their position.

    The first `dim` features turn; see `functional.rotary_embedding` for the pairs. See: Su et al. 2021.
    Shapes: [..., L, D] -> [..., L, D]; positions an offset, or integers [..., L] that broadcast.
    """

    def __init__(self, dim: int, base: float = 10000.0, interleaved: bool = True) -> None:
        super().__init__()
        if dim < 2 or dim % 2:
            raise AttributeValueError("RotaryEmbedding: features come in pairs", got=f"dim {dim}")
        self.dim, self.base, self.interleaved = dim, base, interleaved

    def forward(self, input: Tensor, positions: Any = None) -> Tensor:
        return F.rotary_embedding(input, positions, self.dim, self.base, self.interleaved)

    def extra_repr(self) -> str:
        return f"{self.dim}, base={self.base}, interleaved={self.interleaved}"
