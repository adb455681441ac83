"""Maps of random variables with inverses and known determinants, with PyTorch's names.

`log_abs_det_jacobian(x, y)` takes both sides of y = t(x); it has one value per event, whose number of axes is
`domain_event_dim` before and `codomain_event_dim` after the map.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from stratal.base.errors import AttributeValueError, NotGivenError, not_given
from stratal.special import log_expit
from stratal.tensor.api.explained import explain_methods
from stratal.tensor.api.info import finfo
from stratal.tensor.build import as_tensor
from stratal.tensor.composites.arithmetic import softplus
from stratal.tensor.functions.creation import arange, eye
from stratal.tensor.functions.elementwise import (
    abs,
    atanh,
    exp,
    expm1,
    log,
    log1p,
    maximum,
    minimum,
    pow,
    sigmoid,
    sign,
    tanh,
    where,
)
from stratal.tensor.functions.reductions import cumprod, softmax
from stratal.tensor.functions.shapes import concat
from stratal.tensor.functions.triangles import tril
from stratal.tensor.tensor import Tensor

__all__ = [
    "AbsTransform", "AffineTransform", "ComposeTransform", "ExpTransform", "IndependentTransform",
    "LowerCholeskyTransform", "PowerTransform", "SigmoidTransform", "SoftmaxTransform", "SoftplusTransform",
    "StickBreakingTransform", "TanhTransform", "Transform",
]  # fmt: skip


class Transform:
    """Base of every map: `t(x)`, `t.inv(y)` and the logarithm of the Jacobian's determinant.

    A subclass gives `forward`, `inverse` and `log_abs_det_jacobian`.
    """

    bijective: ClassVar[bool] = True
    domain_event_dim: int = 0
    codomain_event_dim: int = 0
    sign: Any = 1  # of the derivative, where the map is monotone; 0 where it is not

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        explain_methods(cls, "__init__", "forward", "inverse", "log_abs_det_jacobian")

    def forward(self, x: Tensor) -> Tensor:
        """Return the image of a point."""
        raise not_given(self, "forward", "define forward(self, x) in the class")

    def inverse(self, y: Tensor) -> Tensor:
        """Return the point with an image."""
        raise not_given(self, "inverse", "define inverse(self, y) in the class")

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Return log |det dy/dx| at x, whose image is y."""
        raise NotGivenError(f"{type(self).__name__}: has no determinant, for it keeps no volume")

    def forward_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the image of a point of some shape."""
        return tuple(shape)

    def inverse_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of a point whose image has some shape."""
        return tuple(shape)

    def __call__(self, x: Any) -> Tensor:
        return self.forward(as_tensor(x, type(self).__name__))

    @property
    def inv(self) -> Transform:
        """The inverse, as a map."""
        return _Inverse(self)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and _same(vars(self), vars(other))

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value}" for name, value in vars(self).items())
        return f"{type(self).__name__}({shown})".replace("\n", " ")


def _same(mine: dict[str, Any], other: dict[str, Any]) -> bool:
    def equal(a: Any, b: Any) -> bool:
        if isinstance(a, Tensor) or isinstance(b, Tensor):
            return a is b
        return bool(a == b)

    return mine.keys() == other.keys() and all(equal(v, other[k]) for k, v in mine.items())


def _parameter(name: str, value: Any) -> Any:
    """Return a tensor, or a number of Python's as it is: it takes the dtype of what it meets."""
    return value if isinstance(value, (int, float)) else as_tensor(value, name)


