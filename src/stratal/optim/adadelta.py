"""Adadelta: gradients divided by their recent size and times that of recent steps. See: Zeiler 2012."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stratal.base.errors import AttributeValueError
from stratal.optim.group import ParamGroup
from stratal.optim.optimizer import Optimizer, Scalars, Shape, State, decayed
from stratal.tensor.elementwise import sqrt
from stratal.tensor.tensor import Tensor


class Adadelta(Optimizer):
    """v <- rho v + (1 - rho) g^2;  d = sqrt(u + eps) / sqrt(v + eps) * g;  u <- rho u + (1 - rho) d^2;
    p <- p - lr * d.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        **options: Any,
    ) -> None:
        defaults = {"lr": lr, "rho": rho, "eps": eps, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, defaults, **options)

    def check(self, group: ParamGroup) -> None:
        super().check(group)
        if not 0 <= group["rho"] <= 1:
            raise AttributeValueError("Adadelta: rho must lie in [0, 1]", got=str(group["rho"]))

    def slots(self, group: ParamGroup, shape: Shape) -> dict[str, float]:
        return {"square_avg": 0.0, "acc_delta": 0.0}

    def update(
        self, group: ParamGroup, param: Tensor, grad: Tensor, state: State, scalars: Scalars
    ) -> tuple[Tensor, State]:
        rho, eps = group["rho"], group["eps"]
        param, grad = decayed(group, param, grad, scalars)
        square = state["square_avg"] * rho + (1.0 - rho) * grad * grad
        delta = sqrt(state["acc_delta"] + eps) / sqrt(square + eps) * grad
        steps = state["acc_delta"] * rho + (1.0 - rho) * delta * delta
        return param - scalars["lr"] * delta, {"square_avg": square, "acc_delta": steps}
