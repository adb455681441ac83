"""Run on every rank: a sharded update gives what one process gives on the whole batch, with less state."""

from __future__ import annotations

import copy
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
TOLERANCE = {"float32": 1e-6, "float64": 1e-12}


def network(dtype: str) -> nn.Module:
    """Return an MLP whose 971 parameters do not divide evenly among ranks."""
    st.manual_seed(RANK)  # rank 0's parameters count
    layers = (nn.Linear(9, 33), nn.Tanh(), nn.Linear(33, 17), nn.GELU(), nn.Linear(17, 4))
    return nn.Sequential(*layers).to(st.float64 if dtype == "float64" else st.float32)


def batches(count: int, dtype: str, shard: tuple[int, int] | None) -> DataLoader:
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((count * BATCH, 9)).astype(dtype), rng.integers(0, 4, count * BATCH)
    return DataLoader(TensorDataset(x, y), BATCH, shuffle=True, seed=3, shard=shard)


def adamw(net: nn.Module) -> optim.Optimizer:
    layers = list(net.children())
    groups = [{"params": layers[0].parameters()}, {"params": layers[2].parameters(), "lr": 3e-3},
              {"params": layers[4].parameters()}]  # fmt: skip
    return optim.AdamW(groups, lr=1e-2, eps=1e-3)


def sgd(net: nn.Module) -> optim.Optimizer:
    return optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True)


def adagrad(net: nn.Module) -> optim.Optimizer:
    return optim.Adagrad(net.parameters(), lr=0.05)


