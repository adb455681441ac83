"""One rank of a group that trains in turns: the same model, weights and global batch in every group.

    python -m benchmarks.parallel_training GROUP MODEL FOLDER

A rank waits for a line in a pipe, since what it did while another group works would be measured: a number of
steps is answered with the seconds they took and their losses, `end` ends.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.models import WORKLOADS, Workload
from stratal.base.processes import die_with_parent

STRATEGIES: Final = ("data", "zero1")
ALONE, SILENT, PEER = "alone", "silent", "ddp"
Step = Callable[[], float]


def weights_file(folder: Path) -> Path:
    return folder / "weights.npz"


def write_weights(name: str, folder: Path) -> None:
    """Write the weights that every group begins with, as PyTorch draws them."""
    import torch

    torch.manual_seed(0)
    model = WORKLOADS[name].build(torch.nn)
    np.savez(weights_file(folder), **{key: value.numpy() for key, value in model.state_dict().items()})


def batch(name: str, rank: int, size: int) -> list[np.ndarray[Any, Any]]:
    """Return a rank's rows of the global batch."""
    arrays = WORKLOADS[name].data(np.random.default_rng(0))
    return [np.ascontiguousarray(np.split(array, size)[rank]) for array in arrays]


def step_of(workload: Workload, nn: Any, model: Any, optimizer: Any) -> Callable[[Any, Any], Any]:
    """Return a step of training on a batch, as either library takes it; it returns the loss."""

    def step(x: Any, y: Any) -> Any:
        loss = workload.loss(nn, model, x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def own_step(name: str, group: str, folder: Path) -> Step:
    """Return the compiled step of Stratal: by one rank, by a strategy, or by ranks that send nothing."""
    import stratal as st
    from stratal import distributed as dist

    workload = WORKLOADS[name]
    model = workload.build(st.nn)
    with np.load(weights_file(folder)) as weights:
        model.load_state_dict(dict(weights))
    optimizer = workload.optimizer(st.optim, model.parameters())
    data = [st.tensor(array) for array in batch(name, dist.rank(), dist.world_size())]
    step = step_of(workload, st.nn, model, optimizer)
    if group not in (ALONE, SILENT):
        strategy = dist.zero(1, optimizer) if group == "zero1" else dist.data(optimizer)
        step = dist.parallel(step, strategy)
    compiled = st.compile(step)
    return lambda: float(compiled(*data))


def peer_step(name: str, folder: Path) -> Step:
    """Return the step of PyTorch's DistributedDataParallel over gloo, with one thread a rank."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=size
    )
    workload = WORKLOADS[name]
    plain = workload.build(torch.nn)
    with np.load(weights_file(folder)) as weights:
        plain.load_state_dict({key: torch.tensor(value) for key, value in weights.items()})
    model = DistributedDataParallel(plain)
    optimizer = workload.optimizer(torch.optim, model.parameters())
    data = [torch.tensor(array) for array in batch(name, rank, size)]
    step = step_of(workload, torch.nn, model, optimizer)
    return lambda: float(step(*data))


def main() -> None:
    """Answer the group's pipes until they say `end`."""
    group, name, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    die_with_parent()
    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("RANK") or 0)
    step = peer_step(name, folder) if group == PEER else own_step(name, group, folder)
    with open(folder / f"{group}.{rank}.in") as orders, open(folder / f"{group}.{rank}.out", "w") as answers:
        for order in orders:
            if order.strip() == "end":
                break
            begun = time.perf_counter()
            losses = [step() for _ in range(int(order))]
            answer = {"seconds": time.perf_counter() - begun, "losses": losses}
            print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
