"""Optimizers of deferred programs: they build the operation of a step, with their state as variables.

The rules are those of TensorFlow 1, whose constants differ from PyTorch's: Adagrad's sums start at 0.1 and
nothing is added to their roots, Adam adds epsilon before the second moment is corrected.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from stratal.base.errors import AttributeValueError, NotDifferentiableError
from stratal.deferred.graph import Deferred, builds
from stratal.deferred.variable import Operation, Variable, assign, assign_add, gradients, group
from stratal.tensor.functions.elementwise import FUNCTIONS, cast
from stratal.tensor.tensor import Tensor

Pair = tuple[Any, Variable]  # a gradient, or None, and what it is of
State = dict[str, Any]  # the slots of one variable
New = tuple[Any, ...]
_sqrt = FUNCTIONS["sqrt"]


class Optimizer:
    """Base of deferred optimizers. A subclass gives `slots` and `update`.

    `learning_rate` is a number or a deferred scalar, such as a placeholder.
    """

    slots: ClassVar[dict[str, float]] = {}  # state of each variable, and the value it starts with
    counts_steps: ClassVar[bool] = False

    def __init__(self, learning_rate: Any) -> None:
        self.learning_rate = learning_rate

    def update(self, value: Any, gradient: Any, state: State, rate: Any, count: Any) -> New:
        """Return the new values of a variable and of its slots; `count` is this step's number, from 1."""
        raise NotImplementedError

    def minimize(
        self, loss: Deferred, global_step: Variable | None = None, var_list: Sequence[Variable] | None = None
    ) -> Operation:
        """Return the operation of one step down the gradient of a loss, or of the sum of its elements."""
        return self.apply_gradients(self.compute_gradients(loss, var_list), global_step)

    def compute_gradients(self, loss: Deferred, var_list: Sequence[Variable] | None = None) -> list[Pair]:
        """Return the gradient with respect to each variable, None where the loss does not depend on it."""
        if not isinstance(loss, Deferred):
            raise AttributeValueError("minimize: the loss must be deferred", got=type(loss).__name__)
        variables = [v for v in loss.graph.variables if v.trainable] if var_list is None else list(var_list)
        return list(zip(gradients(loss, variables), variables, strict=True))

    def apply_gradients(
        self, grads_and_vars: Iterable[Pair], global_step: Variable | None = None
    ) -> Operation:
        """Return the operation that moves variables along gradients, and counts a step."""
        pairs = [(g, v) for g, v in grads_and_vars if g is not None]
        if not pairs:
            raise NotDifferentiableError(
                "minimize: no variable has a gradient", hint="does the loss depend on a trainable variable?"
            )
        operations = [] if global_step is None else [assign_add(global_step, 1)]
        count = None
        if self.counts_steps:
            counter = _state(pairs[0][1], np.float64(0), "steps")
            count = counter + 1.0
            operations.append(assign(counter, count))
        for gradient, variable in pairs:
            operations += self._step(variable, gradient, count)
        return group(*operations)

    def _step(self, variable: Variable, gradient: Any, count: Any) -> list[Operation]:
        """Return the assignments to a variable and to its slots, which are made here."""
        zeros = np.zeros(variable.shape, variable.dtype.np)
        state = {name: _state(variable, zeros + zeros.dtype.type(v), name) for name, v in self.slots.items()}
        rate = self.learning_rate
        rate = builds(cast)(rate, variable.dtype) if isinstance(rate, Tensor) else rate
        new = builds(self.update)(variable, gradient, dict(state), rate, count)
        return [assign(cell, value) for cell, value in zip((variable, *state.values()), new, strict=True)]


def _state(variable: Variable, first: Any, name: str) -> Variable:
    with variable.graph:
        return Variable(first, trainable=False, name=f"{variable.name}/{name}")


class GradientDescentOptimizer(Optimizer):
    """v <- v - rate * g"""

    def update(self, value: Any, gradient: Any, state: State, rate: Any, count: Any) -> New:
        return (value - rate * gradient,)


class MomentumOptimizer(Optimizer):
    """a <- momentum * a + g;  v <- v - rate * a, or with Nesterov's form v - rate * (g + momentum * a)."""

    slots: ClassVar[dict[str, float]] = {"momentum": 0.0}

    def __init__(self, learning_rate: Any, momentum: Any, use_nesterov: bool = False) -> None:
        super().__init__(learning_rate)
        self.momentum, self.use_nesterov = momentum, use_nesterov

    def update(self, value: Any, gradient: Any, state: State, rate: Any, count: Any) -> New:
        moving = self.momentum * state["momentum"] + gradient
        step = gradient + self.momentum * moving if self.use_nesterov else moving
        return value - rate * step, moving


class AdagradOptimizer(Optimizer):
    """a <- a + g^2;  v <- v - rate * g / sqrt(a) (Duchi, Hazan and Singer, 2011)."""

    def __init__(self, learning_rate: Any, initial_accumulator_value: float = 0.1) -> None:
        super().__init__(learning_rate)
        if not initial_accumulator_value > 0:
            raise AttributeValueError(
                "AdagradOptimizer: initial_accumulator_value must be positive",
                got=str(initial_accumulator_value),
            )
        self.slots = {"accumulator": float(initial_accumulator_value)}  # type: ignore[misc]

    def update(self, value: Any, gradient: Any, state: State, rate: Any, count: Any) -> New:
        total = state["accumulator"] + gradient * gradient
        return value - rate * gradient / _sqrt(total), total


class AdamOptimizer(Optimizer):
    """m <- b1 m + (1 - b1) g;  s <- b2 s + (1 - b2) g^2;
    v <- v - rate * sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(s) + epsilon).

    See: Kingma and Ba, 2015, the order of computation proposed at the end of section 2.
    """

    slots: ClassVar[dict[str, float]] = {"m": 0.0, "v": 0.0}
    counts_steps = True

    def __init__(
        self, learning_rate: Any = 0.001, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8
    ) -> None:
        super().__init__(learning_rate)
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon

    def update(self, value: Any, gradient: Any, state: State, rate: Any, count: Any) -> New:
        mean = self.beta1 * state["m"] + (1.0 - self.beta1) * gradient
        square = self.beta2 * state["v"] + (1.0 - self.beta2) * gradient * gradient
        correction = cast(_sqrt(1.0 - self.beta2**count) / (1.0 - self.beta1**count), value.dtype)
        return value - rate * correction * mean / (_sqrt(square) + self.epsilon), mean, square
