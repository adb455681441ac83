"""Rprop: steps that depend on the signs of gradients alone. See: Riedmiller and Braun 1993."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stratal.base.errors import AttributeValueError
from stratal.optim.group import ParamGroup
from stratal.optim.optimizer import Optimizer, Scalars, Shape, State
from stratal.tensor.elementwise import clip, sign, where
from stratal.tensor.tensor import Tensor


class Rprop(Optimizer):
    """A step grows by etas[1] where two gradients in a row have one sign, and shrinks by etas[0] where they
    do not; there the parameter rests and the gradient counts as zero.  p <- p - step * sign(g).
    """

    runtime = ("lr",)
    nonnegative = ("lr",)

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50.0),
        *,
        maximize: bool = False,
        **options: Any,
    ) -> None:
        defaults = {"lr": lr, "etas": tuple(etas), "step_sizes": tuple(step_sizes), "maximize": maximize}
        super().__init__(params, defaults, **options)

    def check(self, group: ParamGroup) -> None:
        super().check(group)
        down, up = group["etas"]
        if not 0 < down < 1 < up:
            raise AttributeValueError("Rprop: etas must hold 0 < etas[0] < 1 < etas[1]", got=str((down, up)))

    def slots(self, group: ParamGroup, shape: Shape) -> dict[str, float]:
        return {"prev": 0.0, "step_size": group["lr"]}

    def prelude(self, group: ParamGroup, count: Tensor | None) -> Scalars:
        return {}

    def update(
        self, group: ParamGroup, param: Tensor, grad: Tensor, state: State, scalars: Scalars
    ) -> tuple[Tensor, State]:
        down, up = group["etas"]
        agreement = grad * state["prev"]
        size = state["step_size"]
        size = where(agreement > 0.0, size * up, where(agreement < 0.0, size * down, size))
        size = clip(size, *group["step_sizes"])
        grad = where(agreement < 0.0, 0.0, grad)
        return param - sign(grad) * size, {"prev": grad, "step_size": size}
