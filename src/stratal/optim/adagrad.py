"""Adagrad and its kin: rates that shrink with the size of the gradients seen."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stratal.base.errors import AttributeValueError
from stratal.optim.group import ParamGroup, Scalars, decay_scalars, decayed, hyperparameters
from stratal.optim.optimizer import Optimizer, Shape, State, Step
from stratal.tensor.api.info import finfo
from stratal.tensor.functions.elementwise import maximum, minimum, rsqrt, sqrt
from stratal.tensor.tensor import Tensor, tensor


class Adagrad(Optimizer):
    """Rates that shrink with the sum of squared gradients. See: Duchi, Hazan and Singer 2011.

    s <- s + g^2;  p <- p - lr / (1 + (t - 1) * lr_decay) * g / (sqrt(s) + eps).
    """

    state_from_start = True

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-2, lr_decay: float = 0.0, weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0, eps: float = 1e-10, *, maximize: bool = False, **options: Any
    ) -> None:
        super().__init__(params, hyperparameters(locals()), **options)

    def slots(self, group: ParamGroup, shape: Shape) -> dict[str, float]:
        return {"sum": group["initial_accumulator_value"]}

    def prelude(self, group: ParamGroup, count: Tensor | None) -> Scalars:
        rate = group.scalar("lr")
        if group["lr_decay"] and count is not None:
            rate = rate / (1.0 + (count - 1.0) * group["lr_decay"])
        return {"rate": rate, **decay_scalars(group)}

    def update(self, group: ParamGroup, param: Tensor, grad: Tensor, state: State, scalars: Scalars) -> Step:
        param, grad = decayed(group, param, grad, scalars)
        total = state["sum"] + grad * grad
        return param - scalars["rate"] * (grad / (sqrt(total) + group["eps"])), {"sum": total}


class Adadelta(Optimizer):
    """Gradients divided by their recent size and times that of recent steps. See: Zeiler 2012.

    v <- rho v + (1 - rho) g^2;  d = sqrt(u + eps) / sqrt(v + eps) * g;  u <- rho u + (1 - rho) d^2;
    p <- p - lr * d.
    """

    zero_slots = ("square_avg", "acc_delta")

    def __init__(
        self, params: Iterable[Any], lr: float = 1.0, rho: float = 0.9, eps: float = 1e-6,
        weight_decay: float = 0.0, *, maximize: bool = False, **options: Any
    ) -> None:
        super().__init__(params, hyperparameters(locals()), **options)

    def check(self, group: ParamGroup) -> None:
        super().check(group)
        if not 0 <= group["rho"] <= 1:
            raise AttributeValueError("Adadelta: rho must lie in [0, 1]", got=str(group["rho"]))

    def update(self, group: ParamGroup, param: Tensor, grad: Tensor, state: State, scalars: Scalars) -> Step:
        rho, eps = group["rho"], group["eps"]
        param, grad = decayed(group, param, grad, scalars)
        square = state["square_avg"] * rho + (1.0 - rho) * grad * grad
        delta = sqrt(state["acc_delta"] + eps) / sqrt(square + eps) * grad
        steps = state["acc_delta"] * rho + (1.0 - rho) * delta * delta
        return param - scalars["lr"] * delta, {"square_avg": square, "acc_delta": steps}


class RMSprop(Optimizer):
    """Gradients divided by the root of a running mean of their squares. See: Tieleman and Hinton 2012.

    v <- alpha v + (1 - alpha) g^2;  p <- p - lr * g / (sqrt(v) + eps); `centered` subtracts the squared
    mean from v.
    """

    runtime = ("lr", "weight_decay", "momentum")

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-2, alpha: float = 0.99, eps: float = 1e-8,
        weight_decay: float = 0.0, momentum: float = 0.0, centered: bool = False, *, maximize: bool = False,
        **options: Any
    ) -> None:
        super().__init__(params, hyperparameters(locals()), **options)

    def slots(self, group: ParamGroup, shape: Shape) -> dict[str, float]:
        names = ["square_avg"]
        names += ["momentum_buffer"] if group["momentum"] else []
        names += ["grad_avg"] if group["centered"] else []
        return dict.fromkeys(names, 0.0)

    def update(self, group: ParamGroup, param: Tensor, grad: Tensor, state: State, scalars: Scalars) -> Step:
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


def _root_mean_square(x: Tensor) -> Tensor:
    return sqrt((x * x).mean())


class Adafactor(Optimizer):
    """Of the mean squares of a matrix of gradients only the means of rows and columns are kept. See: Shazeer
    and Stern 2018, algorithms 4 and 5, and their section 6 for the step's clipping; PyTorch's form.

    v <- v + t^beta2_decay * (g^2 - v), of which two or more axes keep only means over the last two axes;
    u = g / sqrt(v);  p <- p - max(eps2, rms(p)) * min(lr, 1 / sqrt(t)) * u / max(1, rms(u) / d).

    Weight decay is decoupled. `eps` is (eps1, eps2); eps1 None stands for the dtype's own epsilon.
    """

    nonnegative = ("lr", "weight_decay")

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-2, beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3), d: float = 1.0, weight_decay: float = 0.0, *,
        maximize: bool = False, **options: Any
    ) -> None:
        defaults = hyperparameters(locals(), eps=tuple(eps), decoupled_weight_decay=True)
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

    def prelude(self, group: ParamGroup, count: Any) -> Scalars:
        return {
            "share": count ** group["beta2_decay"],
            "rate": minimum(group.scalar("lr"), 1.0 / sqrt(count)),
            **decay_scalars(group),
        }

    def _step_parameter(self, group: ParamGroup, p: Tensor, scalars: Scalars) -> None:
        own = tensor(float(finfo(self._work_dtype(p)).eps))
        super()._step_parameter(group, p, {**scalars, "own_eps": own})

    def update(self, group: ParamGroup, param: Tensor, grad: Tensor, state: State, scalars: Scalars) -> Step:
        eps1, eps2 = group["eps"]
        eps1 = scalars["own_eps"] if eps1 is None else eps1
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
