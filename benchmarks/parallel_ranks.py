"""What ranks of `python -m benchmarks parallel` do: `python -m benchmarks.parallel_ranks PART TURNS`.

Rank 0 prints what was measured as one line of JSON. Variants take turns on all ranks at once.
"""

from __future__ import annotations

import functools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final, NamedTuple
from unittest import mock

import numpy as np

from benchmarks.models import Workload, gpt, images, mlp, tokens
from benchmarks.parallel_training import step_of
from stratal.base.processes import die_with_parent

SIZES: Final = (1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20)
WARM: Final = 3
SERVED_BYTES: Final = 4 << 20
Found = dict[str, Any]


def turns_of(variants: Sequence[Callable[[], object]], turns: int, each: int = 1) -> list[float]:
    """Return the median seconds of variants that take turns on all ranks, of the slowest rank.

    The first `WARM` turns are left out. A variant is called `each` times a turn.
    """
    from stratal import distributed as dist

    took = np.zeros((turns + WARM, len(variants)))
    for times in took:
        for k, run in enumerate(variants):
            dist.barrier()
            begun = time.perf_counter()
            for _ in range(each):
                run()
            times[k] = (time.perf_counter() - begun) / each
    slowest = dist.all_reduce(took[WARM:], "max")
    return [float(x) for x in np.median(slowest, axis=0)]


