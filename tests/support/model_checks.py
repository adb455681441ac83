"""What every model has to pass: its gradients are those of its loss, and it learns a few samples by heart.

A loss here is a function of a model and arrays that returns a scalar.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import stratal as st

STEPS = (1e-6, 1e-7, 1e-8)
Loss = Callable[..., Any]
Run = Callable[[], float]  # computes the loss, and the gradients of all parameters


def check_gradients(model: Any, loss: Loss, *data: Any, rtol: float = 1e-5) -> None:
    """Compare derivatives with central differences in float64, in a random direction of each parameter."""
    model.to(dtype="float64")
    _compare_with_differences(model, _compiled(model, loss, None, data), rtol)


def overfit(model: Any, optimizer: Any, loss: Loss, *data: Any, steps: int) -> tuple[float, float]:
    """Train on the same data in compiled steps; return the first and the last loss."""
    train = _compiled(model, loss, optimizer, data)
    losses = [train() for _ in range(steps)]
    return losses[0], losses[-1]


def check_and_overfit(
    model: Any, optimizer: Any, loss: Loss, *data: Any, steps: int, rtol: float = 1e-5
) -> tuple[float, float]:
    """Do both in float64 with one program: a training step of rate zero gives gradients and changes nothing.

    Half of the time for models whose time is that of compiling.
    """
    model.to(dtype="float64")
    train = _compiled(model, loss, optimizer, data)
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    _compare_with_differences(model, train, rtol)
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    losses = [train() for _ in range(steps)]
    return losses[0], losses[-1]


def _compiled(model: Any, loss: Loss, optimizer: Any, data: tuple[Any, ...]) -> Run:
    """Return what runs a step in one program: the loss, its gradients, and an optimizer's update if any."""
    tensors = [st.tensor(x) for x in data]

    @st.compile
    def step(*tensors: Any) -> Any:
        model.zero_grad()
        value = loss(model, *tensors)
        value.backward()
        if optimizer is not None:
            optimizer.step()
        return value

    return lambda: float(step(*tensors))


def _compare_with_differences(model: Any, run: Run, rtol: float) -> None:
    """A step of a difference may cross corners of ReLU and pooling; a shorter one crosses fewer."""

    def at(parameter: Any, values: Any) -> float:
        with st.no_grad():
            parameter.copy_(values)
        st.manual_seed(1)  # the same noise, where the loss has some
        return run()

    st.manual_seed(1)
    loss = run()
    gradients = {name: np.array(p.grad) for name, p in model.named_parameters()}
    sizes = {name: np.linalg.norm(g) for name, g in gradients.items()}
    rng = np.random.default_rng(3)
    for name, parameter in model.named_parameters():
        values = np.array(parameter.detach())
        direction = rng.standard_normal(values.shape)
        direction /= np.linalg.norm(direction)
        found = np.sum(gradients[name] * direction)
        faults = []
        for step in STEPS:
            ahead, behind = (at(parameter, values + sign * step * direction) for sign in (1, -1))
            expected = (ahead - behind) / (2 * step)
            rounding = 1e-15 * max(1.0, abs(loss)) / step
            if abs(found - expected) <= rtol * max(sizes[name], 1e-3 * max(sizes.values())) + rounding:
                break
            faults.append(f"{name}: {found} for {expected} at a step of {step}")
        with st.no_grad():
            parameter.copy_(values)
        assert len(faults) < len(STEPS), "\n".join(faults)
