"""ASGD: SGD whose parameters are averaged beside it. See: Polyak and Juditsky 1992."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stratal.optim.group import ParamGroup
from stratal.optim.optimizer import Optimizer, Scalars, Shape, State, decay_scalars, decayed
from stratal.tensor.elementwise import maximum, where
from stratal.tensor.tensor import Tensor


class ASGD(Optimizer):
    """p <- p * (1 - lambd * eta) - eta * g;  eta = lr / (1 + lambd * lr * t)^alpha, of the step before;
    the state `ax` is p until step t0, then the mean of p since.
    """

    nonnegative = ("lr", "weight_decay")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        **options: Any,
    ) -> None:
        defaults = {
            "lr": lr, "lambd": lambd, "alpha": alpha, "t0": t0, "weight_decay": weight_decay,
            "maximize": maximize,
        }  # fmt: skip
        super().__init__(params, defaults, **options)

    def slots(self, group: ParamGroup, shape: Shape) -> dict[str, float]:
        return {"eta": group["lr"], "mu": 1.0, "ax": 0.0}

    def slot_shape(self, name: str, shape: Shape) -> Shape:
        return shape if name == "ax" else ()

    def prelude(self, group: ParamGroup, count: Tensor | None) -> Scalars:
        assert count is not None
        lr = group.scalar("lr")
        return {
            "eta": lr / (1.0 + group["lambd"] * lr * count) ** group["alpha"],
            "mu": 1.0 / maximum(count - group["t0"], 1.0),
            **decay_scalars(group),
        }

    def update(
        self, group: ParamGroup, param: Tensor, grad: Tensor, state: State, scalars: Scalars
    ) -> tuple[Tensor, State]:
        eta, mu = state["eta"], state["mu"]
        param, grad = decayed(group, param, grad, scalars)
        param = param * (1.0 - group["lambd"] * eta) - eta * grad
        mean = where(mu == 1.0, param, state["ax"] + (param - state["ax"]) * mu)
        return param, {"eta": scalars["eta"], "mu": scalars["mu"], "ax": mean}
