"""SGD: stochastic gradient descent with momentum, Nesterov's form of it, and weight decay."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stratal.base.errors import AttributeValueError
from stratal.optim.group import ParamGroup
from stratal.optim.optimizer import Optimizer, Scalars, Shape, State, decayed
from stratal.tensor.elementwise import where
from stratal.tensor.tensor import Tensor


class SGD(Optimizer):
    """p <- p - lr * g; with momentum, v <- momentum * v + (1 - dampening) * g stands in for g (the first v
    is g).
    """

    runtime = ("lr", "weight_decay", "momentum")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        **options: Any,
    ) -> None:
        self.counts_steps = dampening != 0  # type: ignore[misc]  # only the first step with dampening is special
        defaults = {
            "lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay,
            "nesterov": nesterov, "maximize": maximize,
        }  # fmt: skip
        super().__init__(params, defaults, **options)

    def check(self, group: ParamGroup) -> None:
        super().check(group)
        if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
            raise AttributeValueError("SGD: Nesterov momentum needs a momentum and no dampening")

    def slots(self, group: ParamGroup, shape: Shape) -> dict[str, float]:
        return {"momentum_buffer": 0.0} if group["momentum"] else {}

    def prelude(self, group: ParamGroup, count: Tensor | None) -> Scalars:
        scalars = super().prelude(group, count)
        if group["momentum"] and group["dampening"] and count is not None:
            scalars["share"] = where(count == 1.0, count, 1.0 - group["dampening"])
        return scalars

    def update(
        self, group: ParamGroup, param: Tensor, grad: Tensor, state: State, scalars: Scalars
    ) -> tuple[Tensor, State]:
        param, grad = decayed(group, param, grad, scalars)
        if not group["momentum"]:
            return param - scalars["lr"] * grad, {}
        added = grad * scalars["share"] if "share" in scalars else grad
        velocity = scalars["momentum"] * state["momentum_buffer"] + added
        direction = grad + scalars["momentum"] * velocity if group["nesterov"] else velocity
        return param - scalars["lr"] * direction, {"momentum_buffer": velocity}
