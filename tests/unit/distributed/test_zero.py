"""ZeRO: what sharded optimizers learn, keep, send and save."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from launching import launch, launched, needs_mpi

import stratal as st
from stratal import distributed as dist
from stratal import nn, optim
from stratal.base.errors import AttributeValueError, DTypeError


@needs_mpi
@launched
@pytest.mark.row("E11", "F1")
@pytest.mark.parametrize(
    "checks", ["equal two_optimizers", "bytes_sent_and_kept saved_and_loaded", "master_weights refusals"]
)
@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_sharded_update_learns_what_one_process_learns_with_less_state_on_each_rank(
    ranks: int, checks: str
) -> None:
    status, output = launch(ranks, "rank_zero.py", *checks.split(), timeout=60)
    assert output.count("passed") == 2, output
    assert status == 0, output


SHARDED = (  # of each launch
    "learns keeps_a_share sends", "gathers_late layers_of_all_kinds refusals",
    "other_optimizers master_weights different_programs_are_refused",
)  # fmt: skip


@needs_mpi
@launched
@pytest.mark.row("E11", "F1", "F19")
@pytest.mark.parametrize("checks", SHARDED)
@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_with_sharded_parameters_ranks_learn_what_one_process_learns_and_keep_a_share(
    ranks: int, checks: str
) -> None:
    status, output = launch(ranks, "rank_sharded.py", *checks.split(), timeout=60)
    assert output.count("passed") == len(checks.split()), output
    assert status == 0, output


@needs_mpi
@launched
def test_a_checkpoint_of_sharded_parameters_goes_on_with_another_number_of_ranks(tmp_path: Path) -> None:
    for ranks, what in ((2, "saves"), (3, "loads")):
        status, output = launch(ranks, "rank_sharded.py", what, str(tmp_path / "run.stratal"), timeout=60)
        assert status == 0, output


@needs_mpi
@launched
@pytest.mark.parametrize(("stage", "then"), [("3", "2"), ("1", "3")])
def test_a_snapshot_that_ranks_wrote_in_pieces_goes_on_with_another_number_of_ranks(
    tmp_path: Path, stage: str, then: str
) -> None:
    run = str(tmp_path / "run")
    for ranks, what in ((2, ("snapshots", run, stage)), (3, ("goes_on", run, then))):
        status, output = launch(ranks, "rank_sharded.py", *what, timeout=60)
        assert status == 0, output
    assert {p.name.partition(".")[0][:16] for p in (tmp_path / "run").iterdir()} == {
        "manifest", "checkpoint", "checkpoint-00000", "checkpoint-00001",
    }  # fmt: skip
    found = st.load(run)  # in one process: whole tensors
    assert tuple(found["net"]["0.weight"].shape) == (33, 9)
    assert tuple(found["optimizer"]["state"][0]["exp_avg"].shape) == (33, 9)


@needs_mpi
@launched
def test_fit_goes_on_from_a_checkpoint_that_other_ranks_wrote_in_pieces(tmp_path: Path) -> None:
    run, whole = str(tmp_path / "run"), str(tmp_path / "whole")
    for ranks, what in ((2, (run, "3", "1")), (3, (run, "2", "2")), (1, (whole, "1", "2"))):
        status, output = launch(ranks, "rank_sharded.py", "fits", *what, timeout=60)
        assert status == 0, output
    for found, expected in zip(st.load(f"{run}.2.stratal"), st.load(f"{whole}.2.stratal"), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@needs_mpi
@launched
def test_where_a_rank_cannot_write_its_pieces_all_say_so_and_what_stood_before_stays(tmp_path: Path) -> None:
    status, output = launch(2, "rank_sharded.py", "cannot_write", str(tmp_path / "run"), timeout=60)
    assert status == 0, output


@pytest.mark.quick
@pytest.mark.row("E11")
def test_the_memory_formula_gives_the_figures_of_the_paper() -> None:
    kept = dist.zero_memory(7.5e9, 64)
    found = [round(m.total / 1e9, 1) for m in kept.values()]
    assert found == [120.0, 31.4, 16.6, 1.9]
    assert kept["zero 1"].gradients == kept["zero 1"].parameters == 15e9
    assert all(m == kept["data"] for m in dist.zero_memory(7.5e9, 1).values())
    with pytest.raises(AttributeValueError, match="at least one rank"):
        dist.zero_memory(1, 0)


def test_strategies_that_are_not_there_are_refused_in_words() -> None:
    for stage in (0, 4):
        with pytest.raises(AttributeValueError, match="1, 2 or 3"):
            dist.zero(stage)
    with pytest.raises(AttributeValueError, match="at least one byte"):
        dist.zero(1, bucket_bytes=0)
    with pytest.raises(DTypeError, match="optimizers"):
        dist.zero(1, nn.Linear(2, 2))  # type: ignore[arg-type]


@pytest.mark.parametrize("stage", [2, 3])
def test_with_one_rank_nothing_is_sharded(stage: int) -> None:
    net = nn.Linear(3, 2)
    optimizer = optim.Adam(net.parameters())

    def step() -> None:
        optimizer.zero_grad()
        net.weight.sum().backward()
        optimizer.step()

    dist.parallel(step, dist.zero(stage))()
    with dist.full_parameters(optimizer):
        assert np.isfinite(np.asarray(net.weight.detach())).all()
    assert optimizer.param_groups[0].shards is None and net.weight.grad is not None
    assert optimizer.state_bytes == 2 * 4 * 8
