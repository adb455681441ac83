"""Activations as layers; the formulas are in `functional`.

`inplace` is accepted for compatibility: values are never aliased, so it changes nothing.
"""

from __future__ import annotations

from stratal.base.errors import AttributeValueError, ShapeError
from stratal.nn import functional as F
from stratal.nn import init
from stratal.nn.applied import Applied
from stratal.nn.parameter import empty_parameter
from stratal.tensor.tensor import Tensor


class _Activation(Applied):
    """A function of each element, or along an axis; `inplace` is printed where it is set."""

    inplace = False

    def extra_repr(self) -> str:
        return ", ".join([t for t in (super().extra_repr(), "inplace=True" if self.inplace else "") if t])


class _InPlace(_Activation):
    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace


# -- put together of lines -----------------------------------------------------------------------------------
class ReLU(_InPlace, function=F.relu):
    """max(x, 0)."""


class Hardtanh(_Activation, function=F.hardtanh):
    """x clipped to [min_val, max_val]."""

    _options = ("min_val", "max_val")

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> None:
        super().__init__()
        if min_val >= max_val:
            raise AttributeValueError("Hardtanh: min_val lies below max_val", got=f"{min_val}, {max_val}")
        self.min_val, self.max_val, self.inplace = min_val, max_val, inplace


class ReLU6(Hardtanh, function=F.relu6):
    """min(max(x, 0), 6)."""

    _options = ()

    def __init__(self, inplace: bool = False) -> None:
        super().__init__(0.0, 6.0, inplace)


class Hardsigmoid(_InPlace, function=F.hardsigmoid):
    """x / 6 + 1 / 2 clipped to [0, 1]."""


class Hardswish(_InPlace, function=F.hardswish):
    """x * hardsigmoid(x)."""


class Threshold(_Activation, function=F.threshold):
    """x where it exceeds the threshold, else a value."""

    _options = ("threshold", "value")

    def __init__(self, threshold: float, value: float, inplace: bool = False) -> None:
        super().__init__()
        self.threshold, self.value, self.inplace = threshold, value, inplace


class _Shrinking(_Activation):
    _options = ("lambd",)

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        self.lambd = lambd

    def extra_repr(self) -> str:
        return str(self.lambd)


class Hardshrink(_Shrinking, function=F.hardshrink):
    """0 within `lambd` of 0, else x."""


class Softshrink(_Shrinking, function=F.softshrink):
    """x moved towards 0 by `lambd`, and 0 within `lambd` of it."""


class LeakyReLU(_Activation, function=F.leaky_relu):
    """x where positive, else negative_slope * x."""

    _options = ("negative_slope",)

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        super().__init__()
        self.negative_slope, self.inplace = negative_slope, inplace


class PReLU(_Activation, function=F.prelu):
    """x where positive, else a slope times x; one slope is learned, or one per channel (axis 1)."""

    _options, _shown = ("weight",), ("num_parameters",)

    def __init__(
        self, num_parameters: int = 1, init: float = 0.25, device: object = None, dtype: object = None
    ) -> None:
        super().__init__()
        self.num_parameters, self.init = num_parameters, init
        self.weight = empty_parameter((num_parameters,), dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set every slope to `init`."""
        init.constant_(self.weight, self.init)


class RReLU(_Activation, function=F.rrelu):
    """x where positive, else a slope times x, drawn from U(lower, upper) in training, else their mean."""

    _options, _shown = ("lower", "upper", "training"), ("lower", "upper")

    def __init__(self, lower: float = 1 / 8, upper: float = 1 / 3, inplace: bool = False) -> None:
        super().__init__()
        self.lower, self.upper, self.inplace = lower, upper, inplace


# -- smooth --------------------------------------------------------------------------------------------------
class ELU(_Activation, function=F.elu):
    """x where positive, else alpha * (exp(x) - 1)."""

    _options = ("alpha",)

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__()
        self.alpha, self.inplace = alpha, inplace


class CELU(ELU, function=F.celu):
    """x where positive, else alpha * (exp(x / alpha) - 1)."""


class SELU(_InPlace, function=F.selu):
    """The scaled ELU that keeps mean 0 and variance 1."""


class GELU(_Activation, function=F.gelu):
    """x * Phi(x), by the error function or, with approximate='tanh', by Hendrycks and Gimpel's formula."""

    _options = ("approximate",)

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        if approximate not in ("none", "tanh"):
            raise AttributeValueError("GELU: approximate must be 'none' or 'tanh'", got=repr(approximate))
        self.approximate = approximate

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


class SiLU(_InPlace, function=F.silu):
    """x * sigmoid(x)."""


class Mish(_InPlace, function=F.mish):
    """x * tanh(softplus(x))."""


class Tanh(_Activation, function=F.tanh):
    """Hyperbolic tangent."""


class Tanhshrink(_Activation, function=F.tanhshrink):
    """x - tanh(x)."""


class Sigmoid(_Activation, function=F.sigmoid):
    """1 / (1 + exp(-x))."""


class LogSigmoid(_Activation, function=F.logsigmoid):
    """log(1 / (1 + exp(-x))), without overflow."""


class Softsign(_Activation, function=F.softsign):
    """x / (1 + |x|)."""


class Softplus(_Activation, function=F.softplus):
    """log(1 + exp(beta x)) / beta, and x itself where beta x exceeds the threshold."""

    _options = ("beta", "threshold")

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        super().__init__()
        self.beta, self.threshold = beta, threshold


# -- along an axis -------------------------------------------------------------------------------------------
class _AlongDim(_Activation):
    _options = ("dim",)

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim


class GLU(_AlongDim, function=F.glu):
    """The first half along `dim` times the sigmoid of the second."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__(dim)


class Softmax(_AlongDim, function=F.softmax):
    """exp(x) normalised to sum to one along `dim`."""


class Softmin(_AlongDim, function=F.softmin):
    """The softmax of -x along `dim`."""


class LogSoftmax(_AlongDim, function=F.log_softmax):
    """The logarithm of softmax along `dim`, computed stably."""


class Softmax2d(_Activation):
    """Softmax over the channels at every place of [N, C, H, W] or [C, H, W]."""

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim not in (3, 4):
            raise ShapeError("Softmax2d: takes 3 or 4 axes", got=f"shape {list(input.shape)}")
        return F.softmax(input, -3)
