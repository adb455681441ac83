"""Data parallel: what ranks learn together is what one process learns on the whole batch."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launching import launch, launched, needs_mpi

import stratal as st
from stratal import distributed as dist
from stratal import nn, optim
from stratal.base.errors import AttributeValueError, DTypeError
from stratal.distributed.data_parallel import _optimizers_of
from stratal.distributed.links import Link, bucket_bytes
from stratal.distributed.reducer import buckets
from stratal.tensor.values.state import MODE, Part

CHECKS = (  # of each launch; a process compiles anew
    "equal buckets refusals",
    "hidden different_programs_are_refused local_steps",
    "clipped_and_accumulated clipping_sees_the_whole_batch_wherever_it_is_called"
    " a_loss_scaler_meets_the_overflow_of_any_rank",
)


@needs_mpi
@launched
@pytest.mark.row("F1", "F7", "F9", "F10")
@pytest.mark.parametrize("checks", CHECKS)
@pytest.mark.parametrize("ranks", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 4))])
def test_ranks_learn_what_one_process_learns_on_the_whole_batch(ranks: int, checks: str) -> None:
    status, output = launch(ranks, "rank_training.py", *checks.split(), timeout=60)
    assert output.count("passed") == 3, output
    assert status == 0, output


@needs_mpi
@pytest.mark.slow
@pytest.mark.row("F1")
def test_the_example_prints_the_same_losses_on_one_rank_and_on_several() -> None:
    example = Path(__file__).parents[3] / "examples" / "parallel.py"
    if not example.exists():
        pytest.skip("runs in a checkout only")
    said = [re.findall(r"loss .*", launch(n, str(example), "--small", timeout=60)[1]) for n in (1, 2, 3)]
    assert len(said[0]) == 4 and said[0] == said[1] == said[2]


def linear() -> tuple[nn.Module, optim.Optimizer]:
    net = nn.Linear(3, 2)
    return net, optim.SGD(net.parameters(), lr=0.1)


def test_with_one_rank_a_parallel_step_is_the_step() -> None:
    net, optimizer = linear()
    x = st.ones((4, 3))

    def step(x: st.Tensor) -> st.Tensor:
        optimizer.zero_grad()
        loss = net(x).sum()
        loss.backward()
        dist.synchronize(optimizer)
        optimizer.step()
        return loss

    before = net.weight.detach().numpy().copy()
    taken = st.compile(dist.parallel(step, dist.data()))
    assert taken.__name__ == "step"
    taken(x)
    np.testing.assert_allclose(net.weight.detach().numpy(), before - 0.1 * 4, rtol=1e-6)
    assert dist.shard() == (0, 1)


def test_the_optimizers_of_a_step_are_found_in_its_variables() -> None:
    _, optimizer = linear()
    _, other = linear()

    class Trainer:
        def __init__(self) -> None:
            self.first = optimizer

        def step(self) -> None: ...

    def closure() -> object:
        return optimizer, other

    def default(taken: object = optimizer) -> None: ...

    both = [optimizer, other]
    cases = {
        "closure": (closure, [optimizer, other]),
        "compiled": (st.compile(closure), [optimizer, other]),
        "method": (Trainer().step, [optimizer]),
        "partial": (functools.partial(default, other), [other, optimizer]),
        "default": (default, [optimizer]),
        "list": (lambda: both, [optimizer, other]),
        "nothing": (lambda: None, []),
    }
    for name, (step, want) in cases.items():
        assert list(map(id, _optimizers_of(step))) == list(map(id, want)), name


def test_buckets_hold_one_dtype_up_to_a_limit_and_every_parameter_once() -> None:
    kinds = ((10, "float32"), (20, "float32"), (5, "float64"), (99, "float64"))
    params = [st.zeros(n, dtype=d) for n, d in kinds]
    filled = list(buckets(params, 120))
    assert [[p.numel() for p in bucket] for bucket in filled] == [[10, 20], [5], [99]]
    assert [len(b) for b in buckets(params[:2], 119)] == [1, 1]
    assert list(buckets([], 1)) == []
    assert bucket_bytes(2, Link(alpha_ns=1000, beta_ns=1)) == 1 << 18
    assert bucket_bytes(4, Link(alpha_ns=1e6, beta_ns=1)) > 10_000_000


def test_what_parallel_cannot_do_is_refused_in_words() -> None:
    with pytest.raises(AttributeValueError, match="no optimizer is seen"):
        dist.parallel(lambda: None, dist.data())
    with pytest.raises(DTypeError, match="a function and a strategy"):
        dist.parallel(lambda: None, "data")  # type: ignore[arg-type]
    with pytest.raises(DTypeError, match="takes optimizers"):
        dist.data(nn.Linear(2, 2))  # type: ignore[arg-type]
    with pytest.raises(AttributeValueError, match="at least one byte"):
        dist.data(bucket_bytes=0)


def test_parts_of_a_batch_draw_their_rows_of_the_whole_mask() -> None:
    functional, x = nn.functional, st.ones((6, 3, 4))
    parts = [Part(st.tensor(number, dtype="int64")) for number in range(3)]

    def rows(run: Any, number: int) -> Any:
        st.manual_seed(3)
        MODE.part = parts[number]
        try:
            return np.asarray(run(x[2 * number : 2 * number + 2]))
        finally:
            MODE.part = None

    for drop in (functional.dropout, functional.dropout1d, functools.partial(functional.dropout, p=1.0)):
        st.manual_seed(3)
        whole = np.asarray(drop(x))
        for run in (drop, st.compile(lambda v, drop=drop: drop(v))):
            for _ in range(3):  # the calls of a part are not taken for those of another, or of the whole
                st.manual_seed(3)
                np.testing.assert_array_equal(np.asarray(run(x[:2])), whole[:2])
                np.testing.assert_array_equal(np.concatenate([rows(run, k) for k in range(3)]), whole)
    assert (whole == 0).all()
