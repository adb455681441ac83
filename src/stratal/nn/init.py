"""Initialisers: fill a tensor in place with constants or random draws, scaled by its fan where asked.

Draws come from the default random key on the host: a new model starts without compiling anything.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, ParamSpec

import numpy as np

from stratal.base.dtypes import as_element
from stratal.base.errors import AttributeValueError, ShapeError
from stratal.nn.parameter import Parameter
from stratal.nn.unallocated import region_in_force
from stratal.tensor.functions import random
from stratal.tensor.tensor import Tensor
from stratal.tensor.values.state import no_grad

P = ParamSpec("P")
Source = random.Generator | None  # None for the default generator


def numbers(source: Source = None) -> np.random.Generator:
    """Return a generator of its own stream: of the default generator, `st.manual_seed` decides every draw."""
    key = random.next_host_key() if source is None else source.next_host_key()
    return np.random.Generator(np.random.Philox(key=key))


_GAINS = {
    "linear": 1.0,
    "identity": 1.0,
    "sigmoid": 1.0,
    "tanh": 5.0 / 3,
    "relu": math.sqrt(2.0),
    "selu": 0.75,
}


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """Return the factor that keeps a signal's variance through a nonlinearity.

    `param` is leaky_relu's slope.
    """
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else param
        return math.sqrt(2.0 / (1 + slope**2))
    if nonlinearity.startswith("conv"):
        return 1.0
    if nonlinearity not in _GAINS:
        raise AttributeValueError(
            "calculate_gain: no gain is known",
            got=repr(nonlinearity),
            hint="one of leaky_relu, " + ", ".join(_GAINS),
        )
    return _GAINS[nonlinearity]


def fans(tensor: Tensor) -> tuple[int, int]:
    """Return (fan_in, fan_out) of a weight [out, in, ...]."""
    if tensor.ndim < 2:
        raise ShapeError("init: a fan needs at least two axes", got=f"shape {list(tensor.shape)}")
    shape = [int(n) for n in tensor.shape]
    field = math.prod(shape[2:])
    return shape[1] * field, shape[0] * field


def _filling(function: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Let a function that fills a tensor leave one that has no memory of its own as it is."""

    @functools.wraps(function)
    def filled(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        given: Any = args[0] if args else kwargs.get("tensor")
        if region_in_force() is not None and isinstance(given, Parameter):
            return given
        return function(*args, **kwargs)

    return filled


def _fill(tensor: Tensor, values: Any) -> Tensor:
    with no_grad():
        tensor.copy_(np.broadcast_to(np.asarray(values), _shape(tensor)))
    return tensor


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(int(n) for n in tensor.shape)


def _draw_dtype(tensor: Tensor) -> Any:
    return np.float64 if tensor.dtype.name == "float64" else np.float32


@_filling
def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Source = None) -> Tensor:
    """Fill with draws from U(a, b)."""
    dtype = _draw_dtype(tensor)
    unit = numbers(generator).random(_shape(tensor), dtype=dtype)
    return _fill(tensor, unit * dtype(b - a) + dtype(a))


@_filling
def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Source = None) -> Tensor:
    """Fill with draws from N(mean, std^2)."""
    dtype = _draw_dtype(tensor)
    unit = numbers(generator).standard_normal(_shape(tensor), dtype=dtype)
    return _fill(tensor, unit * dtype(std) + dtype(mean))


@_filling
def trunc_normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0,
    generator: Source = None
) -> Tensor:
    """Fill with draws from N(mean, std^2) kept within [a, b]: draws outside are drawn again."""
    rng = numbers(generator)
    values = rng.standard_normal(_shape(tensor)) * std + mean
    for _ in range(1000):
        outside = (values < a) | (values > b)
        missing = int(outside.sum())
        if not missing:
            return _fill(tensor, values.astype(_draw_dtype(tensor)))
        values[outside] = rng.standard_normal(missing) * std + mean
    raise AttributeValueError(
        "trunc_normal_: the interval lies too far from the mean", got=f"[{a}, {b}] for N({mean}, {std}^2)"
    )


@_filling
def constant_(tensor: Tensor, val: float) -> Tensor:
    """Fill with one value."""
    return _fill(tensor, as_element("constant_", val, tensor.dtype))


def zeros_(tensor: Tensor) -> Tensor:
    """Fill with zeros."""
    return constant_(tensor, 0.0)


def ones_(tensor: Tensor) -> Tensor:
    """Fill with ones."""
    return constant_(tensor, 1.0)


