"""Whole training steps as people write them uncompiled, in kinds that are hard to be quick at; written once
for any library with PyTorch's names.

Each function is given the library and returns what trains for one turn and its loss. Weights and data are
NumPy's draws of one seed, so that two libraries compute the same.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Any, Final

import numpy as np

Turn = Callable[[], float]


def _given(library: Any, module: Any) -> Any:
    """Return a module with weights that depend on their names and shapes alone."""
    rng = np.random.default_rng(0)
    state = {}
    for name, value in module.state_dict().items():
        shape = tuple(value.shape)
        if str(value.dtype).endswith("int64") or "running" in name:
            state[name] = value
        else:
            wide = 1.0 if len(shape) < 2 else float(np.prod(shape[1:])) ** -0.5
            state[name] = library.tensor((wide * rng.uniform(-1, 1, shape)).astype(np.float32))
    module.load_state_dict(state)
    return module


def _draws(*shape: int, seed: int = 1) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _labels(high: int, *shape: int, seed: int = 2) -> Any:
    return np.random.default_rng(seed).integers(0, high, shape)


def scan(t: Any) -> Turn:
    """Return a recurrent net whose loop over 32 moments stands in Python."""
    cell = _given(t, t.nn.ModuleDict({"x": t.nn.Linear(16, 64), "h": t.nn.Linear(64, 64)}))
    head = _given(t, t.nn.Linear(64, 8))
    optimizer = t.optim.SGD([*cell.parameters(), *head.parameters()], lr=0.05)
    x, y = t.tensor(_draws(32, 32, 16)), t.tensor(_labels(8, 32))

    def net(x: Any) -> Any:
        h = t.zeros(32, 64)
        for k in range(x.shape[1]):
            h = t.tanh(cell["x"](x[:, k]) + cell["h"](h))
        return head(h)

    return _plain(t, net, optimizer, lambda: (x, y))


def minibatches(t: Any) -> Turn:
    """Return two epochs over shuffled rows as one turn."""
    net = _given(t, t.nn.Sequential(t.nn.Linear(20, 64), t.nn.ReLU(), t.nn.Linear(64, 3)))
    optimizer = t.optim.Adam(net.parameters(), lr=1e-3)
    x, y = t.tensor(_draws(256, 20)), t.tensor(_labels(3, 256))
    rng = np.random.default_rng(5)

    def turn() -> float:
        total = 0.0
        for _ in range(2):
            order = t.tensor(rng.permutation(256))
            for start in range(0, 256, 32):
                rows = order[start : start + 32]
                loss = t.nn.functional.cross_entropy(net(x[rows]), y[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.item()
        return total

    return turn


def depthwise(t: Any) -> Turn:
    """Return separable convolutions trained by RMSprop."""
    nn = t.nn
    net = _given(t, nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1, groups=32), nn.Conv2d(32, 64, 1), nn.ReLU(),
        nn.Conv2d(64, 64, 3, stride=2, padding=1, groups=64), nn.Conv2d(64, 64, 1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    ))  # fmt: skip
    optimizer = t.optim.RMSprop(net.parameters(), lr=1e-4)
    x, y = t.tensor(_draws(16, 3, 32, 32)), t.tensor(_labels(10, 16))
    return _plain(t, net, optimizer, lambda: (x, y))


def mixed_sizes(t: Any) -> Turn:
    """Return a net over a small table whose batches differ in size."""
    net = _given(t, t.nn.Sequential(t.nn.Linear(12, 32), t.nn.ReLU(), t.nn.Linear(32, 2)))
    optimizer = t.optim.AdamW(net.parameters(), lr=1e-3)
    sizes = cycle([32, 17, 64, 5, 48, 29, 11])
    x, y = t.tensor(_draws(64, 12)), t.tensor(_labels(2, 64))

    def batch() -> tuple[Any, Any]:
        n = next(sizes)
        return x[:n], y[:n]

    return _plain(t, net, optimizer, batch)


def _plain(t: Any, net: Any, optimizer: Any, batch: Callable[[], tuple[Any, Any]]) -> Turn:
    def turn() -> float:
        x, y = batch()
        optimizer.zero_grad()
        loss = t.nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return turn


def adversaries(t: Any) -> Turn:
    """Return two networks with an optimizer each, one against the other."""
    nn, F = t.nn, t.nn.functional
    maker = _given(t, nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 16)))
    judge = _given(t, nn.Sequential(nn.Linear(16, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1)))
    made, judged = (t.optim.Adam(net.parameters(), lr=2e-4, betas=(0.5, 0.999)) for net in (maker, judge))
    real, noise = t.tensor(_draws(64, 16)), t.tensor(_draws(64, 8, seed=3))
    ones, zeros = t.ones(64, 1), t.zeros(64, 1)

    def turn() -> float:
        fake = maker(noise)
        judged.zero_grad()
        loss = F.binary_cross_entropy_with_logits(judge(real), ones)
        loss = loss + F.binary_cross_entropy_with_logits(judge(fake.detach()), zeros)
        loss.backward()
        judged.step()
        made.zero_grad()
        other = F.binary_cross_entropy_with_logits(judge(fake), ones)
        other.backward()
        made.step()
        return loss.item() + other.item()

    return turn


def gru_cells(t: Any) -> Turn:
    """Return a loop over a cell of the library."""
    cell, head = _given(t, t.nn.GRUCell(16, 48)), _given(t, t.nn.Linear(48, 4))
    optimizer = t.optim.Adam([*cell.parameters(), *head.parameters()], lr=1e-3)
    x, y = t.tensor(_draws(20, 16, 16)), t.tensor(_labels(4, 16))

    def net(x: Any) -> Any:
        h = t.zeros(16, 48)
        for k in range(20):
            h = cell(x[k], h)
        return head(h)

    return _plain(t, net, optimizer, lambda: (x, y))


def averaged(t: Any) -> Turn:
    """Return a step that moves an average of the weights along."""
    layers = [(20, 64), (64, 64), (64, 3)]
    net = _given(t, t.nn.Sequential(*[t.nn.Linear(*sizes) for sizes in layers]))
    average = [p.detach().clone() for p in net.parameters()]
    x, y = t.tensor(_draws(64, 20)), t.tensor(_labels(3, 64))
    step = _plain(t, net, t.optim.SGD(net.parameters(), lr=0.01), lambda: (x, y))

    def turn() -> float:
        loss = step()
        with t.no_grad():
            for mean, value in zip(average, net.parameters(), strict=True):
                mean.mul_(0.99).add_(value, alpha=0.01)
        return loss

    return turn


def trees(t: Any) -> Turn:
    """Return a recursion over binary trees of several shapes."""
    net = _given(t, t.nn.ModuleDict({"leaf": t.nn.Embedding(50, 32), "join": t.nn.Linear(64, 32)}))
    head = _given(t, t.nn.Linear(32, 2))
    optimizer = t.optim.Adam([*net.parameters(), *head.parameters()], lr=1e-3)
    rng = np.random.default_rng(7)

    def grown(leaves: int) -> Any:
        if leaves == 1:
            return t.tensor(int(rng.integers(50)))
        left = int(rng.integers(1, leaves))
        return grown(left), grown(leaves - left)

    def value(tree: Any) -> Any:
        if not isinstance(tree, tuple):
            return net["leaf"](tree)
        return t.tanh(net["join"](t.cat([value(tree[0]), value(tree[1])])))

    forest = cycle([(grown(n), t.tensor([n % 2])) for n in (7, 12, 9, 5)])

    return _plain(t, lambda tree: head(value(tree)).unsqueeze(0), optimizer, lambda: next(forest))


FAMILIES: Final[dict[str, Callable[[Any], Turn]]] = {
    f.__name__: f
    for f in (scan, minibatches, depthwise, mixed_sizes, adversaries, gru_cells, averaged, trees)
}


# -- what is kept beside a training --------------------------------------------------------------------------
def _ema(t: Any, state: Any, weight: Any, loss: Any) -> Any:
    return 0.9 * state + 0.1 * weight.detach()


def _sum(t: Any, state: Any, weight: Any, loss: Any) -> Any:
    return state + loss.detach()


def _floats(t: Any, state: Any, weight: Any, loss: Any) -> Any:
    return state + float(loss)


def _best(t: Any, state: Any, weight: Any, loss: Any) -> Any:
    return t.minimum(state, loss.detach())


def _counts(t: Any, state: Any, weight: Any, loss: Any) -> Any:
    return state + t.nn.functional.one_hot(t.tensor([1]), 3)


AVERAGES: Final[dict[str, tuple[Callable[..., Any], tuple[int, ...]]]] = {  # with the shape of the first
    "ema": (_ema, (16, 8)), "sum": (_sum, ()), "floats": (_floats, ()), "best": (_best, ()),
    "counts": (_counts, (1, 3)),
}  # fmt: skip


def beside(t: Any, name: str | None) -> Turn:
    """Return a small step, with one of `AVERAGES` kept beside it."""
    net = _given(t, t.nn.Sequential(t.nn.Linear(8, 16), t.nn.Tanh(), t.nn.Linear(16, 1)))
    optimizer = t.optim.SGD(net.parameters(), lr=0.01)
    x, y = t.tensor(_draws(16, 8)), t.tensor(_draws(16, 1, seed=2))
    keep, shape = AVERAGES[name] if name else (None, ())
    state = t.zeros(shape)

    def turn() -> float:
        nonlocal state
        optimizer.zero_grad()
        loss = ((net(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        if keep is not None:
            state = keep(t, state, net[0].weight, loss)
        return loss.item()

    return turn
