"""Run on every rank: with sharded parameters training is that of one process, and a rank keeps its share."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from rank_checks import refused, run_checks
from rank_zero import RANK, SIZE, TOLERANCE, Half, Training, adagrad, adamw, batches, sgd, trained_in_bfloat16

import stratal as st
from stratal import distributed as dist
from stratal import nn, optim
from stratal.base.errors import AttributeValueError, CallOrderError, CaptureError
from stratal.distributed.data_parallel import _sharing
from stratal.formats import container
from stratal.formats.files import FileWriteError
from stratal.runtime import program
from stratal.train import CheckpointManager, Trainer

Arrays = list[np.ndarray[Any, Any]]


def trained(training: Training, steps: int) -> Arrays:
    """Return whole parameters after some steps, behind the losses, which are means over ranks."""
    shard = dist.shard() if training.parallel else None
    losses = [training.taken(x, y) for x, y in batches(steps, training.dtype, shard)]
    if training.parallel and training.micro == 1:
        losses = [dist.all_reduce(loss, "mean") for loss in losses]
    with dist.full_parameters(training.optimizer):
        params = [np.asarray(p.detach()).copy() for p in training.net.parameters()]
    return [np.array([float(x) for x in losses if training.micro == 1]), *params]


def close(found: Arrays, want: Arrays, tolerance: float) -> None:
    for a, b in zip(found, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance)


def shards_of(optimizer: optim.Optimizer) -> list[st.Tensor]:
    return [own for group in optimizer.param_groups for own in group.shards or ()]


def kept_bytes(optimizer: optim.Optimizer) -> int:
    """Return the bytes of parameters, their gradients and optimizer state that this rank has memory for."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    tensors = [*(p for p in params if p._storage is not None), *shards_of(optimizer)]
    grads = [t.grad for t in (*params, *shards_of(optimizer)) if t.grad is not None]
    return sum(t.nbytes for t in (*tensors, *grads)) + optimizer.state_bytes


def learns() -> None:
    """A bucket for each parameter: losses, parameters and states are one process's, in float64."""
    whole = Training(adamw, "float64")
    want = trained(whole, 12)
    sharded = Training(adamw, "float64", dist.zero(3, bucket_bytes=1))
    close(trained(sharded, 12), want, 1e-12)
    saved, expected = sharded.optimizer.state_dict(), whole.optimizer.state_dict()
    for k, entries in expected["state"].items():
        for name, value in entries.items():
            np.testing.assert_allclose(saved["state"][k][name].numpy(), value.numpy(), rtol=0, atol=1e-12)


def keeps_a_share() -> None:
    """Row E11: between steps a rank has memory for its shard and its state alone, as the plan says."""
    training = Training(adamw, "float64", dist.zero(3))
    trained(training, 2)
    padded = sum(own.numel() * SIZE for own in shards_of(training.optimizer))
    options = {"optimizer_bytes": 16, "parameter_bytes": 8, "gradient_bytes": 8}
    plan = dist.zero_memory(padded, SIZE, **options)["zero 3"]
    assert kept_bytes(training.optimizer) == plan.parameters + plan.optimizer
    data = Training(adamw, "float64", dist.data())
    trained(data, 2)
    count = sum(p.numel() for p in data.net.parameters())
    assert kept_bytes(data.optimizer) == dist.zero_memory(count, SIZE, **options)["data"].total
    assert plan.total <= kept_bytes(data.optimizer) / SIZE * 1.01, (plan, count, padded)
    refused(CallOrderError, "full_parameters", lambda: np.asarray(training.net.state_dict()["0.weight"]))
    with dist.full_parameters(training.optimizer):
        storages = [weakref.ref(p._storage) for p in training.net.parameters()]
        kept = {name: np.array(value) for name, value in training.net.state_dict().items()}
        for p in training.net.parameters():
            with st.no_grad():
                p.zero_()
    program._MEMORY.clear()  # of small values, to be used again
    gc.collect()
    assert all(storage() is None for storage in storages)
    with dist.full_parameters(training.optimizer):
        assert not any(np.asarray(p.detach()).any() for p in training.net.parameters())
        training.net.load_state_dict(kept)


