"""Stochastic gradient descent, and its form that averages parameters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stratal.base.errors import AttributeValueError
from stratal.optim.group import ParamGroup, Scalars, decay_scalars, decayed, hyperparameters
from stratal.optim.optimizer import Optimizer, Shape, State, Step
from stratal.tensor.functions.elementwise import maximum, where
from stratal.tensor.tensor import Tensor


class SGD(Optimizer):
    """Stochastic gradient descent with momentum, Nesterov's form of it, and weight decay.

    p <- p - lr * g; with momentum, v <- momentum * v + (1 - dampening) * g stands in for g (the first v
    is g).
    """

    runtime = ("lr", "weight_decay", "momentum")
    shows_steps = False  # PyTorch's state tells the first step by the missing buffer

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, momentum: float = 0.0, dampening: float = 0.0,
        weight_decay: float = 0.0, nesterov: bool = False, *, maximize: bool = False, **options: Any
    ) -> None:
        super().__init__(params, hyperparameters(locals()), **options)

    def check(self, group: ParamGroup) -> None:
        super().check(group)
        if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
            raise AttributeValueError("SGD: Nesterov momentum needs a momentum and no dampening")

    def counts(self, group: ParamGroup) -> bool:
        return bool(group["momentum"] and group["dampening"])  # only then is the first step special

    def slots(self, group: ParamGroup, shape: Shape) -> dict[str, float]:
        return {"momentum_buffer": 0.0} if group["momentum"] else {}

    def prelude(self, group: ParamGroup, count: Tensor | None) -> Scalars:
        scalars = super().prelude(group, count)
        if count is not None:
            scalars["share"] = where(count == 1.0, count, 1.0 - group["dampening"])
        return scalars

    def update(self, group: ParamGroup, param: Tensor, grad: Tensor, state: State, scalars: Scalars) -> Step:
        param, grad = decayed(group, param, grad, scalars)
        if not group["momentum"]:
            return param - scalars["lr"] * grad, {}
        added = grad * scalars["share"] if "share" in scalars else grad
        velocity = scalars["momentum"] * state["momentum_buffer"] + added
        direction = grad + scalars["momentum"] * velocity if group["nesterov"] else velocity
        return param - scalars["lr"] * direction, {"momentum_buffer": velocity}


class ASGD(Optimizer):
    """SGD whose parameters are averaged beside it. See: Polyak and Juditsky 1992.

    p <- p * (1 - lambd * eta) - eta * g;  eta = lr / (1 + lambd * lr * t)^alpha, of the step before, lr
    in the first; the state `ax` is p until step t0, then the mean of p since.
    """

    nonnegative = ("lr", "weight_decay")
    scalar_slots = ("eta", "mu")

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-2, lambd: float = 1e-4, alpha: float = 0.75,
        t0: float = 1e6, weight_decay: float = 0.0, *, maximize: bool = False, **options: Any
    ) -> None:
        super().__init__(params, hyperparameters(locals()), **options)

    def slots(self, group: ParamGroup, shape: Shape) -> dict[str, float]:
        return {"eta": 0.0, "mu": 1.0, "ax": 0.0}  # eta of the first step is lr

    def prelude(self, group: ParamGroup, count: Any) -> Scalars:
        lr = group.scalar("lr")
        return {
            "lr": lr,
            "first": count == 1.0,
            "eta": lr / (1.0 + group["lambd"] * lr * count) ** group["alpha"],
            "mu": 1.0 / maximum(count - group["t0"], 1.0),
            **decay_scalars(group),
        }

    def update(self, group: ParamGroup, param: Tensor, grad: Tensor, state: State, scalars: Scalars) -> Step:
        eta, mu = where(scalars["first"] > 0.0, scalars["lr"], state["eta"]), state["mu"]
        param, grad = decayed(group, param, grad, scalars)
        param = param * (1.0 - group["lambd"] * eta) - eta * grad
        mean = where(mu == 1.0, param, state["ax"] + (param - state["ax"]) * mu)
        return param, {"eta": scalars["eta"], "mu": scalars["mu"], "ax": mean}
