"""Weights of a fixed norm: length and direction apart (weight norm), or the largest singular value 1."""

from __future__ import annotations

from typing import Any

from stratal.base.errors import AttributeValueError
from stratal.nn import init
from stratal.nn.module import Module
from stratal.nn.parameter import Parameter
from stratal.tensor.arguments import check_axis
from stratal.tensor.functions.creation import zeros
from stratal.tensor.functions.elementwise import maximum, sqrt
from stratal.tensor.tensor import Tensor
from stratal.tensor.values.state import no_grad


def norm_except(weight: Tensor, dim: int | None) -> Tensor:
    """Return the 2-norms over all axes but one, which stay as sizes of 1; without `dim` one norm in all."""
    if dim is None:
        return sqrt((weight * weight).sum())
    kept = check_axis("weight_norm", dim, weight.ndim)
    others = tuple(k for k in range(weight.ndim) if k != kept)
    return sqrt((weight * weight).sum(axis=others, keepdims=True)) if others else abs(weight)


def with_length(direction: Tensor, length: Tensor, dim: int | None) -> Tensor:
    """Return length * direction / |direction|. See: Salimans and Kingma 2016, equation 2."""
    return direction * (length / norm_except(direction, dim))


def as_matrix(weight: Tensor, dim: int) -> Tensor:
    """Return a weight as a matrix, the axis `dim` in front."""
    order = (dim, *(k for k in range(weight.ndim) if k != dim))
    return weight.permute(*order).reshape((weight.shape[dim], -1))


def unit(x: Tensor, eps: float) -> Tensor:
    """Return a vector over its length, or over eps where that is larger."""
    return x / maximum(sqrt((x * x).sum()), eps)


def start_vectors(matrix: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return random unit vectors of a matrix's two sizes."""
    made = [init.normal_(zeros((int(n),), dtype=matrix.dtype)) for n in matrix.shape]
    u, v = (unit(x, eps).detach() for x in made)
    return u, v


# -- the older form, whose originals stand in the module itself
# ------------------------------------------------
class _WeightNorm:
    def __init__(self, name: str, dim: int | None) -> None:
        self.name, self.dim = name, dim

    def __call__(self, module: Any) -> Tensor:
        return with_length(getattr(module, f"{self.name}_v"), getattr(module, f"{self.name}_g"), self.dim)

    def assign(self, module: Any, value: Any) -> None:
        with no_grad():
            getattr(module, f"{self.name}_v").copy_(value)
            getattr(module, f"{self.name}_g").copy_(norm_except(value, self.dim))


def _taken_out(module: Module, name: str, what: str) -> Parameter:
    weight = module._parameters.get(name)
    if not isinstance(weight, Parameter):
        raise AttributeValueError(
            f"{what}: {type(module).__name__} has no parameter of that name", got=repr(name)
        )
    delattr(module, name)
    return weight


def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """Train a weight's lengths and direction apart, as `<name>_g` and `<name>_v`; return the module.

    There is one length per index of axis `dim`, or one in all. `parametrizations.weight_norm` is the newer
    form.
    """
    length = norm_except(module._parameters[name].detach(), dim) if name in module._parameters else None
    weight = _taken_out(module, name, "weight_norm")
    module.register_parameter(f"{name}_g", Parameter(length))
    module.register_parameter(f"{name}_v", Parameter(weight))
    module._computed[name] = _WeightNorm(name, dim)
    return module


def remove_weight_norm(module: Module, name: str = "weight") -> Module:
    """Make a weight normalised by `weight_norm` an ordinary parameter again; return the module."""
    return _put_back(module, name, _WeightNorm, ("_g", "_v"), "remove_weight_norm")


class _SpectralNorm:
    def __init__(self, name: str, dim: int, iterations: int, eps: float) -> None:
        self.name, self.dim, self.iterations, self.eps = name, dim, iterations, eps

    def __call__(self, module: Any) -> Tensor:
        weight, u, v = (getattr(module, f"{self.name}_{part}") for part in ("orig", "u", "v"))
        matrix = as_matrix(weight, self.dim)
        if module.training:
            with no_grad():
                for _ in range(self.iterations):
                    v.copy_(unit(matrix.T @ u, self.eps))
                    u.copy_(unit(matrix @ v, self.eps))
        return weight / (u.detach() * (matrix @ v.detach())).sum()  # type: ignore[no-any-return]

    def assign(self, module: Any, value: Any) -> None:
        with no_grad():
            getattr(module, f"{self.name}_orig").copy_(value)


def spectral_norm(
    module: Module,
    name: str = "weight",
    n_power_iterations: int = 1,
    eps: float = 1e-12,
    dim: int | None = None,
) -> Module:
    """Divide a weight, `<name>_orig`, by its largest singular value whenever it is read; return the module.

    That value comes from the vectors `<name>_u` and `<name>_v`, which every reading in training improves by
    power iterations. `parametrizations.spectral_norm` is the newer form. See: Miyato et al. 2018, algorithm
    1.
    """
    check_iterations(n_power_iterations)
    at = (1 if getattr(module, "transposed", False) else 0) if dim is None else dim
    weight = _taken_out(module, name, "spectral_norm")
    at = check_axis("spectral_norm", at, weight.ndim)
    u, v = start_vectors(as_matrix(weight.detach(), at), eps)
    module.register_parameter(f"{name}_orig", weight)
    module.register_buffer(f"{name}_u", u)
    module.register_buffer(f"{name}_v", v)
    module._computed[name] = _SpectralNorm(name, at, n_power_iterations, eps)
    return module


def remove_spectral_norm(module: Module, name: str = "weight") -> Module:
    """Make a weight normalised by `spectral_norm` an ordinary parameter again; return the module."""
    return _put_back(module, name, _SpectralNorm, ("_orig", "_u", "_v"), "remove_spectral_norm")


def check_iterations(count: int) -> None:
    """Refuse fewer than one power iteration. Raises: AttributeValueError."""
    if count < 1:
        raise AttributeValueError("spectral_norm: n_power_iterations must be positive", got=str(count))


def _put_back(module: Module, name: str, kind: type, parts: tuple[str, ...], what: str) -> Module:
    if not isinstance(module._computed.get(name), kind):
        raise AttributeValueError(f"{what}: the weight is not normalised", got=repr(name))
    with no_grad():
        value = getattr(module, name).detach()
    for part in parts:
        delattr(module, name + part)
    del module._computed[name]
    module.register_parameter(name, Parameter(value))
    return module
