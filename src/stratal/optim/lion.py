"""Lion: steps of one size, along the sign of an average of gradients. See: Chen et al. 2023, program 1."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stratal.optim.group import ParamGroup
from stratal.optim.optimizer import Optimizer, Scalars, Shape, State, betas, decayed
from stratal.tensor.elementwise import sign
from stratal.tensor.tensor import Tensor


class Lion(Optimizer):
    """p <- p * (1 - lr * weight_decay) - lr * sign(b1 m + (1 - b1) g);  m <- b2 m + (1 - b2) g."""

    counts_steps = False

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        **options: Any,
    ) -> None:
        defaults = {
            "lr": lr, "betas": tuple(betas), "weight_decay": weight_decay, "decoupled_weight_decay": True,
            "maximize": maximize,
        }  # fmt: skip
        super().__init__(params, defaults, **options)

    def slots(self, group: ParamGroup, shape: Shape) -> dict[str, float]:
        return {"exp_avg": 0.0}

    def update(
        self, group: ParamGroup, param: Tensor, grad: Tensor, state: State, scalars: Scalars
    ) -> tuple[Tensor, State]:
        beta1, beta2 = betas(group, scalars)
        param, grad = decayed(group, param, grad, scalars)
        mean = state["exp_avg"]
        direction = sign(mean * beta1 + (1.0 - beta1) * grad)
        return param - scalars["lr"] * direction, {"exp_avg": mean * beta2 + (1.0 - beta2) * grad}
