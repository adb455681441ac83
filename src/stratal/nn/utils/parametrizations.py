"""Parametrizations that PyTorch has too: weight norm, spectral norm and orthogonal weights."""

from __future__ import annotations

from stratal.nn.module import Module
from stratal.nn.utils.norms import as_matrix, check_iterations, norm_except, start_vectors, unit, with_length
from stratal.nn.utils.orthogonal import orthogonal
from stratal.nn.utils.parametrize import register_parametrization
from stratal.tensor.arguments import check_axis
from stratal.tensor.tensor import Tensor
from stratal.tensor.values.state import no_grad


class _WeightNorm(Module):
    """Lengths and direction apart: original0 and original1."""

    def __init__(self, dim: int | None = 0) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, weight_g: Tensor, weight_v: Tensor) -> Tensor:
        return with_length(weight_v, weight_g, self.dim)

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        return norm_except(weight, self.dim), weight


def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """Train a weight's lengths and direction apart; return the module.

    There is one length per index of axis `dim`, or one in all. See: Salimans and Kingma 2016.
    """
    return register_parametrization(module, name, _WeightNorm(dim), unsafe=True)


class _SpectralNorm(Module):
    """A weight over its largest singular value, found by power iterations whenever it is read in training."""

    def __init__(self, weight: Tensor, n_power_iterations: int, dim: int, eps: float) -> None:
        super().__init__()
        check_iterations(n_power_iterations)
        self.dim = check_axis("spectral_norm", dim, weight.ndim)
        self.n_power_iterations, self.eps = n_power_iterations, eps
        if weight.ndim > 1:
            matrix = as_matrix(weight.detach(), self.dim)
            u, v = start_vectors(matrix, eps)
            self.register_buffer("_u", u)
            self.register_buffer("_v", v)
            self._iterate(matrix, 15)

    def _iterate(self, matrix: Tensor, count: int) -> None:
        with no_grad():
            for _ in range(count):
                self._u.copy_(unit(matrix @ self._v, self.eps))
                self._v.copy_(unit(matrix.T @ self._u, self.eps))

    def forward(self, weight: Tensor) -> Tensor:
        if weight.ndim == 1:
            return unit(weight, self.eps)
        matrix = as_matrix(weight, self.dim)
        if self.training:
            self._iterate(matrix, self.n_power_iterations)
        return weight / (self._u.detach() * (matrix @ self._v.detach())).sum()

    def right_inverse(self, value: Tensor) -> Tensor:
        return value


def spectral_norm(
    module: Module,
    name: str = "weight",
    n_power_iterations: int = 1,
    eps: float = 1e-12,
    dim: int | None = None,
) -> Module:
    """Divide a weight by its largest singular value; return the module.

    See: Miyato et al. 2018, algorithm 1.
    """
    at = (1 if getattr(module, "transposed", False) else 0) if dim is None else dim
    made = _SpectralNorm(getattr(module, name), n_power_iterations, at, eps)
    return register_parametrization(module, name, made, unsafe=True)


__all__ = ["orthogonal", "spectral_norm", "weight_norm"]