# -- all-reduce ----------------------------------------------------------------------------------------------
def allreduce(turns: int) -> list[Found]:
    """Sums over ranks in place: by the chosen algorithm with all that goes around it, by MPI's call alone."""
    from mpi4py import MPI

    from stratal import distributed as dist
    from stratal.distributed.algorithms import all_reduce_by
    from stratal.distributed.links import choose
    from stratal.distributed.world import world

    within, comm = world(), MPI.COMM_WORLD
    found = []
    for nbytes in SIZES:
        rng = np.random.default_rng(within.rank)
        given = rng.standard_normal(nbytes // 4).astype(np.float32)
        ours, theirs = given.copy(), given.copy()
        name = choose("all_reduce", nbytes, within.size, within.link, mpi=within.calls_mpi)
        make = functools.partial(all_reduce_by(name), ours, within.rank, within.size, np.add)

        def own(make: Any = make, nbytes: int = nbytes) -> None:
            within.run(make, f"all_reduce of {nbytes} bytes")

        def peer(theirs: Any = theirs) -> None:
            comm.Allreduce(MPI.IN_PLACE, theirs)

        own()
        peer()
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
        for buffer in (ours, theirs):
            buffer.fill(0)  # sums of sums would overflow
        each = max(1, min(50, (1 << 20) // nbytes))
        ours_s, theirs_s = turns_of([own, peer], turns, each)
        found.append({"nbytes": nbytes, "algorithm": name, "ours_us": 1e6 * ours_s, "mpi_us": 1e6 * theirs_s})
    dist.barrier()
    return found


# -- bookkeeping ---------------------------------------------------------------------------------------------
def bookkeeping(turns: int) -> list[Found]:
    """Steps with the ledger and the hashes of collectives, and without them."""
    from stratal.distributed import transport
    from stratal.distributed.ledger import Ledger

    workload = Workload("mlp", mlp, images(128, (784,)), lambda o, p: o.Adam(p, lr=1e-3))
    step, _ = training(workload)

    def without() -> None:
        with ExitStack() as stack:
            for name in ("start", "finish"):
                stack.enter_context(mock.patch.object(Ledger, name, lambda *_: None))
            stack.enter_context(
                mock.patch.object(transport, "collective_tag", lambda number, what: number % 30_000)
            )
            for _ in range(_STEPS):
                step()

    def with_it() -> None:
        for _ in range(_STEPS):
            step()

    on, off = turns_of([with_it, without], turns)
    return [{"on_ms": 1e3 * on / _STEPS, "off_ms": 1e3 * off / _STEPS}]


_STEPS: Final = 20


def training(workload: Workload, strategy: Any = None) -> tuple[Callable[[], float], int]:
    """Return a compiled parallel step on this rank's part of the batch, and the bytes of its parameters.

    `strategy`: by default `data()`; False for a step that sends nothing.
    """
    import stratal as st
    from stratal import distributed as dist

    st.manual_seed(0)
    model = workload.build(st.nn)
    optimizer = workload.optimizer(st.optim, model.parameters())
    arrays = workload.data(np.random.default_rng(0))
    data = [st.tensor(np.split(array, dist.world_size())[dist.rank()]) for array in arrays]
    step = step_of(workload, st.nn, model, optimizer)
    if strategy is not False:
        step = dist.parallel(step, strategy or dist.data(optimizer))
    compiled = st.compile(step)
    return lambda: float(compiled(*data)), sum(p.nbytes for p in model.parameters())


# -- parameter servers ---------------------------------------------------------------------------------------
def ring(turns: int) -> list[Found]:
    """Steps of a layer whose gradients go around a ring; counted bytes and messages of all ranks."""
    from stratal import distributed as dist

    return _sent("ring", lambda o: dist.data(o, algorithm="ring", bucket_bytes=1 << 30), turns)


def servers(turns: int) -> list[Found]:
    """Steps of the same layer with one server for the other ranks."""
    from stratal import distributed as dist

    return _sent("servers", lambda o: dist.parameter_server(o, servers=1), turns)


def _sent(kind: str, strategy: Callable[[Any], Any], turns: int) -> list[Found]:
    import stratal as st
    from stratal import distributed as dist

    st.manual_seed(0)
    weight = st.nn.Parameter(st.zeros(SERVED_BYTES // 4))
    optimizer = st.optim.SGD([weight], lr=0.1)
    target = st.full((SERVED_BYTES // 4,), 1.0 + dist.rank())

    def step(target: Any) -> Any:
        loss = ((weight - target) ** 2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    chosen = strategy(optimizer)
    taken = dist.parallel(st.compile(step), chosen) if kind == "servers" else st.compile(
        dist.parallel(step, chosen)
    )  # fmt: skip
    for _ in range(WARM):
        taken(target)
    dist.traffic(reset=True)
    times = []
    for _ in range(turns):
        begun = time.perf_counter()
        taken(target)
        times.append(time.perf_counter() - begun)
    seen = dist.traffic()
    sent = np.array([sum(seen["sent_bytes"]), sum(seen["sent_messages"])])
    if kind == "servers":
        dist.pull(optimizer)
    total, busiest = dist.all_reduce(sent), dist.all_reduce(sent, "max")
    per_step = dist.all_reduce(np.array([statistics.median(times)]), "max")
    value = float(weight[0])
    same = dist.all_reduce(np.array([value]), "max") == dist.all_reduce(np.array([value]), "min")
    assert bool(same[0]), "ranks ended with other parameters"
    return [{
        "nbytes": SERVED_BYTES, "steps": turns, "sent_bytes": int(total[0]), "messages": int(total[1]),
        "busiest_bytes": int(busiest[0]), "ms": 1e3 * float(per_step[0]), "value": value,
    }]  # fmt: skip


# -- a slow link ---------------------------------------------------------------------------------------------
def slow(turns: int) -> list[Found]:
    """Steps over a slow link: sending nothing, with buckets, and one all-reduce per tensor.

    `unhidden_ms`: what a link that is never idle while a gradient is there would leave behind backward.
    """
    from stratal import distributed as dist

    small = functools.partial(gpt, layers=2, d=128, heads=4)
    workload = Workload("gpt 2x128", small, tokens(16, 256, 256), lambda o, p: o.AdamW(p, lr=1e-3))
    silent, nbytes = training(workload, False)
    bucketed, _ = training(workload)
    single, _ = training(workload, dist.data(bucket_bytes=1))
    np.testing.assert_allclose([bucketed() for _ in range(3)], [single() for _ in range(3)], rtol=1e-4)
    gradients = np.zeros(nbytes // 4, np.float32)

    def sending() -> None:
        dist.all_reduce(gradients, algorithm="all_to_all")

    waited: list[float] = []
    seen: list[Departures] = []

    def noting() -> None:
        dist.overlap(reset=True)
        bucketed()
        waited.append(1e3 * dist.overlap()["waited_s"])

    def watched() -> None:
        with departures() as left:
            single()
        seen.append(left)

    times = turns_of([silent, noting, watched, sending], turns)
    names = ("silent_ms", "bucketed_ms", "single_ms", "sending_ms")
    found = {name: 1e3 * t for name, t in zip(names, times, strict=True)}
    unhidden = [1e3 * left.unhidden_s(nbytes / times[-1]) for left in seen[-turns:]]
    found |= {"waited_ms": statistics.median(waited[-turns:]), "unhidden_ms": statistics.median(unhidden)}
    return [{"nbytes": nbytes, **found}]


class Departures(NamedTuple):
    """When each gradient of a step leaves, with its bytes, and when the step waits for them."""

    left: list[tuple[float, int]]
    waits: list[float]

    def unhidden_s(self, rate: float) -> float:
        """Return how long a link of `rate` bytes/s goes on behind the first wait, if it is idle only where
        nothing is there to be sent.
        """
        free = 0.0
        for at, nbytes in self.left:
            free = max(free, at) + nbytes / rate
        return max(0.0, free - self.waits[0])


@contextmanager
def departures() -> Iterator[Departures]:
    """Note what programs of this rank begin to send in the block."""
    from stratal.distributed.overlapped import Overlapped

    found = Departures([], [])
    start, finish = Overlapped.start, Overlapped.finish

    def starting(self: Any, array: Any, *more: Any) -> int:
        found.left.append((time.perf_counter(), array.nbytes))
        return start(self, array, *more)

    def finishing(self: Any, *more: Any) -> Any:
        found.waits.append(time.perf_counter())
        return finish(self, *more)

    with mock.patch.multiple(Overlapped, start=starting, finish=finishing):
        yield found


PARTS: Final = {f.__name__: f for f in (allreduce, bookkeeping, ring, servers, slow)}


def main() -> None:
    """Run one part on every rank."""
    die_with_parent()
    from stratal import distributed as dist

    found = PARTS[sys.argv[1]](int(sys.argv[2]))
    if dist.rank() == 0:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
