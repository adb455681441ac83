"""Adam and its kin: steps scaled by running means of the gradient and of its square."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stratal.optim.group import ParamGroup, Scalars, betas, decay_scalars, decayed, hyperparameters
from stratal.optim.optimizer import Optimizer, Shape, State, Step
from stratal.tensor.functions.elementwise import maximum, sqrt, where
from stratal.tensor.tensor import Tensor


class Adam(Optimizer):
    """Steps scaled by running means of the gradient and of its square. See: Kingma and Ba 2015, algorithm 1;
    Reddi, Kale and Kumar 2018 (amsgrad).

    m <- m + (1 - b1)(g - m);  v <- b2 v + (1 - b2) g^2;  p <- p - lr / (1 - b1^t) * m / (sqrt(v / (1 -
    b2^t)) + eps).

    Weight decay adds `weight_decay * p` to the gradient (L2); decoupled, as in `AdamW`, it shrinks the
    parameter instead.
    """

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 0.0, amsgrad: bool = False, *, maximize: bool = False,
        decoupled_weight_decay: bool = False, **options: Any
    ) -> None:
        super().__init__(params, hyperparameters(locals()), **options)

    def slots(self, group: ParamGroup, shape: Shape) -> dict[str, float]:
        names = ["exp_avg", "exp_avg_sq"] + (["max_exp_avg_sq"] if group["amsgrad"] else [])
        return dict.fromkeys(names, 0.0)

    def prelude(self, group: ParamGroup, count: Any) -> Scalars:
        beta1, beta2 = group.betas()
        correction = sqrt(1.0 - beta2**count)  # both sides of the quotient times it: one division less
        return {
            "rate": group.scalar("lr") / (1.0 - beta1**count) * correction,
            "eps": group["eps"] * correction,
            **decay_scalars(group),
        }

    def update(self, group: ParamGroup, param: Tensor, grad: Tensor, state: State, scalars: Scalars) -> Step:
        _, beta2, rest1, rest2 = betas(group, scalars)
        param, grad = decayed(group, param, grad, scalars)
        mean = state["exp_avg"] + rest1 * (grad - state["exp_avg"])
        square = state["exp_avg_sq"] * beta2 + rest2 * grad * grad
        changed = {"exp_avg": mean, "exp_avg_sq": square}
        if group["amsgrad"]:
            square = changed["max_exp_avg_sq"] = maximum(state["max_exp_avg_sq"], square)
        return param - scalars["rate"] * (mean / (sqrt(square) + scalars["eps"])), changed


class AdamW(Adam):
    """Adam with decoupled weight decay: p <- p * (1 - lr * weight_decay) before the step. See: Loshchilov and
    Hutter 2019.
    """

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 1e-2, amsgrad: bool = False, *, maximize: bool = False,
        **options: Any
    ) -> None:
        super().__init__(
            params, lr, betas, eps, weight_decay, amsgrad,
            maximize=maximize, decoupled_weight_decay=True, **options,
        )  # fmt: skip


class Adamax(Optimizer):
    """Adam with the greatest of recent gradients in the place of the root of the mean square. See: Kingma and
    Ba 2015, algorithm 2.

    m <- m + (1 - b1)(g - m);  u <- max(b2 u, |g| + eps);  p <- p - lr / (1 - b1^t) * m / u.
    """

    zero_slots = ("exp_avg", "exp_inf")

    def __init__(
        self, params: Iterable[Any], lr: float = 2e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 0.0, *, maximize: bool = False, **options: Any
    ) -> None:
        super().__init__(params, hyperparameters(locals()), **options)

    def prelude(self, group: ParamGroup, count: Any) -> Scalars:
        return {"rate": group.scalar("lr") / (1.0 - group.betas()[0] ** count), **decay_scalars(group)}

    def update(self, group: ParamGroup, param: Tensor, grad: Tensor, state: State, scalars: Scalars) -> Step:
        _, beta2, rest1, _ = betas(group, scalars)
        param, grad = decayed(group, param, grad, scalars)
        mean = state["exp_avg"] + rest1 * (grad - state["exp_avg"])
        peak = maximum(state["exp_inf"] * beta2, abs(grad) + group["eps"])
        return param - scalars["rate"] * (mean / peak), {"exp_avg": mean, "exp_inf": peak}


class NAdam(Optimizer):
    """Adam with Nesterov's look ahead. See: Dozat 2016, with the schedule of its section 3.2.

    mu_t = b1 (1 - 0.96^(t * momentum_decay) / 2), M_t the product of all so far;  m and v as in Adam;
    p <- p - lr * ((1 - mu_t) / (1 - M_t) * g + mu_{t+1} / (1 - M_{t+1}) * m) / (sqrt(v / (1 - b2^t)) + eps).
    """

    nonnegative = ("lr", "weight_decay", "eps", "momentum_decay")
    scalar_slots = ("mu_product",)

    def __init__(
        self, params: Iterable[Any], lr: float = 2e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 0.0, momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False, *, maximize: bool = False, **options: Any
    ) -> None:
        super().__init__(params, hyperparameters(locals()), **options)

    def slots(self, group: ParamGroup, shape: Shape) -> dict[str, float]:
        return {"exp_avg": 0.0, "exp_avg_sq": 0.0, "mu_product": 1.0}

    def prelude(self, group: ParamGroup, count: Any) -> Scalars:
        beta1, beta2 = group.betas()

        def momentum(step: Tensor) -> Tensor:
            return beta1 * (1.0 - 0.5 * 0.96 ** (step * group["momentum_decay"]))

        return {
            "lr": group.scalar("lr"), "mu": momentum(count), "mu_next": momentum(count + 1.0),
            "correction": sqrt(1.0 - beta2**count), **decay_scalars(group),
        }  # fmt: skip

    def update(self, group: ParamGroup, param: Tensor, grad: Tensor, state: State, scalars: Scalars) -> Step:
        _, beta2, rest1, rest2 = betas(group, scalars)
        mu, mu_next = scalars["mu"], scalars["mu_next"]
        param, grad = decayed(group, param, grad, scalars)
        product = state["mu_product"] * mu
        mean = state["exp_avg"] + rest1 * (grad - state["exp_avg"])
        square = state["exp_avg_sq"] * beta2 + rest2 * grad * grad
        ahead = (1.0 - mu) / (1.0 - product) * grad + mu_next / (1.0 - product * mu_next) * mean
        step = scalars["lr"] * (ahead / (sqrt(square) / scalars["correction"] + group["eps"]))
        return param - step, {"exp_avg": mean, "exp_avg_sq": square, "mu_product": product}


class RAdam(Optimizer):
    """Adam that does without its denominator while too few squares were seen. See: Liu et al. 2020.

    m and v as in Adam;  r follows from the length rho_t of the average in v (algorithm 2 of the paper);
    p <- p - lr * m / (1 - b1^t) * (r * sqrt(1 - b2^t) / (sqrt(v) + eps) if rho_t > 5 else 1).
    """

    zero_slots = ("exp_avg", "exp_avg_sq")

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 0.0, decoupled_weight_decay: bool = False, *,
        maximize: bool = False, **options: Any
    ) -> None:
        super().__init__(params, hyperparameters(locals()), **options)

    def prelude(self, group: ParamGroup, count: Any) -> Scalars:
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

    def update(self, group: ParamGroup, param: Tensor, grad: Tensor, state: State, scalars: Scalars) -> Step:
        _, beta2, rest1, rest2 = betas(group, scalars)
        rectified = scalars["rectified"]
        param, grad = decayed(group, param, grad, scalars)
        mean = state["exp_avg"] + rest1 * (grad - state["exp_avg"])
        square = state["exp_avg_sq"] * beta2 + rest2 * grad * grad
        scale = where(rectified > 0.0, rectified / (sqrt(square) + group["eps"]), 1.0)
        return param - scalars["rate"] * (mean * scale), {"exp_avg": mean, "exp_avg_sq": square}