@_filling
def eye_(tensor: Tensor) -> Tensor:
    """Fill a matrix with ones on the diagonal, zeros elsewhere."""
    rows, columns = _matrix("eye_", tensor)
    return _fill(tensor, np.eye(rows, columns))


@_filling
def zero_row_(tensor: Tensor, row: int) -> Tensor:
    """Set one row of a table to zero."""
    values = np.array(tensor.detach())
    values[row] = 0
    return _fill(tensor, values)


def xavier_uniform_(tensor: Tensor, gain: float = 1.0, generator: Source = None) -> Tensor:
    """Fill from U(-k, k), k = gain * sqrt(6 / (fan_in + fan_out)). See: Glorot and Bengio 2010."""
    fan_in, fan_out = fans(tensor)
    bound = math.sqrt(3.0) * gain * math.sqrt(2.0 / (fan_in + fan_out))
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Source = None) -> Tensor:
    """Fill from N(0, s^2), s = gain * sqrt(2 / (fan_in + fan_out)). See: Glorot and Bengio 2010."""
    fan_in, fan_out = fans(tensor)
    return normal_(tensor, 0.0, gain * math.sqrt(2.0 / (fan_in + fan_out)), generator)


def _kaiming_std(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise AttributeValueError("kaiming: mode must be 'fan_in' or 'fan_out'", got=repr(mode))
    return calculate_gain(nonlinearity, a) / math.sqrt(max(1, fans(tensor)[mode == "fan_out"]))


def kaiming_uniform_(
    tensor: Tensor,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Source = None,
) -> Tensor:
    """Fill from U(-k, k), k = gain * sqrt(3 / fan). See: He et al. 2015."""
    bound = math.sqrt(3.0) * _kaiming_std(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(
    tensor: Tensor,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Source = None,
) -> Tensor:
    """Fill from N(0, s^2), s = gain / sqrt(fan). See: He et al. 2015."""
    return normal_(tensor, 0.0, _kaiming_std(tensor, a, mode, nonlinearity), generator)


@_filling
def orthogonal_(tensor: Tensor, gain: float = 1.0, generator: Source = None) -> Tensor:
    """Fill a weight, seen as a matrix [out, rest], with orthonormal rows or columns.

    See: Saxe et al. 2013.
    """
    shape = _shape(tensor)
    if len(shape) < 2:
        raise ShapeError("orthogonal_: needs at least two axes", got=f"shape {list(shape)}")
    rows, columns = shape[0], math.prod(shape[1:])
    flat = numbers(generator).standard_normal((max(rows, columns), min(rows, columns)))
    q, r = np.linalg.qr(flat)
    q = q * np.sign(np.diag(r))
    return _fill(tensor, gain * (q if rows >= columns else q.T).reshape(shape).astype(_draw_dtype(tensor)))


@_filling
def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """Fill a weight of a convolution, [out, in, ...], so that it passes on as many channels as it can."""
    shape = _shape(tensor)
    if len(shape) not in (3, 4, 5):
        raise ShapeError("dirac_: takes 3, 4 or 5 axes", got=f"shape {list(shape)}")
    if groups < 1 or shape[0] % groups:
        raise AttributeValueError("dirac_: groups must divide axis 0", got=f"{groups} for {shape[0]}")
    values = np.zeros(shape)
    per_group, centre = shape[0] // groups, tuple(n // 2 for n in shape[2:])
    for group in range(groups):
        for k in range(min(per_group, shape[1])):
            values[(group * per_group + k, k, *centre)] = 1
    return _fill(tensor, values)


@_filling
def sparse_(tensor: Tensor, sparsity: float, std: float = 0.01, generator: Source = None) -> Tensor:
    """Fill a matrix with draws from N(0, std^2), and a share `sparsity` of each column with zeros.

    See: Martens 2010.
    """
    rows, columns = _matrix("sparse_", tensor)
    rng = numbers(generator)
    values = rng.standard_normal((rows, columns)) * std
    for column in range(columns):
        values[rng.permutation(rows)[: math.ceil(sparsity * rows)], column] = 0
    return _fill(tensor, values.astype(_draw_dtype(tensor)))


def _matrix(name: str, tensor: Tensor) -> tuple[int, int]:
    if tensor.ndim != 2:
        raise ShapeError(f"{name}: takes a matrix", got=f"shape {list(tensor.shape)}")
    rows, columns = _shape(tensor)
    return rows, columns
