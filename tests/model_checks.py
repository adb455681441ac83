"""What every model has to pass: its gradients are those of its loss, and it learns a few samples by heart.

A loss here is a function of a model and arrays that returns a scalar.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import stratal as st

Loss = Callable[..., Any]


def check_gradients(model: Any, loss: Loss, *data: Any, step: float = 1e-6, rtol: float = 1e-5) -> None:
    """Compare derivatives with central differences in float64, in a random direction of each parameter."""
    model.to(dtype="float64")
    data = tuple(st.tensor(x) for x in data)

    @st.compile
    def differentiate(*data: Any) -> Any:
        model.zero_grad()
        value = loss(model, *data)
        value.backward()
        return value

    def moved(parameter: Any, values: Any) -> float:
        with st.no_grad():
            parameter.copy_(values)
        return float(differentiate(*data))

    differentiate(*data)
    gradients = {name: np.array(p.grad) for name, p in model.named_parameters()}
    sizes = {name: np.linalg.norm(g) for name, g in gradients.items()}
    rng = np.random.default_rng(3)
    for name, parameter in model.named_parameters():
        values = np.array(parameter.detach())
        direction = rng.standard_normal(values.shape)
        direction /= np.linalg.norm(direction)
        ahead, behind = (moved(parameter, values + sign * step * direction) for sign in (1, -1))
        moved(parameter, values)
        found, expected = np.sum(gradients[name] * direction), (ahead - behind) / (2 * step)
        # Rounding of the loss, 1e-16 over the step, is there however small the derivative is.
        bound = rtol * max(sizes[name], 1e-3 * max(sizes.values())) + 1e-9
        assert abs(found - expected) <= bound, f"{name}: {found} for {expected}"


def overfit(model: Any, optimizer: Any, loss: Loss, *data: Any, steps: int) -> tuple[float, float]:
    """Train on the same data in compiled steps; return the first and the last loss."""
    data = tuple(st.tensor(x) for x in data)

    @st.compile
    def train(*data: Any) -> Any:
        optimizer.zero_grad()
        value = loss(model, *data)
        value.backward()
        optimizer.step()
        return value

    losses = [float(train(*data)) for _ in range(steps)]
    return losses[0], losses[-1]
