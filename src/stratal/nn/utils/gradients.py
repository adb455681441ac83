"""Parameters together: the joint norm of their gradients, clipping by it or by value, all as one vector.

In a parallel step gradients are first each rank's own. What reads them here, and cannot be done to each part
by itself, asks `SHARED_STEP` for those of the whole batch before: whole on every rank, or shared out among
ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

from stratal.base.errors import AttributeValueError
from stratal.tensor.calls.call_cache import cached_call
from stratal.tensor.functions.creation import zeros
from stratal.tensor.functions.elementwise import clip, minimum
from stratal.tensor.functions.reductions import norm
from stratal.tensor.functions.shapes import concat
from stratal.tensor.tensor import Tensor
from stratal.tensor.values.state import no_grad


class Gradients(NamedTuple):
    """Gradients over the whole batch: those of parameters, or this rank's share of all their elements.

    `over_ranks`: makes a scalar that was computed of a share that of all, by a reduction "sum", "max" or
    "min"; None where each rank has everything.
    """

    tensors: list[Tensor]
    over_ranks: Callable[[Tensor, str], Tensor] | None = None

    def norm(self, norm_type: float) -> Tensor:
        """Return the joint norm; of shares in float64, whose powers do not overflow."""
        total: Tensor = _joint_norm(self.tensors, norm_type)
        if self.over_ranks is None:
            return total
        if norm_type == float("inf"):
            return self.over_ranks(total, "max")
        powers = self.over_ranks(total.to("float64") ** norm_type, "sum")
        return (powers ** (1.0 / norm_type)).to(total.dtype)

    def all_hold(self, x: Tensor) -> Tensor:
        """Return whether a truth value of what this rank has is true on every rank."""
        return x if self.over_ranks is None else self.over_ranks(x.to("float32"), "min") > 0


class SharedStep(Protocol):
    """A step that ranks take together."""

    def gradients(self, params: Sequence[Tensor]) -> Gradients | None:
        """Put gradients over the whole batch in place of this rank's own; return this rank's share where no
        rank has all of them, else None.
        """

    def with_gradient(self, params: Sequence[Tensor]) -> list[Tensor]:
        """Return those of some parameters that have a gradient, also where it is shared out among ranks."""

    def changed(self, params: Sequence[Tensor]) -> None:
        """Note that whole gradients were changed, in the same way on every rank."""

    def check_whole(self, gradients: Sequence[Tensor]) -> None:
        """Refuse gradients that are this rank's own. Raises: CallOrderError."""


SHARED_STEP: ContextVar[SharedStep | None] = ContextVar("shared_step", default=None)


@contextmanager
def whole_gradients(params: Sequence[Tensor]) -> Iterator[Gradients]:
    """Give the gradients of the whole batch, where ranks share one, to what changes them inside.

    `params` are those that have a gradient.
    """
    step = SHARED_STEP.get()
    found = None if step is None else step.gradients(params)
    yield Gradients([p.grad for p in params if p.grad is not None]) if found is None else found
    if step is not None:
        step.changed(params)


def _with_grad(parameters: Any) -> list[Tensor]:
    return with_gradient([parameters] if isinstance(parameters, Tensor) else list(parameters))


def with_gradient(params: Sequence[Tensor]) -> list[Tensor]:
    """Return those of some parameters that have a gradient, in this step of all ranks."""
    step = SHARED_STEP.get()
    return [p for p in params if p.grad is not None] if step is None else step.with_gradient(params)


@cached_call
def _joint_norm(tensors: list[Tensor], norm_type: float) -> Tensor:
    return norm(concat([norm(t, norm_type).reshape((1,)) for t in tensors]), norm_type)


@cached_call
def _scaled(tensors: list[Tensor], max_norm: float, total_norm: Tensor) -> list[Tensor]:
    factor = minimum(max_norm / (total_norm + 1e-6), 1.0)
    return [t * factor.to(t.dtype) for t in tensors]


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
        if error_if_nonfinite:
            _check_finite(total)
    return total


def _check_finite(total: Tensor) -> None:
    if not float(total) < float("inf"):
        raise AttributeValueError("get_total_norm: the norm is not finite", got=str(float(total)))


def clip_grads_with_norm_(
    parameters: Any, max_norm: float, total_norm: Tensor, foreach: bool | None = None
) -> None:
    """Scale all gradients by max_norm / total_norm where that is below 1."""
    with whole_gradients(_with_grad(parameters)) as gradients:
        _scale(gradients, max_norm, total_norm)


def _scale(gradients: Gradients, max_norm: float, total_norm: Tensor) -> None:
    with no_grad():
        scaled = _scaled(gradients.tensors, max_norm, total_norm)
        for grad, new in zip(gradients.tensors, scaled, strict=True):
            grad.copy_(new)


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
    if not params:
        return zeros(())
    with whole_gradients(params) as gradients:
        with no_grad():
            total = gradients.norm(float(norm_type))
            if error_if_nonfinite:
                _check_finite(total)
        _scale(gradients, max_norm, total)
    return total


def clip_grad_value_(parameters: Any, clip_value: float, foreach: bool | None = None) -> None:
    """Clamp every element of every gradient to [-clip_value, clip_value]."""
    with no_grad(), whole_gradients(_with_grad(parameters)) as gradients:
        for grad in gradients.tensors:
            grad.copy_(clip(grad, -float(clip_value), float(clip_value)))


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
