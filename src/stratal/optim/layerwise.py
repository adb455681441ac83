"""LARS and LAMB: steps in proportion to the norm of each parameter, for large batches.

Where a parameter or its step is zero, the step is taken as it is. Both usually leave biases and the scales of
norms out: give these a group of `SGD` or `AdamW`. See: You, Gitman and Ginsburg 2017; You et al. 2020.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stratal.optim.group import ParamGroup, Scalars, betas, decay_scalars, hyperparameters
from stratal.optim.optimizer import Optimizer, Shape, State, Step
from stratal.tensor.functions.elementwise import sqrt, where
from stratal.tensor.tensor import Tensor


def _norm(x: Tensor) -> Tensor:
    return sqrt((x * x).sum())


def _ratio(of: Tensor, to: Tensor) -> Tensor:
    """Return of / to, and 1 where either is zero."""
    both = (of > 0.0) & (to > 0.0)
    return where(both, of / where(both, to, 1.0), 1.0)


class LARS(Optimizer):
    """v <- momentum * v + trust * |p| / (|g| + weight_decay * |p| + eps) * (g + weight_decay * p);
    p <- p - lr * v, where trust is `trust_coefficient`.
    """

    runtime = ("lr", "weight_decay", "momentum")
    counts_steps = False

    def __init__(
        self, params: Iterable[Any], lr: float = 1.0, momentum: float = 0.9, weight_decay: float = 0.0,
        trust_coefficient: float = 1e-3, eps: float = 1e-8, nesterov: bool = False, *, maximize: bool = False,
        **options: Any
    ) -> None:
        super().__init__(params, hyperparameters(locals()), **options)

    def slots(self, group: ParamGroup, shape: Shape) -> dict[str, float]:
        return {"momentum_buffer": 0.0} if group["momentum"] else {}

    def update(self, group: ParamGroup, param: Tensor, grad: Tensor, state: State, scalars: Scalars) -> Step:
        size, slope = _norm(param), _norm(grad)
        if group["weight_decay"]:
            grad = grad + scalars["decay"] * param
            slope = where(slope > 0.0, slope + scalars["decay"] * size, slope)
        trust = where(slope > 0.0, slope + group["eps"], slope)
        local = where((size > 0.0) & (slope > 0.0), group["trust_coefficient"] * _ratio(size, trust), 1.0)
        step = local * grad
        if not group["momentum"]:
            return param - scalars["lr"] * step, {}
        velocity = scalars["momentum"] * state["momentum_buffer"] + step
        direction = step + scalars["momentum"] * velocity if group["nesterov"] else velocity
        return param - scalars["lr"] * direction, {"momentum_buffer": velocity}


class LAMB(Optimizer):
    """r = m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + weight_decay * p, m and v as in Adam;
    p <- p - lr * |p| / |r| * r.
    """

    zero_slots = ("exp_avg", "exp_avg_sq")

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6, weight_decay: float = 0.0, *, maximize: bool = False, **options: Any
    ) -> None:
        super().__init__(params, hyperparameters(locals()), **options)

    def prelude(self, group: ParamGroup, count: Any) -> Scalars:
        beta1, beta2 = group.betas()
        correction = sqrt(1.0 - beta2**count)
        return {
            "lr": group.scalar("lr"),
            "scale": correction / (1.0 - beta1**count),
            "eps": group["eps"] * correction,
            **decay_scalars(group),
        }

    def update(self, group: ParamGroup, param: Tensor, grad: Tensor, state: State, scalars: Scalars) -> Step:
        _, beta2, rest1, rest2 = betas(group, scalars)
        mean = state["exp_avg"] + rest1 * (grad - state["exp_avg"])
        square = state["exp_avg_sq"] * beta2 + rest2 * grad * grad
        step = scalars["scale"] * (mean / (sqrt(square) + scalars["eps"]))
        if group["weight_decay"]:
            step = step + scalars["decay"] * param
        trust = _ratio(_norm(param), _norm(step))
        return param - scalars["lr"] * trust * step, {"exp_avg": mean, "exp_avg_sq": square}
