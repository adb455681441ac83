"""Elastic jobs: a rank that is killed is left out, or all start again from a snapshot; losses stay the same.

`pytest -n 0 -s -m slow tests/unit/distributed/test_elastic.py -k random_moments` kills a hundred ranks at
random moments (ten minutes on two idle cores); `ELASTIC_KILLS=10` fewer of them, `ELASTIC_SEED=3` others, and
`ELASTIC_LIMIT=600` gives each of their jobs that many seconds, for machines that are busy.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from launching import HERE, alive, environment, launched, needs_mpi
from waiting import exit_code

import stratal as st
from stratal import distributed as dist
from stratal import nn, optim
from stratal.base.errors import AttributeValueError, DTypeError, FormatError, StratalError
from stratal.cli import main
from stratal.distributed import elastic
from stratal.distributed.errors import RankLostError
from stratal.distributed.ledger import LINE, Ledger, shared_lines
from stratal.distributed.supervised import State, Supervised, Supervisor, Verdict, children, verdict

LAUNCH = [sys.executable, "-m", "stratal", "launch"]
SCRIPT = str(HERE / "rank_elastic.py")
LIMIT_S = float(os.environ.get("ELASTIC_LIMIT", "100"))  # of a job


def run(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [*LAUNCH, *arguments], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        timeout=LIMIT_S, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout.decode(errors="replace")


def digest(output: str) -> str:
    found = re.search(r"digest (\w+ of \d+ steps)", output)
    assert found is not None, output
    return found[1]


@pytest.fixture(scope="module")
def undisturbed() -> str:
    """The losses and parameters of one process that nothing happens to."""
    status, output = run(SCRIPT)
    assert status == 0, output
    return digest(output)


# -- jobs ----------------------------------------------------------------------------------------------------
@needs_mpi
@launched
@pytest.mark.row("F21")
def test_ranks_killed_between_and_inside_steps_are_left_out_and_losses_keep_their_bits(
    undisturbed: str,
) -> None:
    faults = ["--fault", "kill:2:2:before", "--fault", "kill:0:5:inside"]
    status, output = run("-n", "4", "--elastic", SCRIPT, *faults)
    assert status == 0, output
    assert "on 2 ranks" in output and "again" not in output, output
    assert digest(output) == undisturbed
    assert "rank 2 of 4 was lost; 3 go on" in output and "rank 0 of 3 was lost; 2 go on" in output, output


@needs_mpi
@launched
@pytest.mark.row("F21")
def test_where_too_few_ranks_are_left_all_start_again_from_the_last_snapshot(
    undisturbed: str, tmp_path: Path
) -> None:
    arguments = ["--snapshot", str(tmp_path / "run.stratal"), "--fault", "kill:1:5:before"]
    status, output = run("-n", "2", "--elastic", "--min-ranks", "2", SCRIPT, *arguments)
    assert status == 0, output
    assert "rank 1 died, 1 are left; all 2 ranks start again (restart 1 of 10)" in output, output
    assert digest(output) == undisturbed


@needs_mpi
@launched
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_rank_outlives_an_elastic_launcher_that_is_killed_or_asked_to_end(number: int) -> None:
    """Nor does mpirun, which with a dead rank may stay for ever."""
    before = segments()
    training = [SCRIPT, "--steps", "900", "--pause", "0.1", "--fault", "kill:2:1:before"]
    launcher = subprocess.Popen(
        [*LAUNCH, "-n", "3", "--elastic", *training], env=environment(), stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    assert launcher.stderr is not None
    started: list[int] = []
    try:
        while b"was lost" not in (line := launcher.stderr.readline()):
            assert line, "the job ended by itself"
        started = [*children(launcher.pid), *ranks_of(launcher.pid)]
        assert len(started) == 3, "mpirun and the ranks that are left"
        launcher.send_signal(number)
        status = launcher.wait(20)
        began = time.monotonic()
        while any(map(alive, started)) and time.monotonic() < began + 20:
            time.sleep(0.05)
        left = [pid for pid in started if alive(pid)]
        print(f"gone {time.monotonic() - began:.1f} s after the launcher")
    finally:
        launcher.kill()
        launcher.wait(20)
        launcher.stderr.close()
        for pid in filter(alive, started):
            os.kill(pid, signal.SIGKILL)
    assert not left
    assert status == (-number if number == signal.SIGKILL else 128 + number)
    assert not left_since(before)


FAULTS = {
    "raise:1:3:inside": (1, "ValueError: broken rank"),
    "stop:1:3:before": (1, r"rank 0 waited 5 s in .*\n.*rank 1 .* is stopped by a signal"),
    "shape:1:3:before": (1, "make different collectives"),
    "kill:1:8:behind": (0, "digest"),
}


@needs_mpi
@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_is_no_death_is_named_in_words_and_ends_the_job(fault: str) -> None:
    before = segments()
    status, output = run("-n", "2", "--elastic", "--timeout", "5", SCRIPT, "--fault", fault)
    assert status == FAULTS[fault][0], output
    assert re.search(FAULTS[fault][1], output), output
    assert "again" not in output
    assert not left_since(before)


@needs_mpi
@pytest.mark.slow
@pytest.mark.row("F21")
@pytest.mark.timeout(7200)
def test_ranks_killed_at_random_moments_change_no_loss_and_leave_nothing_behind(tmp_path: Path) -> None:
    """Each of the kills hits a job of its own: a quarter while it starts, the others around a step."""
    chance = random.Random(int(os.environ.get("ELASTIC_SEED", "0")))
    steps = ["--steps", "12", "--pause", "0.1"]
    status, output = run(SCRIPT, *steps)
    want = digest(output)
    assert status == 0, output
    told: Counter[str] = Counter()
    seconds: dict[str, list[float]] = {}
    for number in range(int(os.environ.get("ELASTIC_KILLS", "100"))):
        path = str(tmp_path / f"{number}.stratal")
        command = [*LAUNCH, "-n", "3", "--elastic", SCRIPT, *steps, "--snapshot", path]
        before = segments()
        with tempfile.TemporaryFile() as said:
            launcher = subprocess.Popen(command, env=environment(), stdout=said, stderr=subprocess.STDOUT)
            try:
                await_moment(chance, launcher, said.fileno())
                ranks = sorted(ranks_of(launcher.pid))
                killed = time.monotonic()
                if ranks:
                    os.kill(chance.choice(ranks), signal.SIGKILL)
                with suppress(subprocess.TimeoutExpired):
                    launcher.wait(LIMIT_S)
                status = launcher.poll()
            finally:
                launcher.kill()
                launcher.wait(20)
            said.seek(0)
            output = said.read().decode(errors="replace")
        assert status == 0, (number, output)
        assert digest(output) == want, (number, output)
        assert not left_since(before), output
        assert not any(map(alive, ranks)), "a rank outlives its launcher"
        happened = what_happened(output, bool(ranks))
        told[happened] += 1
        after = seconds_to_next_step(output, killed, ranks) if ranks else None
        if after is not None:
            seconds.setdefault(happened, []).append(after)
        print(number, happened, after if after is None else f"{after:.2f} s", flush=True)
    print(dict(told))
    for happened, found in seconds.items():
        print(f"{happened}: next step after {np.median(found):.2f} s (median), {max(found):.2f} s at most")
    assert told["left out"]


def await_moment(chance: random.Random, launcher: subprocess.Popen[bytes], said: int) -> None:
    """Wait for a random moment of a job that prints its steps to a file."""
    step = chance.randrange(-4, 12)
    if step < 0:
        return time.sleep(chance.uniform(0, 3))
    while b"did step %d " % max(1, step) not in os.pread(said, 1 << 20, 0) and launcher.poll() is None:
        time.sleep(0.002)
    return time.sleep(chance.uniform(0, 0.15) if step else 0.0)


def seconds_to_next_step(output: str, killed: float, ranks: list[int]) -> float | None:
    """Return how long after the kill the first step without that rank was done, or that of new ranks."""
    for pid, size, at in re.findall(r"process (\d+) of (\d+) did step \d+ at ([\d.]+)", output):
        if int(size) < 3 or int(pid) not in ranks:
            return float(at) - killed
    return None


def what_happened(output: str, hit: bool) -> str:
    if "start again" in output:
        return "started again"
    return "left out" if "was lost" in output else "no step needed it" if hit else "no rank was there"


def ranks_of(launcher: int) -> list[int]:
    """Return the processes of the ranks that a launcher has started."""
    return [p for mpirun in children(launcher) for p in children(mpirun)]


def segments() -> set[str]:
    names = [*os.listdir("/dev/shm"), *os.listdir(tempfile.gettempdir())]
    return {name for name in names if re.match(r"stratal-ledger|sm_segment|ompi\.\d", name)}


def left_since(before: set[str]) -> set[str]:
    """Return the files that jobs have left behind; those of others, beside them, have owners or vanish."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        owners = {name: re.match(r"(?:stratal-ledger-|ompi\.)(\d+)", name) for name in segments() - before}
        if not (left := {n for n, owner in owners.items() if owner is None or not alive(int(owner[1]))}):
            break
        time.sleep(0.2)
    return left


