"""Gradients kept small: their joint norm, and clipping by it or by value."""

from __future__ import annotations

from typing import Any

from stratal.base.errors import AttributeValueError
from stratal.tensor.creation import zeros
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


def get_total_norm(
    tensors: Any, norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: bool | None = None
) -> Tensor:
    """Return the norm of the norms of tensors; of none, 0."""
    given = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    if not given:
        return zeros(())
    with no_grad():
        norms = [_norm(t, float(norm_type)).reshape((1,)) for t in given]
        total = _norm(concat(norms), float(norm_type))
        if error_if_nonfinite and not float(total) < float("inf"):
            raise AttributeValueError("get_total_norm: the norm is not finite", got=str(float(total)))
    return total


def clip_grads_with_norm_(
    parameters: Any, max_norm: float, total_norm: Tensor, foreach: bool | None = None
) -> None:
    """Scale all gradients by max_norm / total_norm where that is below 1."""
    with no_grad():
        factor = minimum(max_norm / (total_norm + 1e-6), 1.0)
        for p in _with_grad(parameters):
            p.grad = p.grad * factor.astype(p.grad.dtype)


def clip_grad_norm_(
    parameters: Any,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scale all gradients by one factor so that their joint norm is at most `max_norm`; return the norm
    before, which is 0 where no parameter has a gradient.
    """
    if norm_type <= 0:
        raise AttributeValueError("clip_grad_norm_: norm_type must be positive", got=str(norm_type))
    params = _with_grad(parameters)
    total = get_total_norm([p.grad for p in params], norm_type, error_if_nonfinite)
    clip_grads_with_norm_(params, max_norm, total)
    return total


def clip_grad_value_(parameters: Any, clip_value: float, foreach: bool | None = None) -> None:
    """Clamp every element of every gradient to [-clip_value, clip_value]."""
    with no_grad():
        for p in _with_grad(parameters):
            p.grad = clip(p.grad, -float(clip_value), float(clip_value))
