"""Muon: momentum whose step for a matrix is made orthogonal. See: Jordan et al. 2024; Liu et al. 2025."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stratal.base.errors import AttributeValueError, ShapeError
from stratal.optim.group import ParamGroup, Scalars, decay_scalars, decayed, hyperparameters
from stratal.optim.optimizer import Optimizer, State, Step
from stratal.tensor.functions.elementwise import maximum, sqrt
from stratal.tensor.tensor import Tensor


class Muon(Optimizer):
    """m <- m + (1 - momentum)(g - m);  p <- p * (1 - lr * weight_decay) - lr * c * orthogonal(m), where
    `nesterov` takes momentum * m + (1 - momentum) * g for m.

    For parameters of two axes; all others belong to another optimizer. `adjust_lr_fn` gives c: "original",
    sqrt(max(1, rows / columns)), or "match_rms_adamw", 0.2 * sqrt(max(rows, columns)). The iteration runs in
    the dtype of the parameter, where PyTorch rounds to bfloat16.
    """

    runtime = ("lr", "weight_decay", "momentum")
    counts_steps = False
    zero_slots = ("momentum_buffer",)

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, weight_decay: float = 0.1, momentum: float = 0.95,
        nesterov: bool = True, ns_coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315),
        eps: float = 1e-7, ns_steps: int = 5, adjust_lr_fn: str | None = None, *, maximize: bool = False,
        **options: Any
    ) -> None:
        super().__init__(params, hyperparameters(locals(), decoupled_weight_decay=True), **options)

    def check(self, group: ParamGroup) -> None:
        super().check(group)
        for p in group["params"]:
            if p.ndim != 2:
                raise ShapeError(
                    "Muon: takes parameters of two axes", got=str(p.type),
                    hint="give all others to another optimizer, such as AdamW",
                )  # fmt: skip
        if group["adjust_lr_fn"] not in (None, "original", "match_rms_adamw"):
            raise AttributeValueError(
                'Muon: adjust_lr_fn is "original" or "match_rms_adamw"', got=repr(group["adjust_lr_fn"])
            )
        if len(group["ns_coefficients"]) != 3 or not 0 <= group["ns_steps"] < 100:
            raise AttributeValueError(
                "Muon: needs three ns_coefficients and less than 100 ns_steps",
                got=f"{group['ns_coefficients']}, {group['ns_steps']}",
            )

    def prelude(self, group: ParamGroup, count: Tensor | None) -> Scalars:
        return {name: group.scalar(name) for name in ("lr", "momentum")} | decay_scalars(group)

    def update(self, group: ParamGroup, param: Tensor, grad: Tensor, state: State, scalars: Scalars) -> Step:
        rows, columns = (int(n) for n in param.shape)
        param, grad = decayed(group, param, grad, scalars)
        buffer = state["momentum_buffer"]
        buffer = buffer + (1.0 - scalars["momentum"]) * (grad - buffer)
        ahead = grad + scalars["momentum"] * (buffer - grad) if group["nesterov"] else buffer
        step = orthogonalise(ahead, group["ns_coefficients"], group["ns_steps"], group["eps"])
        if group["adjust_lr_fn"] == "match_rms_adamw":
            adjustment = 0.2 * max(rows, columns) ** 0.5
        else:
            adjustment = max(1.0, rows / max(columns, 1)) ** 0.5
        return param - scalars["lr"] * adjustment * step, {"momentum_buffer": buffer}


def orthogonalise(x: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """Return a matrix with the singular vectors of `x` whose singular values lie near 1.

    By the iteration of Newton and Schulz, X <- aX + b(XX')X + c(XX')^2 X, from X / |X|: with Muon's
    coefficients, chosen for their slope at 0, values end between 0.7 and 1.2.
    """
    a, b, c = coefficients
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x  # the smaller of the two products with itself
    x = x / maximum(sqrt((x * x).sum()), eps)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x.T if tall else x
