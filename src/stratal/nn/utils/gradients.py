"""Parameters together: the joint norm of their gradients, clipping by it or by value, all as one vector.

In a parallel step gradients are first each rank's own. What reads them here, and cannot be done to each part
by itself, asks `SHARED_STEP` to make them those of the whole batch before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from stratal.base.errors import AttributeValueError
from stratal.tensor.calls.kept import kept
from stratal.tensor.functions.creation import zeros
from stratal.tensor.functions.elementwise import clip, minimum
from stratal.tensor.functions.reductions import norm
from stratal.tensor.functions.shapes import concat
from stratal.tensor.tensor import Tensor
from stratal.tensor.values.state import no_grad


class SharedStep(Protocol):
    """A step that ranks take together."""

    def make_whole(self, params: Sequence[Tensor]) -> None:
        """Put gradients over the whole batch in place of this rank's own."""

    def changed(self, params: Sequence[Tensor]) -> None:
        """Note that whole gradients were changed, in the same way on every rank."""

    def check_whole(self, gradients: Sequence[Tensor]) -> None:
        """Refuse gradients that are this rank's own. Raises: CallOrderError."""


SHARED_STEP: ContextVar[SharedStep | None] = ContextVar("shared_step", default=None)


@contextmanager
def whole_gradients(params: Sequence[Tensor]) -> Iterator[None]:
    """Let gradients be those of the whole batch, where ranks share one, for what changes them inside."""
    step = SHARED_STEP.get()
    if step is not None:
        step.make_whole(params)
    yield
    if step is not None:
        step.changed(params)


def _with_grad(parameters: Any) -> list[Tensor]:
    params = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    return [p for p in params if p.grad is not None]


@kept
def _joint_norm(tensors: list[Tensor], norm_type: float) -> Tensor:
    return norm(concat([norm(t, norm_type).reshape((1,)) for t in tensors]), norm_type)


@kept
def _scaled(tensors: list[Tensor], max_norm: float, total_norm: Tensor) -> list[Tensor]:
    factor = minimum(max_norm / (total_norm + 1e-6), 1.0)
    return [t * factor.astype(t.dtype) for t in tensors]


def get_total_norm(
    tensors: Any, norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: bool | None = None
) -> Tensor:
    """Return the norm of the norms of tensors; of none, 0."""
    given = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    if not given:
        return zeros(())
    step = SHARED_STEP.get()
    if step is not None:
        step.check_whole(given)
    with no_grad():
        total: Tensor = _joint_norm(given, float(norm_type))
        if error_if_nonfinite and not float(total) < float("inf"):
            raise AttributeValueError("get_total_norm: the norm is not finite", got=str(float(total)))
    return total


def clip_grads_with_norm_(
    parameters: Any, max_norm: float, total_norm: Tensor, foreach: bool | None = None
) -> None:
    """Scale all gradients by max_norm / total_norm where that is below 1."""
    params = _with_grad(parameters)
    with whole_gradients(params):
        _scale(params, max_norm, total_norm)


def _scale(params: Sequence[Tensor], max_norm: float, total_norm: Tensor) -> None:
    with no_grad():
        for p, scaled in zip(params, _scaled([p.grad for p in params], max_norm, total_norm), strict=True):
            p.grad.copy_(scaled)


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
    with whole_gradients(params):
        total = get_total_norm([p.grad for p in params], norm_type, error_if_nonfinite)
        _scale(params, max_norm, total)
    return total


def clip_grad_value_(parameters: Any, clip_value: float, foreach: bool | None = None) -> None:
    """Clamp every element of every gradient to [-clip_value, clip_value]."""
    params = _with_grad(parameters)
    with no_grad(), whole_gradients(params):
        for p in params:
            p.grad.copy_(clip(p.grad, -float(clip_value), float(clip_value)))


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
