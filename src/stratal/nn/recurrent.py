"""Recurrent layers: a recurrence over time as one scan, in one or more layers, one or two directions.

The products of all inputs with their weights are one product before the scan; each step multiplies the hidden
state alone. Parameters, gate orders and results are PyTorch's.
"""

from __future__ import annotations

from typing import Any

from stratal.base.errors import AttributeValueError, ShapeError
from stratal.nn import functional as F
from stratal.nn.applied import changed
from stratal.nn.depth import checked_depth
from stratal.nn.module import Module
from stratal.nn.recurrent_cells import (
    STEPS,
    States,
    Step,
    Weights,
    checked_nonlinearity,
    draw_weights,
    register_weights,
    weights_of,
)
from stratal.nn.utils.rnn import PackedSequence, packed_like, padded_sorted
from stratal.tensor.calls.call_cache import cached_call
from stratal.tensor.functions.creation import zeros
from stratal.tensor.functions.elementwise import cast, where
from stratal.tensor.functions.indexing import take
from stratal.tensor.functions.shapes import concat, stack
from stratal.tensor.tensor import Tensor
from stratal.tensor.transformations.control import scan

_concat, _stack, _take = cached_call(concat), cached_call(stack), cached_call(take)


@cached_call
def _scanned(
    kind: str, x: Tensor, start: States, weights: Weights, projection: Tensor | None, running: Tensor | None,
    backwards: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return the outputs of one layer in one direction, and its last states; uncompiled it is one call."""
    step_of = STEPS[kind]
    gates, rest = step_of.before(x, weights)

    def step(states: States, row: tuple[Tensor, ...]) -> tuple[States, Tensor]:
        after = step_of.after(row[0], states, rest)
        if projection is not None:
            after = (F.linear(after[0], projection), *after[1:])
        if len(row) == 2:
            after = tuple(where(row[1], new, old) for new, old in zip(after, states, strict=True))
        after = tuple(cast(new, old.dtype) for new, old in zip(after, states, strict=True))  # autocast
        return after, after[0]

    rows = (gates,) if running is None else (gates, running)
    last, outputs = scan(step, start, rows, reverse=backwards)
    return (outputs, *last)


class _Recurrent(Module):
    """What the layers share: parameters per layer and direction, and the run over layers and time."""

    def __init__(
        self, kind: str, input_size: int, hidden_size: int, num_layers: int, bias: bool, batch_first: bool,
        dropout: float, bidirectional: bool, dtype: Any, proj_size: int = 0
    ) -> None:
        super().__init__()
        self._check(hidden_size, num_layers, dropout, proj_size)
        self._kind = kind
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first = bias, batch_first
        self.dropout, self.bidirectional, self.proj_size = dropout, bidirectional, proj_size
        for layer in range(checked_depth(type(self).__name__, num_layers)):
            width = input_size if layer == 0 else self._width * self._directions
            for suffix in self._suffixes(layer):
                register_weights(self, suffix, self._step, width, hidden_size, bias, dtype, proj_size)
            if layer == 1:  # all that follow are like it
                like = [p for name, p in self.named_parameters() if "_l1" in name]
                checked_depth(type(self).__name__, num_layers, like)
        self.reset_parameters()

    def _check(self, hidden_size: int, num_layers: int, dropout: float, proj_size: int) -> None:
        name = type(self).__name__
        if hidden_size < 1 or num_layers < 1:
            raise AttributeValueError(
                f"{name}: hidden_size and num_layers are positive", got=f"{hidden_size}, {num_layers}"
            )
        if not 0 <= dropout <= 1:
            raise AttributeValueError(f"{name}: dropout lies in [0, 1]", got=str(dropout))
        if not 0 <= proj_size < hidden_size:
            raise AttributeValueError(
                f"{name}: proj_size is smaller than hidden_size", got=f"{proj_size} of {hidden_size}"
            )

    @property
    def _width(self) -> int:
        """The size of a direction's output: of the hidden state, or of what it is projected to."""
        return self.proj_size or self.hidden_size

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
        draw_weights(self, self.hidden_size)

    def run(self, input: Any, start: States | None) -> tuple[Any, States]:
        """Return the outputs of the last layer and the last states, each [layers * directions, N, H]."""
        if isinstance(input, PackedSequence):
            return self._run_packed(input, start)
        self._check_input(input, (2, 3))
        batched = input.ndim == 3
        x = input if batched else input.reshape((input.shape[0], 1, input.shape[1]))
        x = x.permute(1, 0, 2) if batched and self.batch_first else x
        if start is not None and not batched:
            start = tuple(s.reshape((s.shape[0], 1, s.shape[1])) for s in start)
        x, ends = self._over_layers(x, self._initial(x, start))
        if not batched:
            return x.reshape((x.shape[0], x.shape[2])), tuple(
                e.reshape((e.shape[0], e.shape[2])) for e in ends
            )
        return (x.permute(1, 0, 2) if self.batch_first else x), ends

    def _run_packed(self, packed: PackedSequence, start: States | None) -> tuple[PackedSequence, States]:
        """Run over padded sequences; behind its end, the state of a sequence stays what it is."""
        self._check_input(packed.data, (2,))
        x, running = padded_sorted(packed)
        if start is not None and packed.sorted_indices is not None:
            start = tuple(_take(s, packed.sorted_indices, axis=1) for s in start)
        y, ends = self._over_layers(x, self._initial(x, start), running.reshape((*running.shape, 1)))
        if packed.unsorted_indices is not None:
            ends = tuple(_take(e, packed.unsorted_indices, axis=1) for e in ends)
        return packed_like(y, packed), ends

    def _check_input(self, x: Tensor, ranks: tuple[int, ...]) -> None:
        if x.ndim not in ranks or int(x.shape[-1]) != self.input_size:
            raise ShapeError(
                f"{type(self).__name__}: takes {' or '.join(map(str, ranks))} axes, "
                f"the last of {self.input_size}",
                got=f"shape {list(x.shape)}",
            )

    def _over_layers(self, x: Tensor, starts: States, running: Tensor | None = None) -> tuple[Tensor, States]:
        last: list[States] = []
        for layer in range(self.num_layers):
            outputs = []
            for d, suffix in enumerate(self._suffixes(layer)):
                mine = tuple(s[layer * self._directions + d] for s in starts)
                y, state = self._over_time(x, mine, suffix, running, backwards=d == 1)
                outputs.append(y)
                last.append(state)
            x = outputs[0] if len(outputs) == 1 else _concat(outputs, axis=-1)
            if self.dropout and layer < self.num_layers - 1:
                x = F.dropout(x, self.dropout, self.training)
        return x, tuple(_stack(list(group)) for group in zip(*last, strict=True))

    def _initial(self, x: Tensor, start: States | None) -> States:
        widths = [self._width, self.hidden_size][: self._step.num_states]  # the cell state is not projected
        shapes = [(self.num_layers * self._directions, x.shape[1], w) for w in widths]
        if start is None:
            return tuple(zeros(shape, dtype=x.dtype) for shape in shapes)
        for s, shape in zip(start, shapes, strict=True):
            if tuple(s.shape) != shape:
                got = f"{list(s.shape)}, not {list(shape)}"
                raise ShapeError(f"{type(self).__name__}: a state has another shape", got=got)
        return start

    def _over_time(
        self, x: Tensor, start: States, suffix: str, running: Tensor | None, backwards: bool
    ) -> tuple[Tensor, States]:
        """Run one layer in one direction."""
        projection = getattr(self, f"weight_hr{suffix}", None)
        outputs, *last = _scanned(
            self._kind, x, start, weights_of(self, suffix), projection, running, backwards
        )
        return outputs, tuple(last)

    def extra_repr(self) -> str:
        others = changed(
            self, proj_size=0, num_layers=1, bias=True, batch_first=False, dropout=0.0, bidirectional=False
        )
        return ", ".join([f"{self.input_size}, {self.hidden_size}", *others])


class LSTM(_Recurrent):
    """Long short-term memory over a sequence.

    See: Hochreiter and Schmidhuber 1997; gates in PyTorch's order i, f, g, o.

    With `proj_size` the hidden state is projected to that size after every step. See: Sak et al. 2014.

    Shapes: input [L, N, input_size] (batch first with `batch_first`; without N where unbatched; or packed,
    see `nn.utils.rnn`), output [L, N, directions * hidden_size], states (h, c)
    [layers * directions, N, hidden_size].
    """

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, proj_size: int = 0,
        device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__(
            "lstm", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, dtype,
            proj_size,
        )  # fmt: skip

    def forward(self, input: Any, hx: States | None = None) -> tuple[Any, States]:
        return self.run(input, hx)


class _OneState(_Recurrent):
    """Layers whose only state is their output."""

    def forward(self, input: Any, hx: Tensor | None = None) -> tuple[Any, Tensor]:
        outputs, (h,) = self.run(input, None if hx is None else (hx,))
        return outputs, h


class GRU(_OneState):
    """Gated recurrent units over a sequence; shapes as for the LSTM, with h as the only state.

    See: Cho et al. 2014; gates in PyTorch's order r, z, n, the reset applied after the product.
    """

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, device: Any = None,
        dtype: Any = None
    ) -> None:
        super().__init__(
            "gru", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, dtype
        )


class RNN(_OneState):
    """h' = tanh(W x + b + U h + c) over a sequence, or relu; shapes as for the LSTM, h being the only state.

    See: Elman 1990.
    """

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: str = "tanh",
        bias: bool = True, batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False,
        device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__(
            checked_nonlinearity("RNN", nonlinearity), input_size, hidden_size, num_layers, bias, batch_first,
            dropout, bidirectional, dtype,
        )  # fmt: skip
        self.nonlinearity = nonlinearity
