"""Evaluation of a net: its mode, its outputs and loss of a batch, and the mean loss of many.

The mean over batches is the loss that all rows would have in one: a batch counts as much as its loss divides
by. A mean over elements divides by rows, one with weights or classes that are left out by the sum of weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import nan
from typing import Any

from stratal.nn.functional.reductions import LEAST_DIVISOR
from stratal.nn.module import Module
from stratal.tensor.functions.elementwise import where
from stratal.tensor.tensor import Tensor
from stratal.tensor.values.state import ModeBlock, no_grad
from stratal.train.finite import called
from stratal.train.steps import Loss, StepOptions


class Evaluating:
    """A block in which a net is in evaluation mode; each part is in its own mode again afterwards."""

    def __init__(self, net: Module) -> None:
        self.net = net

    def __enter__(self) -> None:
        self.modes = modes_of(self.net)
        self.net.eval()

    def __exit__(self, *error: object) -> None:
        restore_modes(self.modes)


def modes_of(net: Module) -> list[tuple[Module, bool]]:
    """Return the parts of a net, each with whether it is in training."""
    return [(part, part.training) for part in net.modules()]


def restore_modes(modes: Sequence[tuple[Module, bool]]) -> None:
    """Put parts into the modes they were in."""
    for part, mode in modes:
        if part.training is not mode:
            part.training = mode


def forward_of(net: Module, loss: Loss | None, options: StepOptions) -> Callable[..., Any]:
    """Return what evaluation calls for each batch: it returns outputs, loss, and what the loss divides by.

    It knows no Trainer, whose counters change: a capture that reads them would be made again in each epoch.
    """

    def forward(x: Any, y: Any) -> tuple[Any, Tensor | None, Tensor | None]:
        with no_grad(), options.cast():
            outputs = called(net, x)
            if y is None or loss is None:
                return outputs, None, None
            divisors: list[Tensor] = []
            with ModeBlock("divisors", divisors):
                value = loss(outputs, y)
            if all(divisor is divisors[0] for divisor in divisors[1:]):
                return outputs, value, divisors[0] if divisors else None
            for divisor in divisors:  # of several, a quotient by 0 is none
                value = where(divisor == 0, nan, value)
            return outputs, value, None

    return forward


class MeanLoss:
    """The mean of the losses of batches so far; `rows` are counted for the losses that tell of no divisor."""

    def __init__(self) -> None:
        self.rows = 0
        self._sum = self._weight = 0.0

    def add(self, loss: Tensor | None, divisor: Tensor | None, rows: int) -> None:
        """Add a batch. Of one whose loss divides by zero there is what was to be divided, or nothing."""
        self.rows += rows
        weight = float(rows) if divisor is None else float(divisor.item())
        if loss is not None:
            self._sum += loss.item() * (weight or LEAST_DIVISOR)
            self._weight += weight

    def mean(self) -> float:
        """Return the mean, NaN of no weight at all."""
        return self._sum / self._weight if self._weight else nan
