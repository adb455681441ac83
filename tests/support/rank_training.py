"""Run on every rank: training in parallel gives what one process gives on the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from rank_checks import refused, run_checks

import stratal as st
from stratal import distributed as dist
from stratal import nn, optim
from stratal.base.errors import AttributeValueError, CallOrderError
from stratal.data import DataLoader, TensorDataset

RANK, SIZE = dist.rank(), dist.world_size()
BATCH = 12


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        inner = (nn.Linear(9, 33), nn.Tanh(), nn.Linear(33, 17), nn.GELU())
        self.layers = nn.Sequential(*inner, nn.Linear(17, 4))

    def forward(self, x: Any) -> Any:
        return self.layers(x.reshape(x.shape[0], -1))


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 5, 2), nn.Conv2d(5, 6, 2)
        self.head = nn.Linear(6, 4)

    def forward(self, x: Any) -> Any:
        x = nn.functional.relu(self.first(x))
        return self.head(nn.functional.relu(self.second(x)).mean(dim=(2, 3)))


def samples(count: int = 20 * BATCH) -> TensorDataset:
    rng = np.random.default_rng(1)
    return TensorDataset(rng.standard_normal((count, 1, 3, 3)).astype(np.float32), rng.integers(0, 4, count))


def train(
    make: Callable[[], nn.Module], compiled: bool, shard: tuple[int, int] | None, *, clip: float = 0.0,
    micro: int = 1, steps: int = 5, **options: Any,
) -> list[np.ndarray[Any, Any]]:  # fmt: skip
    """Return the parameters after some steps, on this rank's part of each batch or on all of it."""
    st.manual_seed(0 if shard is None else RANK)  # rank 0's parameters count
    net = make()
    optimizer = optim.AdamW(net.parameters(), lr=1e-2, eps=1e-3)

    def clipped() -> None:
        if shard is not None:
            dist.synchronize(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimizer.step()

    update = clipped if clip else optimizer.step

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        total = 0.0
        for part in range(micro):
            some = slice(part * len(x) // micro, (part + 1) * len(x) // micro)
            loss = nn.functional.cross_entropy(net(x[some]), y[some]) / micro
            loss.backward()
            total = total + loss.detach()
        update()
        return total

    taken = step if shard is None else dist.parallel(step, dist.data(**options))
    taken = st.compile(taken) if compiled else taken
    for x, y in DataLoader(samples(steps * BATCH), BATCH, shuffle=True, seed=3, shard=shard):
        taken(x, y)
    return [np.asarray(p.detach()).copy() for p in net.parameters()]


def equal() -> None:
    for make in (Mlp, Conv):
        want = train(make, True, None, steps=20)
        for compiled in (True, False):
            found = train(make, compiled, dist.shard(), steps=20)
            for a, b in zip(found, want, strict=True):
                np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)
            joined = dist.all_gather(np.concatenate([p.reshape(-1) for p in found])).reshape(SIZE, -1)
            assert (joined == joined[0]).all(), "ranks have other parameters"


def buckets() -> None:
    """Row F9: the same bits with one bucket, with many, and in every run."""
    whole = train(Mlp, True, dist.shard(), bucket_bytes=1 << 20)
    dist.traffic(reset=True)
    apart = train(Mlp, True, dist.shard(), bucket_bytes=1)
    many = sum(dist.traffic(reset=True)["sent_messages"])
    again = train(Mlp, True, dist.shard(), bucket_bytes=1 << 20)
    few = sum(dist.traffic()["sent_messages"])
    for a, b, c in zip(whole, apart, again, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)
    assert many - few == 5 * 5 * 2 * (SIZE - 1), (many, few)  # 6 buckets in place of one


def hidden() -> None:
    """Row F10: kernels run between starts, waits come after all of them, and less is waited than sent."""
    st.manual_seed(0)
    net = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(384, 384), nn.Tanh())))
    optimizer = optim.SGD(net.parameters(), lr=0.01)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = (net(x) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    taken = st.compile(dist.parallel(step, dist.data(bucket_bytes=1 << 19)))
    x = st.tensor(np.random.default_rng(RANK).standard_normal((192, 384)).astype(np.float32))
    for _ in range(2):
        taken(x)
    dist.overlap(reset=True)
    for _ in range(10):
        taken(x)
    said = dist.overlap()
    assert said["communicating_s"] > said["waited_s"] > 0 and said["hidden"] > 0, said
    order = [c.get("op") or c["do"] for c in taken.program.plan.commands]
    starts = [k for k, op in enumerate(order) if str(op).startswith("all_reduce_start")]
    waits = [k for k, op in enumerate(order) if str(op).startswith("all_reduce_wait")]
    assert len(starts) == len(waits) >= 4 and max(starts) < min(waits), order
    assert order[starts[0] : starts[-1]].count("kernel") >= len(starts) - 1, order


def clipped_and_accumulated() -> None:
    micro = 3 if SIZE == 4 else 2  # so that all parts have one size, as means of means need it
    for options in ({"clip": 0.05}, {"micro": micro}):
        want, found = train(Mlp, True, None, **options), train(Mlp, True, dist.shard(), **options)
        for a, b in zip(found, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)


def different_programs_are_refused() -> None:
    st.manual_seed(0)
    net = Mlp()
    optimizer = optim.SGD(net.parameters(), lr=0.1)

    @st.compile
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y) * (2.0 if RANK == 1 else 1.0)
        loss.backward()
        optimizer.step()
        return loss

    before = [np.asarray(p.detach()).copy() for p in net.parameters()]
    x, y = (st.tensor(a[:4]) for a in samples().arrays)
    try:
        dist.parallel(step, dist.data(optimizer))(x, y)
    except dist.ProgramMismatchError as error:
        assert "in program" in str(error), error
        for p, b in zip(net.parameters(), before, strict=True):
            np.testing.assert_array_equal(np.asarray(p.detach()), b)
    else:
        raise AssertionError("not noticed")


