"""Run on every rank: training by virtual shards; rank 0 prints digests, which do not depend on ranks."""

from __future__ import annotations

import hashlib
import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np
from rank_checks import refused, run_checks

import stratal as st
from stratal import distributed as dist
from stratal import nn, optim
from stratal.base.errors import AttributeValueError, CallOrderError, CaptureError, DTypeError, ShapeError
from stratal.data import DataLoader, TensorDataset

RANK, SIZE = dist.rank(), dist.world_size()
SHARDS, BATCH, STEPS = 12, 24, 8


def digest(arrays: Any) -> str:
    return hashlib.sha256(b"".join(np.ascontiguousarray(a).tobytes() for a in arrays)).hexdigest()[:16]


def network(drop: float) -> nn.Module:
    inner = (nn.Linear(9, 33), nn.Tanh(), nn.Dropout(drop), nn.Linear(33, 17), nn.GELU(), nn.LayerNorm(17))
    return nn.Sequential(*inner, nn.Linear(17, 4))


class Training:
    def __init__(
        self, strategy: Any, *, compiled: bool = True, drop: float = 0.2, dtype: Any = st.float32
    ) -> None:
        st.manual_seed(5)
        self.net, self.dtype = network(drop).to(dtype), dtype
        self.optimizer = optim.AdamW(self.net.parameters(), lr=1e-2, eps=1e-3)
        step = st.compile(self.step) if compiled else self.step
        self.compiled = step
        self.taken = dist.parallel(step, strategy) if strategy else step
        self.loader = self.batches(dist.shard() if strategy else None)

    def batches(self, shard: Any) -> DataLoader:
        rng = np.random.default_rng(1)
        x = rng.standard_normal((STEPS * BATCH, 9))
        data = TensorDataset(x.astype(self.dtype.np), x[:, :4].argmax(1).astype(np.int64))
        return DataLoader(data, BATCH, shuffle=True, seed=3, shard=shard)

    def step(self, x: Any, y: Any) -> Any:
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.net(x), y)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return {"loss": loss.detach(), "rows": float(len(x))}

    def run(self) -> list[np.ndarray[Any, Any]]:
        """Return the losses of an epoch and the parameters behind it."""
        losses = [self.taken(x, y)["loss"] for x, y in self.loader]
        return [np.asarray(a.detach()) for a in (*losses, *self.net.parameters())]


def same_bits() -> None:
    """Row N5: what is printed is the same on any number of ranks."""
    for name, options in {"float32": {}, "float64": {"compiled": False, "dtype": st.float64}}.items():
        training = Training(dist.data(virtual_shards=SHARDS), **options)
        found = training.run()
        again = dist.all_gather(np.concatenate([a.reshape(-1) for a in found])).reshape(SIZE, -1)
        assert (again == again[0]).all(), "ranks have other losses or parameters"
        if RANK == 0:
            print("digest", name, digest(found), flush=True)
        if name == "float32":
            assert training.compiled.captures <= 2, training.compiled.reasons


def resized() -> None:
    """Go on from what another number of ranks saved, if there is something; else train, and save."""
    path = Path(sys.argv[2])
    training = Training(dist.data(virtual_shards=SHARDS))
    if path.exists():
        saved = st.load(path)
        training.net.load_state_dict(saved["net"])
        training.optimizer.load_state_dict(saved["optimizer"])
        training.loader.load_state_dict(saved["loader"])
        st.set_rng_state(saved["generator"])
    found = training.run()
    dist.barrier()
    if RANK == 0 and not path.exists():
        state = {
            "net": training.net.state_dict(), "optimizer": training.optimizer.state_dict(),
            "loader": training.loader.state_dict(), "generator": st.get_rng_state(),
        }  # fmt: skip
        st.save(state, path)
        if len(sys.argv) > 3:  # without a change of ranks
            found = training.run()
    elif len(sys.argv) > 3:
        found = training.run()
    if RANK == 0:
        print("digest resized", digest(found), flush=True)


def near_one_process() -> None:
    """Without dropout it is the step of one process on the whole batch, but for rounding."""
    for dtype, tolerance in ((st.float32, 1e-6), (st.float64, 1e-12)):
        found, want = (
            Training(s, drop=0.0, dtype=dtype).run() for s in (dist.data(virtual_shards=SHARDS), None)
        )
        for a, b in zip(found, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=tolerance)


