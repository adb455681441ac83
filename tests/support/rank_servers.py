"""Run on every rank: with parameter servers workers learn what one process learns, or nearly so."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import numpy as np
from rank_checks import refused, run_checks

import stratal as st
from stratal import distributed as dist
from stratal import nn, optim
from stratal.base.errors import AttributeValueError, CallOrderError, CaptureError
from stratal.data import DataLoader, TensorDataset

RANK, SIZE = dist.rank(), dist.world_size()
BATCH = 12
TOLERANCE = {"float32": 1e-6, "float64": 1e-12}


def network(dtype: str) -> nn.Module:
    """Return an MLP of 971 parameters."""
    st.manual_seed(RANK)  # rank 0's parameters count
    layers = (nn.Linear(9, 33), nn.Tanh(), nn.Linear(33, 17), nn.GELU(), nn.Linear(17, 4))
    return nn.Sequential(*layers).to(st.float64 if dtype == "float64" else st.float32)


class Training:
    """A network, its optimizer and a step: with parameter servers, or of one process on whole batches."""

    def __init__(
        self, dtype: str, strategy: Any = None, *, compiled: bool = True, plain: bool = False
    ) -> None:
        self.net, self.dtype, self.strategy = network(dtype), dtype, strategy
        if strategy is None:
            with st.no_grad():
                for p in self.net.parameters():
                    p.copy_(dist.broadcast(p))
        params = list(self.net.parameters())
        groups = [{"params": params[:3]}, {"params": params[3:], "lr": 3e-3}]
        self.optimizer = optim.SGD(params, lr=0.1) if plain else optim.AdamW(groups, lr=1e-2, eps=1e-3)
        step = st.compile(self.step) if compiled else self.step
        self.taken = step if strategy is None else dist.parallel(step, strategy)

    def step(self, x: Any, y: Any) -> Any:
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.net(x), y)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def run(self, steps: int) -> list[Any]:
        rng = np.random.default_rng(1)
        x = rng.standard_normal((steps * BATCH, 9)).astype(self.dtype)
        data = TensorDataset(x, (x[:, :4].argmax(1)).astype(np.int64))
        shard = None if self.strategy is None else self.strategy.shard()
        return [self.taken(*batch) for batch in DataLoader(data, BATCH, shuffle=True, seed=3, shard=shard)]

    def parameters(self) -> list[np.ndarray[Any, Any]]:
        return [np.asarray(p.detach()).copy() for p in self.net.parameters()]


def close(found: Any, want: Any, tolerance: float) -> None:
    for a, b in zip(found, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance)
    joined = dist.all_gather(np.concatenate([p.reshape(-1) for p in found])).reshape(SIZE, -1)
    assert (joined == joined[0]).all(), "ranks have other parameters"


def equal() -> None:
    servers: list[dict[str, Any]] = [{"bucket_bytes": 256}]
    servers += [{"servers": 2, "bucket_bytes": 1}] if SIZE > 2 else []
    for dtype, compiled, strategies in (("float32", True, [{}]), ("float64", False, servers)):
        whole = Training(dtype, compiled=compiled)
        whole.run(20)
        for options in strategies:
            served = Training(dtype, dist.parameter_server(**options), compiled=compiled)
            losses = served.run(20)
            assert (losses[0] is None) == served.strategy.is_server
            if not served.strategy.is_server:
                for a, b in zip(served.parameters(), whole.parameters(), strict=True):
                    np.testing.assert_allclose(a, b, rtol=0, atol=TOLERANCE[dtype])
            dist.pull(served.optimizer)
            close(served.parameters(), whole.parameters(), TOLERANCE[dtype])


def sent_in_an_epoch() -> None:
    """Rows F3, F5: all that N workers and their server send is 2MNK; a ring of N ranks sends 2M(N-1)K."""
    steps, workers = 5, SIZE - 1
    for buckets in (1, 6):
        training = Training("float32", dist.parameter_server(bucket_bytes=1 << 20 if buckets == 1 else 1))
        size = sum(p.nbytes for p in training.net.parameters())
        training.run(1)  # workers say which program they run: 12 bytes
        dist.barrier()
        dist.traffic(reset=True)
        training.run(steps)
        counted = dist.traffic(reset=True)
        own = [sum(counted[name]) for name in ("sent_messages", "sent_bytes", "received_bytes")]
        messages, sent, received = dist.all_gather(np.array([own], np.int64)).T
        if training.strategy.is_server:
            assert counted["sent_bytes"] == counted["received_bytes"] == [size * steps] * workers + [0]
        assert sent.sum() == received.sum() == 2 * size * workers * steps, (sent, size)
        assert sent[-1] == received[-1] == size * workers * steps  # the server's share is half of it
        assert messages.sum() == 2 * workers * steps * buckets, messages
    training = Training("float32", dist.data(algorithm="ring"))
    dist.traffic(reset=True)
    for _ in range(steps):
        training.taken(st.ones((4, 9)), st.zeros(4, dtype="int64"))
    sent = dist.all_reduce(np.int64(sum(dist.traffic(reset=True)["sent_bytes"])))
    assert sent == 2 * size * (SIZE - 1) * steps, sent


class Counting:
    """A parameter with an element per worker, of which each counts its own steps: what a worker reads says
    exactly which steps of the others it has seen.
    """

    def __init__(self, strategy: Any, compiled: bool = True) -> None:
        self.count = nn.Parameter(st.zeros(strategy.workers))
        self.optimizer = optim.SGD([self.count], lr=1.0)
        self.taken = dist.parallel(st.compile(self.step) if compiled else self.step, strategy)

    def step(self, own: Any) -> None:
        self.optimizer.zero_grad()
        (self.count * -own).sum().backward()
        self.optimizer.step()


def stale_by(bound: int, steps: int) -> tuple[dist.Staleness, int]:
    """Let worker 0 be slow; return the staleness, and what the parameters say of it."""
    strategy = dist.parameter_server(mode="async", staleness=bound)
    training = Counting(strategy)
    own = st.tensor(np.eye(SIZE, dtype=np.float32)[RANK][: strategy.workers])
    dist.barrier()
    seen = 0
    for k in range(1, steps + 1):
        time.sleep(0.01 if RANK == 0 else 0)
        training.taken(own)
        if not strategy.is_server:
            counts = training.count.detach().numpy()
            assert counts[RANK] == k, counts  # its own steps are there, all of them
            seen = max(seen, int(k - counts.min()))
    found = dist.staleness(training.optimizer)
    dist.pull(training.optimizer)
    np.testing.assert_array_equal(training.count.detach().numpy(), steps)  # no step lost or repeated
    return found, int(dist.all_reduce(np.int64(seen), "max"))


def staleness_is_bounded() -> None:
    """Row F2: the bound binds, and what is measured is what the parameters say."""
    workers = SIZE - 1
    for bound, steps in ((0, 8), (2, 12), (20, 24)):
        found, seen = stale_by(bound, steps)
        assert found.bound == bound and len(found.steps) == steps * workers
        assert found.measured == seen <= bound, (found, seen)
        if workers > 1:
            assert found.measured == (bound if bound < 20 else seen) and (bound < 20 or seen > 2), str(found)
        assert f"of at most {bound}: " in str(found)
    with_rows = dist.staleness(Training("float32", dist.parameter_server()).optimizer)
    assert str(with_rows).startswith("staleness 0 of at most 0: no steps")


def async_learns() -> None:
    training = Training("float32", dist.parameter_server(mode="async", staleness=2), plain=True)
    losses = [float(loss) for loss in training.run(120) if loss is not None]
    found = dist.staleness(training.optimizer)
    assert found.measured <= 2 and len(found.steps) == 120 * (SIZE - 1)
    if losses:
        assert np.mean(losses[-20:]) < 0.7 * np.mean(losses[:10]), losses
    dist.pull(training.optimizer)
    joined = dist.all_gather(np.concatenate([p.reshape(-1) for p in training.parameters()]))
    assert (joined.reshape(SIZE, -1) == joined.reshape(SIZE, -1)[0]).all()


def saved_and_loaded() -> None:
    """A state dict is that of one process, and a run goes on from it, with other servers or with none."""
    whole, first = Training("float64"), Training("float64", dist.parameter_server(bucket_bytes=256))
    whole.run(6), first.run(6)
    saved, want = first.optimizer.state_dict(), whole.optimizer.state_dict()
    same_state(saved, want, 1e-12)
    assert [g["params"] for g in saved["param_groups"]] == [g["params"] for g in want["param_groups"]]
    dist.pull(first.optimizer)
    model = first.net.state_dict()
    results = []
    for strategy in (None, dist.parameter_server(servers=max(1, SIZE - 2)), dist.parameter_server()):
        again = Training("float64", strategy)
        again.net.load_state_dict(model)
        again.optimizer.load_state_dict(saved)
        if strategy is not None:
            same_state(again.optimizer.state_dict(), saved, 0.0)
            kept = sum(p.nbytes for group in again.optimizer.param_groups for p in group.shards)
            assert again.optimizer.state_bytes == 2 * kept  # a rank has two moments of what it owns
        again.run(6)
        if strategy is not None:
            dist.pull(again.optimizer)
        results.append(again.parameters())
    first.run(6)
    dist.pull(first.optimizer)
    for found in (first.parameters(), *results[1:]):
        close(found, results[0], 1e-12)
    late = Training("float64")  # trained alone, then served with the state it has
    late.net.load_state_dict(model)
    late.optimizer.load_state_dict(saved)
    dist.parallel(late.step, dist.parameter_server(late.optimizer))
    same_state(late.optimizer.state_dict(), saved, 0.0)
    del saved["param_groups"][1]
    refused(AttributeValueError, "other groups", lambda: late.optimizer.load_state_dict(saved))


def same_state(found: dict[str, Any], want: dict[str, Any], tolerance: float) -> None:
    assert list(found["state"]) == list(want["state"]) == list(range(6))
    for k, entries in want["state"].items():
        assert entries.keys() == found["state"][k].keys() > {"step", "exp_avg"}
        for name, value in entries.items():
            assert found["state"][k][name].dtype == value.dtype, name
            np.testing.assert_allclose(found["state"][k][name].numpy(), value.numpy(), rtol=0, atol=tolerance)


def two_optimizers() -> None:
    """The second one's gradients are of parameters that the first one's step has changed."""
    results = []
    for strategy in (None, dist.parameter_server()):
        st.manual_seed(0)
        one, two = nn.Linear(3, 5), nn.Linear(5, 2)
        first, second = optim.Adam(one.parameters(), lr=0.1), optim.Adam(two.parameters(), lr=0.1)

        def step(x: Any, one: Any = one, two: Any = two, first: Any = first, second: Any = second) -> None:
            (two(one(x)) ** 2).mean().backward()
            first.step()
            second.zero_grad()
            (two(one(x)) ** 2).mean().backward()
            second.step()
            first.zero_grad(), second.zero_grad()

        taken = st.compile(step) if strategy is None else dist.parallel(st.compile(step), strategy)
        for k in range(3):
            x = np.random.default_rng(k).standard_normal((BATCH, 3)).astype(np.float32)
            worker, workers = (0, 1) if strategy is None else strategy.shard()
            taken(st.tensor(np.split(x, workers)[worker]))
        for optimizer in (first, second) if strategy is not None else ():
            dist.pull(optimizer)
        params = [*one.parameters(), *two.parameters()]
        results.append(np.concatenate([p.detach().numpy().reshape(-1) for p in params]))
    np.testing.assert_allclose(results[1], results[0], rtol=0, atol=1e-6)


def refusals() -> None:
    strategy = dist.parameter_server()
    training = Training("float32", strategy)
    x, y = st.tensor(np.ones((4, 9), np.float32)), st.tensor(np.zeros(4, np.int64))
    refused(CaptureError, "not compiled from outside", lambda: st.compile(training.taken)(x, y))
    refused(AttributeValueError, "of one parallel step", lambda: dist.parallel(training.step, strategy))
    refused(
        AttributeValueError, "at least one rank trains", lambda: dist.parameter_server(servers=SIZE).workers
    )
    refused(AttributeValueError, "no step with parameter servers",
            lambda: dist.pull(optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)))  # fmt: skip
    if strategy.is_server:
        for _ in range(2):  # what follows is on workers, but for the parameters they begin with
            other = optim.SGD(nn.Linear(9, 4).parameters(), lr=0.1)
            dist.parallel(other.step, dist.parameter_server(other))
        return
    refused(CallOrderError, "known to servers alone", lambda: dist.synchronize(training.optimizer))
    refused(CallOrderError, "a gradient in every step", training.optimizer.step)
    for kind, said in (("clips", "known to servers alone"), ("leaves out", "0 steps of SGD")):
        net = nn.Linear(9, 4)
        optimizer = optim.SGD(net.parameters(), lr=0.1)

        def step(net: Any = net, optimizer: Any = optimizer, kind: str = kind) -> None:
            net(x).sum().backward()
            if kind == "clips":
                nn.utils.clip_grad_norm_(net.parameters(), 1.0)

        refused(CallOrderError, said, dist.parallel(step, strategy))


def fault(what: str) -> None:
    """The last worker, or the server, fails in the middle of training."""
    strategy = dist.parameter_server(mode="async" if what.endswith("late") else "sync")
    training = Counting(strategy, compiled=RANK != 1 or not what.endswith("not compiled"))
    if what.startswith("another program"):  # from the first step on, or later; or one that is not compiled
        if what.endswith("late"):
            training.taken(st.ones(strategy.workers))
        for _ in range(2):
            training.taken(st.ones((1 if what.endswith("not compiled") else 1 + RANK, strategy.workers)))
        dist.barrier()
        raise AssertionError("not noticed")
    training.taken(st.ones(strategy.workers))
    if (SIZE - 1 if what.startswith("server") else strategy.workers - 1) == RANK:
        if what.endswith("stops"):
            os.kill(os.getpid(), signal.SIGSTOP)
        sys.exit(0)
    training.taken(st.ones(strategy.workers))


if __name__ == "__main__":
    checks = (
        equal, sent_in_an_epoch, staleness_is_bounded, async_learns, saved_and_loaded, two_optimizers,
        refusals,
    )  # fmt: skip
    if sys.argv[1:2] == ["fault"]:
        fault(sys.argv[2])
    run_checks(checks)