def local_steps() -> None:
    """Row F11: parameters are averaged every few steps: less is sent, and something else learned."""
    want = local(1)
    assert max(float(abs(a - b).max()) for a, b in zip(local(2), want, strict=True)) > 1e-6
    sent = []
    for every in (2, 4):
        dist.traffic(reset=True)
        found = local(every)
        sent.append(sum(dist.traffic()["sent_bytes"]))
        joined = dist.all_gather(np.concatenate([p.reshape(-1) for p in found])).reshape(SIZE, -1)
        assert (joined == joined[0]).all()
    assert sent[1] < sent[0]


def local(every: int) -> list[np.ndarray[Any, Any]]:
    st.manual_seed(RANK)
    net = Mlp()
    optimizer = optim.SGD(net.parameters(), lr=0.1)

    def step(x: Any, y: Any) -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()

    taken = dist.parallel(st.compile(step), dist.data(local_steps=every))
    for x, y in DataLoader(samples(8 * BATCH), BATCH, shuffle=True, seed=3, shard=dist.shard()):
        taken(x, y)
    return [np.asarray(p.detach()).copy() for p in net.parameters()]


def clipped_in_helpers(net: nn.Module, how: str) -> None:
    """What a step may call, and the step's own code does not name."""
    if how == "norm":
        nn.utils.clip_grad_norm_(net.parameters(), 0.05)
    elif how == "value":
        nn.utils.clip_grad_value_(list(net.parameters()), 0.01)
    elif how in ("largest", "cubes"):
        nn.utils.clip_grad_norm_(net.parameters(), 0.01, {"largest": float("inf"), "cubes": 3.0}[how])
    elif how == "by hand":
        total = nn.utils.get_total_norm([p.grad for p in net.parameters()])
        nn.utils.clip_grads_with_norm_(net.parameters(), 0.05, total)


def learned(strategy: Any, how: str, compiled: bool = True, scaler: Any = None) -> list[np.ndarray[Any, Any]]:
    st.manual_seed(0)
    net = Mlp()
    optimizer = optim.SGD(net.parameters(), lr=0.5, momentum=0.9)

    def step(x: Any, y: Any) -> None:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        if scaler is not None:
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
        else:
            loss.backward()
        if how == "twice":  # a second backward() adds this rank's own gradients to means
            clipped_in_helpers(net, "norm")
            nn.functional.cross_entropy(net(x), y).backward()
        else:
            clipped_in_helpers(net, how)
        optimizer.step() if scaler is None else scaler.step(optimizer)
        scaler is not None and scaler.update()

    taken = step if strategy is None else dist.parallel(step, strategy)
    taken = st.compile(taken) if compiled else taken
    shard = None if strategy is None else dist.shard()
    first = strategy is None or RANK == 0
    for x, y in DataLoader(samples(5 * BATCH), BATCH, shuffle=True, seed=3, shard=shard):
        taken(x * np.inf if scaler is not None and scaler.get_scale() == 64.0 and first else x, y)
    with dist.full_parameters(optimizer):
        return [np.asarray(p.detach()).copy() for p in net.parameters()]


def clipping_sees_the_whole_batch_wherever_it_is_called() -> None:
    shares = dist.zero(3, bucket_bytes=100)  # several, of parameters of one and of several
    cases = [("norm", dist.data(), True), ("value", dist.data(), False), ("norm", dist.zero(2), True),
             ("twice", dist.data(), True), ("twice", dist.zero(1), False),
             *((how, shares, True) for how in ("norm", "largest", "cubes"))]  # fmt: skip
    for how, strategy, compiled in cases:
        for a, b in zip(learned(strategy, how, compiled), learned(None, how), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-6, err_msg=how)
    assert abs(learned(None, "norm")[0] - learned(None, "")[0]).max() > 1e-3  # it does clip
    for strategy in (dist.data(), dist.zero(1)):
        try:
            learned(strategy, "by hand")
        except CallOrderError as error:
            assert "norm would be that of this rank's own gradients" in str(error), error
        else:
            raise AssertionError("not noticed")


def a_loss_scaler_meets_the_overflow_of_any_rank() -> None:
    """Rank 0 alone has infinite numbers in its first batch; all ranks leave the step out."""
    want = learned(None, "norm", True, st.amp.GradScaler(init_scale=64.0))
    for strategy, compiled in ((dist.data(), True), (dist.data(), False), (dist.zero(1), False),
                               *((dist.zero(stage), True) for stage in (1, 2, 3))):  # fmt: skip
        scaler = st.amp.GradScaler(init_scale=64.0)
        found = learned(strategy, "norm", compiled, scaler)
        for a, b in zip(found, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-6, err_msg=str(strategy))
        joined = dist.all_gather(np.concatenate([p.reshape(-1) for p in found])).reshape(SIZE, -1)
        assert (joined == joined[0]).all() and np.isfinite(joined).all()
        assert scaler.get_scale() == 32.0


def refusals() -> None:
    for call in (lambda: dist.parallel(lambda: None, dist.data()), lambda: dist.data(bucket_bytes=0)):
        refused(AttributeValueError, "", call)


if __name__ == "__main__":
    checks = (
        equal, buckets, hidden, clipped_and_accumulated, local_steps, refusals,
        clipping_sees_the_whole_batch_wherever_it_is_called, a_loss_scaler_meets_the_overflow_of_any_rank,
        different_programs_are_refused,
    )  # fmt: skip
    run_checks(checks)