# -- parts ---------------------------------------------------------------------------------------------------
def test_what_becomes_of_a_job_follows_from_what_is_known_of_its_ranks() -> None:
    names = {"s": "started", "j": "joined", "d": "done", "f": "failed", "l": "lost", "x": "dead"}
    cases = {
        ("", 1): "wait", ("sj", 1): "wait", ("jjj", 1): "wait", ("jjx", 1): "wait", ("djx", 1): "wait",
        ("dd", 1): "wait", ("ddd", 1): "complete", ("ddx", 1): "complete",
        ("xxx", 1): "again", ("jx", 1): "again", ("sjx", 1): "again", ("jjx", 3): "again",
        ("lxj", 1): "again", ("ljj", 1): "again", ("fxj", 1): "again",
        ("fjj", 1): "failed", ("fdd", 1): "failed",
    }  # fmt: skip
    for (states, least), want in cases.items():
        known = {r: State(names[letter], 5 * (letter in "fl")) for r, letter in enumerate(states)}
        found = verdict(known, 3, least)
        assert found.name == want, (states, least, found)
    assert verdict({0: State("failed", 5), 1: State("joined")}, 2, 1) == Verdict("failed", 5)
    assert "rank 1 died, 1 are left" in verdict({0: State("joined"), 1: State("dead")}, 2, 2).why


