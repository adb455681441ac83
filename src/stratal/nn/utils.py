"""What PyTorch keeps in `nn.utils`: gradient clipping, and parameters as one vector."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stratal.base.errors import AttributeValueError
from stratal.tensor.elementwise import clip, minimum, sqrt
from stratal.tensor.reductions import amax
from stratal.tensor.shapes import concat
from stratal.tensor.state import no_grad
from stratal.tensor.tensor import Tensor


def _with_grad(parameters: Any) -> list[Tensor]:
    params = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    return [p for p in params if p.grad is not None]


def _norm(x: Tensor, norm_type: float) -> Tensor:
    if norm_type == float("inf"):
        return amax(abs(x))
    if norm_type == 2.0:
        return sqrt((x * x).sum())
    return (abs(x) ** norm_type).sum() ** (1.0 / norm_type)


def clip_grad_norm_(
    parameters: Any, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
) -> Tensor:
    """Scale all gradients by one factor so that their joint norm is at most `max_norm`; return the norm
    before.
    """
    if norm_type <= 0:
        raise AttributeValueError("clip_grad_norm_: norm_type must be positive", got=str(norm_type))
    params = _with_grad(parameters)
    if not params:
        raise AttributeValueError(
            "clip_grad_norm_: no parameter has a gradient", hint="call backward() first"
        )
    with no_grad():
        norms = [_norm(p.grad, float(norm_type)).reshape((1,)) for p in params]
        total = _norm(concat(norms), float(norm_type))
        if error_if_nonfinite and not float(total) < float("inf"):
            raise AttributeValueError(
                "clip_grad_norm_: the norm of the gradients is not finite", got=str(float(total))
            )
        factor = minimum(max_norm / (total + 1e-6), 1.0)
        for p in params:
            p.grad = p.grad * factor.astype(p.grad.dtype)
    return total


def clip_grad_value_(parameters: Any, clip_value: float) -> None:
    """Clamp every element of every gradient to [-clip_value, clip_value]."""
    with no_grad():
        for p in _with_grad(parameters):
            p.grad = clip(p.grad, -float(clip_value), float(clip_value))


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """Return all parameters end to end as one vector."""
    return concat([p.reshape((-1,)) for p in parameters])


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Write the pieces of one vector into the parameters, in order."""
    start = 0
    with no_grad():
        for p in parameters:
            size = 1
            for n in p.shape:
                size *= int(n)
            p.copy_(vec[start : start + size].reshape(p.shape))
            start += size
