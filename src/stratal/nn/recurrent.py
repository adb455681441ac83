"""Recurrent layers: a recurrence over time as one scan, in one or more layers, one or two directions.

The products of all inputs with their weights are one product before the scan; each step multiplies the hidden
state alone. Parameters, gate orders and results are PyTorch's.
"""

from __future__ import annotations

import math
from typing import Any

from stratal.base.errors import AttributeValueError, ShapeError
from stratal.nn import functional as F
from stratal.nn import init
from stratal.nn.module import Module
from stratal.nn.parameter import empty_parameter
from stratal.nn.recurrent_steps import STEPS, States, Step
from stratal.tensor.control import scan
from stratal.tensor.creation import zeros
from stratal.tensor.shapes import concat, stack
from stratal.tensor.tensor import Tensor


class _Recurrent(Module):
    """What the layers share: parameters per layer and direction, and the run over layers and time."""

    def __init__(
        self,
        kind: str,
        input_size: int,
        hidden_size: int,
        num_layers: int,
        bias: bool,
        batch_first: bool,
        dropout: float,
        bidirectional: bool,
        dtype: Any,
    ) -> None:
        super().__init__()
        self._kind = kind
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first = bias, batch_first
        self.dropout, self.bidirectional = dropout, bidirectional
        for layer in range(num_layers):
            width = input_size if layer == 0 else hidden_size * self._directions
            for suffix in self._suffixes(layer):
                _register(self, suffix, self._step, width, hidden_size, bias, dtype)
        self.reset_parameters()

    @property
    def _step(self) -> Step:
        return STEPS[self._kind]

    @property
    def _directions(self) -> int:
        return 2 if self.bidirectional else 1

    def _suffixes(self, layer: int) -> list[str]:
        return [f"_l{layer}", f"_l{layer}_reverse"][: self._directions]

    def reset_parameters(self) -> None:
        """Draw everything from U(-k, k) with k = 1 / sqrt(hidden_size)."""
        _draw(self, self.hidden_size)

    def run(self, input: Tensor, start: States | None) -> tuple[Tensor, States]:
        """Return the outputs of the last layer and the last states, each [layers * directions, N, H]."""
        if input.ndim not in (2, 3) or int(input.shape[-1]) != self.input_size:
            raise ShapeError(
                f"{type(self).__name__}: takes 2 or 3 axes, the last of {self.input_size}",
                got=f"shape {list(input.shape)}",
            )
        batched = input.ndim == 3
        x = input if batched else input.reshape((input.shape[0], 1, input.shape[1]))
        x = x.permute(1, 0, 2) if batched and self.batch_first else x
        starts = self._initial(x, start, batched)
        last: list[States] = []
        for layer in range(self.num_layers):
            outputs = []
            for d, suffix in enumerate(self._suffixes(layer)):
                mine = tuple(s[layer * self._directions + d] for s in starts)
                y, state = self._over_time(x, mine, suffix, backwards=d == 1)
                outputs.append(y)
                last.append(state)
            x = outputs[0] if len(outputs) == 1 else concat(outputs, axis=-1)
            if self.dropout and layer < self.num_layers - 1:
                x = F.dropout(x, self.dropout, self.training)
        ends = tuple(stack(list(group)) for group in zip(*last, strict=True))
        if not batched:
            return x.reshape((x.shape[0], x.shape[2])), tuple(e.reshape(_no_batch(e)) for e in ends)
        return (x.permute(1, 0, 2) if self.batch_first else x), ends

    def _initial(self, x: Tensor, start: States | None, batched: bool) -> States:
        shape = (self.num_layers * self._directions, x.shape[1], self.hidden_size)
        if start is None:
            return tuple(zeros(shape, dtype=x.dtype) for _ in range(self._step.num_states))
        found = start if batched else tuple(s.reshape((s.shape[0], 1, s.shape[1])) for s in start)
        for s in found:
            if tuple(s.shape) != shape:
                got = f"{list(s.shape)}, not {list(shape)}"
                raise ShapeError(f"{type(self).__name__}: a state has another shape", got=got)
        return found

    def _over_time(self, x: Tensor, start: States, suffix: str, backwards: bool) -> tuple[Tensor, States]:
        """Run one layer in one direction."""
        weights = _parameters(self, suffix)
        gates, rest = self._step.before(x, weights)

        def step(states: States, gate: Tensor) -> tuple[States, Tensor]:
            states = self._step.after(gate, states, rest)
            return states, states[0]

        last, outputs = scan(step, start, gates, reverse=backwards)
        return outputs, last

    def extra_repr(self) -> str:
        words = [f"{self.input_size}, {self.hidden_size}"]
        words += [f"num_layers={self.num_layers}"] if self.num_layers != 1 else []
        words += ["bias=False"] if not self.bias else []
        words += ["batch_first=True"] if self.batch_first else []
        words += [f"dropout={self.dropout}"] if self.dropout else []
        words += ["bidirectional=True"] if self.bidirectional else []
        return ", ".join(words)


