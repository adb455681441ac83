"""`python -m benchmarks parallel`: rows say what met its gate, what failed, and why a part was not run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from benchmarks import parallel
from benchmarks.__main__ import main
from benchmarks.parallel_groups import end, start
from benchmarks.parallel_ranks import Departures
from launching import launched, needs_mpi

from stratal.distributed.links import traffic


def test_a_row_is_met_on_its_side_of_the_gate_alone() -> None:
    assert [parallel.row("w", ratio, 1.0)["met"] for ratio in (0.9, 1.0, 1.1)] == [True, True, False]
    assert [parallel.row("w", ratio, 1.0, True)["met"] for ratio in (0.9, 1.0, 1.1)] == [False, True, True]
    assert parallel.row("w", 2.0, None)["met"] is None
    said = parallel.text(parallel.row("w", 2.0, 1.0, ours_us=3.0))
    assert "at most 1" in said and "ours_us 3" in said and said.endswith("NOT MET")


def test_a_machine_without_the_tools_gets_rows_that_say_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    rows = parallel.slow(1, 10.0)
    assert [(r["ratio"], r["met"]) for r in rows] == [(None, None)] * 2
    assert "there is no unshare, ip, tc" in parallel.text(rows[0])


def test_what_cannot_be_hidden_is_what_a_busy_link_has_left_at_the_first_wait() -> None:
    early = Departures([(0.0, 10), (1.0, 20)], [5.0, 6.0])
    assert early.unhidden_s(10.0) == 0
    late = Departures([(0.0, 30), (1.0, 20), (4.9, 10)], [5.0])
    assert late.unhidden_s(10.0) == pytest.approx(1.0)  # three seconds, two, and one more
    alone = Departures([(0.0, 10), (4.9, 10)], [5.0])
    assert alone.unhidden_s(10.0) == pytest.approx(0.9)


def test_an_unknown_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["parallel", "--part", "allreduce,rings"])
    assert "unknown parts: rings" in capsys.readouterr().err


def test_ranks_that_fail_or_hang_are_ended_and_told() -> None:
    with pytest.raises(RuntimeError, match=r"ring on 2 ranks ended with 3"):
        parallel.on_ranks("ring", 2, 1, 20.0, command=[sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(TimeoutError, match=r"did not end within 0\.5 s"):
        parallel.on_ranks("ring", 2, 1, 0.5, command=[sys.executable, "-c", "import time; time.sleep(60)"])
    process = start([sys.executable, "-c", "import time; time.sleep(60)"], 1)
    end(process)
    assert process.poll() is not None


@needs_mpi
@launched
@pytest.mark.row("F5", "F6")
def test_a_ring_and_a_parameter_server_send_what_their_formulas_say() -> None:
    steps = 3
    (ring,) = parallel.on_ranks("ring", 2, steps, 100.0)
    (served,) = parallel.on_ranks("servers", 2, steps, 100.0)
    assert ring["sent_bytes"] == 2 * traffic("all_reduce", "ring", ring["nbytes"], 2).bytes * steps
    assert served["sent_bytes"] == 2 * served["nbytes"] * steps
