"""Run on every rank: batch norm over all ranks is that of one process on the whole batch, gradients too."""

from __future__ import annotations

from typing import Any

import numpy as np
from rank_checks import run_checks

import stratal as st
from stratal import distributed as dist
from stratal import nn, optim
from stratal.base.errors import AttributeValueError

RANK, SIZE = dist.rank(), dist.world_size()
BATCH = 12
OWN = slice(RANK * BATCH // SIZE, (RANK + 1) * BATCH // SIZE)


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 5, 3, bias=False), nn.BatchNorm2d(5), nn.ReLU(),
            nn.Conv2d(5, 6, 2, bias=False), nn.BatchNorm2d(6, momentum=None), nn.ReLU(),
        )  # fmt: skip
        self.norm, self.head = nn.BatchNorm1d(6, affine=False), nn.Linear(6, 4)

    def forward(self, x: Any) -> Any:
        return self.head(self.norm(self.body(x).mean(dim=(2, 3))))


def network(dtype: Any, synchronised: bool) -> nn.Module:
    st.manual_seed(0)
    net = Conv().to(dtype)
    return nn.SyncBatchNorm.convert_sync_batchnorm(net) if synchronised else net


def samples(steps: int, dtype: Any) -> list[tuple[Any, Any]]:
    """Return batches; in float64 far from 0, where sums of squares would keep little of the variance."""
    rng = np.random.default_rng(1)
    name, mean = ("float64", 3.0) if dtype is st.float64 else ("float32", 0.0)
    return [(mean + rng.standard_normal((BATCH, 1, 5, 5)).astype(name), rng.integers(0, 4, BATCH))
            for _ in range(steps)]  # fmt: skip


def train(dtype: Any, strategy: Any, compiled: bool, steps: int) -> list[np.ndarray[Any, Any]]:
    """Return parameters and buffers after some steps, on this rank's part of each batch or on all of it."""
    net = network(dtype, strategy is not None)
    optimizer: optim.Optimizer = optim.AdamW(net.parameters(), lr=1e-2, eps=1e-3)
    if dtype is st.float32:  # Adam divides the rounding errors of small gradients by eps
        optimizer = optim.SGD(net.parameters(), lr=0.05, momentum=0.9)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    taken = step if strategy is None else dist.parallel(step, strategy)
    taken = st.compile(taken) if compiled else taken
    for x, y in samples(steps, dtype):
        part = slice(None) if strategy is None else OWN
        taken(st.tensor(x[part]), st.tensor(y[part]))
    net.eval()
    seen = net(st.tensor(samples(1, dtype)[0][0]))  # by running statistics, without messages
    return [np.asarray(t.detach()).copy() for t in (*net.parameters(), *net.buffers(), seen)]


def equal() -> None:
    cases = ((st.float64, dist.zero(2), True, 1e-12), (st.float32, dist.data(), True, 1e-6),
             (st.float64, dist.data(), False, 1e-12))  # fmt: skip
    for dtype, strategy, compiled, tolerance in cases:
        want = train(dtype, None, True, 20)
        found = train(dtype, strategy, compiled, 20)
        for a, b in zip(found, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def gradients() -> None:
    """Of parameters and of the input, through the statistics of all ranks; parts of other sizes, too."""
    x, _ = samples(1, st.float64)[0]
    weights = np.random.default_rng(2).standard_normal((BATCH, 5, 3, 3))
    ends = [0, *(r + 1 for r in range(SIZE - 1)), BATCH]  # one sample each, the last rank has the rest
    results = []
    for part in (slice(None), slice(ends[RANK], ends[RANK + 1])):
        net = network(st.float64, part != slice(None)).body[:2]
        given = st.tensor(x[part]).requires_grad_()
        (net(given) * st.tensor(weights[part])).sum().backward()
        inner = [np.asarray(p.grad) for p in net.parameters()]
        results.append((part, np.asarray(given.grad), inner))
    (_, whole, inner), (part, own, mine) = results
    np.testing.assert_allclose(own, whole[part], rtol=1e-12, atol=1e-12)
    for a, b in zip(mine, inner, strict=True):
        np.testing.assert_allclose(dist.all_reduce(a), b, rtol=1e-12, atol=1e-12)


def converted() -> None:
    net = Conv()
    kept = [id(t) for t in (*net.parameters(), *net.buffers())]
    keys = list(net.state_dict())
    net.eval()
    same = nn.SyncBatchNorm.convert_sync_batchnorm(net)
    assert same is net and [id(t) for t in (*net.parameters(), *net.buffers())] == kept
    assert list(net.state_dict()) == keys and not net.norm.training
    assert type(net.body[4]) is nn.SyncBatchNorm and net.body[4].momentum is None
    try:
        nn.SyncBatchNorm(3, process_group="some")
    except AttributeValueError as error:
        assert "all ranks" in str(error)
    else:
        raise AssertionError("not refused")


if __name__ == "__main__":
    checks = (equal, gradients, converted)
    run_checks(checks)
