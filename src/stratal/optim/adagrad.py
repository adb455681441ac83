"""Adagrad: rates that shrink with the sum of squared gradients. See: Duchi, Hazan and Singer 2011."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stratal.optim.group import ParamGroup
from stratal.optim.optimizer import Optimizer, Scalars, Shape, State, decay_scalars, decayed
from stratal.tensor.elementwise import sqrt
from stratal.tensor.tensor import Tensor


class Adagrad(Optimizer):
    """s <- s + g^2;  p <- p - lr / (1 + (t - 1) * lr_decay) * g / (sqrt(s) + eps)."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        *,
        maximize: bool = False,
        **options: Any,
    ) -> None:
        defaults = {
            "lr": lr, "lr_decay": lr_decay, "weight_decay": weight_decay,
            "initial_accumulator_value": initial_accumulator_value, "eps": eps, "maximize": maximize,
        }  # fmt: skip
        super().__init__(params, defaults, **options)

    def slots(self, group: ParamGroup, shape: Shape) -> dict[str, float]:
        return {"sum": group["initial_accumulator_value"]}

    def prelude(self, group: ParamGroup, count: Tensor | None) -> Scalars:
        rate = group.scalar("lr")
        if group["lr_decay"] and count is not None:
            rate = rate / (1.0 + (count - 1.0) * group["lr_decay"])
        return {"rate": rate, **decay_scalars(group)}

    def update(
        self, group: ParamGroup, param: Tensor, grad: Tensor, state: State, scalars: Scalars
    ) -> tuple[Tensor, State]:
        param, grad = decayed(group, param, grad, scalars)
        total = state["sum"] + grad * grad
        return param - scalars["rate"] * (grad / (sqrt(total) + group["eps"])), {"sum": total}