class _Inverse(Transform):
    """The other direction of a map."""

    def __init__(self, of: Transform) -> None:
        self.of = of
        self.domain_event_dim, self.codomain_event_dim = of.codomain_event_dim, of.domain_event_dim
        self.sign = of.sign

    @property
    def inv(self) -> Transform:
        return self.of

    def forward(self, x: Tensor) -> Tensor:
        return self.of.inverse(x)

    def inverse(self, y: Tensor) -> Tensor:
        return self.of.forward(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -self.of.log_abs_det_jacobian(y, x)

    def forward_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return self.of.inverse_shape(shape)

    def inverse_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return self.of.forward_shape(shape)


def sum_last(x: Tensor, count: int) -> Tensor:
    """Return a tensor summed over its last axes."""
    return x.sum(axis=tuple(range(-count, 0))) if count else x


# -- element by element --------------------------------------------------------------------------------------
class ExpTransform(Transform):
    """y = exp(x)."""

    def forward(self, x: Tensor) -> Tensor:
        return exp(x)

    def inverse(self, y: Tensor) -> Tensor:
        return log(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return x


def _inside(y: Tensor) -> Tensor:
    """Return numbers of (0, 1) kept off its ends, as far as their dtype tells them from these."""
    limits = finfo(y.dtype)
    return minimum(maximum(y, limits.tiny), 1 - limits.eps)


class SigmoidTransform(Transform):
    """y = 1 / (1 + exp(-x)), kept off 0 and 1."""

    def forward(self, x: Tensor) -> Tensor:
        return _inside(sigmoid(x))

    def inverse(self, y: Tensor) -> Tensor:
        inside = _inside(y)
        return log(inside) - log1p(-inside)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return log_expit(x) + log_expit(-x)


class TanhTransform(Transform):
    """y = tanh(x)."""

    def forward(self, x: Tensor) -> Tensor:
        return tanh(x)

    def inverse(self, y: Tensor) -> Tensor:
        return atanh(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return 2.0 * (math.log(2.0) - x - softplus(-2.0 * x))


class SoftplusTransform(Transform):
    """y = log(1 + exp(x))."""

    def forward(self, x: Tensor) -> Tensor:
        return softplus(x)

    def inverse(self, y: Tensor) -> Tensor:
        return log(-expm1(-y)) + y

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return log_expit(x)


class AbsTransform(Transform):
    """y = |x|, whose inverse takes the side above 0."""

    bijective = False
    sign = 0

    def forward(self, x: Tensor) -> Tensor:
        return abs(x)

    def inverse(self, y: Tensor) -> Tensor:
        return y


class PowerTransform(Transform):
    """y = x^exponent of positive numbers."""

    def __init__(self, exponent: Any) -> None:
        self.exponent = _parameter("PowerTransform", exponent)
        self.sign = sign(as_tensor(self.exponent))

    def forward(self, x: Tensor) -> Tensor:
        return pow(x, self.exponent)

    def inverse(self, y: Tensor) -> Tensor:
        return pow(y, 1 / self.exponent)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return log(abs(self.exponent * y / x))


class AffineTransform(Transform):
    """y = loc + scale x; the last `event_dim` axes are one event."""

    def __init__(self, loc: Any, scale: Any, event_dim: int = 0) -> None:
        self.loc, self.scale = _parameter("AffineTransform", loc), _parameter("AffineTransform", scale)
        self.domain_event_dim = self.codomain_event_dim = event_dim
        self.sign = sign(as_tensor(self.scale))

    def forward(self, x: Tensor) -> Tensor:
        return self.loc + self.scale * x

    def inverse(self, y: Tensor) -> Tensor:
        return (y - self.loc) / self.scale

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return sum_last(log(abs(0 * x + self.scale)), self.domain_event_dim)


# -- of vectors and matrices ---------------------------------------------------------------------------------
class SoftmaxTransform(Transform):
    """y = softmax(x) along the last axis, whose inverse is a logarithm; it keeps no volume."""

    bijective = False
    domain_event_dim = codomain_event_dim = 1
    sign = 0

    def forward(self, x: Tensor) -> Tensor:
        return softmax(x, axis=-1)

    def inverse(self, y: Tensor) -> Tensor:
        return log(y)


class StickBreakingTransform(Transform):
    """Shares of a whole, one more than numbers: each takes a part of what those before it left."""

    domain_event_dim = codomain_event_dim = 1
    sign = 0

    def _offset(self, x: Tensor, count: int) -> Tensor:
        return x - log(float(count) - arange(count, dtype=x.dtype))

    def forward(self, x: Tensor) -> Tensor:
        z = sigmoid(self._offset(x, int(x.shape[-1])))
        one = 0 * x[..., :1] + 1
        left = concat([one, cumprod(1 - z, axis=-1)], axis=-1)
        return concat([z, one], axis=-1) * left

    def inverse(self, y: Tensor) -> Tensor:
        count = int(y.shape[-1]) - 1
        left = 1 - y[..., :-1].cumsum(axis=-1)
        left = maximum(left, finfo(y.dtype).tiny)
        return log(y[..., :-1]) - log(left) + log(float(count) - arange(count, dtype=y.dtype))

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        z = self._offset(x, int(x.shape[-1]))
        return (log_expit(z) - z + log(y[..., :-1])).sum(axis=-1)

    def forward_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return (*shape[:-1], shape[-1] + 1)

    def inverse_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return (*shape[:-1], shape[-1] - 1)


class LowerCholeskyTransform(Transform):
    """A lower triangular matrix with a positive diagonal, the exponential of that of x, of one triangle."""

    bijective = False
    domain_event_dim = codomain_event_dim = 2
    sign = 0

    def forward(self, x: Tensor) -> Tensor:
        return tril(x, -1) + eye(int(x.shape[-1]), dtype=x.dtype) * exp(x)

    def inverse(self, y: Tensor) -> Tensor:
        one = eye(int(y.shape[-1]), dtype=y.dtype)
        return tril(y, -1) + one * log(where(one > 0, y, 1.0))


# -- of maps -------------------------------------------------------------------------------------------------
class IndependentTransform(Transform):
    """A map whose last axes, `reinterpreted_batch_ndims` more than its events have, are one event."""

    def __init__(self, base_transform: Transform, reinterpreted_batch_ndims: int) -> None:
        self.base_transform, self.reinterpreted_batch_ndims = base_transform, reinterpreted_batch_ndims
        self.domain_event_dim = base_transform.domain_event_dim + reinterpreted_batch_ndims
        self.codomain_event_dim = base_transform.codomain_event_dim + reinterpreted_batch_ndims
        self.sign = base_transform.sign

    def forward(self, x: Tensor) -> Tensor:
        return self.base_transform.forward(x)

    def inverse(self, y: Tensor) -> Tensor:
        return self.base_transform.inverse(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return sum_last(self.base_transform.log_abs_det_jacobian(x, y), self.reinterpreted_batch_ndims)

    def forward_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return self.base_transform.forward_shape(shape)

    def inverse_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return self.base_transform.inverse_shape(shape)


class ComposeTransform(Transform):
    """Several maps, one after the other."""

    def __init__(self, parts: Sequence[Transform]) -> None:
        self.parts = list(parts)
        self.domain_event_dim = self.codomain_event_dim = 0
        need = 0
        for part in reversed(self.parts):
            need = max(part.domain_event_dim, need + part.domain_event_dim - part.codomain_event_dim)
        self.domain_event_dim = need
        for part in self.parts:
            need = max(part.domain_event_dim, need) + part.codomain_event_dim - part.domain_event_dim
        self.codomain_event_dim = need
        self.sign = math.prod([part.sign for part in self.parts]) if self.parts else 1
        self.bijective = all(part.bijective for part in self.parts)  # type: ignore[misc]  # as its parts

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part.forward(x)
        return x

    def inverse(self, y: Tensor) -> Tensor:
        for part in reversed(self.parts):
            y = part.inverse(y)
        return y

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        total: Any = sum_last(0 * x, self.domain_event_dim)
        event = self.domain_event_dim
        for part in self.parts:
            y = part.forward(x)
            total = total + sum_last(part.log_abs_det_jacobian(x, y), event - part.domain_event_dim)
            event += part.codomain_event_dim - part.domain_event_dim
            x = y
        return total

    def forward_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        for part in self.parts:
            shape = part.forward_shape(shape)
        return tuple(shape)

    def inverse_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        for part in reversed(self.parts):
            shape = part.inverse_shape(shape)
        return tuple(shape)


def composed(transforms: Any) -> ComposeTransform:
    """Return one map of one or several. Raises: AttributeValueError."""
    parts = [transforms] if isinstance(transforms, Transform) else list(transforms)
    for part in parts:
        if not isinstance(part, Transform):
            raise AttributeValueError("transforms are maps of stratal.distributions", got=type(part).__name__)
    return ComposeTransform(parts)