def saves(path: str) -> None:
    """Write a checkpoint, and what six more steps make of it."""
    training = Training(adamw, "float64", dist.zero(3))
    trained(training, 6)
    with dist.full_parameters(training.optimizer):
        net = {k: np.array(v) for k, v in training.net.state_dict().items()}
    checkpoint = {
        "model": {k: st.tensor(v) for k, v in net.items()}, "optimizer": training.optimizer.state_dict(),
        "after": [st.tensor(a) for a in trained(training, 6)],
    }  # fmt: skip
    if RANK == 0:
        st.save(checkpoint, path)


def loads(path: str) -> None:
    """Go on from a checkpoint of another number of ranks, with other buckets."""
    checkpoint = st.load(path)
    training = Training(adamw, "float64", dist.zero(3, bucket_bytes=1))
    with dist.full_parameters(training.optimizer):
        training.net.load_state_dict(checkpoint["model"])
    training.optimizer.load_state_dict(checkpoint["optimizer"])
    close(trained(training, 6), [np.asarray(a) for a in checkpoint["after"]], 1e-12)


def snapshots(path: str, stage: str) -> None:
    """Write a snapshot to a folder, each rank its pieces, and what six more steps make of it."""
    training = Training(adamw, "float64", dist.zero(int(stage), bucket_bytes=1))
    trained(training, 6)
    snapshot = dist.Snapshot(path, shard_bytes=2000, net=training.net, optimizer=training.optimizer)
    dist.traffic(reset=True)
    snapshot.save()
    assert sum(dist.traffic(reset=True)["sent_bytes"]) < 20_000  # names and digests; the state has 23,304
    snapshot.save()  # replaces the first one
    after = [st.tensor(a) for a in trained(training, 6)]
    if RANK == 0:
        st.save(after, path + ".after.stratal")


def goes_on(path: str, stage: str) -> None:
    """Go on from a snapshot of another number of ranks, and of another stage."""
    training = Training(adamw, "float64", dist.zero(int(stage)))
    assert dist.Snapshot(path, net=training.net, optimizer=training.optimizer).load()
    close(trained(training, 6), [np.asarray(a) for a in st.load(path + ".after.stratal")], 1e-12)


def fits(path: str, stage: str, epochs: str) -> None:
    """Train with a Trainer, from the checkpoint there is, whatever ranks wrote it, up to some epochs."""
    training = Training(adamw, "float64", dist.zero(int(stage)))
    manager = CheckpointManager(path, shard_bytes=2000, ranks=dist.Ranks())
    trainer = Trainer(training.net, step=training.taken, optimizer=training.optimizer)
    loader = batches(4, "float64", dist.shard())
    trainer.fit(loader, epochs=int(epochs), checkpoints=manager, resume=True, progress=False)
    assert [p.name for p in manager.paths()][-1] == f"step-{4 * int(epochs):09d}.shards"
    with dist.full_parameters(training.optimizer):
        params = [st.tensor(np.array(p.detach())) for p in training.net.parameters()]
    if RANK == 0:
        st.save(params, f"{path}.{epochs}.stratal")


