"""Every strategy learns in twenty steps what one process learns on the whole batch, or refuses to."""

from __future__ import annotations

import re

import pytest
from launching import launch, needs_mpi

NETS = ("mlp", "resnet", "gpt")
STRATEGIES = (  # of rank_strategies.py
    "data", "local steps", "inner", "servers", "zero 1", "zero 2", "zero 3", "virtual shards",
)  # fmt: skip


def learn(ranks: int, net: str, dtype: str, *strategies: str) -> str:
    status, output = launch(ranks, "rank_strategies.py", net, dtype, *strategies, timeout=60, limit=400)
    wanted = len(strategies or STRATEGIES)
    assert output.count("passed") == wanted, output
    assert status == 0, output
    return output


@needs_mpi
@pytest.mark.row("F1", "E11", "F19")
@pytest.mark.sampled(30, among="strategies")  # one case, about 10 s of a core
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("net", NETS)
def test_two_ranks_learn_what_one_process_learns_on_the_whole_batch(net: str, strategy: str) -> None:
    """Relative to the largest parameter of a layer, to 1e-6 in float32."""
    learn(2, net, "float32", strategy)


@needs_mpi
@pytest.mark.slow
@pytest.mark.row("F1", "E11", "F19")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("ranks", [2, 4])
def test_all_strategies_learn_what_one_process_learns(ranks: int, net: str, dtype: str) -> None:
    """To 1e-6 in float32, to 1e-12 in float64."""
    learn(ranks, net, dtype)


@needs_mpi
@pytest.mark.slow
@pytest.mark.row("N5", "F1")
def test_a_gpt_with_dropout_has_the_same_bits_at_one_to_four_ranks_under_virtual_shards() -> None:
    said = [re.findall(r"digest .*", learn(n, "gpt", "float32", "virtual shards")) for n in (1, 2, 3, 4)]
    assert len(said[0]) == 1 and said[0] == said[1] == said[2] == said[3]


FAULTS = {
    "stops": r"CollectiveTimeoutError: rank \d waited 8 s in .*\n.*rank 1 .* is stopped by a signal",
    "raises": r"ValueError: broken rank|zero\(3\): the step raised while it was captured",
    "another shape": r"ProgramMismatchError: (?s:.*)on rank|ProgramMismatchError: (?s:.*)rank 1: ",
    "another program": r"ProgramMismatchError: (?s:.*)(in program \w+|program \w+ on)",
}


@needs_mpi
@pytest.mark.slow
@pytest.mark.row("N13")
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("strategy", ["data", "virtual shards", "servers", "zero 1", "zero 2", "zero 3"])
def test_a_rank_that_fails_in_the_middle_is_named_under_every_strategy(strategy: str, fault: str) -> None:
    status, output = launch(3, "rank_strategy_faults.py", strategy, fault, timeout=8)
    assert status == 1 and "not noticed" not in output, output
    assert re.search(FAULTS[fault], output), output
