"""Run on every rank, with the name of a net, of a dtype and of strategies, or none for all: in twenty steps
they learn what one process learns on the whole batch, or say that they cannot.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
from rank_checks import refused

import stratal as st
from stratal import distributed as dist
from stratal import nn, optim
from stratal.base.errors import CallOrderError

RANK, SIZE = dist.rank(), dist.world_size()
BATCH, STEPS = 12, 20
TOLERANCE = {"float32": 1e-6, "float64": 1e-12}
Array = np.ndarray[Any, Any]


# -- nets ----------------------------------------------------------------------------------------------------
class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels),
        )  # fmt: skip

    def forward(self, x: Any) -> Any:
        return nn.functional.relu(x + self.body(x))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 5, 3, bias=False), nn.BatchNorm2d(5), nn.ReLU())
        self.block, self.head = Block(5), nn.Linear(5, 4)

    def forward(self, x: Any) -> Any:
        return self.head(self.block(self.stem(x)).mean(dim=(2, 3)))


class Gpt(nn.Module):
    """Tokens [N, 6] of 11 -> logits of the next one [N, 11, 6]."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(11, 8), nn.Parameter(st.randn(6, 8) * 0.1)
        self.drop = nn.Dropout(0.2)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True, norm_first=True)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 11)

    def forward(self, x: Any) -> Any:
        mask = nn.Transformer.generate_square_subsequent_mask(6, dtype=self.positions.dtype)
        hidden = self.layer(self.drop(self.tokens(x) + self.positions), mask, is_causal=True)
        return self.head(self.norm(hidden)).transpose(1, 2)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(9, 33), nn.Tanh(), nn.Linear(33, 17), nn.GELU(), nn.Linear(17, 4))


NETS: Final[dict[str, Callable[[], nn.Module]]] = {"mlp": mlp, "resnet": ResNet, "gpt": Gpt}


def batches(net: str, dtype: str) -> list[tuple[Array, Array]]:
    """Return the whole batch of every step."""
    rng = np.random.default_rng(1)
    found = []
    for _ in range(STEPS):
        if net == "gpt":
            tokens = rng.integers(0, 11, (BATCH, 7))
            found.append((tokens[:, :-1], tokens[:, 1:]))
        else:
            shape = (BATCH, 9) if net == "mlp" else (BATCH, 1, 6, 6)
            found.append((rng.standard_normal(shape).astype(dtype), rng.integers(0, 4, BATCH)))
    return found


# -- training ------------------------------------------------------------------------------------------------
class Learned(NamedTuple):
    losses: list[float]
    state: dict[str, Array]  # parameters and buffers


class Training:
    """A net with its optimizer, and the step of users; parallel, or of one process."""

    def __init__(self, name: str, dtype: str) -> None:
        st.manual_seed(4)
        self.name, self.dtype = name, dtype
        self.net = NETS[name]().to(st.float64 if dtype == "float64" else st.float32)
        self.optimizer = optim.SGD(self.net.parameters(), lr=0.05, momentum=0.9)

    def step(self, x: Any, y: Any) -> Any:
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.net(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def learned(self, losses: list[float]) -> Learned:
        with dist.full_parameters(self.optimizer):
            return Learned(losses, {k: np.array(v) for k, v in self.net.state_dict().items()})


def alone(name: str, dtype: str) -> Learned:
    """Train in this process, on whole batches."""
    training = Training(name, dtype)
    step = st.compile(training.step)
    st.manual_seed(9)
    losses = [float(step(st.tensor(x), st.tensor(y))) for x, y in batches(name, dtype)]
    return training.learned(losses)


def together(name: str, dtype: str, strategy: Any, outside: bool) -> Learned:
    """Train on all ranks, each on its part; `outside`: whether the parallel step is compiled as a whole."""
    training = Training(name, dtype)
    nn.SyncBatchNorm.convert_sync_batchnorm(training.net)
    taken = dist.parallel(training.step if outside else st.compile(training.step), strategy)
    taken = st.compile(taken) if outside else taken
    part, parts = strategy.shard() if hasattr(strategy, "shard") else dist.shard()
    own = []
    st.manual_seed(9)
    for x, y in batches(name, dtype):
        loss = taken(*(st.tensor(np.split(a, parts)[part]) for a in (x, y)))
        own.append(np.nan if loss is None else float(loss))  # a server has none
    losses = [float(np.nanmean(column)) for column in dist.all_gather(np.array(own)).reshape(SIZE, -1).T]
    if hasattr(strategy, "shard"):
        dist.pull(training.optimizer)
    return training.learned(losses)


# -- strategies ----------------------------------------------------------------------------------------------
class Case(NamedTuple):
    strategy: Callable[[], Any]
    outside: bool = True  # st.compile(parallel(step)), not parallel(st.compile(step))
    refuses: tuple[str, ...] = ()  # nets
    said: str = ""


STRATEGIES: Final = {
    "data": Case(dist.data),
    "local steps": Case(lambda: dist.data(local_steps=1)),
    "inner": Case(dist.data, outside=False),
    "servers": Case(dist.parameter_server, False, ("resnet",), "collective in a step with parameter servers"),
    "zero 1": Case(lambda: dist.zero(1)),
    "zero 2": Case(lambda: dist.zero(2)),
    "zero 3": Case(lambda: dist.zero(3, bucket_bytes=1 << 10)),
    "virtual shards": Case(lambda: dist.data(virtual_shards=12), False, ("resnet",), "changed buffers"),
}


def check(name: str, dtype: str, key: str) -> None:
    case = STRATEGIES[key]
    strategy = case.strategy()
    if name in case.refuses:
        refusal(name, dtype, case, strategy)
        return
    if key == "virtual shards" and name == "gpt":  # draws by shards; the same bits on any number of ranks
        found = together(name, dtype, strategy, case.outside)
        if RANK == 0:
            print("digest", dtype, [loss.hex() for loss in found.losses], flush=True)
        return
    found = together(name, dtype, strategy, case.outside)
    want = alone(name, dtype)
    close("loss", np.array(found.losses), np.array(want.losses), dtype, max(want.losses))
    for entry, value in want.state.items():
        if value.dtype.kind == "f":
            close(entry, found.state[entry], value, dtype, size_of(entry, want.state))


def size_of(entry: str, state: dict[str, Array]) -> float:
    """Return how large the values are that rounding errors of an entry are a share of.

    A mean may cancel out: it is of values as large as their deviation. A bias, which may have begun at zero,
    is added to what its layer's weights make.
    """
    if entry.endswith("running_mean"):
        return float(np.sqrt(state[entry.replace("mean", "var")]).max())
    layer = entry.rpartition(".")[0]
    same = [a for k, a in state.items() if k.rpartition(".")[0] == layer and "running" not in k]
    return max(float(np.abs(a).max()) for a in same if a.dtype.kind == "f")


def close(what: str, found: Array, want: Array, dtype: str, size: float) -> None:
    """Assert that arrays differ by less than a share of `size`."""
    worst = float(np.abs(found - want).max()) / size
    assert worst <= TOLERANCE[dtype], f"{what}: {worst:.2g} apart"


def refusal(name: str, dtype: str, case: Case, strategy: Any) -> None:
    if getattr(strategy, "is_server", False):
        dist.parallel(Training(name, dtype).step, strategy)
        return  # no worker pushes
    refused(CallOrderError, case.said, lambda: together(name, dtype, strategy, case.outside))


if __name__ == "__main__":
    name, dtype, *keys = sys.argv[1:]
    for key in keys or STRATEGIES:
        check(name, dtype, key)
        if RANK == 0:
            print("passed", name, dtype, key, flush=True)
