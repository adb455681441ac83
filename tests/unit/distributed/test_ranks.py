"""Ranks over MPI: collectives, counters, faults named in words, and nothing left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launching import alive, command, environment, launch, launched, needs_mpi

from stratal import distributed as dist
from stratal.cli import main


@needs_mpi
@launched
@pytest.mark.row("F4", "F6", "F12")
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow), 4])
def test_collectives_equal_their_definitions_and_counters_the_formulas(ranks: int) -> None:
    status, output = launch(ranks, "rank_collectives.py")
    assert status == 0, output
    assert output.count("passed") == 8, output


FAULTS = {
    "raises": (1, "ValueError: broken rank"),
    "exits": (5, ""),
    "is killed": (137, ""),
    "is stopped": (1, r"rank 0 waited 3 s in all_reduce .* for rank 1\n.*barrier \(number 1\) from "
                   r"rank_faults.py:\d+ .* is stopped by a signal\n *where: rank_faults.py:\d+"),
    "makes another collective": (1, r"ranks \d and \d make different collectives\n.*rank 1: broadcast from "
                                 r"rank 0 of float64\[\] from rank_faults.py:\d+"),
    "has another shape": (1, r"make different collectives\n.*rank 1: all_reduce .* float64\[2\] from rank"),
    "ends early": (1, r"rank 1 has ended, rank 0 waits for it"),
    "interrupts itself": (1, r"KeyboardInterrupt\n.*later: barrier: an earlier collective of this rank fail"),
    "is stopped in MPI's call": (1, r"rank 0 waited 3 s in all_reduce sum by mpi .*number 3.*\n *got: *rank 1"
                                r" is in .* by mpi .*stopped by a signal\n *where: rank_faults.py:\d+"),
    "has another program": (1, r"ranks have different programs\n *got: *\w+ on rank 0; \w+ on rank 1"),
}  # fmt: skip

QUICK = ("raises", "is killed", "is stopped", "has another shape", "has another program")


def slow(value: object) -> Any:
    return pytest.param(value, marks=pytest.mark.slow)


@needs_mpi
@launched
@pytest.mark.row("N13")
@pytest.mark.parametrize("fault", [*QUICK, *(slow(f) for f in FAULTS if f not in QUICK)])
def test_a_rank_that_fails_is_named_within_the_time_out_and_the_status_is_honest(fault: str) -> None:
    status, said = FAULTS[fault]
    found, output = launch(2, "rank_faults.py", fault, timeout=3.0 if "is stopped" in fault else 60.0)
    assert found == status, output
    assert re.search(said, output), output


@needs_mpi
@launched
@pytest.mark.parametrize("number", [signal.SIGKILL, slow(signal.SIGTERM), slow(signal.SIGINT)])
def test_no_rank_outlives_a_launcher_that_is_ended(number: int) -> None:
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    launcher = subprocess.Popen(
        command(2, "rank_faults.py", "sleeps"), env=environment(), stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert launcher.stdout is not None
    try:
        pids = [int(launcher.stdout.readline().split()[1]) for _ in range(2)]
        assert all(map(alive, pids))
        launcher.send_signal(number)
        status = launcher.wait(20)
    finally:
        launcher.kill()
        launcher.wait(20)
    deadline = time.monotonic() + 10
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, pids))
    assert status == (-number if number == signal.SIGKILL else 128 + number)
    if before:
        left = set(os.listdir("/dev/shm")) - before
        assert not [name for name in left if name.startswith(("stratal-", "sm_segment"))]


# -- without MPI ---------------------------------------------------------------------------------------------
def test_one_rank_needs_no_mpi_and_every_collective_is_the_identity_there() -> None:
    program = (
        "import sys; sys.modules['mpi4py'] = None\n"
        "import numpy as np, stratal as st; d = st.distributed; x = np.arange(6.0)\n"
        "assert (d.rank(), d.world_size()) == (0, 1)\n"
        "for y in (d.all_reduce(x), d.all_reduce(x, 'mean'), d.broadcast(x), d.all_gather(x),\n"
        "          d.all_to_all(x), d.reduce_scatter(x), d.permute(x, [(0, 0)])):\n"
        "    np.testing.assert_array_equal(x, y)\n"
        "d.barrier(); d.check_same('a', 'plans'); print(float(d.all_reduce(st.tensor(2.0))))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.stdout == "2.0\n", done.stderr


def test_more_ranks_without_mpi_name_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    program = "import sys; sys.modules['mpi4py'] = None\nimport stratal as st; st.distributed.rank()"
    done = subprocess.run(
        [sys.executable, "-c", program], env={**environment(), "OMPI_COMM_WORLD_SIZE": "2"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "2 ranks were started, and MPI for Python is missing" in done.stderr
    assert "pip install 'stratal[parallel]'" in done.stderr
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    script = tmp_path / "script.py"
    script.write_text("print('ran')")
    assert main(["launch", "-n", "2", str(script)]) == 1
    assert "pip install 'stratal[parallel]'" in capsys.readouterr().err
    assert main(["launch", str(script)]) == 0
    assert "ran" in capsys.readouterr().out


def test_a_bad_launch_is_refused_in_words(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["launch", "-n", "2", str(tmp_path / "none.py")]) == 1
    assert "there is no such script" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["launch", "-n", "0", "script.py"])
    assert "from 1 on" in capsys.readouterr().err


def test_this_process_is_a_job_of_one_rank() -> None:
    assert dist.world_size() == 1
    np.testing.assert_array_equal(dist.all_reduce(np.ones(3)), np.ones(3))
