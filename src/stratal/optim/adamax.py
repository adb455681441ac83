"""Adamax: Adam with the greatest of recent gradients in the place of the root of the mean square.

See: Kingma and Ba 2015, algorithm 2.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stratal.optim.group import ParamGroup
from stratal.optim.optimizer import Optimizer, Scalars, Shape, State, betas, decay_scalars, decayed
from stratal.tensor.elementwise import maximum
from stratal.tensor.tensor import Tensor


class Adamax(Optimizer):
    """m <- m + (1 - b1)(g - m);  u <- max(b2 u, |g| + eps);  p <- p - lr / (1 - b1^t) * m / u."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        **options: Any,
    ) -> None:
        defaults = {
            "lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay, "maximize": maximize,
        }  # fmt: skip
        super().__init__(params, defaults, **options)

    def slots(self, group: ParamGroup, shape: Shape) -> dict[str, float]:
        return {"exp_avg": 0.0, "exp_inf": 0.0}

    def prelude(self, group: ParamGroup, count: Tensor | None) -> Scalars:
        assert count is not None
        return {"rate": group.scalar("lr") / (1.0 - group.betas()[0] ** count), **decay_scalars(group)}

    def update(
        self, group: ParamGroup, param: Tensor, grad: Tensor, state: State, scalars: Scalars
    ) -> tuple[Tensor, State]:
        beta1, beta2 = betas(group, scalars)
        param, grad = decayed(group, param, grad, scalars)
        mean = state["exp_avg"] + (1.0 - beta1) * (grad - state["exp_avg"])
        peak = maximum(state["exp_inf"] * beta2, abs(grad) + group["eps"])
        return param - scalars["rate"] * (mean / peak), {"exp_avg": mean, "exp_inf": peak}
