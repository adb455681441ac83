"""NAdam: Adam with Nesterov's look ahead. See: Dozat 2016, with the schedule of its section 3.2."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stratal.optim.group import ParamGroup
from stratal.optim.optimizer import Optimizer, Scalars, Shape, State, betas, decay_scalars, decayed
from stratal.tensor.elementwise import sqrt
from stratal.tensor.tensor import Tensor


class NAdam(Optimizer):
    """mu_t = b1 (1 - 0.96^(t * momentum_decay) / 2), M_t the product of all so far;  m and v as in Adam;
    p <- p - lr * ((1 - mu_t) / (1 - M_t) * g + mu_{t+1} / (1 - M_{t+1}) * m) / (sqrt(v / (1 - b2^t)) + eps).
    """

    nonnegative = ("lr", "weight_decay", "eps", "momentum_decay")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        *,
        maximize: bool = False,
        **options: Any,
    ) -> None:
        defaults = {
            "lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay,
            "momentum_decay": momentum_decay, "decoupled_weight_decay": decoupled_weight_decay,
            "maximize": maximize,
        }  # fmt: skip
        super().__init__(params, defaults, **options)

    def slots(self, group: ParamGroup, shape: Shape) -> dict[str, float]:
        return {"exp_avg": 0.0, "exp_avg_sq": 0.0, "mu_product": 1.0}

    def slot_shape(self, name: str, shape: Shape) -> Shape:
        return () if name == "mu_product" else shape

    def prelude(self, group: ParamGroup, count: Tensor | None) -> Scalars:
        assert count is not None
        beta1, beta2 = group.betas()

        def momentum(step: Tensor) -> Tensor:
            return beta1 * (1.0 - 0.5 * 0.96 ** (step * group["momentum_decay"]))

        return {
            "lr": group.scalar("lr"), "mu": momentum(count), "mu_next": momentum(count + 1.0),
            "correction": sqrt(1.0 - beta2**count), **decay_scalars(group),
        }  # fmt: skip

    def update(
        self, group: ParamGroup, param: Tensor, grad: Tensor, state: State, scalars: Scalars
    ) -> tuple[Tensor, State]:
        beta1, beta2 = betas(group, scalars)
        mu, mu_next = scalars["mu"], scalars["mu_next"]
        param, grad = decayed(group, param, grad, scalars)
        product = state["mu_product"] * mu
        mean = state["exp_avg"] + (1.0 - beta1) * (grad - state["exp_avg"])
        square = state["exp_avg_sq"] * beta2 + (1.0 - beta2) * grad * grad
        ahead = (1.0 - mu) / (1.0 - product) * grad + mu_next / (1.0 - product * mu_next) * mean
        step = scalars["lr"] * (ahead / (sqrt(square) / scalars["correction"] + group["eps"]))
        return param - step, {"exp_avg": mean, "exp_avg_sq": square, "mu_product": product}
