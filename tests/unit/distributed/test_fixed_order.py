"""Virtual shards: the same bits at any number of ranks."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from launching import launch, launched, needs_mpi
from test_algorithms import Network

from stratal import distributed as dist
from stratal.base.errors import AttributeValueError
from stratal.distributed.tree_sums import nodes_of, total, tree_all_reduce


def run(ranks: int, *arguments: str) -> str:
    status, output = launch(ranks, "rank_fixed_order.py", *arguments, timeout=60)
    assert status == 0, output
    return output


@needs_mpi
@launched
@pytest.mark.row("N5", "F1", "F7")
@pytest.mark.parametrize("ranks", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 4))])
def test_losses_and_parameters_have_the_same_bits_at_any_number_of_ranks(ranks: int) -> None:
    """They are near those of one process on the whole batch, too, and what would differ is refused."""
    alone = run(1, "same_bits", "near_one_process")
    want = re.findall(r"digest .*", alone)
    assert len(want) == 2 and alone.count("passed") == 2
    names = ("same_bits", "dropout_follows_shards", "gradients_of_one_process", "refusals")
    output = run(ranks, *names)
    assert re.findall(r"digest .*", output) == want and output.count("passed") == len(names), output


@needs_mpi
@pytest.mark.row("N5")
@pytest.mark.slow
def test_a_run_goes_on_with_the_same_bits_on_another_number_of_ranks(tmp_path: Path) -> None:
    want = run(1, "resized", str(tmp_path / "whole.st"), "on")
    for first, second in ((2, 3), (4, 1)):
        path = str(tmp_path / f"{first}.st")
        run(first, "resized", path)
        assert run(second, "resized", path) == want


@pytest.mark.row("N5")
@pytest.mark.parametrize("shards", [1, 4, 12, 30])
def test_sums_over_the_tree_have_the_same_bits_on_any_number_of_ranks_and_fewer_arrays_are_sent(
    shards: int,
) -> None:
    rng = np.random.default_rng(shards)
    leaves = rng.standard_normal((shards, 23)).astype(np.float32)
    order = rng.permutation(shards)
    found = {}
    for size in range(1, shards + 1):
        nodes = [nodes_of(r, size, shards) for r in range(size)]
        assert [n for part in nodes for n in range(part[0][0], part[-1][1])] == list(range(shards))
        own = [
            [total(n, lambda n: [leaves[n[0]]] if n[1] - n[0] == 1 else None)[0] for n in part]
            for part in nodes
        ]
        buffers = [np.empty(23, np.float32) for _ in range(size)]
        network = Network()
        network.run([tree_all_reduce(own[r], buffers[r], r, size, shards) for r in range(size)])
        found[size] = {b.tobytes() for b in buffers}
        ends = [sum(k * (size - 1) for k in map(len, nodes)), size - 1]
        assert sum(network.bytes.values()) <= 4 * 24 * sum(ends)
    assert len(set().union(*found.values())) == 1
    np.testing.assert_allclose(buffers[0], leaves.sum(0), rtol=1e-4, atol=1e-5)
    if shards > 4:  # the order matters: another one has other bits
        other = total((0, shards), lambda n: [leaves[order[n[0]]]] if n[1] - n[0] == 1 else None)[0]
        assert other.tobytes() not in found[1]


def test_settings_that_virtual_shards_decide_are_refused() -> None:
    for options in ({"local_steps": 2}, {"bucket_bytes": 8}, {"algorithm": "ring"}):
        with pytest.raises(AttributeValueError, match="fix what is sent"):
            dist.data(virtual_shards=4, **options)
    with pytest.raises(AttributeValueError, match="at least one virtual shard"):
        dist.data(virtual_shards=0)