class Training:
    """A network, its optimizer and a step: parallel, or of one process on whole batches."""

    def __init__(self, make: Callable[[nn.Module], optim.Optimizer], dtype: str, strategy: Any = None, *,
                 compiled: bool = True, clip: float = 0.0, micro: int = 1) -> None:  # fmt: skip
        self.net, self.dtype = network(dtype), dtype
        if strategy is None:
            for p in self.net.parameters():
                with st.no_grad():
                    p.copy_(dist.broadcast(p))
        self.optimizer = make(self.net)
        self.clip, self.micro, self.parallel = clip, micro, strategy is not None
        taken = self.step if strategy is None else dist.parallel(self.step, strategy)
        self.taken = st.compile(taken) if compiled else taken

    def step(self, x: Any, y: Any) -> Any:
        self.optimizer.zero_grad()
        for part in range(self.micro):
            some = slice(part * len(x) // self.micro, (part + 1) * len(x) // self.micro)
            loss = nn.functional.cross_entropy(self.net(x[some]), y[some]) / self.micro
            loss.backward()
        if self.clip:
            nn.utils.clip_grad_norm_(self.net.parameters(), self.clip)
        self.optimizer.step()
        return loss.detach()

    def run(self, steps: int) -> list[np.ndarray[Any, Any]]:
        for x, y in batches(steps, self.dtype, dist.shard() if self.parallel else None):
            self.taken(x, y)
        return [np.asarray(p.detach()).copy() for p in self.net.parameters()]


def close(found: Any, want: Any, tolerance: float) -> None:
    for a, b in zip(found, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance)
    joined = dist.all_gather(np.concatenate([p.reshape(-1) for p in found])).reshape(SIZE, -1)
    assert (joined == joined[0]).all(), "ranks have other parameters"


def equal() -> None:
    accumulated = {"clip": 0.05, "micro": 3 if SIZE == 4 else 2}  # parts of one size, as means of means need
    cases: list[tuple[Any, str, int, dict[str, Any]]] = [
        (adamw, "float32", 1, {}), (adamw, "float64", 2, {}), (sgd, "float32", 2, {"compiled": False}),
        (adagrad, "float64", 1, accumulated),
    ]  # fmt: skip
    for make, dtype, stage, options in cases:
        want = Training(make, dtype, **options).run(20)
        found = Training(make, dtype, dist.zero(stage), **options).run(20)
        close(found, want, TOLERANCE[dtype])


def bytes_sent_and_kept() -> None:
    """Row E11: state per rank is the plan's; gradients stay in stage 1 only; messages carry 2M(N-1)/N."""
    for stage in (1, 2):
        training = Training(adamw, "float32", dist.zero(stage))
        training.run(1)  # compiles
        dist.traffic(reset=True)
        training.run(3)
        sent = sum(dist.traffic(reset=True)["sent_bytes"])
        lengths = [[sum(p.numel() for p in g["params"])] for g in training.optimizer.param_groups]
        padded = sum(-(-n // SIZE) * SIZE for (n,) in lengths)
        assert sent == 3 * 2 * (SIZE - 1) * padded * 4 // SIZE, sent
        tables = [s.entries for s in training.optimizer.state.states.values()]
        kept = sum(x.nbytes for entries in tables for x in entries.values())
        assert kept == 2 * 4 * padded // SIZE == training.optimizer.state_bytes, (kept, padded)
        plan = dist.zero_memory(padded, SIZE, optimizer_bytes=8, parameter_bytes=4, gradient_bytes=4)
        assert kept == plan[f"zero {stage}"].optimizer
        gradients = [p.grad for p in training.net.parameters() if p.grad is not None]
        assert bool(gradients) == (stage == 1)


def saved_and_loaded() -> None:
    """A state dict is that of one process, and a run goes on from it, sharded or not."""
    whole = Training(adamw, "float64")
    whole.run(6)
    first = Training(adamw, "float64", dist.zero(1))
    first.run(6)
    saved, want = first.optimizer.state_dict(), whole.optimizer.state_dict()
    assert saved["state"].keys() == want["state"].keys() and len(saved["param_groups"]) == 3
    for k, entries in want["state"].items():
        assert entries.keys() == saved["state"][k].keys()
        for name, value in entries.items():
            np.testing.assert_allclose(saved["state"][k][name].numpy(), value.numpy(), rtol=0, atol=1e-12)
    assert [g["params"] for g in saved["param_groups"]] == [g["params"] for g in want["param_groups"]]
    results = []
    for strategy in (None, dist.zero(2, bucket_bytes=1)):  # other shards
        again = Training(adamw, "float64", strategy)
        again.net.load_state_dict(first.net.state_dict())
        again.optimizer.load_state_dict(saved)
        results.append(again.run(6))
    for found in (first.run(6), *results[1:]):
        close(found, results[0], 1e-12)
    late = Training(adamw, "float64")  # trained alone, then sharded with the state it has
    late.net.load_state_dict(first.net.state_dict())
    late.optimizer.load_state_dict(first.optimizer.state_dict())
    dist.parallel(late.step, dist.zero(1, late.optimizer))
    kept = late.optimizer.state_dict()["state"]
    for k, entries in first.optimizer.state_dict()["state"].items():
        for name, value in entries.items():
            np.testing.assert_array_equal(kept[k][name].numpy(), value.numpy())


def two_optimizers() -> None:
    """The second one's gradients depend on what the first one gathered."""
    st.manual_seed(0)
    one, two = nn.Linear(3, 5), nn.Linear(5, 2)
    first, second = optim.Adam(one.parameters(), lr=0.1), optim.Adam(two.parameters(), lr=0.1)

    def step(x: Any) -> None:
        (two(one(x)) ** 2).mean().backward()
        first.step()
        second.zero_grad()
        (two(one(x)) ** 2).mean().backward()
        second.step()
        first.zero_grad()

    taken = st.compile(dist.parallel(step, dist.zero(2)))
    for k in range(3):
        taken(st.tensor(np.random.default_rng(k + 10 * RANK).standard_normal((4, 3)).astype(np.float32)))
    found = np.concatenate([p.detach().numpy().reshape(-1) for p in two.parameters()])
    assert (dist.all_gather(found).reshape(SIZE, -1) == found).all()


def master_weights() -> None:
    """Of bfloat16 parameters, float32 copies and their state are sharded."""
    results = []
    for strategy in (dist.data(), dist.zero(2)):
        net, optimizer = trained_in_bfloat16(strategy)
        results.append(np.concatenate([p.detach().float().numpy().reshape(-1) for p in net.parameters()]))
        if strategy == dist.data():
            continue
        kept = sum(x.nbytes for s in optimizer.state.states.values() for x in s.entries.values())
        assert kept == 12 * -(-49 // SIZE) == optimizer.state_bytes, kept
        assert optimizer.state_dict()["state"][0]["master_param"].dtype == st.float32
    np.testing.assert_array_equal(*results)


def trained_in_bfloat16(strategy: Any) -> tuple[nn.Module, optim.Optimizer]:
    """Return a layer after six steps of an optimizer that has float32 copies of its parameters."""
    st.manual_seed(0)
    net = nn.Linear(6, 7).to(st.bfloat16)
    optimizer = optim.AdamW(net.parameters(), lr=1e-2, master_weights=True)
    taken = st.compile(dist.parallel(Half(net, optimizer).step, strategy))
    for k in range(6):
        rng = np.random.default_rng(k + 100 * RANK)
        taken(st.tensor(rng.standard_normal((4, 6)).astype(np.float32)).bfloat16())
    return net, optimizer


class Half:
    def __init__(self, net: nn.Module, optimizer: optim.Optimizer) -> None:
        self.net, self.optimizer = net, optimizer

    def step(self, x: Any) -> None:
        self.optimizer.zero_grad()
        (self.net(x) ** 2).mean().backward()
        self.optimizer.step()


def refusals() -> None:
    net = network("float32")
    training = Training(adamw, "float32", dist.zero(1))
    training.run(1)
    layer = nn.Linear(2, 2)

    def uneven() -> None:
        optimizer = optim.Adam(layer.parameters())
        layer.weight.sum().backward()
        dist.parallel(optimizer.step, dist.zero(1, optimizer))()

    def frozen_later() -> None:
        training.optimizer.add_param_group({"params": layer.parameters()})
        training.run(1)

    cases = [
        (AttributeValueError, "element by element",
         lambda: dist.parallel(Half(net, o := optim.LAMB(net.parameters())).step, dist.zero(1, o))),
        (CallOrderError, "gradient of", uneven),
        (CallOrderError, "neither copied nor pickled", lambda: copy.deepcopy(training.optimizer)),
        (AttributeValueError, "same",
         lambda: training.optimizer.load_state_dict(lacking(training.optimizer.state_dict()))),
        (CallOrderError, "were added", frozen_later),
    ]  # fmt: skip
    for kind, said, call in cases:
        refused(kind, said, call)


def lacking(state_dict: dict[str, Any]) -> dict[str, Any]:
    del state_dict["state"][1]
    return state_dict


if __name__ == "__main__":
    checks = (equal, bytes_sent_and_kept, saved_and_loaded, two_optimizers, master_weights, refusals)
    run_checks(checks)
