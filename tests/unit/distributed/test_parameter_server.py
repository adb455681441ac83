"""Parameter servers: what workers learn, send, and how far they run apart."""

from __future__ import annotations

import re
from typing import Any

import pytest
from launching import launch, launched, needs_mpi

import stratal as st
from stratal import distributed as dist
from stratal import nn, optim
from stratal.base.errors import AttributeValueError, DTypeError
from stratal.distributed.parameter_server import parts_of


@needs_mpi
@launched
@pytest.mark.row("F1", "F2", "F3", "F5")
@pytest.mark.parametrize("ranks", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 4, 5))])
def test_workers_learn_what_one_process_learns_and_messages_equal_the_formula(ranks: int) -> None:
    status, output = launch(ranks, "rank_servers.py", timeout=60)
    assert output.count("passed") == 7, output
    assert status == 0, output


FAULTS = {
    "worker stops": (
        r"rank [02] waited 1.5 s in .*\n.*rank 1 .* is stopped by a signal\n *where: rank_servers.py"
    ),
    "server stops": r"for rank 2\n.*rank 2 .* is stopped by a signal\n *where: rank_servers.py:\d+",
    "worker ends": r"rank 1 has ended, rank 2 waits for it",
    "server ends": r"rank 2 has ended, rank \d waits for it",
    "another program": r"run different programs in step 1\n.*program \w+ on rank \d; program \w+ on rank \d\n"
    r" *where: rank_servers.py:\d+",
    "another program late": r"run different programs in step 2\n",
    "another program, not compiled": r"different programs in step 1\n.*a step that is not compiled on rank 1",
}


def slow(value: object) -> Any:
    return pytest.param(value, marks=pytest.mark.slow)


@needs_mpi
@launched
@pytest.mark.row("N13")
@pytest.mark.parametrize("fault", ["worker stops", *(slow(f) for f in FAULTS if f != "worker stops")])
def test_a_worker_or_server_that_fails_is_named_within_the_time_out(fault: str) -> None:
    status, output = launch(3, "rank_servers.py", "fault", fault, timeout=1.5)
    assert status == 1, output
    assert re.search(FAULTS[fault], output), output


def test_servers_own_whole_parameters_of_about_equal_bytes_and_workers_push_in_their_order() -> None:
    params = [st.zeros(n) for n in (10, 300, 20, 280, 5)]
    parts = parts_of(params, (4, 5), 1000)
    assert [part.server for part in parts] == sorted(part.server for part in parts)
    owned = [p for part in parts for p in part.params]
    assert len(owned) == 5 and {id(p) for p in owned} == {id(p) for p in params}
    loads = [sum(p.nbytes for part in parts if part.server == s for p in part.params) for s in (4, 5)]
    assert loads == [1240, 1220]
    assert len(parts_of(params, (4,), 1)) == 5


def test_with_one_rank_the_step_is_the_step_and_nobody_serves() -> None:
    net = nn.Linear(3, 2)
    optimizer = optim.SGD(net.parameters(), lr=0.5)
    strategy = dist.parameter_server(mode="async", staleness=2)

    def step() -> float:
        net.weight.sum().backward()
        optimizer.step()
        return 1.0

    before = net.weight.detach().numpy().copy()
    assert dist.parallel(step, strategy)() == 1.0
    assert (net.weight.detach().numpy() == before - 0.5).all()
    assert (strategy.shard(), strategy.workers, strategy.is_server) == ((0, 1), 1, False)
    dist.pull(optimizer)
    assert (
        str(dist.staleness(optimizer))
        == "staleness 0 of at most 0: no steps; 0.00 updates missed in the mean"
    )


def test_what_a_parameter_server_cannot_be_is_refused_in_words() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"servers": 0}, "at least one server"), ({"mode": "fast"}, "'sync' or 'async'"),
        ({"staleness": 1}, "of mode='async'"), ({"mode": "async", "staleness": -1}, "from 0 on"),
        ({"bucket_bytes": 0}, "at least one byte"),
    ]  # fmt: skip
    for options, said in cases:
        with pytest.raises(AttributeValueError, match=said):
            dist.parameter_server(**options)
    with pytest.raises(DTypeError, match="takes optimizers"):
        dist.parameter_server(nn.Linear(2, 2))  # type: ignore[arg-type]
    with pytest.raises(DTypeError, match="a function and a strategy"):
        dist.parallel(lambda: None, None)  # type: ignore[arg-type]
