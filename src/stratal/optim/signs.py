"""Steps along the signs of gradients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stratal.base.errors import AttributeValueError
from stratal.optim.group import ParamGroup, Scalars, betas, decayed, hyperparameters
from stratal.optim.optimizer import Optimizer, State, Step
from stratal.tensor.functions.elementwise import clip, sign, where
from stratal.tensor.tensor import Tensor


class Lion(Optimizer):
    """Steps of one size, along the sign of an average of gradients. See: Chen et al. 2023, program 1.

    p <- p * (1 - lr * weight_decay) - lr * sign(b1 m + (1 - b1) g);  m <- b2 m + (1 - b2) g.
    """

    counts_steps = False
    zero_slots = ("exp_avg",)

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0, *, maximize: bool = False, **options: Any
    ) -> None:
        super().__init__(params, hyperparameters(locals(), decoupled_weight_decay=True), **options)

    def update(self, group: ParamGroup, param: Tensor, grad: Tensor, state: State, scalars: Scalars) -> Step:
        beta1, beta2, rest1, rest2 = betas(group, scalars)
        param, grad = decayed(group, param, grad, scalars)
        mean = state["exp_avg"]
        direction = sign(mean * beta1 + rest1 * grad)
        return param - scalars["lr"] * direction, {"exp_avg": mean * beta2 + rest2 * grad}


class Rprop(Optimizer):
    """Steps that depend on the signs of gradients alone. See: Riedmiller and Braun 1993.

    A step, at first `lr`, grows by etas[1] where two gradients in a row have one sign, and shrinks by
    etas[0] where they do not; there the parameter rests and the gradient counts as zero.

    p <- p - step * sign(g)
    """

    runtime = ("lr",)
    nonnegative = ("lr",)
    zero_slots = ("prev", "step_size")  # that of the first step is lr

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-2, etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50.0), *, maximize: bool = False, **options: Any
    ) -> None:
        super().__init__(params, hyperparameters(locals()), **options)

    def check(self, group: ParamGroup) -> None:
        super().check(group)
        down, up = group["etas"]
        if not 0 < down < 1 < up:
            raise AttributeValueError("Rprop: etas must hold 0 < etas[0] < 1 < etas[1]", got=str((down, up)))

    def prelude(self, group: ParamGroup, count: Any) -> Scalars:
        return {"lr": group.scalar("lr"), "first": count == 1.0}

    def update(self, group: ParamGroup, param: Tensor, grad: Tensor, state: State, scalars: Scalars) -> Step:
        down, up = group["etas"]
        agreement = grad * state["prev"]
        size = where(scalars["first"] > 0.0, scalars["lr"], state["step_size"])
        size = where(agreement > 0.0, size * up, where(agreement < 0.0, size * down, size))
        size = clip(size, *group["step_sizes"])
        grad = where(agreement < 0.0, 0.0, grad)
        return param - sign(grad) * size, {"prev": grad, "step_size": size}
