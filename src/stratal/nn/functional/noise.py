"""Dropout: of elements, of whole channels, and the kind that keeps mean and variance after SELU.

In a step that ranks take together each of them draws its rows of the mask of the whole batch: `MODE.part`.
"""

from __future__ import annotations

import math

from stratal.base.errors import AttributeValueError, ShapeError
from stratal.ops.composite.activations import SELU_ALPHA, SELU_SCALE
from stratal.tensor.build import call
from stratal.tensor.functions import random
from stratal.tensor.functions.creation import ones
from stratal.tensor.functions.elementwise import where
from stratal.tensor.tensor import Tensor
from stratal.tensor.values.state import MODE

_FLOOR = -SELU_ALPHA * SELU_SCALE  # what SELU tends to, far to the left


def check_share(name: str, p: float) -> None:
    """Refuse what is no probability. Raises: AttributeValueError."""
    if not 0 <= p <= 1:
        raise AttributeValueError(f"{name}: p must lie in [0, 1]", got=str(p))


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Return, in training, x with elements zeroed with probability p and the rest scaled by 1 / (1 - p)."""
    check_share("dropout", p)
    if not training or p == 0:
        return input
    part = MODE.part
    key = random.default_generator().next_key()
    return call("dropout", input, key, *([] if part is None else [part.number]), p=p)


def _channels(name: str, input: Tensor, ranks: dict[int, int]) -> tuple[int, ...]:
    """Return the shape with one element per channel; `ranks` says how many leading axes number channels."""
    if input.ndim not in ranks:
        raise ShapeError(
            f"{name}: takes {' or '.join(map(str, sorted(ranks)))} axes", got=f"shape {list(input.shape)}"
        )
    leading = ranks[input.ndim]
    return (*input.shape[:leading], *(1,) * (input.ndim - leading))


def _of_channels(name: str, input: Tensor, p: float, training: bool, ranks: dict[int, int]) -> Tensor:
    check_share(name, p)
    shape = _channels(name, input, ranks)
    return input * dropout(ones(shape, dtype=input.dtype), p) if training and p else input


def dropout1d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Apply dropout to whole channels of [N, C, L] or [C, L]. See: Tompson et al. 2014."""
    return _of_channels("dropout1d", input, p, training, {2: 1, 3: 2})


def dropout2d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Apply dropout to whole channels of [N, C, H, W]; less axes are [N, C, L] or [N, C], as in PyTorch."""
    return _of_channels("dropout2d", input, p, training, {2: 2, 3: 2, 4: 2})


def dropout3d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Apply dropout to whole channels of [N, C, D, H, W] or [C, D, H, W]."""
    return _of_channels("dropout3d", input, p, training, {4: 1, 5: 2})


def _alpha(input: Tensor, shape: tuple[int, ...], p: float) -> Tensor:
    """Set what is dropped to SELU's lower end, then scale and shift to the mean and variance before."""
    if p == 1:
        return input * 0
    scale = 1 / math.sqrt((1 - p) * (1 + p * _FLOOR**2))
    kept = random.bernoulli(1 - p, shape)
    return where(kept, input * scale, _FLOOR * scale) - scale * _FLOOR * p  # type: ignore[no-any-return]


def alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """Apply dropout that keeps the mean 0 and variance 1 of SELU's values. See: Klambauer et al. 2017."""
    check_share("alpha_dropout", p)
    return _alpha(input, input.shape, p) if training and p else input


def feature_alpha_dropout(
    input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    """Apply alpha dropout to whole channels of [N, C, ...]."""
    check_share("feature_alpha_dropout", p)
    shape = _channels("feature_alpha_dropout", input, dict.fromkeys(range(2, max(3, input.ndim + 1)), 2))
    return _alpha(input, shape, p) if training and p else input
