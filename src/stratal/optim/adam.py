"""Adam and AdamW: steps scaled by running means of the gradient and of its square.

See: Kingma and Ba 2015, algorithm 1; Loshchilov and Hutter 2019 (decoupled weight decay); Reddi, Kale and
Kumar 2018 (amsgrad).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stratal.optim.group import ParamGroup
from stratal.optim.optimizer import Optimizer, Scalars, Shape, State, betas, decay_scalars, decayed
from stratal.tensor.elementwise import maximum, sqrt
from stratal.tensor.tensor import Tensor


class Adam(Optimizer):
    """m <- m + (1 - b1)(g - m);  v <- b2 v + (1 - b2) g^2;  p <- p - lr / (1 - b1^t) * m / (sqrt(v / (1 -
    b2^t)) + eps).

    Weight decay adds `weight_decay * p` to the gradient (L2); decoupled, as in `AdamW`, it shrinks the
    parameter instead.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        decoupled_weight_decay: bool = False,
        **options: Any,
    ) -> None:
        defaults = {
            "lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad,
            "maximize": maximize, "decoupled_weight_decay": decoupled_weight_decay,
        }  # fmt: skip
        super().__init__(params, defaults, **options)

    def slots(self, group: ParamGroup, shape: Shape) -> dict[str, float]:
        names = ["exp_avg", "exp_avg_sq"] + (["max_exp_avg_sq"] if group["amsgrad"] else [])
        return dict.fromkeys(names, 0.0)

    def prelude(self, group: ParamGroup, count: Tensor | None) -> Scalars:
        assert count is not None
        beta1, beta2 = group.betas()
        correction = sqrt(1.0 - beta2**count)  # both sides of the quotient times it: one division less
        return {
            "rate": group.scalar("lr") / (1.0 - beta1**count) * correction,
            "eps": group["eps"] * correction,
            **decay_scalars(group),
        }

    def update(
        self, group: ParamGroup, param: Tensor, grad: Tensor, state: State, scalars: Scalars
    ) -> tuple[Tensor, State]:
        beta1, beta2 = betas(group, scalars)
        param, grad = decayed(group, param, grad, scalars)
        mean = state["exp_avg"] + (1.0 - beta1) * (grad - state["exp_avg"])
        square = state["exp_avg_sq"] * beta2 + (1.0 - beta2) * grad * grad
        changed = {"exp_avg": mean, "exp_avg_sq": square}
        if group["amsgrad"]:
            square = changed["max_exp_avg_sq"] = maximum(state["max_exp_avg_sq"], square)
        return param - scalars["rate"] * (mean / (sqrt(square) + scalars["eps"])), changed


class AdamW(Adam):
    """Adam with decoupled weight decay: p <- p * (1 - lr * weight_decay) before the step."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(
            params, lr, betas, eps, weight_decay, amsgrad,
            maximize=maximize, decoupled_weight_decay=True, **options,
        )  # fmt: skip
