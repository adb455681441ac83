"""Small networks of every kind, trained for a few steps from the same start, for tests that compare runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import stratal as st
from stratal import nn, optim
from stratal.cli.examples.digits import Net

Array = np.ndarray[Any, Any]
Data = tuple[Array, ...]


class _Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(5, 6, batch_first=True)
        self.out = nn.Linear(6, 4)

    def forward(self, x: Any) -> Any:
        return self.out(self.lstm(x)[0][:, -1])


class _Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 24, dropout=0.0, batch_first=True)
        self.out = nn.Linear(16, 4)

    def forward(self, x: Any) -> Any:
        return self.out(self.layer(self.embedding(x)).mean(1))


class _Graph(nn.Module):
    """Two rounds of messages along edges: gather what a node sends, add up what it is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x: Any, edges: Any) -> Any:
        for layer in (self.first, self.second):
            sent = layer(x)[edges[0]]
            x = st.tanh(st.zeros(x.shape[0], sent.shape[1]).index_add(0, edges[1], sent))
        return x


def _mlp(rng: np.random.Generator) -> tuple[Any, Data]:
    net = nn.Sequential(nn.Linear(13, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))
    return net, (_floats(rng, 12, 13), rng.integers(0, 4, 12))


def _conv(rng: np.random.Generator) -> tuple[Any, Data]:
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1),
        nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 16, 4),
    )  # fmt: skip
    return net, (_floats(rng, 6, 3, 8, 8), rng.integers(0, 4, 6))


MODELS: dict[str, Callable[[np.random.Generator], tuple[Any, Data]]] = {
    "mlp": _mlp,
    "conv": _conv,
    "lstm": lambda rng: (_Lstm(), (_floats(rng, 6, 7, 5), rng.integers(0, 4, 6))),
    "transformer": lambda rng: (_Transformer(), (rng.integers(0, 11, (4, 9)), rng.integers(0, 4, 4))),
    "graph": lambda rng: (
        _Graph(), (_floats(rng, 10, 6), rng.integers(0, 10, (2, 24)), rng.integers(0, 4, 10)),
    ),
    "demo": lambda rng: (Net(), (_floats(rng, 8, 1, 8, 8), rng.integers(0, 10, 8))),
}  # fmt: skip


def _floats(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


class Trained:
    """What a few steps gave: the losses, then all parameters and buffers; graph and plan of a step."""

    def __init__(self, step: Any, losses: list[Array], state: dict[str, Array]) -> None:
        self.losses, self.state = losses, state
        self.graph, self.plan = step.graph, step.plan

    def differs(self, other: Trained, rtol: float = 1e-4, atol: float = 2e-5) -> list[str]:
        """Return what differs between two runs by more than sums in another order do."""
        pairs = [(f"loss {k}", a, b) for k, (a, b) in enumerate(zip(self.losses, other.losses, strict=True))]
        pairs += [(name, a, other.state[name]) for name, a in self.state.items()]
        return [name for name, a, b in pairs if not np.allclose(a, b, rtol=rtol, atol=atol)]


def prepared(name: str) -> Callable[[], Trained]:
    """Return the training of a network that is made and initialised, and not yet compiled."""
    st.manual_seed(3)
    net, data = MODELS[name](np.random.default_rng(7))
    optimizer = optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    given = [st.tensor(a) for a in data]
    np.asarray(st.rand(1))  # nothing is left to compute

    @st.compile
    def step(*batch: Any) -> Any:
        loss = nn.functional.cross_entropy(net(*batch[:-1]), batch[-1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    for value in net.state_dict().values():
        np.asarray(value)

    def run() -> Trained:
        losses = [np.array(step(*given)) for _ in range(3)]
        return Trained(step, losses, {k: np.array(v) for k, v in net.state_dict().items()})

    return run
