"""RAdam: Adam that does without its denominator while too few squares were seen. See: Liu et al. 2020."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stratal.optim.group import ParamGroup
from stratal.optim.optimizer import Optimizer, Scalars, Shape, State, betas, decay_scalars, decayed
from stratal.tensor.elementwise import sqrt, where
from stratal.tensor.tensor import Tensor


class RAdam(Optimizer):
    """m and v as in Adam;  r follows from the length rho_t of the average in v (algorithm 2 of the paper);
    p <- p - lr * m / (1 - b1^t) * (r * sqrt(1 - b2^t) / (sqrt(v) + eps) if rho_t > 5 else 1).
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
        *,
        maximize: bool = False,
        **options: Any,
    ) -> None:
        defaults = {
            "lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay,
            "decoupled_weight_decay": decoupled_weight_decay, "maximize": maximize,
        }  # fmt: skip
        super().__init__(params, defaults, **options)

    def slots(self, group: ParamGroup, shape: Shape) -> dict[str, float]:
        return {"exp_avg": 0.0, "exp_avg_sq": 0.0}

    def prelude(self, group: ParamGroup, count: Tensor | None) -> Scalars:
        assert count is not None
        beta1, beta2 = group.betas()
        left = 1.0 - beta2**count
        longest = 2.0 / (1.0 - beta2) - 1.0
        length = longest - 2.0 * count * (1.0 - left) / left
        enough = length > 5.0
        safe = where(enough, length, 6.0)  # no root of a negative number in the branch not taken
        share = (safe - 4.0) * (safe - 2.0) * longest / ((longest - 4.0) * (longest - 2.0) * safe)
        return {
            "rate": group.scalar("lr") / (1.0 - beta1**count),
            "rectified": where(enough, sqrt(abs(share) * left), 0.0),
            **decay_scalars(group),
        }

    def update(
        self, group: ParamGroup, param: Tensor, grad: Tensor, state: State, scalars: Scalars
    ) -> tuple[Tensor, State]:
        beta1, beta2 = betas(group, scalars)
        rectified = scalars["rectified"]
        param, grad = decayed(group, param, grad, scalars)
        mean = state["exp_avg"] + (1.0 - beta1) * (grad - state["exp_avg"])
        square = state["exp_avg_sq"] * beta2 + (1.0 - beta2) * grad * grad
        scale = where(rectified > 0.0, rectified / (sqrt(square) + group["eps"]), 1.0)
        return param - scalars["rate"] * (mean * scale), {"exp_avg": mean, "exp_avg_sq": square}
