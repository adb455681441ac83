"""The LSTM: a recurrence over time as one scan, in one or more layers, one or two directions."""

from __future__ import annotations

import math
from typing import Any

from stratal.base.errors import AttributeValueError, ShapeError
from stratal.nn import functional as F
from stratal.nn import init
from stratal.nn.module import Module
from stratal.nn.parameter import empty_parameter
from stratal.tensor.control import scan
from stratal.tensor.creation import zeros
from stratal.tensor.elementwise import sigmoid, tanh
from stratal.tensor.shapes import concat, flip, stack
from stratal.tensor.tensor import Tensor

State = tuple[Tensor, Tensor]


def lstm_cell(gates: Tensor, c: Tensor) -> State:
    """Return the next (h, c) from pre-activations in the order input, forget, cell, output, along the last
    axis.
    """
    size = int(gates.shape[-1]) // 4
    i, f, g, o = (gates[..., k * size : (k + 1) * size] for k in range(4))
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(c), c


class LSTM(Module):
    """Long short-term memory over a sequence.

    See: Hochreiter and Schmidhuber 1997; gates in PyTorch's order i, f, g, o.

    Shapes: input [L, N, input_size] (batch first with `batch_first`; without N where unbatched), output
    [L, N, directions * hidden_size], states [layers * directions, N, hidden_size].
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
        super().__init__()
        if proj_size:
            raise AttributeValueError("LSTM: proj_size is not offered", got=str(proj_size))
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout, self.bidirectional = (
            bias,
            batch_first,
            dropout,
            bidirectional,
        )
        for layer in range(num_layers):
            width = input_size if layer == 0 else hidden_size * self._directions
            for suffix in self._suffixes(layer):
                shapes = {"weight_ih": (4 * hidden_size, width), "weight_hh": (4 * hidden_size, hidden_size)}
                if bias:
                    shapes |= {"bias_ih": (4 * hidden_size,), "bias_hh": (4 * hidden_size,)}
                for name, shape in shapes.items():
                    self.register_parameter(name + suffix, empty_parameter(shape, dtype))
        self.reset_parameters()

    @property
    def _directions(self) -> int:
        return 2 if self.bidirectional else 1

    def _suffixes(self, layer: int) -> list[str]:
        return [f"_l{layer}", f"_l{layer}_reverse"][: self._directions]

    def reset_parameters(self) -> None:
        """Draw everything from U(-k, k) with k = 1 / sqrt(hidden_size)."""
        bound = 1 / math.sqrt(self.hidden_size) if self.hidden_size > 0 else 0.0
        for weight in self.parameters():
            init.uniform_(weight, -bound, bound)

    def forward(self, input: Tensor, hx: State | None = None) -> tuple[Tensor, State]:
        if input.ndim not in (2, 3) or int(input.shape[-1]) != self.input_size:
            raise ShapeError(
                f"LSTM: takes 2 or 3 axes, the last of {self.input_size}", got=f"shape {list(input.shape)}"
            )
        batched = input.ndim == 3
        x = input if batched else input.reshape((input.shape[0], 1, input.shape[1]))
        x = x.permute(1, 0, 2) if batched and self.batch_first else x
        h0, c0 = self._initial(x, hx, batched)
        last: list[State] = []
        for layer in range(self.num_layers):
            outputs = []
            for d, suffix in enumerate(self._suffixes(layer)):
                k = layer * self._directions + d
                y, state = self._run(x, (h0[k], c0[k]), suffix, reverse=d == 1)
                outputs.append(y)
                last.append(state)
            x = outputs[0] if len(outputs) == 1 else concat(outputs, axis=-1)
            if self.dropout and layer < self.num_layers - 1:
                x = F.dropout(x, self.dropout, self.training)
        h, c = stack([s[0] for s in last]), stack([s[1] for s in last])
        if not batched:
            return x.reshape((x.shape[0], x.shape[2])), (h.reshape(_no_batch(h)), c.reshape(_no_batch(c)))
        return (x.permute(1, 0, 2) if self.batch_first else x), (h, c)

    def _initial(self, x: Tensor, hx: State | None, batched: bool) -> State:
        if hx is None:
            shape = (self.num_layers * self._directions, int(x.shape[1]), self.hidden_size)
            return zeros(shape, dtype=x.dtype), zeros(shape, dtype=x.dtype)
        if batched:
            return hx
        return tuple(s.reshape((s.shape[0], 1, s.shape[1])) for s in hx)  # type: ignore[return-value]

    def _run(self, x: Tensor, start: State, suffix: str, reverse: bool) -> tuple[Tensor, State]:
        """Run one layer in one direction: the input products of all steps at once, then the scan."""
        w_ih, w_hh = getattr(self, "weight_ih" + suffix), getattr(self, "weight_hh" + suffix)
        bias = getattr(self, "bias_ih" + suffix) + getattr(self, "bias_hh" + suffix) if self.bias else None
        gates = F.linear(flip(x, axis=0) if reverse else x, w_ih, bias)

        def step(carry: State, gate: Tensor) -> tuple[State, Tensor]:
            h, c = carry
            h, c = lstm_cell(gate + F.linear(h, w_hh), c)
            return (h, c), h

        state, outputs = scan(step, start, gates)
        return (flip(outputs, axis=0) if reverse else outputs), state

    def extra_repr(self) -> str:
        words = [f"{self.input_size}, {self.hidden_size}"]
        words += [f"num_layers={self.num_layers}"] if self.num_layers != 1 else []
        words += ["bias=False"] if not self.bias else []
        words += ["batch_first=True"] if self.batch_first else []
        words += [f"dropout={self.dropout}"] if self.dropout else []
        words += ["bidirectional=True"] if self.bidirectional else []
        return ", ".join(words)


def _no_batch(state: Tensor) -> tuple[Any, ...]:
    return (state.shape[0], state.shape[2])
