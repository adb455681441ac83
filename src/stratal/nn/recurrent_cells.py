"""Recurrent cells: one step of each kind of layer, also for those who write the loop themselves."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from stratal.base.errors import AttributeValueError, ShapeError
from stratal.nn import functional as F
from stratal.nn import init
from stratal.nn.module import Module
from stratal.nn.parameter import empty_parameter
from stratal.tensor.calls.call_cache import cached_call
from stratal.tensor.functions.creation import zeros
from stratal.tensor.functions.elementwise import sigmoid, tanh
from stratal.tensor.tensor import Tensor

States = tuple[Tensor, ...]
Weights = Sequence["Tensor | None"]  # of input and of hidden state, and their biases


class Step(NamedTuple):
    """`before` maps inputs, of one step or all, to gates and says what each step needs; `after` takes one."""

    num_gates: int
    num_states: int
    before: Callable[[Tensor, Weights], tuple[Tensor, Weights]]
    after: Callable[[Tensor, States, Weights], States]


def _all_biases_before(x: Tensor, weights: Weights) -> tuple[Tensor, Weights]:
    w_ih, w_hh, b_ih, b_hh = weights
    assert w_ih is not None
    bias = None if b_ih is None or b_hh is None else b_ih + b_hh
    return F.linear(x, w_ih, bias), (w_hh,)


def _own_bias_before(x: Tensor, weights: Weights) -> tuple[Tensor, Weights]:
    w_ih, w_hh, b_ih, b_hh = weights
    assert w_ih is not None
    return F.linear(x, w_ih, b_ih), (w_hh, b_hh)


def _lstm(gates: Tensor, states: States, rest: Weights) -> States:
    h, c = states
    (w_hh,) = rest
    assert w_hh is not None
    return lstm_cell(gates + F.linear(h, w_hh), c)


def lstm_cell(gates: Tensor, c: Tensor) -> States:
    """Return the next (h, c) from pre-activations: input, forget, cell, output along the last axis."""
    i, f, g, o = _parts(gates, 4)
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(c), c


def _gru(gates: Tensor, states: States, rest: Weights) -> States:
    (h,) = states
    w_hh, b_hh = rest
    assert w_hh is not None
    (r, z, n), (r_h, z_h, n_h) = _parts(gates, 3), _parts(F.linear(h, w_hh, b_hh), 3)
    z = sigmoid(z + z_h)
    n = tanh(n + sigmoid(r + r_h) * n_h)
    return (n + z * (h - n),)


def _plain(activation: Callable[[Tensor], Tensor]) -> Callable[[Tensor, States, Weights], States]:
    def after(gates: Tensor, states: States, rest: Weights) -> States:
        (w_hh,) = rest
        assert w_hh is not None
        return (activation(gates + F.linear(states[0], w_hh)),)

    return after


def _parts(gates: Tensor, count: int) -> list[Tensor]:
    size = int(gates.shape[-1]) // count
    return [gates[..., k * size : (k + 1) * size] for k in range(count)]


STEPS: Final[dict[str, Step]] = {
    "lstm": Step(4, 2, _all_biases_before, _lstm),
    "gru": Step(3, 1, _own_bias_before, _gru),
    "tanh": Step(1, 1, _all_biases_before, _plain(tanh)),
    "relu": Step(1, 1, _all_biases_before, _plain(F.relu)),
}


def register_weights(
    module: Module, suffix: str, step: Step, width: int, hidden_size: int, bias: bool, dtype: Any,
    proj_size: int = 0
) -> None:
    """Give a module the parameters of one layer and direction, named with `suffix`."""
    rows = step.num_gates * hidden_size
    shapes: dict[str, tuple[int, ...]] = {
        "weight_ih": (rows, width),
        "weight_hh": (rows, proj_size or hidden_size),
    }
    if bias:
        shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)}
    if proj_size:
        shapes["weight_hr"] = (proj_size, hidden_size)
    for name, shape in shapes.items():
        module.register_parameter(name + suffix, empty_parameter(shape, dtype))


def weights_of(module: Module, suffix: str) -> list[Tensor | None]:
    """Return the weights of input and hidden state and their biases, None where there are none."""
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    return [getattr(module, name + suffix, None) for name in names]


def draw_weights(module: Module, hidden_size: int) -> None:
    """Draw all parameters from U(-k, k) with k = 1 / sqrt(hidden_size)."""
    bound = 1 / math.sqrt(hidden_size) if hidden_size > 0 else 0.0
    for weight in module.parameters():
        init.uniform_(weight, -bound, bound)


def checked_nonlinearity(name: str, nonlinearity: str) -> str:
    """Return 'tanh' or 'relu'. Raises: AttributeValueError for anything else."""
    if nonlinearity not in ("tanh", "relu"):
        raise AttributeValueError(f"{name}: nonlinearity is 'tanh' or 'relu'", got=repr(nonlinearity))
    return nonlinearity


@cached_call
def _stepped(kind: str, x: Tensor, states: States, weights: Weights) -> States:
    """Return the states after one input; a loop over cells records one call for each."""
    step = STEPS[kind]
    gates, rest = step.before(x, weights)
    return step.after(gates, states, rest)


class _Cell(Module):
    """One step of a layer, for those who write the loop themselves."""

    def __init__(self, kind: str, input_size: int, hidden_size: int, bias: bool, dtype: Any) -> None:
        super().__init__()
        self._kind = kind
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        register_weights(self, "", STEPS[kind], input_size, hidden_size, bias, dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw everything from U(-k, k) with k = 1 / sqrt(hidden_size)."""
        draw_weights(self, self.hidden_size)

    def run(self, input: Tensor, states: States | None) -> States:
        """Return the states after one input; before the first they are 0."""
        if input.ndim not in (1, 2) or int(input.shape[-1]) != self.input_size:
            raise ShapeError(
                f"{type(self).__name__}: takes 1 or 2 axes, the last of {self.input_size}",
                got=f"shape {list(input.shape)}",
            )
        if states is None:
            shape = (*input.shape[:-1], self.hidden_size)
            states = tuple(zeros(shape, dtype=input.dtype) for _ in range(STEPS[self._kind].num_states))
        return _stepped(self._kind, input, states, weights_of(self, ""))

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}" + ("" if self.bias else ", bias=False")


class LSTMCell(_Cell):
    """One step of an LSTM. Shapes: input [N, input_size], h and c [N, hidden_size]; all without N, too."""

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__("lstm", input_size, hidden_size, bias, dtype)

    def forward(self, input: Tensor, hx: States | None = None) -> States:
        return self.run(input, hx)


class GRUCell(_Cell):
    """One step of a GRU. Shapes: input [N, input_size], h [N, hidden_size]; both without N, too."""

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__("gru", input_size, hidden_size, bias, dtype)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        return self.run(input, None if hx is None else (hx,))[0]


class RNNCell(_Cell):
    """One step of an RNN. Shapes: input [N, input_size], h [N, hidden_size]; both without N, too."""

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, nonlinearity: str = "tanh",
        device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__(checked_nonlinearity("RNNCell", nonlinearity), input_size, hidden_size, bias, dtype)
        self.nonlinearity = nonlinearity

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        return self.run(input, None if hx is None else (hx,))[0]

    def extra_repr(self) -> str:
        other = "" if self.nonlinearity == "tanh" else f", nonlinearity={self.nonlinearity}"
        return super().extra_repr() + other