def test_the_launcher_knows_what_ranks_say_and_when_they_die() -> None:
    with Supervisor(3, 1) as supervisor:
        pids = []
        for rank in range(3):
            pids.append(os.fork())
            if not pids[-1]:
                with suppress(BaseException):
                    report = Supervised(supervisor.address, rank)
                    report.say("joined")
                    if rank == 1:
                        report.say("done")
                    if rank == 2:
                        report.fail(5, lost=True)
                    if rank == 0:  # waits for the others to open the file of lines
                        shared_lines(3, True, lambda path: path, signal.pause)
                os._exit(0)
        try:
            await_states(supervisor, {0: State("joined"), 1: State("done"), 2: State("lost", 5)})
            os.kill(pids[0], signal.SIGKILL)
            await_states(supervisor, {0: State("dead"), 1: State("done"), 2: State("lost", 5)})
            assert not [name for name in segments() if name.startswith(f"stratal-ledger-{pids[0]}-")]
        finally:
            supervisor.kill()
            codes = [exit_code(pid) for pid in pids]
        assert codes[0] == codes[2] == -signal.SIGKILL  # the one that failed waits for that
    with pytest.raises(StratalError, match="no launcher of an elastic job"):
        Supervised(supervisor.address, 0)


def await_states(supervisor: Supervisor, want: dict[int, State]) -> None:
    end = time.monotonic() + 20
    while supervisor.states != want and time.monotonic() < end:
        supervisor.look(0.1)
    assert supervisor.states == want


def test_the_ledger_of_ranks_that_are_left_counts_from_0_and_numbers_them_anew() -> None:
    lines = np.zeros(3, LINE)
    ledgers = [Ledger(lines, r) for r in range(3)]
    for ledger in ledgers:
        ledger.start(7, "barrier", "train.py:3")
    left = ledgers[2].of([0, 2])
    assert left.rank == 1 and len(left.lines) == 2
    assert lines["started"].tolist() == [7, 7, 0] and left.lines[0]["started"] == 7
    left.start(1, "all_reduce", "train.py:5")
    assert lines["started"].tolist() == [7, 7, 1] and "rank 1 is in all_reduce" in left.describe(1)


def test_outside_of_an_elastic_job_a_step_is_attempted_once() -> None:
    calls = []

    def lost() -> None:
        calls.append(1)
        raise RankLostError("rank 1 was killed")

    assert elastic.surviving(lambda: 3) == 3
    with pytest.raises(RankLostError):
        elastic.surviving(lost)
    assert len(calls) == 1


# -- snapshots -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["a.stratal", "a"])
def test_a_snapshot_holds_all_it_is_given_and_the_random_generator(tmp_path: Path, name: str) -> None:
    def made() -> tuple[nn.Module, optim.Optimizer, dist.Snapshot]:
        net = nn.Linear(3, 2)
        optimizer = optim.Adam(net.parameters(), lr=0.1)
        return net, optimizer, dist.Snapshot(tmp_path / name, net=net, optimizer=optimizer)

    def step(net: nn.Module, optimizer: optim.Optimizer) -> None:
        optimizer.zero_grad()
        (net(st.randn(4, 3)) ** 2).sum().backward()
        optimizer.step()

    st.manual_seed(1)
    net, optimizer, snapshot = made()
    assert not snapshot.load()
    assert [snapshot.save(every=2) for _ in range(4)] == [False, True, False, True]
    step(net, optimizer)
    st.manual_seed(2)
    other, its, again = made()
    assert again.load() and again.steps == 4
    step(other, its)
    np.testing.assert_array_equal(other.weight.detach().numpy(), net.weight.detach().numpy())
    with pytest.raises(FormatError, match="holds other things"):
        dist.Snapshot(tmp_path / name, net=net).load()
    with pytest.raises(AttributeValueError, match="shards are files of a folder"):
        dist.Snapshot(tmp_path / "a.stratal", shard_bytes=100, net=net)
    with pytest.raises(AttributeValueError, match="a name of its own"):
        dist.Snapshot(tmp_path / "a.stratal", steps=net)
    with pytest.raises(DTypeError, match="takes what has state_dict"):
        dist.Snapshot(tmp_path / "a.stratal", net=3)  # type: ignore[arg-type]
    with pytest.raises(AttributeValueError, match="at least 1"):
        snapshot.save(every=0)


def test_what_an_elastic_job_cannot_be_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(AttributeValueError, match="known by virtual shards"):
        dist.data(elastic=True)
    script = tmp_path / "script.py"
    script.write_text("")
    assert main(["launch", "-n", "2", "--elastic", "--hosts", "a:2", str(script)]) == 1
    assert "runs on one host" in capsys.readouterr().err
