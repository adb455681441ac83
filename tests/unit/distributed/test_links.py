"""The model of links: measured by `stratal doctor --cluster`, kept in a file, the same on all ranks."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from launching import command, environment, launched, needs_mpi

from stratal.base import settings
from stratal.base.errors import AttributeValueError, StratalError
from stratal.base.record_files import digest_of
from stratal.cli import main
from stratal.distributed import link_records
from stratal.distributed.link_measurement import SIZES, Reduced, Timed, fit, measure_rounds
from stratal.distributed.link_records import LinkWarning, link_for, nearest, new_record, read_file, write_file
from stratal.distributed.links import Link, algorithms_of, choose, combined_bytes, estimate_ns, thresholds
from stratal.distributed.own_call import takes
from stratal.distributed.world import World

SLOW = Link(alpha_ns=20_000.0, beta_ns=8.0, message_share=0.125)  # 1 Gbit/s


# -- the model -----------------------------------------------------------------------------------------------
def rounds(link: Link) -> list[Timed]:
    """Return what rounds take over links that are just like the model."""
    single = [Timed(n, 1, link.alpha_ns + n * link.beta_ns) for n in SIZES]
    return [*single, Timed(SIZES[0], 4, single[0].ns * (1 + 3 * link.message_share))]


@pytest.mark.parametrize("link", [SLOW, Link(), Link(900.0, 0.02, 0.0)])
def test_the_fit_finds_the_costs_that_made_the_times(link: Link) -> None:
    assert fit(rounds(link), link.gamma_ns) == pytest.approx(link, rel=1e-9, abs=1e-9)


def test_the_costs_of_mpi_s_own_calls_are_fitted_to_their_times() -> None:
    own = [Reduced(n, "mpi", 3 * 1500.0 + 2 * 7 / 8 * n * 0.4) for n in SIZES]
    found = fit(rounds(SLOW), 0.1, own, size=8)
    assert (found.mpi_alpha_ns, found.mpi_beta_ns) == pytest.approx((1500.0, 0.4))
    assert (
        fit(rounds(SLOW), 0.1, [Reduced(n, "mpi", 1e9 / n) for n in SIZES]).mpi_beta_ns == Link().mpi_beta_ns
    )
    for r in own:
        assert estimate_ns("all_reduce", "mpi", r.nbytes, 8, found) == pytest.approx(r.ns)


@pytest.mark.row("F12")
def test_mpi_s_own_call_is_for_short_sums_and_only_where_its_order_will_do() -> None:
    assert choose("all_reduce", 1 << 10, 2, Link(), mpi=True) == "mpi"
    assert choose("all_reduce", 64 << 20, 2, Link(), mpi=True) != "mpi"
    assert choose("all_reduce", 1 << 10, 2, Link()) != "mpi"
    assert "mpi" not in algorithms_of("all_gather", 2, mpi=True)
    with pytest.raises(AttributeValueError, match="an order of its own"):
        choose(
            "all_reduce", 1 << 10, 2, Link(), "mpi"
        )  # as strategies do, whose sums are in the order of ranks
    assert takes(np.add, np.dtype(np.float32)) and takes(np.multiply, np.dtype(np.int64))
    for combine, dtype in (
        (np.maximum, "f4"),
        (np.add, "f2"),
        (np.add, ">f4"),
        (np.add, "c8"),
        (np.add, "?"),
    ):
        assert not takes(combine, np.dtype(dtype))


def test_a_burst_of_load_on_long_messages_leaves_the_cost_of_short_ones() -> None:
    disturbed = [r._replace(ns=3 * r.ns) if r.nbytes == SIZES[-1] else r for r in rounds(SLOW)]
    assert fit(disturbed, 0.1).alpha_ns == pytest.approx(SLOW.alpha_ns, rel=0.1)


def test_a_further_message_costs_at_most_a_round_and_times_that_do_not_grow_are_refused() -> None:
    dear = [r._replace(ns=50 * r.ns) if r.messages > 1 else r for r in rounds(SLOW)]
    assert fit(dear, 0.1).message_share == 1.0
    with pytest.raises(StratalError, match="do not grow with their sizes"):
        fit([Timed(n, 1, 1e9 / n) for n in SIZES], 0.1)


@pytest.mark.quick
@pytest.mark.row("F12")
@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_thresholds_are_where_the_least_estimate_changes(size: int) -> None:
    found = thresholds("all_reduce", size, SLOW)
    assert found[0][0] == 1
    for nbytes, name in found:
        assert choose("all_reduce", nbytes, size, SLOW) == name
        costs = {
            n: estimate_ns("all_reduce", n, nbytes, size, SLOW) for n in algorithms_of("all_reduce", size)
        }
        assert costs[name] == min(costs.values())
        assert nbytes == 1 or choose("all_reduce", nbytes - 1, size, SLOW) != name


def test_a_share_of_a_further_message_decides_between_one_neighbour_and_all() -> None:
    assert choose("reduce_scatter", 1 << 10, 4, Link(message_share=0.1)) == "all_to_all"
    assert choose("reduce_scatter", 1 << 10, 4, Link(message_share=1.0)) == "ring"


@pytest.mark.row("F12")
def test_between_two_ranks_long_buffers_are_halved_so_that_each_adds_a_half() -> None:
    """Both algorithms send as many bytes, and doubling has one round less."""
    assert choose("all_reduce", 1 << 10, 2, Link()) == "doubling"
    assert choose("all_reduce", 4 << 20, 2, Link()) in ("ring", "halving_doubling", "all_to_all")
    assert choose("all_reduce", 4 << 20, 2, Link(gamma_ns=0.0)) == "doubling"
    assert combined_bytes("all_reduce", "doubling", 1024, 8) == 3 * 1024
    assert combined_bytes("all_reduce", "ring", 1024, 8) == 7 * 128
    assert combined_bytes("all_gather", "ring", 1024, 8) == 0


# -- the file ------------------------------------------------------------------------------------------------
def test_a_model_counts_for_jobs_of_its_hosts_and_the_nearest_number_of_ranks(tmp_path: Path) -> None:
    with settings.cache_dir(tmp_path / "cache"):
        assert link_for(2, 1) == Link()
        path = link_records.records_file()
        assert path is not None
        for ranks, hosts, alpha in ((2, 1, 1.0), (8, 1, 2.0), (2, 2, 3.0), (2, 1, 4.0)):
            write_file(path, new_record(Link(alpha, 1.0), ranks, hosts))
        assert [link_for(*job).alpha_ns for job in ((2, 1), (3, 1), (9, 1), (4, 2))] == [4.0, 4.0, 2.0, 3.0]
        assert link_for(2, 3) == Link()
        records = read_file(path)
        assert len(records) == 3
        other = [link_records.dataclasses.replace(r, machine="another") for r in records]
        assert nearest(other, 2, 1) is None
    with settings.cache_dir(None):
        assert link_for(2, 1) == Link()


@pytest.mark.parametrize("fault", ["text", "altered", "cut short", "no cost", "folder", "version"])
def test_a_file_that_was_altered_costs_a_warning_and_the_defaults(fault: str, tmp_path: Path) -> None:
    path = tmp_path / link_records.FILE_NAME
    with settings.cache_dir(tmp_path):
        if fault == "folder":
            path.mkdir()
        else:
            write_file(path, new_record(SLOW, 2, 1))
            text = path.read_text()
            if fault == "no cost":
                rows = json.loads(text)["records"]
                rows[0]["beta_ns"] = -1.0
                text = json.dumps(json.loads(text) | {"records": rows, "digest": digest_of(rows)})
            changed = {"text": "links", "altered": text.replace("20000.0", "20001.0"), "cut short": text[:90],
                       "no cost": text, "version": text.replace('"version": 2', '"version": 1')}  # fmt: skip
            path.write_text(changed[fault])
        with pytest.warns(LinkWarning, match=r"the defaults are in force .*doctor --cluster"):
            assert link_for(2, 1) == Link()
        if fault != "folder":
            write_file(path, new_record(SLOW, 2, 1))  # measured again
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                assert link_for(2, 1) == SLOW


# -- the command ---------------------------------------------------------------------------------------------
def test_one_rank_and_options_without_the_measurement_are_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(AttributeValueError, match="one rank has no links"):
        measure_rounds(World(0, 1, None, 1.0))
    assert main(["doctor", "--cluster", "-n", "1"]) == 1
    assert "one rank has no links" in capsys.readouterr().err
    assert main(["doctor", "-n", "2"]) == 1
    assert "go with --cluster" in capsys.readouterr().err
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["doctor", "--cluster", "-n", "2"]) == 1
    assert "pip install 'stratal[parallel]'" in capsys.readouterr().err


def ended(arguments: list[str], cache: Path) -> tuple[int, str]:
    done = subprocess.run(
        arguments, env={**environment(), "STRATAL_CACHE_DIR": str(cache)}, timeout=100, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return done.returncode, done.stdout.decode(errors="replace")


@needs_mpi
@launched
def test_what_is_measured_is_in_force_on_all_ranks_of_later_launches(tmp_path: Path) -> None:
    path, report = tmp_path / link_records.FILE_NAME, tmp_path / "report.json"
    doctor = [sys.executable, "-m", "stratal", "doctor", "--cluster", "-n", "2", "--json", str(report)]
    status, output = ended(doctor, tmp_path)
    assert status == 0, output
    assert "a round between 2 ranks on one host" in output and str(path) in output
    found = json.loads(report.read_text())
    (record,) = read_file(path)
    assert (record.ranks, record.hosts, record.link._asdict()) == (2, 1, found["link"])
    assert [r["nbytes"] for r in found["rounds"]] == [*SIZES, SIZES[0]]
    assert found["thresholds"][0]["from_bytes"] == 1
    by_size: dict[int, int] = {}
    for r in found["all_reduces"]:
        by_size[r["nbytes"]] = by_size.get(r["nbytes"], 0) + r["chosen"]
    assert set(by_size.values()) == {1}
    status, output = ended(command(2, "rank_links.py"), tmp_path)
    assert (status, output.split()) == (0, ["link", *map(str, record.link)]), output


@needs_mpi
@launched
def test_a_rank_that_dies_while_links_are_measured_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / link_records.FILE_NAME
    path.write_text("no records")
    status, output = ended(command(2, "rank_links.py", "--die"), tmp_path)
    assert status == 137, output
    assert output.count("the defaults are in force") == 1  # rank 0 reads for all
    assert f"link {' '.join(map(str, Link()))}" in output
    assert path.read_text() == "no records"