def dropout_follows_shards() -> None:
    """Every shard of every step has a mask of its own."""
    p = nn.Parameter(st.zeros(1))
    optimizer = optim.SGD([p], lr=1.0)
    seen: list[bytes] = []

    def step(x: Any) -> None:
        optimizer.zero_grad()
        mask = nn.functional.dropout(st.ones((64,)), 0.5)
        seen.append(mask.numpy().tobytes())
        (p * mask.mean() * x.mean()).sum().backward()
        optimizer.step()

    st.manual_seed(7)
    taken = dist.parallel(step, dist.data(virtual_shards=SHARDS))
    for _ in range(2):
        assert taken(st.ones((BATCH // SIZE, 1))) is None
    assert len(seen) == 2 * SHARDS // SIZE
    everywhere = dist.all_gather(np.array([np.frombuffer(s, np.float32) for s in seen]))
    assert len({row.tobytes() for row in everywhere}) == 2 * SHARDS


def gradients_of_one_process() -> None:
    """Before and after every step, wherever its code drops them, or never."""
    x = np.random.default_rng(2).standard_normal((BATCH, 3)).astype(np.float32)
    part = slice(RANK * BATCH // SIZE, (RANK + 1) * BATCH // SIZE)
    for ways in itertools.product(("first", "last", "zeros", "never"), (False, True)):
        found, want = (_gradients(x[rows], *ways, s) for rows, s in (
            (part, dist.data(virtual_shards=SHARDS)), (slice(None), None)))  # fmt: skip
        for a, b in zip(found, want, strict=True):
            assert (a is None) == (b is None), ways
            np.testing.assert_allclose(a or 0.0, b or 0.0, rtol=1e-6, atol=1e-6, err_msg=str(ways))


def _gradients(x: Any, drops: str, compiled: bool, strategy: Any) -> list[float | None]:
    """Return a parameter and its gradient after each of some steps."""
    p = nn.Parameter(st.ones(3))
    optimizer = optim.SGD([p], lr=0.1)

    def step(x: Any) -> None:
        if drops == "first":
            optimizer.zero_grad()
        ((x * p).sum(1) ** 2).mean().backward()
        optimizer.step()
        if drops in ("last", "zeros"):
            optimizer.zero_grad(set_to_none=drops == "last")

    taken: Any = st.compile(step) if compiled else step
    taken = dist.parallel(taken, strategy) if strategy else taken
    found: list[float | None] = []
    for _ in range(3):
        taken(st.tensor(x))
        found += [float(p.sum().detach()), None if p.grad is None else float(p.grad.sum())]
    return found


def refusals() -> None:
    strategy = dist.data(virtual_shards=SHARDS)
    training = Training(strategy)
    x, y = st.ones((BATCH // SIZE, 9)), st.zeros(BATCH // SIZE, dtype="int64")
    refused(CaptureError, "not compiled from outside", lambda: st.compile(training.taken)(x, y))
    refused(ShapeError, "batches of one size", lambda: training.taken(x[1:], y[1:]))
    refused(ShapeError, "batches of one size", lambda: training.taken(x, y[:1]))
    net = nn.Sequential(nn.Linear(9, 4), nn.BatchNorm1d(4))
    for kind, said in (
        ("statistics", "changed buffers"), ("clips", "when the step has returned"), ("twice", "2 steps"),
        ("array", "None or float scalars"), ("rate", "other hyper-parameters"), ("frozen", "no gradient of"),
        ("scales", "changes them behind"),
    ):  # fmt: skip
        optimizer = optim.SGD(net[0].parameters(), lr=0.1)

        def step(x: Any, optimizer: Any = optimizer, kind: str = kind) -> Any:
            optimizer.zero_grad()
            y = net(x) if kind == "statistics" else net[0](x)
            (y.sum() if kind != "frozen" else net[0].weight.sum()).backward()
            if kind == "clips":
                nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            if kind == "twice":
                optimizer.step()
            if kind == "rate":
                optimizer.param_groups[0]["lr"] = 0.5
            if kind == "scales":
                optimizer.zero_grad()
                net[0](x).sum().backward()
            return y.detach() if kind == "array" else None

        wrong = DTypeError if kind == "array" else CallOrderError
        taken = dist.parallel(step, strategy)
        net.zero_grad()
        refused(wrong, said, lambda taken=taken: taken(x))  # type: ignore[misc]
        assert all(p.grad is None for p in net[0].parameters()), f"{kind}: a refused step left gradients"
    optimizer = optim.SGD(net[0].parameters(), lr=0.1)
    taken = dist.parallel(lambda x: net[0](x).sum().backward() or optimizer.step(), strategy)
    optimizer.register_step_post_hook(lambda *_: None)
    refused(CallOrderError, "hooks of steps", lambda: taken(x))
    two = [optim.SGD(net[0].parameters(), lr=0.1) for _ in range(2)]
    refused(AttributeValueError, "one optimizer", lambda: dist.parallel(lambda: two, strategy))
    if SIZE > 1:
        refused(AttributeValueError, "a multiple of the number of ranks",
                lambda: dist.parallel(two[0].step, dist.data(two[0], virtual_shards=SIZE + 1)))  # fmt: skip
        st.manual_seed(RANK)
        refused(dist.ProgramMismatchError, "generators of one state", lambda: training.taken(x, y))


if __name__ == "__main__":
    checks = (same_bits, near_one_process, dropout_follows_shards, gradients_of_one_process, refusals)
    if sys.argv[1:2] == ["resized"]:
        resized()
    run_checks(checks)