class LSTM(_Recurrent):
    """Long short-term memory over a sequence.

    See: Hochreiter and Schmidhuber 1997; gates in PyTorch's order i, f, g, o.

    Shapes: input [L, N, input_size] (batch first with `batch_first`; without N where unbatched), output
    [L, N, directions * hidden_size], states (h, c) [layers * directions, N, hidden_size].
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        *,
        dtype: Any = None,
        device: Any = None,
    ) -> None:
        if proj_size:
            raise AttributeValueError("LSTM: proj_size is not offered", got=str(proj_size))
        super().__init__(
            "lstm", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, dtype
        )

    def forward(self, input: Tensor, hx: States | None = None) -> tuple[Tensor, States]:
        return self.run(input, hx)


class _OneState(_Recurrent):
    """Layers whose only state is their output."""

    def forward(self, input: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:
        outputs, (h,) = self.run(input, None if hx is None else (hx,))
        return outputs, h


class GRU(_OneState):
    """Gated recurrent units over a sequence; shapes as for the LSTM, with h as the only state.

    See: Cho et al. 2014; gates in PyTorch's order r, z, n, the reset applied after the product.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        dtype: Any = None,
        device: Any = None,
    ) -> None:
        super().__init__(
            "gru", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, dtype
        )


class RNN(_OneState):
    """h' = tanh(W x + b + U h + c) over a sequence, or relu; shapes as for the LSTM, h being the only state.

    See: Elman 1990.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        dtype: Any = None,
        device: Any = None,
    ) -> None:
        super().__init__(
            _checked("RNN", nonlinearity), input_size, hidden_size, num_layers, bias, batch_first, dropout,
            bidirectional, dtype,
        )  # fmt: skip
        self.nonlinearity = nonlinearity


# -- one step ------------------------------------------------------------------------------------------------
class _Cell(Module):
    """One step of a layer, for those who write the loop themselves."""

    def __init__(self, kind: str, input_size: int, hidden_size: int, bias: bool, dtype: Any) -> None:
        super().__init__()
        self._kind = kind
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        _register(self, "", STEPS[kind], input_size, hidden_size, bias, dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw everything from U(-k, k) with k = 1 / sqrt(hidden_size)."""
        _draw(self, self.hidden_size)

    def run(self, input: Tensor, states: States | None) -> States:
        """Return the states after one input; before the first they are 0."""
        if input.ndim not in (1, 2) or int(input.shape[-1]) != self.input_size:
            raise ShapeError(
                f"{type(self).__name__}: takes 1 or 2 axes, the last of {self.input_size}",
                got=f"shape {list(input.shape)}",
            )
        kind = STEPS[self._kind]
        if states is None:
            shape = (*input.shape[:-1], self.hidden_size)
            states = tuple(zeros(shape, dtype=input.dtype) for _ in range(kind.num_states))
        gates, rest = kind.before(input, _parameters(self, ""))
        return kind.after(gates, states, rest)

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}" + ("" if self.bias else ", bias=False")


class LSTMCell(_Cell):
    """One step of an LSTM. Shapes: input [N, input_size], h and c [N, hidden_size]; all without N, too."""

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, *, dtype: Any = None, device: Any = None
    ) -> None:
        super().__init__("lstm", input_size, hidden_size, bias, dtype)

    def forward(self, input: Tensor, hx: States | None = None) -> States:
        return self.run(input, hx)


class GRUCell(_Cell):
    """One step of a GRU. Shapes: input [N, input_size], h [N, hidden_size]; both without N, too."""

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, *, dtype: Any = None, device: Any = None
    ) -> None:
        super().__init__("gru", input_size, hidden_size, bias, dtype)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        return self.run(input, None if hx is None else (hx,))[0]


class RNNCell(_Cell):
    """One step of an RNN. Shapes: input [N, input_size], h [N, hidden_size]; both without N, too."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        *,
        dtype: Any = None,
        device: Any = None,
    ) -> None:
        super().__init__(_checked("RNNCell", nonlinearity), input_size, hidden_size, bias, dtype)
        self.nonlinearity = nonlinearity

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        return self.run(input, None if hx is None else (hx,))[0]

    def extra_repr(self) -> str:
        other = "" if self.nonlinearity == "tanh" else f", nonlinearity={self.nonlinearity}"
        return super().extra_repr() + other


# -- parameters ----------------------------------------------------------------------------------------------
def _register(
    module: Module, suffix: str, step: Step, width: int, hidden_size: int, bias: bool, dtype: Any
) -> None:
    rows = step.num_gates * hidden_size
    shapes: dict[str, tuple[int, ...]] = {"weight_ih": (rows, width), "weight_hh": (rows, hidden_size)}
    if bias:
        shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)}
    for name, shape in shapes.items():
        module.register_parameter(name + suffix, empty_parameter(shape, dtype))


def _parameters(module: Module, suffix: str) -> list[Tensor | None]:
    """Return the weights of input and hidden state and their biases, None where there are none."""
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    return [getattr(module, name + suffix, None) for name in names]


def _draw(module: Module, hidden_size: int) -> None:
    bound = 1 / math.sqrt(hidden_size) if hidden_size > 0 else 0.0
    for weight in module.parameters():
        init.uniform_(weight, -bound, bound)


def _checked(name: str, nonlinearity: str) -> str:
    if nonlinearity not in ("tanh", "relu"):
        raise AttributeValueError(f"{name}: nonlinearity is 'tanh' or 'relu'", got=repr(nonlinearity))
    return nonlinearity


def _no_batch(state: Tensor) -> tuple[Any, ...]:
    return (state.shape[0], state.shape[2])
