"""Run on every rank: each collective against its definition over the list of all ranks' values."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import numpy as np
from rank_checks import refused, run_checks

import stratal as st
from stratal import distributed as dist
from stratal.base.errors import AttributeValueError, CallOrderError, DTypeError, ShapeError
from stratal.distributed import links
from stratal.distributed.world import world

RANK, SIZE = dist.rank(), dist.world_size()
MPI_DTYPES = ("float32", "float64", "int32", "int64")
DTYPES = ("float32", "float64", "int32", "uint8", "complex64")


def values(count: int, dtype: str = "float32", seed: int = 0) -> list[np.ndarray[Any, Any]]:
    """Return what each rank holds, alike on all of them."""
    rng = np.random.default_rng(seed)
    return [(rng.standard_normal(count) * 4).astype(dtype) for _ in range(SIZE)]


def algorithms() -> list[str]:
    power = not SIZE & (SIZE - 1)
    return ["", "ring", "all_to_all", "tree", *(["halving_doubling", "doubling"] if power else [])]


def reductions() -> None:
    cases = [*itertools.product(DTYPES, (1, 97), algorithms()), *(("float32", 5000, a) for a in algorithms())]
    for dtype, count, algorithm in cases:
        given = values(count, dtype)
        found = dist.all_reduce(given[RANK], algorithm=algorithm)
        assert found.dtype == given[0].dtype
        np.testing.assert_allclose(found, sum(given), rtol=1e-5, atol=1e-5)
        same = dist.all_gather(found.view(np.uint8)).reshape(SIZE, -1)
        assert (same == same[0]).all(), "ranks hold other bits"
    given = values(12)
    for op, dtype in itertools.product(("sum", "prod", "mean"), MPI_DTYPES):
        if op != "mean" or dtype.startswith("float"):
            mine = values(97, dtype)
            found = dist.all_reduce(mine[RANK], op, algorithm="mpi")
            want = dist.all_reduce(mine[RANK], op, algorithm="all_to_all")
            np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-4)
            same = dist.all_gather(found.view(np.uint8)).reshape(SIZE, -1)
            assert (same == same[0]).all(), "ranks hold other bits"
            if SIZE == 2:  # one sum, in either order
                np.testing.assert_array_equal(found, want)
    for op, want in {"mean": np.mean, "max": np.max, "min": np.min, "prod": np.prod}.items():
        np.testing.assert_allclose(dist.all_reduce(given[RANK], op), want(given, axis=0), rtol=1e-5)
    whole = values(6 * SIZE)
    for algorithm in ("ring", "all_to_all"):
        part = dist.reduce_scatter(whole[RANK], algorithm=algorithm)
        np.testing.assert_allclose(part, np.split(sum(whole), SIZE)[RANK], rtol=1e-5, atol=1e-5)


def movements() -> None:
    given = values(6 * SIZE)
    for algorithm in ("ring", "all_to_all"):
        found = dist.all_gather(given[RANK], algorithm=algorithm)
        np.testing.assert_array_equal(found, np.concatenate(given))
    want = np.concatenate([np.split(g, SIZE)[RANK] for g in given])
    np.testing.assert_array_equal(dist.all_to_all(given[RANK]), want)
    for root in range(SIZE):
        np.testing.assert_array_equal(dist.broadcast(given[RANK], root), given[root])
    moved = dist.permute(given[RANK], [(r, r + 1) for r in range(SIZE - 1)])
    np.testing.assert_array_equal(moved, given[RANK - 1] if RANK else np.zeros_like(moved))
    right, left = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    sent = dist.send(given[RANK], right, tag=3, wait=False)
    np.testing.assert_array_equal(dist.receive(given[RANK], left, tag=3), given[left])
    assert sent.value() is None


def tensors() -> None:
    x = st.tensor([[1.0, 2.0], [3.0, RANK]])
    y = dist.all_reduce(x)
    assert isinstance(y, st.Tensor) and y.shape == (2, 2) and y.dtype == st.float32
    np.testing.assert_allclose(y.numpy(), [[SIZE, 2 * SIZE], [3 * SIZE, SIZE * (SIZE - 1) / 2]])
    half = dist.all_reduce(st.tensor([1.5, RANK], dtype=st.bfloat16))
    assert half.dtype == st.bfloat16 and float(half[0]) == 1.5 * SIZE
    assert isinstance(dist.all_gather(x), st.Tensor)


def counters() -> None:
    """Rows F4, F6: the ring's messages and bytes per link are the formula's, exactly."""
    x = np.zeros(120 * SIZE, np.float32)
    for algorithm in algorithms()[1:]:
        dist.traffic(reset=True)
        dist.all_reduce(x, algorithm=algorithm)
        seen = dist.traffic()
        want = links.traffic("all_reduce", algorithm, x.nbytes, SIZE, RANK)
        assert sum(seen["sent_messages"]) == want.messages, (algorithm, seen)
        assert sum(seen["sent_bytes"]) == want.bytes, (algorithm, seen)
        if algorithm == "ring":
            links_used = [r for r in range(SIZE) if seen["sent_messages"][r] or seen["received_messages"][r]]
            assert set(links_used) == {(RANK + 1) % SIZE, (RANK - 1) % SIZE}
            assert seen["sent_messages"][(RANK + 1) % SIZE] == 2 * (SIZE - 1)
            assert seen["sent_bytes"][(RANK + 1) % SIZE] == 2 * x.nbytes * (SIZE - 1) // SIZE
    dist.traffic(reset=True)
    dist.all_reduce(x, algorithm="mpi")
    seen = dist.traffic(reset=True)
    assert (seen["mpi_calls"], seen["mpi_bytes"]) == ([1], [x.nbytes])
    assert not any(seen["sent_messages"] + seen["received_bytes"])
    assert dist.traffic()["mpi_calls"] == [0]


def side_by_side() -> None:
    """Several collectives under way at once: queued in order, each with its own result."""
    ways = ("", "mpi")
    pending = [dist.all_reduce(np.full(1000, k + RANK), algorithm=ways[k % 2], wait=False) for k in range(8)]
    for k, p in enumerate(pending):
        assert (p.value() == SIZE * k + SIZE * (SIZE - 1) // 2).all()
    assert all(p.done for p in pending)
    dist.barrier()


def without_a_switch() -> None:
    """What is waited for runs in the calling thread, unless others are under way: then behind them."""
    within = world()
    dist.barrier()
    before = within._queued
    assert (dist.all_reduce(np.ones(3)) == SIZE).all()
    assert within._queued is before
    pending = [dist.all_reduce(np.full(1 << 18, float(k)), wait=False) for k in range(3)]
    own = within._queued
    assert (dist.all_gather(np.array([RANK])) == np.arange(SIZE)).all()
    assert [p.value()[0] for p in pending] == [0, SIZE, 2 * SIZE]
    if RANK == 0:  # a handler of a signal, in the middle of a collective
        within._here = threading.get_ident()
        refused(CallOrderError, "while a collective is under way", dist.barrier)
        within._here = None
    assert own is not before


def refusals() -> None:
    cases = [
        (AttributeValueError, lambda: dist.all_reduce([1.0], "median")),
        (AttributeValueError, lambda: dist.all_reduce([1.0], algorithm="star")),
        (AttributeValueError, lambda: dist.all_reduce([1.0], "max", algorithm="mpi")),
        (AttributeValueError, lambda: dist.all_reduce(np.ones(3, np.float16), algorithm="mpi")),
        (AttributeValueError, lambda: dist.broadcast([1.0], SIZE)),
        (AttributeValueError, lambda: dist.permute([1.0], [(0, 1), (0, 0)])),
        (AttributeValueError, lambda: dist.send([1.0], RANK)),
        (DTypeError, lambda: dist.all_reduce([1], "mean")),
        (DTypeError, lambda: dist.all_reduce(object())),
        (ShapeError, lambda: dist.reduce_scatter(np.ones(SIZE + 1))),
        (ShapeError, lambda: dist.all_to_all(1.0)),
    ]
    for kind, call in cases:
        try:
            call()
        except kind:
            continue
        raise AssertionError(f"{kind.__name__} was not raised")


def agreement() -> None:
    dist.check_same("the same", "plans")
    try:
        dist.check_same("mine" if RANK == 1 else "yours", "plans")
    except dist.ProgramMismatchError as error:
        assert "on rank 1" in str(error) and "ranks have different plans" in str(error)
    else:
        raise AssertionError("not noticed")


if __name__ == "__main__":
    run_checks(
        (reductions, movements, tensors, counters, side_by_side, without_a_switch, refusals, agreement)
    )
