"""Adafactor: of the mean squares of a matrix of gradients only the means of rows and columns are kept.

See: Shazeer and Stern 2018, algorithms 4 and 5, and their section 6 for the step's clipping; PyTorch's form.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stratal.base.errors import AttributeValueError
from stratal.optim.group import ParamGroup
from stratal.optim.optimizer import Optimizer, Scalars, Shape, State, decay_scalars, decayed
from stratal.tensor.elementwise import maximum, minimum, rsqrt, sqrt
from stratal.tensor.info import finfo
from stratal.tensor.tensor import Tensor


def _root_mean_square(x: Tensor) -> Tensor:
    return sqrt((x * x).mean())


class Adafactor(Optimizer):
    """v <- v + t^beta2_decay * (g^2 - v), of which two or more axes keep only means over the last two axes;
    u = g / sqrt(v);  p <- p - max(eps2, rms(p)) * min(lr, 1 / sqrt(t)) * u / max(1, rms(u) / d).

    Weight decay is decoupled. `eps` is (eps1, eps2); eps1 None stands for the dtype's own epsilon.
    """

    nonnegative = ("lr", "weight_decay")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3),
        d: float = 1.0,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        **options: Any,
    ) -> None:
        defaults = {
            "lr": lr, "beta2_decay": beta2_decay, "eps": tuple(eps), "d": d, "weight_decay": weight_decay,
            "decoupled_weight_decay": True, "maximize": maximize,
        }  # fmt: skip
        super().__init__(params, defaults, **options)

    def check(self, group: ParamGroup) -> None:
        super().check(group)
        eps1, eps2 = group["eps"]
        if not ((eps1 is None or eps1 >= 0) and eps2 >= 0 and group["beta2_decay"] <= 0 and group["d"] >= 1):
            raise AttributeValueError(
                "Adafactor: needs eps of at least 0, beta2_decay of at most 0, d of at least 1",
                got=f"eps={group['eps']}, beta2_decay={group['beta2_decay']}, d={group['d']}",
            )

    def slots(self, group: ParamGroup, shape: Shape) -> dict[str, float]:
        return {"row_var": 0.0, "col_var": 0.0} if len(shape) > 1 else {"variance": 0.0}

    def slot_shape(self, name: str, shape: Shape) -> Shape:
        if name == "row_var":
            return (*shape[:-1], 1)
        return (*shape[:-2], 1, shape[-1]) if name == "col_var" else shape

    def prelude(self, group: ParamGroup, count: Tensor | None) -> Scalars:
        assert count is not None
        return {
            "share": count ** group["beta2_decay"],
            "rate": minimum(group.scalar("lr"), 1.0 / sqrt(count)),
            **decay_scalars(group),
        }

    def update(
        self, group: ParamGroup, param: Tensor, grad: Tensor, state: State, scalars: Scalars
    ) -> tuple[Tensor, State]:
        eps1, eps2 = group["eps"]
        eps1 = float(finfo(param.dtype).eps) if eps1 is None else eps1
        rate = maximum(_root_mean_square(param), eps2) * scalars["rate"]
        param, _ = decayed(group, param, grad, scalars)
        square = grad * grad
        means = {"row_var": -1, "col_var": -2} if grad.ndim > 1 else {"variance": None}
        changed: State = {}
        for name, axis in means.items():
            seen = square if axis is None else square.mean(axis=axis, keepdims=True)
            changed[name] = state[name] + scalars["share"] * (seen - state[name])
        if grad.ndim > 1:
            rows, columns = changed["row_var"], changed["col_var"]
            spread = rows * columns / maximum(rows.mean(axis=-2, keepdims=True), eps1)
        else:
            spread = changed["variance"]
        step = rsqrt(maximum(spread, eps1 * eps1)) * grad
        return param - rate / maximum(_root_mean_square(step) / group["d"], 1.0) * step, changed