def cannot_write(path: str) -> None:
    """Where one rank cannot write, all ranks say so, and the snapshot before stays."""
    training = Training(adamw, "float64", dist.zero(2))
    snapshot = dist.Snapshot(path, net=training.net, optimizer=training.optimizer)
    snapshot.save()
    before = st.load(path)["net"]["0.weight"].numpy()
    trained(training, 2)
    create = container.create_locked

    def full(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    container.create_locked = full if RANK == SIZE - 1 else create
    refused(FileWriteError, "No space" if RANK == SIZE - 1 else f"rank {SIZE - 1}", snapshot.save)
    container.create_locked = create
    dist.barrier()
    np.testing.assert_array_equal(st.load(path)["net"]["0.weight"].numpy(), before)
    snapshot.save()
    dist.barrier()
    assert (st.load(path)["net"]["0.weight"].numpy() != before).any()


def sends() -> None:
    """Row F19: of M bytes each rank sends 3M(N-1)/N, 1.5 times as many as data parallel does."""
    sent = []
    for strategy in (dist.data(), dist.zero(3, bucket_bytes=1 << 20)):
        st.manual_seed(0)
        net = nn.Sequential(nn.Linear(7, 12), nn.Tanh(), nn.Linear(12, 4))  # 148 parameters: even shares
        training = Half(net, optim.SGD(net.parameters(), lr=0.1))
        taken = st.compile(dist.parallel(training.step, strategy))
        taken(st.ones((3, 7)))
        dist.traffic(reset=True)
        taken(st.ones((3, 7)))
        taken(st.zeros((3, 7)))
        sent.append(sum(dist.traffic(reset=True)["sent_bytes"]))
    assert sent[1] == 2 * 3 * 148 * 4 * (SIZE - 1) // SIZE and 2 * sent[1] == 3 * sent[0], sent


def gathers_late() -> None:
    """A layer's gather starts when the one before it begins, and its memory goes before the next pass."""
    width, depth, peaks = 64, 8, []
    for stage in (2, 3):
        st.manual_seed(0)
        layers = [nn.Linear(width, width, bias=False) for _ in range(depth)]
        net = nn.Sequential(*(part for layer in layers for part in (layer, nn.Tanh())))
        training = Half(net, optim.SGD(net.parameters(), lr=0.1))
        taken = st.compile(dist.parallel(training.step, dist.zero(stage, bucket_bytes=1)))
        taken(st.ones((2, width)))
        peaks.append(taken.plan.planned_peak_bytes)
    assert peaks[1] < 0.7 * peaks[0], peaks


def other_optimizers() -> None:
    for make, dtype, options in (
        (sgd, "float32", {}), (adagrad, "float64", {"micro": 3 if SIZE == 4 else 2}), (adamw, "float32", {}),
    ):  # fmt: skip
        want = trained(Training(make, dtype, **options), 20)
        close(trained(Training(make, dtype, dist.zero(3), **options), 20), want, TOLERANCE[dtype])


class Tied(nn.Module):
    """An embedding that is also the head, a checkpointed layer, a penalty of weights, batch norm, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.inner = nn.Embedding(10, 6), nn.Linear(6, 6)
        self.norm, self.drop = nn.SyncBatchNorm(6), nn.Dropout(0.2)

    def forward(self, x: Any) -> Any:
        hidden = st.checkpoint(lambda h: nn.functional.gelu(self.inner(h)), self.words(x))
        logits = self.drop(self.norm(hidden)) @ self.words.weight.T
        return logits.log_softmax(-1)[..., 0].mean() + (self.inner.weight**2).sum()


def layers_of_all_kinds() -> None:
    """In batches of several sizes, as with `data()`."""
    found = []
    for strategy in (dist.data(), dist.zero(3, bucket_bytes=1)):
        st.manual_seed(0)
        net = Tied().to(st.float64)
        optimizer = optim.Adam(net.parameters(), lr=0.01)

        def step(x: Any, net: nn.Module = net, optimizer: optim.Optimizer = optimizer) -> Any:
            optimizer.zero_grad()
            loss = net(x)
            loss.backward()
            optimizer.step()
            return loss.detach()

        taken = st.compile(dist.parallel(step, strategy))
        losses = [float(taken(st.tensor((np.arange(8 + 2 * k) * k + RANK) % 10))) for k in range(5)]
        with dist.full_parameters(optimizer):
            params = [np.asarray(p.detach()).copy() for p in net.parameters()]
        found.append([np.array(losses), *params, *(np.array(b) for b in net.buffers())])
    close(*found, 1e-12)


def master_weights() -> None:
    results = []
    for strategy in (dist.data(), dist.zero(3)):
        net, optimizer = trained_in_bfloat16(strategy)
        with dist.full_parameters(optimizer):
            results.append(np.concatenate([p.detach().float().numpy().reshape(-1) for p in net.parameters()]))
    np.testing.assert_array_equal(*results)


def refusals() -> None:
    net, other = nn.Linear(3, 2), nn.Linear(3, 2)
    optimizer = optim.SGD(net.parameters(), lr=0.1)
    x = st.ones((4, 3))

    def backward() -> None:
        (net(x) ** 2).mean().backward()

    def synchronized() -> None:
        backward()
        dist.synchronize(optimizer)
        optimizer.step()

    def clipped_in_part() -> None:
        backward()
        nn.utils.clip_grad_norm_([net.weight], 1.0)
        optimizer.step()

    def clipped_alone() -> None:
        backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)

    def added_behind() -> None:
        clipped_alone()
        net.weight.grad = st.ones((2, 3))
        optimizer.step()

    def twice() -> None:
        backward()
        optimizer.step()
        optimizer.step()

    def read_behind() -> Any:
        backward()
        optimizer.step()
        return net(x)

    def written() -> None:
        with st.no_grad():
            net.weight.mul_(0.9)
        backward()
        optimizer.step()

    def raises() -> None:
        raise KeyError("the user's own")

    def misshapen() -> Any:
        return net(st.ones((4, 5)))

    def one_gradient() -> None:
        (net.weight**2).mean().backward()
        optimizer.step()

    def joined(step: Callable[[], Any]) -> Callable[[], Any]:
        return st.compile(_sharing(step, [(reducer, optimizer)]))

    before = np.array([np.asarray(p.detach()).sum() for p in net.parameters()])
    dist.parallel(lambda: optimizer, dist.zero(3, optimizer))
    (reducer,) = [h.function for h in optimizer._hooks["before step"].values()]
    for said, step in (
        ("whole on no rank", synchronized), ("are read together", clipped_in_part),
        ("do not stay", clipped_alone), ("another one behind", added_behind),
        ("steps once", twice), ("until the optimizer steps", read_behind),
        ("alone changes", written), ("do not stay", backward), ("the user's own", raises),
        ("inner sizes differ", misshapen), ("no gradient of", one_gradient),
    ):  # fmt: skip
        refused(CaptureError, said, joined(step))
    refused(CaptureError, "is compiled", _sharing(backward, [(reducer, optimizer)]))
    refused(CallOrderError, "steps once", optimizer.step)
    refused(
        AttributeValueError, "one optimizer",
        lambda: dist.parallel(lambda: 0, dist.zero(3, optimizer, optim.SGD(other.parameters(), lr=0.1))),
    )  # fmt: skip
    with dist.full_parameters(optimizer):
        refused(CaptureError, "begins with sharded", joined(backward))
        after = np.array([np.asarray(p.detach()).sum() for p in net.parameters()])
        if RANK == 0:  # whose parameters count
            np.testing.assert_array_equal(after, before)
    training = Half(net, optimizer)
    joined(lambda: training.step(x))()  # nothing that was refused is in the way
    with dist.full_parameters(optimizer):
        assert all(np.asarray(p.detach()).sum() != b for p, b in zip(net.parameters(), before, strict=True))


def different_programs_are_refused() -> None:
    """Before the first gather: two layers of one size must not be taken for each other."""
    st.manual_seed(0)
    layers = [nn.Linear(4, 4, bias=False) for _ in range(2)]
    optimizer = optim.SGD([layer.weight for layer in layers], lr=0.1)
    first, second = layers if RANK else layers[::-1]

    def step(x: Any) -> None:
        (second(first(x).tanh()) ** 2).mean().backward()
        optimizer.step()

    dist.traffic(reset=True)
    taken = st.compile(dist.parallel(step, dist.zero(3, optimizer, bucket_bytes=1)))
    sent = dist.traffic(reset=True)["sent_bytes"]
    refused(dist.ProgramMismatchError, "in program", lambda: taken(st.ones((2, 4))))
    assert dist.traffic()["sent_bytes"] == [0] * SIZE, sent


if __name__ == "__main__":
    checks = (
        learns, keeps_a_share, sends, gathers_late, other_optimizers, layers_of_all_kinds, master_weights,
        refusals, different_programs_are_refused,
    )  # fmt: skip
    run_checks(checks)
    for checkpoint in (saves, loads, snapshots, goes_on, fits, cannot_write):
        if checkpoint.__name__ in sys.argv:
            checkpoint(*sys.argv[sys.argv.index(checkpoint.__name__) + 1 :])
