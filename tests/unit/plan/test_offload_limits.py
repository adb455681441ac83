"""Offload where it is needed: in a third of a model's state, until a process is killed, for fifty steps."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_offload import Training

from stratal.base import settings

pytestmark = pytest.mark.slow
CGROUPS = Path("/sys/fs/cgroup/memory")  # version 1, where this process may write to it

TRAINING = textwrap.dedent("""
    import sys
    import numpy as np
    import stratal as st
    from stratal import nn, optim

    layers, steps, memory = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    small = memory != "off"
    place = st.offload if small else (lambda module: module)
    st.manual_seed(0)
    net = nn.Sequential(*[m for _ in range(layers) for m in (place(nn.Linear(2048, 2048)), nn.Tanh())])
    opt = optim.Adam(net.parameters(), lr=1e-4)

    def step(x):
        loss = (net(x) - x).square().mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
        return loss

    compiled = st.compile(step, memory=memory if small else None, audit=False)
    rng = np.random.default_rng(0)
    for _ in range(steps):
        x = st.tensor(rng.standard_normal((64, 2048)).astype(np.float32))
        print(compiled(x).item().hex(), flush=True)
""")


def command(*arguments: Any) -> list[str]:
    return [sys.executable, "-c", TRAINING, *map(str, arguments)]


@pytest.fixture()
def limited() -> Iterator[Path]:
    """Yield a control group of processes whose memory can be limited."""
    group = CGROUPS / f"stratal-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        pytest.skip("needs a memory control group that may be written")
    yield group
    group.rmdir()


@pytest.mark.row("E12")
def test_a_process_limited_to_a_third_of_the_state_trains_it(limited: Path, tmp_path: Path) -> None:
    layers = 16
    state_bytes = 3 * layers * (2048 + 1) * 2048 * 4
    environment = {**os.environ, "STRATAL_OFFLOAD_DIR": str(tmp_path)}
    wanted = subprocess.run(
        command(layers, 6, "off"), env=environment, capture_output=True, text=True, timeout=600, check=True
    )
    run = command(layers, 6, "150 MB")
    subprocess.run(run, env=environment, capture_output=True, timeout=600, check=True)  # compiles it
    (limited / "memory.limit_in_bytes").write_text(str(state_bytes // 3))

    def enter() -> None:
        (limited / "cgroup.procs").write_text(str(os.getpid()))

    found = subprocess.run(
        run, env=environment, capture_output=True, text=True, timeout=600, check=False, preexec_fn=enter
    )
    assert found.returncode == 0, found.stderr[-2000:]
    assert found.stdout == wanted.stdout
    assert int((limited / "memory.max_usage_in_bytes").read_text()) <= state_bytes // 3
    held = subprocess.run(
        command(layers, 6, "off"), env=environment, capture_output=True, timeout=600, check=False,
        preexec_fn=enter,
    )  # fmt: skip
    assert held.returncode == -signal.SIGKILL


def test_processes_that_are_killed_while_they_train_leave_no_file(tmp_path: Path) -> None:
    rng = random.Random(0)
    environment = {**os.environ, "STRATAL_OFFLOAD_DIR": str(tmp_path)}
    for _ in range(30):
        process = subprocess.Popen(command(4, 10_000, "90 MB"), env=environment, stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(rng.random() * 0.3)
        process.kill()
        process.wait(30)
        process.stdout.close()
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("model", ["deep", "tied"])
def test_fifty_steps_give_the_same_bits(model: str, tmp_path: Path) -> None:
    wanted = Training(model).run(50)
    assert Training(model, memory=Training(model).least()).run(50) == wanted
    with settings.offload_dir(tmp_path):
        assert Training(model, memory=Training(model).least()).run(50) == wanted
