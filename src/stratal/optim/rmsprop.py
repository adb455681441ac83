"""RMSprop: gradients divided by the root of a running mean of their squares.

See: Tieleman and Hinton 2012.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stratal.optim.group import ParamGroup
from stratal.optim.optimizer import Optimizer, Scalars, Shape, State, decayed
from stratal.tensor.elementwise import sqrt
from stratal.tensor.tensor import Tensor


class RMSprop(Optimizer):
    """v <- alpha v + (1 - alpha) g^2;  p <- p - lr * g / (sqrt(v) + eps); `centered` subtracts the squared
    mean from v.
    """

    runtime = ("lr", "weight_decay", "momentum")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        *,
        maximize: bool = False,
        **options: Any,
    ) -> None:
        defaults = {
            "lr": lr, "alpha": alpha, "eps": eps, "weight_decay": weight_decay, "momentum": momentum,
            "centered": centered, "maximize": maximize,
        }  # fmt: skip
        super().__init__(params, defaults, **options)

    def slots(self, group: ParamGroup, shape: Shape) -> dict[str, float]:
        names = ["square_avg"]
        names += ["momentum_buffer"] if group["momentum"] else []
        names += ["grad_avg"] if group["centered"] else []
        return dict.fromkeys(names, 0.0)

    def update(
        self, group: ParamGroup, param: Tensor, grad: Tensor, state: State, scalars: Scalars
    ) -> tuple[Tensor, State]:
        alpha = group["alpha"]
        param, grad = decayed(group, param, grad, scalars)
        square = state["square_avg"] * alpha + (1.0 - alpha) * grad * grad
        changed = {"square_avg": square}
        spread = square
        if group["centered"]:
            mean = state["grad_avg"] + (1.0 - alpha) * (grad - state["grad_avg"])
            changed["grad_avg"] = mean
            spread = square - mean * mean
        direction = grad / (sqrt(spread) + group["eps"])
        if group["momentum"]:
            direction = changed["momentum_buffer"] = (
                scalars["momentum"] * state["momentum_buffer"] + direction
            )
        return param - scalars["lr"] * direction, changed
