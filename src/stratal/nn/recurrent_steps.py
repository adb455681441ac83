"""One step of each kind of recurrent layer: what is computed for all steps before, and what in every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from stratal.nn import functional as F
from stratal.tensor.elementwise import sigmoid, tanh
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
